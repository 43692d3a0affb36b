"""Pages of named origins may use the gateway; all others may read only public documents."""

import pytest

from multitap.errors import ConfigError
from multitap.gateway.fronts.access import Access
from multitap.gateway.fronts.cors import Cors
from multitap.gateway.fronts.tokens import Token
from tests.gateway.hostile.raw import dial, hello, http
from tests.gateway.hostile.stage import open_stage

PAGE = "https://app.example.com"
SECRET = "a-secret-of-some-length"
ALLOW = "access-control-allow-"


class Allowed:
    """The access of a gateway with tokens, and pages that may use it."""

    sources = None
    access = Access("127.0.0.1", (Token(SECRET.encode(), "ann"),), origins=(PAGE, "http://x:1"))


@pytest.fixture
async def line(tmp_path):
    async with open_stage(tmp_path, allowed=Allowed) as stage, dial(stage.port) as line:
        yield line


def preflight(origin, path="/mcp", **more):
    asked = {"access_control_request_method": "POST", **more}
    return http("OPTIONS", path, origin=origin, **asked)


async def test_a_page_of_a_named_origin_uses_the_gateway(line):
    wanted = "authorization,content-type,mcp-protocol-version,mcp-param-city"
    asked = await line.asks(
        preflight(
            PAGE,
            access_control_request_headers=wanted,
            access_control_request_private_network="true",
        )
    )
    assert asked.status == 204
    assert asked.headers[f"{ALLOW}origin"] == PAGE
    assert asked.headers[f"{ALLOW}headers"] == wanted
    assert "DELETE" in asked.headers[f"{ALLOW}methods"]
    assert asked.headers[f"{ALLOW}private-network"] == "true"

    opened = await line.asks(http(body=hello(), origin=PAGE, authorization=f"Bearer {SECRET}"))

    assert opened.status == 200
    assert opened.headers[f"{ALLOW}origin"] == PAGE
    assert opened.headers["vary"] == "origin"
    exposed = opened.headers["access-control-expose-headers"].lower()
    assert "mcp-session-id" in exposed
    assert "www-authenticate" in exposed


async def test_a_page_without_a_token_can_read_how_to_get_one(line):
    refused = await line.asks(http(body=hello(), origin=PAGE))

    assert refused.status == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")
    assert refused.headers[f"{ALLOW}origin"] == PAGE


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "https://app.example.com:444", "null", "http://localhost:1"]
)
async def test_a_page_of_another_origin_gets_no_permission(line, origin):
    asked = await line.asks(preflight(origin))

    assert asked.status == 403
    assert not [name for name in asked.headers if name.startswith("access-control")]


async def test_everybody_may_read_public_documents(line):
    asked = await line.asks(preflight("https://evil.example", "/.well-known/x"))
    assert asked.headers[f"{ALLOW}origin"] == "*"

    read = await line.asks(http("GET", "/.well-known/x", origin="https://evil.example"))

    assert read.status == 404
    assert read.headers[f"{ALLOW}origin"] == "*"


async def test_a_preflight_for_another_host_is_refused(line):
    assert (await line.asks(preflight(PAGE, host="evil.example"))).status == 421


@pytest.mark.parametrize("text", ["*", "app.example.com", "https://app.example.com/", "https://"])
def test_what_is_no_origin_is_refused_at_the_start(text):
    with pytest.raises(ConfigError, match="is not an origin"):
        Cors([text])
