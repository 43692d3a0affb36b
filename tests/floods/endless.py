"""An MCP server over stdio that writes one kind of thing without end, as fast as it can.

`python endless.py KIND`: it answers what it is asked as any server would, in between.
"""

import json
import os
import sys
import threading

_BLOCK = 64 * 1024


def _note(method, **params):
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n"


def _ask(number):
    return json.dumps({"jsonrpc": "2.0", "id": f"q{number}", "method": "ping"}).encode() + b"\n"


KINDS = {
    "junk": (1, b"y\n"),
    "blank": (1, b"\n"),
    "white_space": (1, b"   \t \n"),
    "quotes": (1, b'warning: "something" is not quite right\n'),
    "braces": (1, b"{}\n"),
    "broken_json": (1, b'{"jsonrpc": "2.0", "id": 1, "result": {\n'),
    "binary": (1, bytes(range(256))),
    "no_line_end": (1, b"x" * 1000),
    "stray_answers": (1, b'{"jsonrpc":"2.0","id":123456,"result":{}}\n'),
    "notifications": (1, _note("notifications/zoo", why="because it can")),
    "logs": (1, _note("notifications/message", level="error", data="and another thing")),
    "progress": (1, _note("notifications/progress", progressToken=1, progress=1)),
    "list_changed": (1, _note("notifications/tools/list_changed")),
    "updated": (1, _note("notifications/resources/updated", uri="zoo://text")),
    "cancelled": (1, _note("notifications/cancelled", requestId=1)),
    "requests": (1, b"".join(map(_ask, range(1000)))),
    "stderr": (2, b"it is all your fault\n"),
    "stderr_no_line_end": (2, b"x" * 1000),
}
"""Where to and what."""


class Endless:
    def __init__(self, kind):
        self.fd, unit = KINDS[kind]
        self.block = unit * max(1, _BLOCK // len(unit))
        self.turn = threading.Lock()

    def write(self, fd, data):
        with self.turn:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]

    def flood(self):
        while True:
            self.write(self.fd, self.block)

    def answer(self, line):
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            return
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": {"name": "endless", "version": "1"},
            },
            "ping": {},
            "tools/list": {"tools": [{"name": "say", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "still here"}]},
        }
        reply = {"jsonrpc": "2.0", "id": message["id"]}
        if (result := results.get(message["method"])) is None:
            reply["error"] = {"code": -32601, "message": "no such method"}
        else:
            reply["result"] = result
        self.write(1, b"\n" + json.dumps(reply).encode() + b"\n")


def main():
    server = Endless(sys.argv[1])
    threading.Thread(target=server.flood, daemon=True).start()
    for line in sys.stdin.buffer:
        server.answer(line)


if __name__ == "__main__":
    main()
