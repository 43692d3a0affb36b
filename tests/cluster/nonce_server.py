"""A server over stdio that writes each nonce down before it answers."""

import json
import os
import sys
import threading

TOOLS = [{"name": "note", "inputSchema": {"type": "object"}}]
ABOUT = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "nonces", "version": "1"},
}


def answer(message, ledger):
    match message.get("method"):
        case "initialize":
            return {"result": ABOUT}
        case "tools/list":
            return {"result": {"tools": TOOLS}}
        case "ping":
            return {"result": {}}
        case "tools/call":
            nonce = message["params"]["arguments"]["nonce"]
            # with its process: a ledger shows who executed what, and in which order
            os.write(ledger, f"{nonce} {os.getpid()}\n".encode())
            return {"result": {"content": [{"type": "text", "text": nonce}]}}
        case _:
            return {"error": {"code": -32601, "message": "Method not found"}}


def main():
    ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    lock = threading.Lock()

    def say(told):
        with lock:
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()

    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            told = {"jsonrpc": "2.0", "id": message["id"], **answer(message, ledger)}
            arguments = message.get("params", {}).get("arguments") or {}
            if pause := arguments.get("pause"):
                later = threading.Timer(pause, say, (told,))
                later.daemon = True
                later.start()
            else:
                say(told)


if __name__ == "__main__":
    main()
