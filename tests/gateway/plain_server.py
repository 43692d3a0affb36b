"""A server without the SDK, of one era: `plain_server.py ERA` over pipes, with a port over HTTP.

It says and does what MCP leaves to extensions, so that a direct connection can be compared with
one through the gateway.
"""

import asyncio
import json
import sys
from contextlib import suppress
from itertools import count

OLD, NEW = "2025-11-25", "2026-07-28"
META = "io.modelcontextprotocol/"
UI = f"{META}ui"
EXTENSIONS = {"com.example/acme": {"level": 2}, UI: {}}
EXPERIMENTAL = {"com.example/trial": {"on": True}}
WATCHED = "plain://watched"
KEPT = {"example.com/kept": [1, None]}


def tool(name, **more):
    return {"name": name, "description": name, "inputSchema": {"type": "object"}, **more}


class Connection:
    """Where one client listens: `send` for what belongs to no request."""

    def __init__(self, send):
        self.send = send
        self.capabilities = {}
        self.answers = {}


class Plain:
    def __init__(self, era):
        self.era = era
        self.heard = []
        self.connections = set()
        self.listeners = {}
        self.numbers = count(1)
        self.level = "info"

    def introduction(self):
        capabilities = {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "prompts": {},
            "completions": {},
            "logging": {},
            "extensions": EXTENSIONS,
            "experimental": EXPERIMENTAL,
            "events": {"listChanged": True},
        }
        info = {"name": "plain", "version": "1"}
        if self.era == "old":
            return {"protocolVersion": OLD, "capabilities": capabilities, "serverInfo": info}
        return {
            "supportedVersions": [NEW],
            "capabilities": capabilities,
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {f"{META}serverInfo": info},
        }

    def tools(self, able):
        names = ["seen", "touch", "flicker", "ask", "say", "log"]
        tools = [tool(name, title=name.title(), icons=[{"src": "data:,"}]) for name in names]
        # some servers have other tools for clients that show pages
        tools.append(tool("with_page" if UI in able.get("extensions", {}) else "without_page"))
        return tools

    async def answer(self, message, connection, send):
        """Answer one request; `send` leads to the client of this request."""
        method, params = message["method"], message.get("params", {})
        meta = params.get("_meta", {})
        able = meta.get(f"{META}clientCapabilities", connection.capabilities)
        try:
            result = await self.result(method, params, able, connection, send)
        except ValueError as exc:
            error = {"code": -32602, "message": str(exc)}
            return {"jsonrpc": "2.0", "id": message["id"], "error": error}
        if result is None:
            error = {"code": -32601, "message": f"no {method} here", "data": {"plain": True}}
            return {"jsonrpc": "2.0", "id": message["id"], "error": error}
        if self.era == "new":
            result.setdefault("resultType", "complete")
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    async def result(self, method, params, able, connection, send):
        match method:
            case "initialize" if self.era == "old":
                connection.capabilities = params["capabilities"]
                return self.introduction()
            case "server/discover" if self.era == "new":
                return self.introduction()
            case "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe":
                self.level = params.get("level", self.level)
                return {} if self.era == "old" else None
            case "tools/list":
                return self.listed(tools=self.tools(able))
            case "resources/list":
                watched = {"uri": WATCHED, "name": "watched", "title": "Watched", "_meta": KEPT}
                return self.listed(resources=[watched])
            case "resources/templates/list":
                return self.listed(resourceTemplates=[])
            case "prompts/list":
                return self.listed(
                    prompts=[{"name": "hi", "description": "says hi", "icons": [{"src": "data:,"}]}]
                )
            case "completion/complete":
                values = [params["argument"]["value"] + "!"]
                return {"completion": {"values": values, "example": 1}}
            case "acme/echo":
                own = {key: value for key, value in params.items() if key != "_meta"}
                mine = {
                    key: value for key, value in params.get("_meta", {}).items() if META not in key
                }
                return {"echo": own, "meta": mine, "extensions": able.get("extensions", {})}
            case "acme/heard":
                return {"heard": self.heard}
            case "subscriptions/listen":
                return await self.listen(params, send)
            case "tools/call":
                text = await getattr(self, params["name"])(able, connection, send)
                return {"content": [{"type": "text", "text": text}], "_meta": KEPT}
        return None

    def listed(self, **items):
        return items if self.era == "old" else {**items, "ttlMs": 0, "cacheScope": "private"}

    async def listen(self, params, send):
        number = next(self.numbers)
        self.listeners[number] = send
        await send(
            note("notifications/subscriptions/acknowledged", notifications=params["notifications"])
        )
        try:
            await asyncio.Event().wait()
        finally:
            del self.listeners[number]

    async def seen(self, able, *_):
        return json.dumps(able.get("extensions", {}))

    async def tell_all(self, message):
        everyone = (
            self.listeners.values() if self.era == "new" else [c.send for c in self.connections]
        )
        for send in tuple(everyone):
            with suppress(ConnectionError):
                await send(message)

    async def touch(self, *_):
        await self.tell_all(note("notifications/resources/updated", uri=WATCHED, _meta=KEPT))
        return "touched"

    async def flicker(self, *_):
        await self.tell_all(note("notifications/tools/list_changed"))
        return "flickered"

    async def say(self, _able, _connection, send):
        await send(note("notifications/acme/said", words="hello"))
        return "said"

    async def log(self, _able, _connection, send):
        for level in ("debug", "error"):
            await send(note("notifications/message", level=level, data=level))
        return self.level

    async def ask(self, _able, connection, send):
        number = f"ask-{next(self.numbers)}"
        connection.answers[number] = answer = asyncio.get_running_loop().create_future()
        await send({"jsonrpc": "2.0", "id": number, "method": "acme/ask", "params": {"n": 1}})
        return json.dumps(await answer)

    def take(self, message, connection):
        """A notification or an answer."""
        if "method" not in message:
            answer = connection.answers.pop(message["id"], None)
            if answer is not None:
                answer.set_result(message.get("result") or message["error"])
        elif message["method"] != "notifications/initialized":
            params = {k: v for k, v in message.get("params", {}).items() if k != "_meta"}
            self.heard.append([message["method"], params])


def note(method, **params):
    return {"jsonrpc": "2.0", "method": method, "params": params}


async def on_pipes(plain):
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def send(message):
        print(json.dumps(message), flush=True)

    connection = Connection(send)
    plain.connections.add(connection)
    tasks = {}

    async def work(message):
        await send(await plain.answer(message, connection, send))

    while line := await reader.readline():
        message = json.loads(line)
        if "method" in message and "id" in message:
            tasks[message["id"]] = loop.create_task(work(message))
        elif message.get("method") == "notifications/cancelled":
            tasks[message["params"]["requestId"]].cancel()
        else:
            plain.take(message, connection)


def web_app(plain):
    """Serve one server, or the one that a function chooses for each request."""
    from aiohttp import web  # noqa: PLC0415 - takes longer than all else, and pipes need none

    choose = plain if callable(plain) else lambda _: plain
    sessions = {}

    async def stream(request):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        return response

    async def post(request):
        plain = choose(request)
        message = await request.json()
        connection = sessions.get(request.headers.get("mcp-session-id"))
        if message.get("method") == "initialize" and plain.era == "old":
            name = f"session-{id(plain)}-{next(plain.numbers)}"
            queue = asyncio.Queue()
            connection = sessions[name] = Connection(queue.put)
            connection.queue = queue
            plain.connections.add(connection)
            answer = await plain.answer(message, connection, queue.put)
            return web.json_response(answer, headers={"mcp-session-id": name})
        connection = connection or Connection(None)
        if "method" not in message or "id" not in message:
            plain.take(message, connection)
            return web.Response(status=202)
        if plain.era == "new" and message["method"] == "initialize":
            answer = await plain.answer(message, connection, None)
            return web.json_response(answer)
        response = await stream(request)

        async def send(part):
            await response.write(f"data: {json.dumps(part)}\r\n\r\n".encode())

        await send(await plain.answer(message, connection, send))
        return response

    async def get(request):
        connection = sessions.get(request.headers.get("mcp-session-id"))
        if connection is None:
            return web.Response(status=405)
        response = await stream(request)
        while True:
            message = await connection.queue.get()
            await response.write(f"data: {json.dumps(message)}\r\n\r\n".encode())

    app = web.Application()
    app.add_routes([web.post("/mcp", post), web.get("/mcp", get)])
    return app


def serve(plain, *port):
    """Serve at a port of this machine, without one over pipes."""
    if port:
        from aiohttp.web import run_app  # noqa: PLC0415 - as above

        run_app(web_app(plain), host="127.0.0.1", port=int(port[0]), print=None)
    else:
        asyncio.run(on_pipes(plain))


if __name__ == "__main__":
    era, *rest = sys.argv[1:]
    serve(Plain(era), *rest)
