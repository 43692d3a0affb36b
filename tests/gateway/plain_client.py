"""A client without the SDK, of one era, over pipes or HTTP; it keeps all that it hears."""

import asyncio
import json
import subprocess
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count

import aiohttp
import anyio

from tests.waiting import PATIENCE

META = "io.modelcontextprotocol/"
OLD, NEW = "2025-11-25", "2026-07-28"


class PlainClient:
    def __init__(self, era, able, send):
        self.era = era
        self.able = able
        self.heard = []
        self._send = send
        self._numbers = count(1)
        self._waiting = {}
        self._stirred = anyio.Event()

    async def begin(self):
        """What the server says about itself."""
        if self.era == "new":
            return await self.result("server/discover")
        info = {"name": "plain", "version": "1"}
        params = {"protocolVersion": OLD, "capabilities": self.able, "clientInfo": info}
        said = await self.result("initialize", **params)
        await self.notify("notifications/initialized")
        return said

    async def request(self, method, **params):
        """The answer: a message with a result or an error."""
        message = {"jsonrpc": "2.0", "id": next(self._numbers), "method": method}
        answer = self._waiting[message["id"]] = asyncio.get_running_loop().create_future()
        with anyio.fail_after(PATIENCE):
            await self._send({**message, "params": self._stamped(params)})
            return await answer

    async def result(self, method, **params):
        answer = await self.request(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    async def text(self, tool, **arguments):
        result = await self.result("tools/call", name=tool, arguments=arguments)
        return result["content"][0]["text"]

    async def notify(self, method, **params):
        # with what it can do, as in requests: a gateway knows a client without a session by that
        if params := self._stamped(params):
            await self._send({"jsonrpc": "2.0", "method": method, "params": params})
        else:
            await self._send({"jsonrpc": "2.0", "method": method})

    def listen(self, tasks, **notifications):
        """Listen to changes, in the way of its era."""
        if self.era == "new":
            tasks.start_soon(self._listen, notifications)

    async def _listen(self, notifications):
        # left when its client is
        with suppress(Exception):
            message = {"jsonrpc": "2.0", "id": "listen", "method": "subscriptions/listen"}
            await self._send({**message, "params": self._stamped({"notifications": notifications})})

    async def hears(self, method):
        """The first notification of its kind."""
        with anyio.fail_after(PATIENCE):
            while not (found := self.of(method)):
                await self.stirs()
        return found[0]

    async def stirs(self):
        """Wait for the next notification."""
        self._stirred = anyio.Event()
        await self._stirred.wait()

    def of(self, method):
        return [one for one in self.heard if one["method"] == method]

    async def take(self, message):
        if "method" not in message:
            if (waiting := self._waiting.pop(message["id"], None)) is not None:
                waiting.set_result(message)
        elif "id" in message:
            answer = {"jsonrpc": "2.0", "id": message["id"]}
            if message["method"] == "acme/ask":
                await self._send({**answer, "result": {"asked": message["params"]}})
            else:
                await self._send({**answer, "error": {"code": -32601, "message": "no"}})
        else:
            self.heard.append(message)
            self._stirred.set()

    def _stamped(self, params):
        if self.era == "old":
            return params
        stamp = {f"{META}protocolVersion": NEW, f"{META}clientCapabilities": self.able}
        return {**params, "_meta": {**stamp, **params.get("_meta", {})}}


@asynccontextmanager
async def on_pipes(era, command, able=None):
    """A client of a program."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**24
    )

    async def send(message):
        process.stdin.write(json.dumps(message).encode() + b"\n")
        await process.stdin.drain()

    client = PlainClient(era, able or {}, send)

    async def read():
        while line := await process.stdout.readline():
            await client.take(json.loads(line))

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            yield client
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            process.stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 5)
            if process.returncode is None:
                process.kill()
                await process.wait()
            process._transport.close()


@asynccontextmanager
async def on_http(era, url, able=None):
    """A client of an address."""
    async with AsyncExitStack() as stack:
        web = await stack.enter_async_context(aiohttp.ClientSession())
        tasks = await stack.enter_async_context(anyio.create_task_group())
        headers = {"accept": "application/json, text/event-stream"}

        async def read(response):
            if response.content_type != "text/event-stream":
                if body := await response.text():
                    await client.take(json.loads(body))
                return
            async for line in response.content:
                if line.startswith(b"data: {"):
                    await client.take(json.loads(line[6:]))

        async def send(message):
            own = dict(headers)
            if era == "new" and "method" in message:
                own |= {"mcp-protocol-version": NEW, "mcp-method": message["method"]}
                params = message.get("params", {})
                named = [params[key] for key in ("name", "uri", "taskId") if key in params]
                own |= {"mcp-name": named[0]} if named else {}
            posting = anyio.Event()
            tasks.start_soon(post, message, own, posting)
            await posting.wait()

        async def post(message, own, posting):
            async with web.post(url, json=message, headers=own) as response:
                if era == "old" and "mcp-session-id" not in headers:
                    headers["mcp-session-id"] = response.headers["mcp-session-id"]
                    headers["mcp-protocol-version"] = OLD
                posting.set()
                await read(response)

        async def follow():
            async with web.get(url, headers=headers) as response:
                await read(response)

        client = PlainClient(era, able or {}, send)
        client.follow = lambda: tasks.start_soon(follow)
        yield client
        tasks.cancel_scope.cancel()
