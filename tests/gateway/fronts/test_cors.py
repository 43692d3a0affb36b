"""Pages of named origins may use the gateway; all others may read only public documents."""

import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from multitap.errors import ConfigError
from multitap.gateway.fronts.access import Access, Cors
from multitap.gateway.fronts.tokens import Token
from tests.gateway.hostile.raw import dial, hello, http
from tests.gateway.hostile.stage import open_stage
from tests.screens.chromium import PROGRAM, open_chromium

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


ASK = """
(async () => {
  const json = "application/json";
  const headers = {"content-type": json, accept: json + ", text/event-stream"};
  if (%(token)s) headers.authorization = "Bearer " + %(token)s;
  const body = JSON.stringify({jsonrpc: "2.0", id: 1, method: "initialize", params: {
    protocolVersion: "2025-11-25", capabilities: {}, clientInfo: {name: "page", version: "1"}}});
  try {
    const response = await fetch("http://127.0.0.1:%(port)d/mcp", {method: "POST", headers, body});
    const session = response.headers.get("mcp-session-id");
    const challenge = response.headers.get("www-authenticate");
    return {status: response.status, session: !!session, challenge: !!challenge};
  } catch (error) { return {error: String(error)}; }
})()
"""


@asynccontextmanager
async def site():
    """A web site with an empty page; its value is its origin."""

    async def answer(_):
        return web.Response(text="<title>page</title>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        listener = web.TCPSite(runner, "127.0.0.1", 0)
        await listener.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="there is no chromium")
async def test_a_real_browser_lets_a_page_of_a_named_origin_in_and_no_other(tmp_path):
    async with site() as named, site() as other, open_chromium() as browser:

        class Named(Allowed):
            access = Access("127.0.0.1", (Token(SECRET.encode(), "ann"),), origins=(named,))

        async with open_stage(tmp_path, allowed=Named) as stage, browser.page() as page:
            told = {}
            for origin, token in ((named, SECRET), (named, ""), (other, SECRET)):
                await page.visit(origin)
                await page.until("document.title == 'page'")
                asked = ASK % {"token": json.dumps(token), "port": stage.port}
                told[origin, token] = await page.run(asked)

    assert told[named, SECRET] == {"status": 200, "session": True, "challenge": False}
    assert told[named, ""] == {"status": 401, "session": False, "challenge": True}
    assert "error" in told[other, SECRET]
