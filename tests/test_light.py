"""What is not imported until somebody needs it: start-up time and memory depend on it."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from tests.waiting import PATIENCE
from tests.zoo.modes import command

HEAVY = (
    "mcp",
    "mcp_types",
    "pydantic",
    "httpx2",
    "starlette",
    "uvicorn",
    "opentelemetry",
    "snowballstemmer",
    "textual",
    "openai",
    "anthropic",
    "jsonschema_rs",
    "importlib.metadata",
    "yarl",
    "redis",
    "numpy",
    "onnxruntime",
    "tokenizers",
    "jq",
    "jmespath",
    "watchfiles",
    "multitap.cluster.coordinator",
    "multitap.cluster.gateways",
    "multitap.control.service",
    "multitap.trust.project_files",
)
FOR_SERVERS = ("asyncio", "anyio", "sqlite3")
"""What only those need that talk to servers."""
FOR_ANYTHING = ("msgspec", "hashlib", "json", "pydantic_core")
"""What everybody needs who does more than to print its help."""
REPORT = f"""
import sys
known = {(*HEAVY, *FOR_SERVERS, *FOR_ANYTHING)}
sys.stderr.write(" ".join(name for name in known if name in sys.modules))
"""
RUN = f"""
import sys
from multitap.cli.app import run
run(sys.argv[1:])
{REPORT}
"""
SERVE = f"""
import gc, sys
from multitap.cli import app
try:
    app.run(["--config", sys.argv[1], "serve", "--alone", *sys.argv[2:]])
finally:
    sys.stderr.write("collects " * gc.isenabled())
    exec({REPORT!r})
"""
SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    answers = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "light", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]},
    }
    told = answers.get(message["method"])
    error = {"code": -32601, "message": "Method not found"}
    outcome = {"error": error} if told is None else {"result": told}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}), flush=True)
"""


@pytest.fixture
def home(tmp_path):
    homes = ("CONFIG", "STATE", "DATA", "CACHE")
    return {
        **os.environ,
        **{f"XDG_{name}_HOME": str(tmp_path / name) for name in homes},
        "HOME": str(tmp_path),
        "XDG_RUNTIME_DIR": str(tmp_path),
    }


def loaded(home, *words):
    done = subprocess.run(
        [sys.executable, "-c", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=home["HOME"],
        env=home,
        check=True,
    )
    return done.stderr.splitlines()[-1:]


def test_the_package_imports_nothing_heavy(home):
    assert loaded(home, f"import multitap\n{REPORT}") == []


def test_help_imports_nothing_heavy(home):
    assert loaded(home, RUN, "--help") == []


def test_the_library_imports_nothing_heavy_until_a_typed_verb_is_used(home):
    (last,) = loaded(home, f"from multitap import Settings, StdioServer, open_hub\n{REPORT}")

    assert not {*last.split()} & {*HEAVY}


def test_status_imports_nothing_heavy_where_nothing_is_configured(home):
    (last,) = loaded(home, RUN, "status")

    assert not {*last.split()} & {*HEAVY, *FOR_SERVERS}


def test_a_call_does_without_models_unless_the_server_asks_something(home):
    (last,) = loaded(home, RUN, "call", "add", "a=1", "b=2", "--", *command("good"))

    assert "anyio" in last.split()
    assert not {*last.split()} & {"mcp", "mcp_types", "pydantic"}


def start_gateway(home, tmp_path, *words):
    server, config = tmp_path / "server.py", tmp_path / "servers.json"
    server.write_text(SERVER)
    entry = {"command": sys.executable, "args": [str(server)]}
    config.write_text(json.dumps({"mcpServers": {"light": entry}}))
    return subprocess.Popen(
        [sys.executable, "-c", SERVE, str(config), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=home,
    )


def test_a_gateway_imports_nothing_heavy_until_its_first_list_is_answered(home, tmp_path):
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t"}}
    with start_gateway(home, tmp_path) as process:
        for number, (method, params) in enumerate((("initialize", about), ("tools/list", {}))):
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
        _, said = process.communicate(timeout=PATIENCE)

    assert [tool["name"] for tool in answer["result"]["tools"]] == ["light_echo"]
    words = {*said.split()}
    assert "collects" in words, "the imports go without"
    assert "anyio" in words
    assert not words & {*HEAVY}


def test_a_gateway_imports_nothing_heavy_for_a_stateless_request_over_http(home, tmp_path):
    prefix = "io.modelcontextprotocol/"
    meta = {
        f"{prefix}protocolVersion": "2026-07-28",
        f"{prefix}clientInfo": {"name": "t", "version": "1"},
        f"{prefix}clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/list",
    }
    with start_gateway(home, tmp_path, "--http", "127.0.0.1:0") as process:
        url = next(filter(None, (re.search(r"http://\S+/mcp", line) for line in process.stderr)))
        request = urllib.request.Request(url[0], json.dumps(body).encode(), headers)
        answer = urllib.request.urlopen(request, timeout=PATIENCE).read().decode()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE)

    assert "light_echo" in answer
    words = {*said.splitlines()[-1].split()}
    assert "anyio" in words
    assert not words & {*HEAVY}
