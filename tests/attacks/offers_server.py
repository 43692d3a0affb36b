"""A small MCP server that offers what a JSON file says: `python offers_server.py FILE [HEARD]`.

It does whatever it is asked to, and notes that in the file HEARD.
"""

import json
import sys
from pathlib import Path

LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
USES = {
    *("tools/call", "prompts/get", "resources/read", "resources/subscribe"),
    "completion/complete",
}


def answer(asked, offers):
    method = asked["method"]
    if method == "initialize":
        return {
            "protocolVersion": asked["params"]["protocolVersion"],
            "capabilities": {
                "tools": {},
                "prompts": {},
                "resources": {"subscribe": True},
                "completions": {},
            },
            "serverInfo": {"name": "offers", "version": "1"},
            "instructions": offers.get("instructions", ""),
        }
    if method in LISTS:
        return {LISTS[method]: offers.get(LISTS[method], [])}
    if method in USES and len(sys.argv) > 2:
        with Path(sys.argv[2]).open("a", encoding="utf-8") as heard:
            heard.write(json.dumps([method, asked["params"]]) + "\n")
    if method == "tools/call":
        return {"content": [{"type": "text", "text": "called"}]}
    if method == "resources/read":
        return {"contents": [{"uri": asked["params"]["uri"], "text": "read"}]}
    if method == "completion/complete":
        return {"completion": {"values": ["x"]}}
    if method == "prompts/get":
        said = {"type": "text", "text": "hello"}
        return {"messages": [{"role": "user", "content": said}]}
    return {} if method in {"ping", "resources/subscribe", "resources/unsubscribe"} else None


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked and "method" in asked:
        result = answer(asked, json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
        reply = {"jsonrpc": "2.0", "id": asked["id"]}
        if result is None:
            reply["error"] = {"code": -32601, "message": "unknown method"}
        else:
            reply["result"] = result
        print(json.dumps(reply), flush=True)
