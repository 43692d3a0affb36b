"""What both bench servers answer; the standard library only, because start-up time is measured."""

import json

CAPABILITIES = {"tools": {}}
COMPLETE = {"resultType": "complete"}
CACHEABLE = {**COMPLETE, "ttlMs": 60_000, "cacheScope": "private"}
SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "count": {"type": "integer", "minimum": 0}},
}


OUTPUT = {
    "type": "object",
    "properties": {"result": {"type": "string"}},
    "required": ["result"],
    "title": "typedOutput",
}
TYPED = "typed"
"""The third tool, with an `outputSchema`, as the SDK's servers give every tool."""

GROW = b'"grow"'
"""In the arguments of a call after which a stdio server has one tool more."""
GROWN = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'


def listed(tools):
    names = ["echo", "blob", TYPED, *(f"tool_{number}" for number in range(3, tools))][:tools]
    return [
        {
            "name": name,
            "description": "Says it again.",
            "inputSchema": SCHEMA,
            **({"outputSchema": OUTPUT} if name == TYPED else {}),
        }
        for name in names
    ]


def result(method, params, *, era, tools):
    """The result, or None where the method is not known."""
    match method:
        case "server/discover" if era == "stateless":
            return {
                "supportedVersions": ["2026-07-28"],
                "capabilities": CAPABILITIES,
                **CACHEABLE,
            }
        case "initialize" if era == "handshake":
            return {
                "protocolVersion": params.get("protocolVersion", "2025-11-25"),
                "capabilities": CAPABILITIES,
                "serverInfo": {"name": "bench", "version": "1"},
            }
        case "tools/list":
            return {"tools": listed(tools), **CACHEABLE}
        case "tools/call":
            reply = {"content": [{"type": "text", "text": text(params)}], **COMPLETE}
            if params.get("name") == TYPED:
                reply["structuredContent"] = {"result": text(params)}
            return reply
        case "ping":
            return {}
    return None


def text(params):
    arguments = params.get("arguments", {})
    if "count" in arguments:
        return "0123456789abcdef" * (arguments["count"] // 16)
    return arguments.get("text", "pong")


def note(tally, line):
    """Tell of a session's begin in the file `tally`."""
    if b'"initialize"' in line:
        with open(tally, "a") as file:  # noqa: PTH123 - pathlib takes longer than all the rest
            file.write("initialize\n")


def answer(line, *, era="handshake", tools=2):
    """The encoded answer to an encoded message, or None where none is due."""
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        return None
    body = {"jsonrpc": "2.0", "id": message["id"]}
    found = result(message["method"], message.get("params") or {}, era=era, tools=tools)
    if found is None:
        body["error"] = {"code": -32601, "message": "method not found"}
    else:
        body["result"] = found
    return json.dumps(body).encode()
