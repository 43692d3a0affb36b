"""What the suite starts as a client: tells the waiting one what is wanted, and ends as it says."""

import json
import os
import socket
import sys

path, url = sys.argv[1:]
with socket.socket(socket.AF_UNIX) as waiting:
    waiting.connect(path)
    asked = {
        "url": url,
        "scenario": os.environ["MCP_CONFORMANCE_SCENARIO"],
        "context": json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}")),
    }
    waiting.sendall(json.dumps(asked).encode())
    sys.exit(waiting.recv(1 << 16).decode() or None)
