"""Plain clients of a gateway over HTTP, of both eras."""

import itertools
import json

import aiohttp

STATELESS, HANDSHAKE = "2026-07-28", "2025-11-25"
_ACCEPT = {"Accept": "application/json, text/event-stream"}
_META = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Refused(Exception):
    """The gateway answered with an error."""


class StatelessClient:
    """Every request says all that it needs, on a connection of its own if asked for."""

    def __init__(self, http, url):
        self._http = http
        self._url = url
        self._ids = itertools.count(1)

    async def call(self, tool, arguments):
        headers = {
            **_ACCEPT,
            "MCP-Protocol-Version": STATELESS,
            "Mcp-Method": "tools/call",
            "Mcp-Name": tool,
        }
        params = {"name": tool, "arguments": arguments, "_meta": _META}
        return await _posted(self._http, self._url, headers, next(self._ids), params)


class HandshakeClient:
    """Shakes hands once, and names its session from then on."""

    def __init__(self, http, url):
        self._http = http
        self._url = url
        self._ids = itertools.count(1)
        self._headers = {**_ACCEPT}

    async def open(self):
        params = {
            "protocolVersion": HANDSHAKE,
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        }
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        async with self._http.post(self._url, json=body, headers=self._headers) as response:
            _message(response, await response.text(), 0)
            self._headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
            self._headers["MCP-Protocol-Version"] = HANDSHAKE
        told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        async with self._http.post(self._url, json=told, headers=self._headers) as response:
            if response.status != 202:
                raise Refused(f"{response.status} {await response.text()}")

    async def call(self, tool, arguments):
        params = {"name": tool, "arguments": arguments}
        return await _posted(self._http, self._url, self._headers, next(self._ids), params)


def connector():
    """A new connection for each request, as a balancer spreads them."""
    return aiohttp.TCPConnector(force_close=True, limit=0)


async def _posted(http, url, headers, number, params):
    body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    async with http.post(url, json=body, headers=headers) as response:
        return _message(response, await response.text(), number)


def _message(response, text, number):
    found = None
    if response.content_type == "text/event-stream":
        for line in text.splitlines():
            if line.startswith("data:") and (data := line[5:].strip()):
                message = json.loads(data)
                if message.get("id") == number:
                    found = message
    elif response.content_type == "application/json" and text:
        found = json.loads(text)
    if response.status != 200 or found is None:
        raise Refused(f"{response.status} {text[:300]}")
    if "error" in found:
        raise Refused(found["error"]["message"])
    return found["result"]
