"""A real browser without a window, driven over the DevTools protocol."""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from tests.waiting import PATIENCE

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--disable-features=Translate,MediaRouter,OptimizationHints",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)
_KEYS = {
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "Tab": ("Tab", 9, ""),
    "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "Backspace": ("Backspace", 8, ""),
    " ": ("Space", 32, " "),
}


class BrowserError(Exception):
    """What the browser says is wrong."""


class Browser:
    """One running browser."""

    def __init__(self, socket):
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting = {}
        self.pages = {}

    async def listen(self):
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                if (waiting := self._waiting.pop(told["id"], None)) and not waiting.done():
                    waiting.set_result(told)
            elif page := self.pages.get(told.get("sessionId")):
                page.hear(told["method"], told["params"])
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(BrowserError("the browser has gone"))

    async def say(self, method, session=None, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self._waiting[number] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[number]
        await self._socket.send_json(message)
        async with asyncio.timeout(PATIENCE):
            told = await waiting
        if "error" in told:
            raise BrowserError(f"{method}: {told['error']['message']}")
        return told["result"]

    @asynccontextmanager
    async def page(self, *, scripts=True, dark=False, size=(1280, 800)):
        """A tab with cookies of its own."""
        context = (await self.say("Target.createBrowserContext"))["browserContextId"]
        target = await self.say("Target.createTarget", url="about:blank", browserContextId=context)
        attached = await self.say(
            "Target.attachToTarget", targetId=target["targetId"], flatten=True
        )
        page = Page(self, attached["sessionId"])
        self.pages[page.session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.say(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await page.say("Emulation.setEmulatedMedia", features=[scheme])
        await page.resize(*size)
        if not scripts:
            await page.say("Emulation.setScriptExecutionDisabled", value=True)
        try:
            yield page
        finally:
            del self.pages[page.session]
            with contextlib.suppress(BrowserError):
                await self.say("Target.disposeBrowserContext", browserContextId=context)


class Page:
    """One tab."""

    def __init__(self, browser, session):
        self._browser = browser
        self.session = session
        self.complaints = []
        """Errors that the console of the browser shows, violations of the policy among them."""
        self.responses = {}
        """The headers of each response, by address."""

    def hear(self, method, params):
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details["text"]
            self.complaints.append(text)
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            entry = params["entry"]
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "assert"}:
            self.complaints.append(str([one.get("value") for one in params["args"]]))
        elif method == "Network.responseReceived":
            response = params["response"]
            self.responses[response["url"]] = response

    async def say(self, method, **params):
        return await self._browser.say(method, self.session, **params)

    async def resize(self, width, height):
        await self.say(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    async def visit(self, url):
        told = await self.say("Page.navigate", url=url)
        if "errorText" in told:
            raise BrowserError(told["errorText"])

    async def run(self, expression):
        """The value of an expression, awaited."""
        told = await self.say(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in told:
            raise BrowserError(told["exceptionDetails"]["exception"].get("description", "?"))
        return told["result"].get("value")

    async def until(self, expression):
        """Wait until an expression holds; its value."""
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    # a page that is being left has no answers
                    with contextlib.suppress(BrowserError):
                        if found := await self.run(expression):
                            return found
                    await asyncio.sleep(0.02)
        except TimeoutError:
            shown = await self.run("document.body.innerText")
            raise AssertionError(f"never: {expression}\n{shown[:3000]}") from None

    async def sees(self, words):
        """Wait until words are on the page."""
        return await self.until(f"document.body.innerText.includes({json.dumps(words)})")

    async def press(self, *keys):
        """Press keys, one after the other."""
        for key in keys:
            code, number, text = _KEYS.get(key, (f"Key{key.upper()}", ord(key[0].upper()), key))
            common = {"key": key, "code": code, "windowsVirtualKeyCode": number}
            down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
            await self.say("Input.dispatchKeyEvent", **down, **common)
            await self.say("Input.dispatchKeyEvent", type="keyUp", **common)

    async def type(self, text):
        await self.say("Input.insertText", text=text)

    async def click(self, words, inside="document"):
        """Click on the button or link with these words."""
        found = (
            f"[...{inside}.querySelectorAll('button, a, summary')]"
            f".find((one) => one.innerText.trim() === {json.dumps(words)})"
        )
        await self.until(f"!!{found}")
        await self.run(f"{found}.click()")

    async def picture(self, path=None):
        shot = await self.say("Page.captureScreenshot", format="png")
        data = base64.b64decode(shot["data"])
        if path is not None:
            Path(path).write_bytes(data)
        return data


@asynccontextmanager
async def open_chromium():
    """Within the block, a browser runs."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *_FLAGS,
            f"--user-data-dir={place}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            port = await _port(Path(place) / "DevToolsActivePort")
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(
                    f"ws://127.0.0.1:{port[0]}{port[1]}", max_msg_size=0, heartbeat=None
                ) as socket,
                asyncio.TaskGroup() as tasks,
            ):
                browser = Browser(socket)
                listening = tasks.create_task(browser.listen())
                try:
                    yield browser
                finally:
                    with contextlib.suppress(BrowserError, TimeoutError, ConnectionError):
                        await browser.say("Browser.close")
                    listening.cancel()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _port(file):
    async with asyncio.timeout(PATIENCE):
        while not (file.exists() and len(lines := file.read_text().split()) == 2):
            await asyncio.sleep(0.02)
    return lines
