"""A small MCP server that does what its caller says, as far as it is let; needs no package."""

import json
import os
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path


def call(tool, given):
    match tool:
        case "read":
            return Path(given["path"]).read_text(encoding="utf-8", errors="replace")
        case "list":
            return json.dumps(sorted(path.name for path in Path(given["path"]).iterdir()))
        case "read_by_folder":
            folder = os.open(given["folder"], os.O_RDONLY | os.O_DIRECTORY)
            return os.read(os.open(given["name"], os.O_RDONLY, dir_fd=folder), 100).decode()
        case "read_in_child":
            command = [sys.executable, "-c", f"print(open({given['path']!r}).read())"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return done.stdout or done.stderr
        case "write":
            return str(Path(given["path"]).write_text("x", encoding="utf-8"))
        case "fetch":
            return urllib.request.urlopen(given["url"], timeout=5).read().decode()
        case "connect":
            socket.create_connection((given["host"], given["port"]), timeout=5).close()
            return "connected"
        case "listen":
            with socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                listener.bind((given["host"], given["port"]))
                listener.listen()
                return "listening"
        case "fork":
            return str(forked(given["count"]))
        case "threads":
            return str(threaded(given["count"]))
        case "allocate":
            return str(len(bytearray(given["bytes"])))
        case "where":
            return json.dumps({"cwd": str(Path.cwd()), "home": os.environ.get("HOME")})
    raise ValueError(tool)


def forked(count):
    """How many processes it gets at the same time."""
    children = []
    try:
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                os.setsid()  # as daemons do
                signal_end.recv(1)
                os._exit(0)
            children.append(pid)
    except OSError:
        pass
    finally:
        begin_end.sendall(b"x" * len(children))
        for pid in children:
            os.waitpid(pid, 0)
    return len(children)


def threaded(count):
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(count)]
    for one in threads:
        one.start()
    over.set()
    for one in threads:
        one.join()
    return len(threads)


TOOLS = (
    *("read", "read_in_child", "write", "fetch", "connect", "fork", "threads", "allocate", "where"),
    *("list", "read_by_folder", "listen"),
)


def answer(message):
    match message["method"]:
        case "initialize":
            return {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "confined", "version": "1"},
            }
        case "tools/list":
            return {"tools": [{"name": one, "inputSchema": {"type": "object"}} for one in TOOLS]}
        case "tools/call":
            try:
                text = call(message["params"]["name"], message["params"].get("arguments") or {})
            except Exception as exc:  # noqa: BLE001 - all of it is for the caller to see
                told = {"type": "text", "text": f"{type(exc).__name__}: {exc}"}
                return {"content": [told], "isError": True}
            return {"content": [{"type": "text", "text": text}]}
        case "ping":
            return {}
    return None


begin_end, signal_end = socket.socketpair()
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked and "method" in asked:
        result = answer(asked)
        reply = {"jsonrpc": "2.0", "id": asked["id"]}
        if result is None:
            reply["error"] = {"code": -32601, "message": "unknown method"}
        else:
            reply["result"] = result
        print(json.dumps(reply), flush=True)
