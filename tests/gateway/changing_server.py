"""A server whose tools are the words of a file, and whose answers name its generation.

Its arguments are the file and the generation. `announce` makes it say that its tools changed.
"""

import json
import sys
from pathlib import Path

FILE, GENERATION = Path(sys.argv[1]), sys.argv[2]


def say(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words):
    return {"content": [{"type": "text", "text": words}]}


def tools():
    return FILE.read_text().split()


def call(name):
    if name == "announce":
        say(method="notifications/tools/list_changed")
    # a call of what is no longer offered should never have come here
    return text(GENERATION if name in tools() else "stale")


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "changing", "version": GENERATION},
        }
    if method == "tools/list":
        return {"tools": [{"name": one, "inputSchema": {"type": "object"}} for one in tools()]}
    return call(params["name"]) if method == "tools/call" else {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        say(id=request["id"], result=answer(request["method"], request.get("params")))
