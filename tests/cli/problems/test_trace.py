"""Messages on the screen, of a server of our own or of a running gateway."""

import json
import re
import shlex
import subprocess
import sys
import urllib.request

from tests.cli.conftest import zoo
from tests.waiting import PATIENCE
from tests.zoo.modes import command

GOOD = shlex.join(command("good", "--era", "handshake"))


def test_a_start_and_a_call_are_shown(multitap):
    ended = multitap(f"trace add a=1 b=2 -- {GOOD}")

    assert ended.code == 0
    assert "initialize" in ended.lines[0] or "server/discover" in ended.lines[0]
    assert any("tools/list" in line for line in ended.lines)
    request, answer = [line for line in ended.lines if "-> " in line and "tools/call" in line] + [
        ended.lines[-1]
    ]
    assert '"arguments":{"a":1' in request
    assert "result (" in answer
    assert request.split()[2] == answer.split()[2]


def test_messages_are_lines_of_json_too(multitap, configure):
    configure(zoo="good")

    ended = multitap("trace zoo zoo_echo text=hi --json")

    calls = [one for one in map(json.loads, ended.lines) if one["method"] == "tools/call"]
    assert [one["kind"] for one in calls] == ["request", "result"]


def test_a_server_that_fails_shows_what_passed_and_why(multitap, configure):
    configure(zoo="exit_at_start")

    ended = multitap("trace zoo")

    assert ended.code == 4
    assert ended.err.startswith("error: zoo: it exited with code 1")


def test_a_running_gateway_is_followed(multitap, configure, home):
    configure(zoo=zoo("good"))
    gateway = subprocess.Popen(
        [sys.executable, "-m", "multitap", "serve", "--http", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in gateway.stderr:
            if "/mcp" in line:
                break
        multitap("call zoo_echo text=warm")  # it is up now
        called = multitap("trace zoo zoo_echo text=hi")
        unknown = multitap("trace nobody")
        follower = subprocess.Popen(
            [sys.executable, "-m", "multitap", "trace", "zoo", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert "from the gateway" in follower.stderr.readline()
        assert "following zoo" in follower.stderr.readline()

        multitap("call zoo_echo text=followed")

        assert "followed" in follower.stdout.readline()
        follower.terminate()
        follower.communicate()
    finally:
        gateway.terminate()
        gateway.communicate()
    assert [line.split()[1] for line in called.lines] == ["->", "<-"]
    assert unknown.code == 2
    assert "no server named 'nobody'" in unknown.err


def test_a_server_has_to_be_named(multitap):
    assert multitap("trace").err.startswith("error: missing argument 'SERVER'")


def test_the_tree_of_a_request_is_printed_without_a_collector(multitap, configure, home):
    configure(zoo=zoo("good"))
    config = home / "multitap.toml"
    config.write_text(f'[telemetry]\ntraces = "memory"\nsample = 1.0\n{config.read_text()}')
    gateway = subprocess.Popen(
        [sys.executable, "-m", "multitap", "serve", "--http", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        url = next(found for line in gateway.stderr if (found := re.search(r"http\S+/mcp", line)))[
            0
        ]
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        meta = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        body["params"] = {"name": "zoo_echo", "arguments": {"text": "hi"}, "_meta": meta}
        headers = {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": "zoo_echo",
        }
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        answer = urllib.request.urlopen(request, timeout=PATIENCE).read()
        listed = multitap("trace --requests --json")
        (span,) = [span for span in json.loads(listed.out) if span["name"] == "tools/call zoo_echo"]
        shown = multitap(f"trace {span['context']['trace_id'][:12]}")
        unknown = multitap("trace 0123456789abcdef")
    finally:
        gateway.terminate()
        gateway.communicate()

    first, root, *rest = shown.out.splitlines()
    assert first == f"trace {span['context']['trace_id']}"
    assert "tools/call zoo_echo (from a client)" in root
    assert "tools/call echo (to zoo)" in "\n".join(rest), answer
    assert any("- exchange took" in line for line in rest)
    assert unknown.code == 1
    assert "no recorded request" in unknown.err
