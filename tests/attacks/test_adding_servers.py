"""Clients that want the gateway to start a program of theirs.

CVE-2026-30623 and CVE-2026-42271 (a request that starts any command), CVE-2025-54136.
"""

import json

import msgspec
import pytest

from multitap.gateway.fronts import control_messages
from tests.gateway.hostile.raw import hello, http, in_session, message, stateless
from tests.gateway.hostile.stage import open_stage

METHODS = (
    "servers/add", "servers/create", "mcp/add", "admin/reload", "config/set", "server/start",
    "connection/test", "tools/register", "environment/set", "control/restart",
)  # fmt: skip
PATHS = (
    "/servers", "/api/servers", "/mcp-rest/test/connection", "/mcp/test/connection", "/admin",
    "/config", "/reload", "/mcp/add", "/api/v1/mcp", "/.well-known/mcp", "/mcp/../admin",
)  # fmt: skip


@pytest.fixture
async def stage(tmp_path):
    async with open_stage(tmp_path) as stage:
        yield stage


async def test_no_request_adds_or_changes_a_server(stage, tmp_path):
    pwned = tmp_path / "pwned"
    entry = {"name": "evil", "command": "touch", "args": [str(pwned)], "transport": "stdio"}
    before = stage.gateway.hub.settings
    async with stage.dial() as line:
        session = (await line.asks(http(body=hello()))).headers["mcp-session-id"]
        for method in METHODS:
            for asked in (
                stateless(1, method, **{**entry, "server": entry, "mcpServers": {"evil": entry}}),
                in_session(session, message(1, method, server=entry)),
            ):
                assert "error" in (await line.asks(asked)).message
        for path in PATHS:
            for verb in ("POST", "PUT", "GET"):
                answer = await line.asks(http(verb, path, body=json.dumps(entry).encode()))
                assert answer.status in {404, 405}, (verb, path)
        # what a client says about itself starts nothing either
        info = {"name": "x", "version": "1", "command": "touch", "args": [str(pwned)]}
        assert (await line.asks(http(body=hello(clientInfo=info)))).status == 200

    assert stage.gateway.hub.settings is before
    assert set(stage.gateway.hub.links) == {"counts", "asks"}
    assert not pwned.exists()


def test_no_command_at_the_control_socket_brings_a_server_with_it():
    allowed = {"timeout"}
    for question in control_messages.AnyQuestion.__args__:
        fields = {one.name for one in msgspec.structs.fields(question)} - allowed
        assert not fields & {"command", "args", "url", "config", "servers", "env"}, question
