"""The bare forwarder before many servers: it starts all of them at once and lists them as one."""

import asyncio
import json
import sys
from pathlib import Path

import msgspec
import uvloop

from bench.gateway.floor import Answer, Front, Pipes, Request

VERSION = b'"2025-11-25"'
INITIALIZE = msgspec.Raw(
    b'{"protocolVersion":%b,"capabilities":{},"clientInfo":{"name":"bare","version":"1"}}' % VERSION
)
GREETING = msgspec.Raw(
    b'{"protocolVersion":%b,"capabilities":{"tools":{}},'
    b'"serverInfo":{"name":"bare","version":"1"}}' % VERSION
)


class Server:
    """One server: greeted, listed, and asked what clients ask; the `Front` of our own questions."""

    def __init__(self, name, listed):
        self._name = name
        self._listed = listed
        self.pipes = Pipes()

    def greet(self):
        self.pipes.forward(_request(b'"initialize"', INITIALIZE), self)

    def answer(self, number, answer):
        if number == b"1":
            self.pipes.forward(Request(msgspec.Raw(b'"notifications/initialized"')), self)
            self.pipes.forward(_request(b'"tools/list"', msgspec.Raw(b"{}"), b"2"), self)
            return
        tools = msgspec.json.decode(answer.result)["tools"]
        self._listed([{**tool, "name": f"{self._name}_{tool['name']}"} for tool in tools])

    def accept(self):
        pass


class Forwarder:
    def __init__(self, names):
        self.servers = {name: Server(name, self._listed) for name in names}
        self._missing = len(names)
        self._tools = []
        self._result = None
        self._waiting = []

    def forward(self, request, front):
        method = msgspec.json.decode(request.method)
        if method == "initialize":
            front.answer(bytes(request.id), Answer(0, GREETING))
        elif method == "tools/list" and self._result is None:
            self._waiting.append((bytes(request.id), front))
        elif method == "tools/list":
            front.answer(bytes(request.id), self._result)
        elif method == "tools/call":
            params = msgspec.json.decode(request.params)
            name, _, params["name"] = params["name"].partition("_")
            request.params = msgspec.Raw(msgspec.json.encode(params))
            self.servers[name].pipes.forward(request, front)
        else:
            front.accept()

    def _listed(self, tools):
        self._tools += tools
        self._missing -= 1
        if not self._missing:
            self._result = Answer(0, msgspec.Raw(msgspec.json.encode({"tools": self._tools})))
            for number, front in self._waiting:
                front.answer(number, self._result)


def _request(method, params, number=b"1"):
    return Request(msgspec.Raw(method), msgspec.Raw(number), params)


async def main(port, config):
    loop = asyncio.get_running_loop()
    entries = json.loads(Path(config).read_text())["mcpServers"]
    forwarder = Forwarder(entries)
    listening = await loop.create_server(lambda: Front(forwarder.forward), "127.0.0.1", int(port))

    async def start(name, entry):
        server = forwarder.servers[name]
        command = (entry["command"], *entry["args"])
        await loop.subprocess_exec(lambda: server.pipes, *command, stderr=None)
        server.greet()

    await asyncio.gather(*(start(name, entry) for name, entry in entries.items()))
    await listening.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
