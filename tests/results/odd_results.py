"""A server over stdio whose tool `give` answers with what it is asked for: `odd_results.py ERA`.

`kind` names a result of `MADE`; `result` is one word for word. `typed` is the same with a schema.
"""

import json
import sys
from functools import cache
from pathlib import Path

INFO = {"name": "odd", "version": "1"}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WIDE, SOME = 200_000, 1000
LENGTH = 13_000_000


def text(words):
    return {"type": "text", "text": words}


MADE = {
    "plain": lambda: {"content": [text("hello")]},
    "wide": lambda: {"content": [text(f"line {number:025}") for number in range(WIDE)]},
    "long": lambda: {"content": [text("some words in a line\n" * (LENGTH // 22))]},
    "data": lambda: {
        "content": [],
        "structuredContent": {
            "n": 1, "rows": [{"id": i, "name": f"n{i}", "of": [1, 2]} for i in range(240_000)]
        },
    },
    "failed": lambda: {"content": [text("it failed")] * WIDE, "isError": True},
    "spoiled_some": lambda: {"content": [None, *[text("x" * 1000)] * SOME, "x"]},
    "spoiled": lambda: {
        "content": [None if number % 2 else text(f"{number:030}") for number in range(WIDE)]
    },
}  # fmt: skip


@cache
def made(kind):
    return MADE[kind]()


def tool(name, **more):
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def answer(method, params, *, stateless):
    match method:
        case "initialize" if not stateless:
            version = params["protocolVersion"]
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": INFO}
        case "server/discover" if stateless:
            return {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        case "tools/list":
            return {"tools": [tool("give"), tool("typed", outputSchema=SCHEMA)]}
        case "tools/call":
            asked = params["arguments"]
            return made(asked["kind"]) if "kind" in asked else asked["result"]
        case "ping":
            return {}
        case _:
            return None


def serve(*, stateless):
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        result = answer(message["method"], message.get("params") or {}, stateless=stateless)
        told = {"jsonrpc": "2.0", "id": message["id"]}
        if result is None:
            told["error"] = {"code": -32601, "message": "Method not found"}
        elif stateless and "resultType" not in result:
            kept = {"ttlMs": 0, "cacheScope": "private"}
            told["result"] = {**result, "resultType": "complete", **kept}
        else:
            told["result"] = result
        sys.stdout.write(json.dumps(told, separators=(",", ":")) + "\n")
        sys.stdout.flush()


def command(era):
    return sys.executable, (str(Path(__file__)), era)


if __name__ == "__main__":
    serve(stateless=sys.argv[1] == "new")
