"""A server that says its secrets wherever it can; a program of its own."""

import base64
import json
import os
import sys
import time
from urllib.parse import quote

SECRETS = (os.environ["LEAKY_TOKEN"], os.environ["LEAKY"], sys.argv[2])


def spoken(secret):
    raw = f"user:{secret}".encode()
    return f"{secret} {quote(secret, safe='')} {base64.b64encode(raw).decode()} {secret!r}"


ALL = " ".join(map(spoken, SECRETS))
REPEATED = 10_000 if sys.argv[3] == "long" else 1
SKIPPED = [
    {"name": SECRETS[0] + f"{number}" * REPEATED} for number in range(301 if REPEATED > 1 else 1)
]


def say(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def fail(request):
    error = {
        "code": -32603,
        "message": f"refused {ALL}" * REPEATED,
        "data": {"given": [ALL], ALL: json.dumps(ALL)},
    }
    say({"id": request["id"], "error": error})


os.write(1, f"welcome {ALL}\n".encode())
for secret in SECRETS:
    whole = f"login with {spoken(secret)}".encode()
    half = len("login with ") + len(secret.encode()) // 2
    os.write(2, whole[:half])
    time.sleep(0.02)  # so that they are two reads, too
    os.write(2, whole[half:] + b"\n")
for line in sys.stdin:
    request = json.loads(line)
    method = request.get("method")
    if "id" not in request:
        continue
    if method == "initialize" and sys.argv[3] != "down":
        result = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}, "logging": {}, "prompts": {}},
            "serverInfo": {"name": f"leaky {SECRETS[0]}" * REPEATED, "version": SECRETS[1]},
            "instructions": ALL,
        }
        say({"id": request["id"], "result": result})
    elif method == "tools/list":
        tools = [{"name": "leak", "inputSchema": {}, "description": ALL}, *SKIPPED]
        say({"id": request["id"], "result": {"tools": tools}})
    elif method == "tools/call":
        params = {"level": "error", "logger": SECRETS[1], "data": {"said": ALL * REPEATED}}
        say({"method": "notifications/message", "params": params})
        fail(request)
    elif method == "server/discover":
        say({"id": request["id"], "error": {"code": -32601, "message": f"no {ALL}"}})
    else:
        fail(request)
