"""Real servers as `server.json`, made from facts about their packages, and a registry."""

import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

from multitap.published.packages import servers

SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"


def _question(one):
    return {
        "description": one.description,
        "isRequired": one.required,
        "isSecret": one.secret,
    }


def _value(text, inputs):
    """A value of the catalog in the words of `server.json`."""
    for one in inputs:
        if text == f"${{input:{one.name}}}":
            return _question(one)
    return {"value": text}


def _argument(given, inputs):
    if isinstance(given, list):
        return {"type": "named", "name": given[0], **_value(given[1], inputs), "valueHint": "x"}
    one = next((one for one in inputs if given == f"${{input:{one.name}}}"), None)
    hint = {"valueHint": one.name, "isRepeated": one.multiple} if one else {}
    return {"type": "positional", **hint, **_value(given, inputs)}


def described(server):
    """A server of the catalog as its publisher would describe it."""
    package = {
        "registryType": server.package.kind,
        "identifier": server.package.name,
        "version": server.package.version,
        "transport": {"type": "stdio"},
        "packageArguments": [_argument(one, server.inputs) for one in server.args],
        "environmentVariables": [
            {"name": name, **_value(value, server.inputs)} for name, value in server.env.items()
        ],
    }
    return {
        "$schema": SCHEMA,
        "name": f"io.github.someone/{server.name}",
        "description": server.description,
        "version": server.package.version,
        "packages": [package],
    }


OTHERS = [
    {
        "name": "com.example/remote",
        "description": "Only a remote, with a tenant and a key",
        "version": "1.0.0",
        "remotes": [
            {
                "type": "streamable-http",
                "url": "https://{tenant}.example.com/mcp",
                "variables": {"tenant": {"isRequired": True, "default": "main"}},
                "headers": [
                    {
                        "name": "Authorization",
                        "value": "Bearer {key}",
                        "variables": {"key": {"isRequired": True, "isSecret": True}},
                    }
                ],
            }
        ],
    },
    {
        "name": "com.example/container",
        "description": "A container",
        "version": "2.0.0",
        "packages": [
            {
                "registryType": "oci",
                "identifier": "ghcr.io/example/server:2.0.0",
                "transport": {"type": "stdio"},
                "runtimeHint": "docker",
                "environmentVariables": [{"name": "TOKEN", "isRequired": True, "isSecret": True}],
            }
        ],
    },
    {
        "name": "com.example/dotnet",
        "description": "A NuGet package",
        "version": "3.0.0",
        "packages": [
            {
                "registryType": "nuget",
                "identifier": "Example.Mcp",
                "version": "3.0.0",
                "transport": {"type": "stdio"},
            }
        ],
    },
]
ALL = [*(described(server) for server in servers().values()), *OTHERS]


def entry(server, status="active", message=None):
    official = {"status": status, "isLatest": True}
    if message:
        official["statusMessage"] = message
    return {
        "server": server,
        "_meta": {"io.modelcontextprotocol.registry/official": official},
    }


@contextmanager
def registry(entries, *, page=20, answer=None):
    """A registry on loopback; `answer` replaces what it says, whatever it is asked."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            asked.append(self.path)
            status, body = answer(self.path) if answer else _answer(entries, self.path, page)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(entries, path, page):
    parts = urlsplit(path)
    if parts.path.endswith("/versions/latest"):
        name = unquote(parts.path.split("/")[3])
        found = [one for one in entries if one["server"]["name"] == name]
        return (200, json.dumps(found[0]).encode()) if found else (404, b"{}")
    query = {key: value[0] for key, value in parse_qs(parts.query).items()}
    assert query["version"] == "latest"
    word = query.get("search", "").lower()
    found = [
        one
        for one in entries
        if word in one["server"]["name"].lower() or word in one["server"]["description"].lower()
    ]
    start = int(query.get("cursor", 0))
    metadata = {"count": len(found)}
    if start + page < len(found):
        metadata["nextCursor"] = str(start + page)
    return 200, json.dumps({"servers": found[start : start + page], "metadata": metadata}).encode()
