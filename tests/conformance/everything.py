"""The SDK's server for the suite: `everything.py PORT` over HTTP, without one over stdio."""

import sys

sys.modules["httptools"] = None  # it keeps the blanks around a header's value, and the suite minds

from mcp_everything_server import server  # noqa: E402 - it looks for httptools

if sys.argv[1:]:
    server.main(["--port", sys.argv[1], "--log-level", "WARNING"])
else:
    server.mcp.run("stdio")
