"""A server that says its key, the variable `API_KEY`, wherever it can: `telling_server.py ERA`."""

import json
import os
import sys

KEY = os.environ["API_KEY"]
STATELESS = sys.argv[1] == "stateless"
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string", "title": KEY, "description": f"as in {KEY}"}},
}
QUESTION = {"mode": "form", "message": f"your name, for {KEY}?", "requestedSchema": FORM}
CAPABILITIES = {"tools": {}, "prompts": {}, "resources": {}, "logging": {}, "completions": {}}
TOLD = {"type": "text", "text": KEY}
SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "string", "description": KEY, "default": KEY}},
}
LISTS = {
    "tools/list": {
        "tools": [
            {"name": name, "title": KEY, "description": f"uses {KEY}", "inputSchema": SCHEMA,
             "annotations": {"title": KEY}, "_meta": {"example/key": KEY}}
            for name in ("tell", "fail", "ask")
        ]
    },
    "prompts/list": {
        "prompts": [
            {"name": "hint", "title": KEY, "description": KEY,
             "arguments": [{"name": "x", "description": KEY}]}
        ]
    },
    "resources/list": {
        "resources": [
            {"uri": "note://one", "name": KEY, "title": KEY, "description": KEY},
            {"uri": f"note://user:{KEY}@two", "name": "two"},
        ]
    },
    "resources/templates/list": {
        "resourceTemplates": [{"uriTemplate": "note://{x}/t", "name": KEY, "description": KEY}]
    },
}  # fmt: skip


def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def finish(asked, **result):
    cached = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"} if STATELESS else {}
    say(id=asked["id"], result={**cached, **result})


def call(asked):
    params = asked["params"]
    if params["name"] == "fail":
        error = {"code": -32000, "message": f"refused {KEY}", "data": {"key": KEY, KEY: [KEY]}}
        say(id=asked["id"], error=error)
        return
    if params["name"] == "ask" and STATELESS and "inputResponses" not in params:
        question = {"method": "elicitation/create", "params": QUESTION}
        say(
            id=asked["id"],
            result={
                "resultType": "input_required",
                "inputRequests": {"name": question},
                "requestState": "state",
            },
        )
        return
    if params["name"] == "ask" and not STATELESS:
        say(id="question", method="elicitation/create", params=QUESTION)
        json.loads(sys.stdin.readline())
    if (token := params.get("_meta", {}).get("progressToken")) is not None:
        progress = {"progressToken": token, "progress": 1, "message": f"with {KEY}"}
        say(method="notifications/progress", params=progress)
    log = {"level": "error", "logger": KEY, "data": {"key": KEY, "text": f"used {KEY}"}}
    say(method="notifications/message", params=log)
    finish(asked, content=[TOLD], structuredContent={"key": KEY})


for line in sys.stdin:
    asked = json.loads(line)
    method = asked.get("method")
    if "id" not in asked or method is None:
        continue
    about = {
        "capabilities": CAPABILITIES,
        "serverInfo": {"name": f"telling {KEY}", "title": KEY, "version": KEY},
        "instructions": f"Use {KEY} wisely",
    }
    if method == "initialize" and not STATELESS:
        finish(asked, protocolVersion="2025-11-25", **about)
    elif method == "server/discover" and STATELESS:
        finish(asked, supportedVersions=["2026-07-28"], **about)
    elif method in LISTS:
        finish(asked, **LISTS[method])
    elif method == "tools/call":
        call(asked)
    elif method == "prompts/get":
        finish(asked, messages=[{"role": "user", "content": TOLD}])
    elif method == "resources/read":
        finish(asked, contents=[{"uri": asked["params"]["uri"], "text": KEY}])
    elif method in {"ping", "logging/setLevel"}:
        finish(asked)
    else:
        say(id=asked["id"], error={"code": -32601, "message": f"no {method} with {KEY}"})
