"""A client's credentials, which no server behind the gateway may ever see."""

import pytest

from multitap import HttpServer, Settings, open_hub
from multitap.gateway.fronts.access import Access
from multitap.gateway.fronts.http import HttpFront, serve_http
from multitap.gateway.fronts.tokens import Token
from multitap.gateway.gateway import open_gateway
from multitap.http.server.server import bind
from tests.gateway.hostile.raw import dial, hello, http, in_session, message, stateless
from tests.gateway.talking import gate, zoo

SECRET = "a-token-of-some-length"
INBOUND = {
    "authorization": f"Bearer {SECRET}",
    "cookie": f"session={SECRET}",
    "x_api_key": SECRET,
    "proxy_authorization": f"Basic {SECRET}",
    "x_forwarded_for": "10.1.2.3",
}


class Curious(HttpFront):
    """A server behind the gateway that keeps every head it sees."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.seen = []

    def admit(self, head):
        self.seen.append(b"\n".join(b": ".join(pair) for pair in (*head.pairs, (head.url, b""))))
        return super().admit(head)


@pytest.mark.parametrize("era", ["auto", "handshake", "stateless"])
async def test_what_a_client_authenticates_with_ends_at_the_gateway(tmp_path, era):
    behind = Settings(servers={"zoo": zoo()}, state_dir=tmp_path / "behind")
    async with open_gateway(lambda handlers: open_hub(behind, handlers=handlers)) as gateway:
        await gateway.hub.settled()
        curious = Curious(gateway, Access("127.0.0.1"))
        async with serve_http(curious, bind("127.0.0.1", 0)) as url:
            settings = Settings(servers={"far": HttpServer(url=url, era=era)}, state_dir=tmp_path)
            tokens = (Token(SECRET.encode(), "ann"),)
            async with gate(settings, tokens=tokens) as opened:
                await _call(opened, "far_zoo_echo")

    assert curious.seen
    assert not [head for head in curious.seen if SECRET.encode() in head or b"10.1.2.3" in head]


async def _call(opened, tool):
    port = int(opened.url.rpartition(":")[2].partition("/")[0])
    arguments = {"text": "hi"}
    async with dial(port) as line:
        modern = stateless(1, "tools/call", name=tool, arguments=arguments, headers=INBOUND)
        assert (await line.asks(modern)).text == "hi"
        opened_session = await line.asks(http(body=hello(), **INBOUND))
        session = opened_session.headers["mcp-session-id"]
        legacy = message(2, "tools/call", name=tool, arguments=arguments)
        assert (await line.asks(in_session(session, legacy, **INBOUND))).text == "hi"
