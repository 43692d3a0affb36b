"""How a call looks on the wire: to each era of the protocol, and to gateways with an own one."""

from urllib.parse import quote

import msgspec

VERSIONS = {"handshake": "2025-11-25", "stateless": "2026-07-28"}
CLIENT = {"name": "bench", "version": "1"}
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": VERSIONS["stateless"],
    "io.modelcontextprotocol/clientInfo": CLIENT,
    "io.modelcontextprotocol/clientCapabilities": {},
}

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


class Wrong(Exception):
    """An answer that is not the one to the question."""


class Handshake:
    """One session, opened by `initialize`."""

    version = VERSIONS["handshake"]

    def __init__(self, exchange, path):
        self._exchange = exchange
        self._path = path
        self._number = 0
        self._session = b""

    async def open(self):
        params = {"protocolVersion": self.version, "capabilities": {}, "clientInfo": CLIENT}
        await self._request("initialize", params)
        body = encode({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await self._exchange(self._path, body, self._headers("notifications/initialized", {}))

    async def call(self, tool, arguments):
        result = await self._request("tools/call", {"name": tool, "arguments": arguments})
        return result["content"][0]["text"]

    async def tools(self):
        names, more = [], {}
        while True:
            result = await self._request("tools/list", more)
            names += [tool["name"] for tool in result["tools"]]
            if not result.get("nextCursor"):
                return names
            more = {"cursor": result["nextCursor"]}

    async def close(self):
        if self._session:
            await self._exchange(self._path, headers=self._headers("", {}), method=b"DELETE")

    async def _request(self, method, params):
        self._number += 1
        number = self._number
        body = encode(
            {"jsonrpc": "2.0", "id": number, "method": method, "params": self._params(params)}
        )
        reply = await self._exchange(self._path, body, self._headers(method, params))
        if method == "initialize" and reply.session:
            self._session = b"Mcp-Session-Id: %b\r\n" % reply.session
        message = _answer(reply, number)
        if "result" not in message:
            raise Wrong(f"{method}: {reply.status} {message.get('error')}")
        return message["result"]

    def _params(self, params):
        return params

    def _headers(self, _method, _params):
        return b"MCP-Protocol-Version: %b\r\n%b" % (self.version.encode(), self._session)


class Stateless(Handshake):
    """No session: every request says all there is to say."""

    version = VERSIONS["stateless"]

    async def open(self):
        pass

    def _params(self, params):
        return {**params, "_meta": ENVELOPE}

    def _headers(self, method, params):
        name = b"Mcp-Name: %b\r\n" % params["name"].encode() if "name" in params else b""
        return b"MCP-Protocol-Version: %b\r\nMcp-Method: %b\r\n%b" % (
            self.version.encode(),
            method.encode(),
            name,
        )


class HubRest:
    """The way into mcp-hub that costs it least; a tool is named `server/tool`."""

    def __init__(self, exchange, _path):
        self._exchange = exchange

    async def open(self):
        pass

    async def call(self, tool, arguments):
        server, _, tool = tool.partition("/")
        body = encode({"server_name": server, "tool": tool, "arguments": arguments})
        reply = await self._exchange("/api/servers/tools", body)
        if reply.status != 200:
            raise Wrong(f"{reply.status} {reply.body[:200]}")
        return decode(reply.body)["result"]["content"][0]["text"]

    async def tools(self):
        reply = await self._exchange("/api/servers", method=b"GET")
        return [
            f"{server['name']}/{tool['name']}"
            for server in decode(reply.body)["servers"]
            for tool in server["capabilities"]["tools"]
        ]

    async def close(self):
        pass


class OpenApi:
    """The way into mcpo: one path per tool, `server/tool`."""

    def __init__(self, exchange, path):
        self._exchange = exchange
        self._servers = path.split(",")

    async def open(self):
        pass

    async def call(self, tool, arguments):
        reply = await self._exchange(f"/{quote(tool)}", encode(arguments))
        if reply.status != 200:
            raise Wrong(f"{reply.status} {reply.body[:200]}")
        return decode(reply.body)

    async def tools(self):
        names = []
        for server in self._servers:
            reply = await self._exchange(f"/{server}/openapi.json", method=b"GET")
            if reply.status == 200:
                names += [server + path for path in decode(reply.body)["paths"]]
        return names

    async def close(self):
        pass


class PathPerServer:
    """The way into mcp-proxy with many servers: a session with each, on a path of its own."""

    def __init__(self, exchange, path):
        self._inner = {
            server: Handshake(exchange, f"/servers/{server}/mcp") for server in path.split(",")
        }

    async def open(self):
        for inner in self._inner.values():
            await inner.open()

    async def call(self, tool, arguments):
        server, _, tool = tool.partition("/")
        return await self._inner[server].call(tool, arguments)

    async def tools(self):
        return [
            f"{server}/{tool}"
            for server, inner in self._inner.items()
            for tool in await inner.tools()
        ]

    async def close(self):
        for inner in self._inner.values():
            await inner.close()


DIALECTS = {
    "handshake": Handshake,
    "stateless": Stateless,
    "hub-rest": HubRest,
    "openapi": OpenApi,
    "path-per-server": PathPerServer,
}


def _answer(reply, number):
    """The message that answers request `number`, from a body of JSON or of events."""
    if reply.events:
        lines = (line[5:] for line in reply.body.splitlines() if line.startswith(b"data:"))
        messages = [decode(line) for line in lines if line.strip()]
    else:
        messages = [decode(reply.body)] if reply.body else []
    for message in messages:
        if message.get("id") == number:
            return message
    raise Wrong(f"{reply.status} without an answer to {number}: {reply.body[:200]}")
