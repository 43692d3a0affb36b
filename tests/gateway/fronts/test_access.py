"""The options and this machine's features decide which clients need a token."""

import logging

import pytest

from multitap.catalog.audience import Audience
from multitap.config import Profile
from multitap.errors import ConfigError
from multitap.gateway.fronts.access import Access, AccessRules, open_access, repeated_header
from multitap.gateway.fronts.tokens import Admitted, Token, read_tokens
from multitap.http.addresses import is_loopback
from multitap.http.server.request import Rejected
from multitap.principal import FILE_ISSUER, Principal
from multitap.trust.tokens import AccessTokens
from tests.gateway.hostile.raw import (
    dial,
    hello,
    http,
    stateless,
)
from tests.gateway.hostile.stage import open_stage

OTHERS = ("0.0.0.0", "::", "192.168.0.7", "tap.example", "")


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return AccessTokens()


def decide_local(allowed):
    return allowed.access.decide({b"host": b"localhost"})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1", "[::1]"])
def test_on_this_machine_the_user_needs_no_token(host):
    assert is_loopback(host)
    with open_access(AccessRules(host=host)) as allowed:
        assert not allowed.is_token_required
        assert not allowed.is_user_unknown
        assert isinstance(decide_local(allowed), Rejected)  # nobody knows who it is


@pytest.mark.parametrize("host", OTHERS)
def test_other_machines_are_not_admitted_by_accident(host, store):
    with (
        pytest.raises(ConfigError, match="no token yet") as caught,
        open_access(AccessRules(host=host)),
    ):
        pass
    assert "--insecure" in caught.value.hint
    assert "multitap token create" in caught.value.hint

    with open_access(AccessRules(host=host, insecure=True)) as allowed:
        assert decide_local(allowed) == Admitted()
    store.create("ci")
    with open_access(AccessRules(host=host)) as allowed:
        assert decide_local(allowed).status == 401


@pytest.mark.parametrize("host", ["127.0.0.1", *OTHERS])
def test_a_required_token_is_required_of_every_client(host):
    rules = AccessRules(host=host, require_token=True, insecure=True)
    with open_access(rules) as allowed:
        assert allowed.is_token_required
        assert decide_local(allowed).status == 401


ANN, BOB = (Principal(name, FILE_ISSUER, name) for name in ("ann", "bob"))
SECRET = "a-secret-of-some-length"
TOKENS = (Token(SECRET.encode(), "ann"), Token(b"another-secret-of-bob", "bob", "little"))
PATHS = ("/mcp", "/sse", "/messages", "/health", "/metrics", "/", "/nowhere")


def decided(access, **headers):
    given = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    verdict = access.decide(given)
    return verdict.status if isinstance(verdict, Rejected) else verdict


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:3000", "127.0.0.1", "127.0.0.1:3000", "[::1]", "[::1]:3000"],
)
def test_a_client_on_this_machine_is_let_in(host):
    assert decided(Access("127.0.0.1"), host=host) == Admitted()


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "evil.example:3000",
        "127.0.0.1.evil.example",
        "localhost:80@evil.example",
        "localhost evil.example",
        "localhost/",
        "localhost:",
        "localhost:http",
        "[::1",
        "::1",
        "192.168.0.7",
        "0.0.0.0",
        "ä",
    ],
)
def test_nobody_is_let_in_by_another_name(host):
    assert decided(Access("127.0.0.1"), host=host) == 421


def test_a_request_without_a_host_is_not_let_in():
    assert decided(Access("127.0.0.1")) == 421


@pytest.mark.parametrize(
    "origin", ["http://localhost", "http://localhost:6274", "https://127.0.0.1", "http://[::1]:80"]
)
def test_a_page_of_this_machine_may_speak_to_the_gateway(origin):
    assert decided(Access("127.0.0.1"), host="localhost", origin=origin) == Admitted()


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "https://localhost.evil.example",
        "http://localhost@evil.example",
        "http://localhost:1@evil.example",
        "http://[",
        "localhost",
        "://localhost",
        "file://",
        "\x00",
    ],
)
def test_a_page_of_somebody_else_may_not(origin):
    assert decided(Access("127.0.0.1"), host="localhost", origin=origin) == 403


def test_a_gateway_has_the_names_it_is_given():
    access = Access("127.0.0.1", hosts=("Tap.example",))

    assert decided(access, host="tap.example:3000") == Admitted()
    assert decided(access, host="tap.example", origin="https://tap.example") == Admitted()
    assert decided(access, host="localhost", origin="https://tap.example") == Admitted()


def test_where_every_address_is_ours_a_name_may_still_be_somebody_elses_trick():
    access = Access("0.0.0.0")

    assert decided(access, host="192.168.0.7:3000") == Admitted()
    assert decided(access, host="[fe80::1]:3000") == Admitted()
    assert decided(access, host="evil.example", origin="http://evil.example") == 421
    assert decided(Access("0.0.0.0", hosts=("tap",)), host="tap:3000") == Admitted()


def test_a_token_is_proof_enough_whatever_the_name():
    access = Access("0.0.0.0", TOKENS)

    assert decided(access, host="tap:3000", authorization=f"Bearer {SECRET}") == Admitted(ANN)
    assert decided(access, host="tap:3000") == 401
    assert decided(access, host="tap", origin="http://evil.example") == 403


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        SECRET,
        f"Basic {SECRET}",
        f"Bearer {SECRET[:-1]}",
        f"Bearer {SECRET}x",
        f"Bearer {SECRET.upper()}",
        f"Bearer {SECRET}, Bearer {SECRET}",
        "Bearer ä",
    ],
)
def test_nobody_is_let_in_without_a_right_token(header):
    assert decided(Access("127.0.0.1", TOKENS), host="localhost", authorization=header) == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_token_says_who_somebody_is_and_what_they_see(scheme):
    access = Access("127.0.0.1", TOKENS)

    assert decided(access, host="localhost", authorization=f"{scheme} {SECRET}") == Admitted(ANN)
    assert decided(
        access, host="localhost", authorization=f"{scheme} another-secret-of-bob"
    ) == Admitted(BOB, "little")


def test_strangers_cannot_fill_the_memory_with_names():
    access = Access("127.0.0.1")
    for number in range(5000):
        decided(access, host=f"evil-{number}.example")
        decided(access, host=f"localhost:{number}")

    assert len(access._known) <= 256


def test_a_header_that_decides_something_is_there_once():
    assert repeated_header([(b"host", b"a"), (b"accept", b"b"), (b"accept", b"c")]) is None
    assert repeated_header([(b"host", b"a"), (b"x", b"b"), (b"host", b"a")]) == b"host"


@pytest.fixture
def token_file(tmp_path):
    def write(text, mode=0o600):
        path = tmp_path / "tokens"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return path

    return write


def test_a_token_file_has_one_a_line(token_file):
    lines = (
        "# who may come in",
        "",
        "  a-token-without-a-name  ",
        "ann=a-token-of-ann-here",
        "bob@little = a-token-of-bob-here",
        "eve=cGFkZGVkIGJhc2U2NA==",
        "cGFkZGVkIHdpdGhvdXQgYSBuYW1l==",
    )
    tokens = read_tokens(token_file("\n".join(lines)))

    assert [(token.principal, token.profile) for token in tokens] == [
        ("token-3", None),
        ("ann", None),
        ("bob", "little"),
        ("eve", None),
        ("token-7", None),
    ]
    assert tokens[3].secret == b"cGFkZGVkIGJhc2U2NA=="
    assert tokens[4].secret == b"cGFkZGVkIHdpdGhvdXQgYSBuYW1l=="


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o622, 0o601])
def test_a_token_file_that_others_can_read_is_not_used(token_file, mode):
    with pytest.raises(ConfigError, match="other users can read it") as caught:
        read_tokens(token_file("ann=a-token-of-ann-here", mode))

    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it has no tokens"),
        ("# nobody\n\n", "it has no tokens"),
        ("ann=hunter2", "tokens:1: a token has at least 16"),
        ("x\n", "tokens:1: a token has at least 16"),
        ("\nann=a secret with spaces", "tokens:2: a token has at least 16"),
        ("ann=ein-geheimnis-für-alle", "tokens:1: a token has at least 16"),
        ("ann@=a-token-of-ann-here", "tokens:1: the profile after the @ is missing"),
        ("ann=a-token-of-ann-here\nbob=a-token-of-ann-here", "a token appears twice"),
        ("ann=a-token-of-ann-here\nann=one-more-token-of-hers", "a name appears twice"),
        (b"\xff\xfe", "not a text"),
    ],
)
def test_what_is_wrong_with_a_token_file_is_said_without_a_word_of_it(token_file, text, why):
    with pytest.raises(ConfigError, match=why) as caught:
        read_tokens(token_file(text))

    for secret in ("hunter2", "secret", "geheimnis", "a-token"):
        assert secret not in f"{caught.value} {caught.value.hint}"


def test_a_token_file_that_is_not_there_is_said_to_be_missing(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(tmp_path / "tokens")


def test_a_token_shows_nowhere():
    assert SECRET not in repr(TOKENS[0])


async def test_without_a_token_no_path_tells_anything(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with open_stage(tmp_path, tokens=TOKENS) as stage, dial(stage.port) as line:
        for path in PATHS:
            for method in ("GET", "POST", "DELETE"):
                for header in (None, f"Bearer {SECRET}x", "Basic YTpi"):
                    async with dial(stage.port) as stranger:
                        response = await stranger.asks(http(method, path, authorization=header))
                        if (method, path, header) == ("GET", "/health", None):
                            assert response.body == b'{"status":"ok"}'
                            continue
                        assert response.status == 401
                        assert response.headers["www-authenticate"] == "Bearer"
                        assert response.headers["connection"] == "close"
                        assert await stranger.closed() == b""
        bearer = f"Bearer {SECRET}"
        assert (await line.asks(http("GET", "/health", authorization=bearer))).status == 200
        opened = await line.asks(http(body=hello(), authorization=bearer))

        assert opened.status == 200
        assert SECRET not in caplog.text


async def test_a_token_that_is_bound_to_a_profile_shows_no_other(tmp_path):
    profiles = {"little": Profile(servers=("asks",)), "much": Profile()}
    bound = (*TOKENS, Token(b"a-secret-of-somebody-else", "eve", "gone"))
    async with (
        open_stage(tmp_path, tokens=bound, profiles=profiles) as stage,
        dial(stage.port) as line,
    ):

        async def listed(secret, path="/mcp"):
            asked = stateless(
                1, "tools/list", path=path, headers={"authorization": f"Bearer {secret}"}
            )
            return (await line.asks(asked)).message

        for path in ("/mcp", "/mcp?profile=much"):
            tools = (await listed("another-secret-of-bob", path))["result"]["tools"]
            assert {tool["name"].partition("_")[0] for tool in tools} == {"asks"}
        assert "no profile" in (await listed("a-secret-of-somebody-else"))["error"]["message"]
        assert len((await listed(SECRET))["result"]["tools"]) == 14
        assert len((await listed(SECRET, "/mcp?profile=little"))["result"]["tools"]) == 7
        assert "error" in await listed(SECRET, "/mcp?profile=nope")
        assert not stage.gateway.view(Audience.of("gone")).tools


class Behind:
    """The access of a gateway behind a proxy on this machine."""

    sources = None
    access = Access("127.0.0.1", TOKENS, ("tap.example",), proxies=("127.0.0.1",))


class NotBehind:
    sources = None
    access = Access("127.0.0.1", TOKENS, ("tap.example",), proxies=("10.0.0.1",))


async def test_a_request_counts_as_the_client_that_a_trusted_proxy_names(tmp_path):
    bearer = f"Bearer {SECRET}"
    asked = http(body=hello(), x_forwarded_for="9.9.9.9, 1.2.3.4", authorization=bearer)
    addresses = []
    for number, allowed in enumerate((Behind, NotBehind)):
        async with open_stage(tmp_path / str(number), allowed=allowed) as stage:
            async with dial(stage.port) as line:
                assert (await line.asks(asked)).status == 200
            (session,) = stage.front.sessions
            addresses.append(session.address)

    assert addresses == ["1.2.3.4", "127.0.0.1"]


async def test_a_trusted_proxy_does_not_open_the_gateway_for_other_hosts(tmp_path):
    bearer = f"Bearer {SECRET}"
    async with open_stage(tmp_path, allowed=Behind) as stage:
        for host, forwarded, status in (
            ("tap.example", "tap.example", 200),
            ("127.0.0.1", "evil.example", 421),
            ("evil.example", "tap.example", 421),
        ):
            more = {"host": host, "x_forwarded_host": forwarded, "authorization": bearer}
            async with dial(stage.port) as line:
                assert (await line.asks(http("GET", "/metrics", **more))).status == status


async def test_a_trusted_proxy_of_our_own_user_still_needs_a_token(tmp_path):
    rules = AccessRules(host="127.0.0.1", proxies=("127.0.0.1",))
    with open_access(rules) as allowed:
        async with open_stage(tmp_path, allowed=allowed) as stage, dial(stage.port) as line:
            assert (await line.asks(http("GET", "/metrics"))).status == 401
