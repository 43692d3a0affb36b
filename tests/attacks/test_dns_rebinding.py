"""Pages of other sites that reach for the gateway on loopback.

CVE-2025-49596, CVE-2025-66414, CVE-2025-66416, CVE-2026-34742, CVE-2025-64443 (a gateway), and
CVE-2026-48710, where a forged Host led past the login.
"""

import pytest

from tests.gateway.hostile.raw import hello, http
from tests.gateway.hostile.stage import open_stage

FOREIGN = (
    {"host": "evil.example"},
    {"host": "evil.example:3000", "origin": "http://evil.example:3000"},
    {"host": "127.0.0.1.evil.example"},
    {"host": "127.0.0.1", "origin": "http://evil.example"},
    {"host": "127.0.0.1", "origin": "null"},
    {"host": "127.0.0.1", "origin": "https://127.0.0.1.evil.example"},
    {"host": "127.0.0.1", "sec_fetch_site": "cross-site"},
    {"host": "127.0.0.1", "sec_fetch_site": "same-site"},
    {"host": None},
    {"host": "127.0.0.1@evil.example"},
    {"host": "evil.example", "x_forwarded_host": "127.0.0.1"},
    {"host": "evil.example/?@127.0.0.1"},
)
DOORS = (
    ("POST", "/mcp"), ("GET", "/mcp"), ("DELETE", "/mcp"), ("GET", "/sse"), ("POST", "/messages"),
    ("GET", "/health"), ("GET", "/metrics"), ("OPTIONS", "/mcp"), ("GET", "/"),
    ("GET", "http://127.0.0.1/health"),
)  # fmt: skip


@pytest.fixture
async def stage(tmp_path):
    async with open_stage(tmp_path) as stage:
        yield stage


async def test_every_door_is_closed_to_every_foreign_page(stage):
    for method, path in DOORS:
        for headers in FOREIGN:
            status = await stage.turns_away(http(method, path, body=hello(), **headers))
            assert status in {400, 403, 421}, (method, path, headers, status)


async def test_what_a_form_of_a_page_can_post_is_not_taken(stage):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        async with stage.dial() as line:
            answer = await line.asks(http(body=hello(), content_type=kind))
            assert answer.status == 415, kind
            assert "mcp-session-id" not in answer.headers


async def test_no_page_is_told_that_it_may_read_an_answer(stage):
    async with stage.dial() as line:
        for origin in (None, "http://localhost:6274"):
            answer = await line.asks(http("GET", "/health", origin=origin))
            assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_second_host_or_origin_decides_nothing(stage):
    for name, value in (("host", "127.0.0.1"), ("origin", "http://localhost")):
        twice = http("GET", "/health", origin="http://evil.example").replace(
            b"\r\n\r\n", f"\r\n{name}: {value}\r\n\r\n".encode()
        )
        assert await stage.turns_away(twice) in {400, 403, 421}
