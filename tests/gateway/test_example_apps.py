"""Example apps of MCP Apps in a browser: two of them have the same page and the same tool."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from multitap import Settings
from multitap.config import StdioServer
from tests.clients.shelf import node
from tests.conformance.kit import NotFetched, fill_once, locked, npm_install
from tests.gateway import plain_client
from tests.gateway.talking import gate
from tests.screens.chromium import PROGRAM, open_chromium

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.timeout(300),
    pytest.mark.skipif(PROGRAM is None, reason="there is no chromium"),
]

SAME = {"vanilla": "server-basic-vanillajs", "react": "server-basic-react"}
"""Both have `get-time`, and the page `ui://get-time/mcp-app.html`."""
PACKAGES = tuple(f"@modelcontextprotocol/{package}@2.0.3" for package in SAME.values())
SHOWS = {"extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}}
LISTEN = """
window.messages = [];
addEventListener("message", (event) => messages.push(event.data));
"""
FRAME = """{
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts allow-same-origin";
  frame.srcdoc = %s;
  document.body.replaceChildren(frame);
}"""
APP = "document.querySelector('iframe').contentDocument"


@pytest.fixture
def anyio_backend():
    return "asyncio"  # the browser's driver runs on nothing else


@pytest.fixture(scope="module")
def home(pytestconfig):
    home = pytestconfig.cache.mkdir("apps")
    try:
        with locked(home / "lock"):
            fill_once(home / "packages", lambda target: npm_install(target, *PACKAGES))
    except NotFetched as exc:
        pytest.skip(f"they cannot be fetched: {exc}")
    return home / "packages" / "node_modules" / "@modelcontextprotocol"


class Host:
    """Shows a page in a frame, and passes on what it asks as hosts do: by bare names."""

    def __init__(self, page, client):
        self._page = page
        self._client = client
        self.asked = []

    async def show(self, html, result):
        """Show a page with the result of its tool."""
        self._result = result
        await self._page.run(FRAME % json.dumps(html))

    async def serve(self):
        while True:
            for message in await self._page.run("messages.splice(0)"):
                await self._take(message)
            await asyncio.sleep(0.02)

    async def _take(self, message):
        method, params = message.get("method"), message.get("params", {})
        self.asked.append(method)
        match method:
            case "ui/initialize":
                about = {"name": "host", "version": "1"}
                able = {"serverTools": {}, "serverResources": {}, "logging": {}, "openLinks": {}}
                said = {"protocolVersion": params["protocolVersion"], "hostInfo": about}
                await self._answer(message, {**said, "hostCapabilities": able, "hostContext": {}})
            case "ui/notifications/initialized":
                await self._tell("ui/notifications/tool-input", {"arguments": {}})
                await self._tell("ui/notifications/tool-result", self._result)
            case "tools/call" | "resources/read":
                await self._answer(message, await self._client.result(method, **params))
            case _ if "id" in message and method is not None:
                await self._answer(message, {})

    async def _answer(self, message, result):
        await self._post({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async def _tell(self, method, params):
        await self._post({"jsonrpc": "2.0", "method": method, "params": params})

    async def _post(self, message):
        frame = "document.querySelector('iframe').contentWindow"
        await self._page.run(f"{frame}.postMessage({json.dumps(message)}, '*')")


@asynccontextmanager
async def serving(host):
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(host.serve())
        yield
        task.cancel()


@pytest.mark.parametrize("era", ["old", "new"])
async def test_pages_and_tools_of_equal_names_belong_to_their_own_servers(home, tmp_path, era):
    servers = {}
    for name, package in SAME.items():
        command, program = node(home / package / "dist" / "index.js")
        servers[name] = StdioServer(command=command, args=(program, "--stdio"))
    settings = Settings(state_dir=tmp_path, servers=servers)
    async with (
        gate(settings) as gateway,
        plain_client.on_http(era, gateway.url, SHOWS) as client,
        open_chromium() as browser,
        browser.page() as page,
    ):
        await client.begin()
        listed = {tool["name"]: tool for tool in (await client.result("tools/list"))["tools"]}
        await page.run(LISTEN)
        host = Host(page, client)
        pages, called = {}, []
        async with serving(host):
            for name in (*SAME, *SAME):
                tool = listed[f"{name}_get-time"]
                result = await client.result("tools/call", name=tool["name"], arguments={})
                uri = tool["_meta"]["ui"]["resourceUri"]
                html = (await client.result("resources/read", uri=uri))["contents"][0]["text"]
                pages[uri] = html
                before = len(host.asked)
                await host.show(html, result)
                await page.until(f"{APP}.body?.innerText.includes('Get Server Time')")
                while "ui/notifications/initialized" not in host.asked[before:]:
                    await asyncio.sleep(0.02)
                await page.click("Get Server Time", APP)
                async with asyncio.timeout(20):
                    while "tools/call" not in host.asked[before:]:
                        await asyncio.sleep(0.02)
                await page.until(f"/\\d{{4}}-\\d\\d-\\d\\dT/.test({APP}.body.innerText)")
                called.append(gateway.hub.calls.latest()[-1].server)

    assert len(pages) == 2
    assert len({*pages.values()}) == 2
    assert called == [*SAME, *SAME]
