"""Where a request goes: addresses, redirects, proxies."""

import asyncio
import socket
from typing import Any

import anyio
import pytest
from yarl import URL

from multitap.http.client.route import (
    in_turns,
    join_url,
    open_route,
    proxy_for,
    same_origin,
    show_url,
    stays_home,
    without_credentials,
)
from tests.waiting import PATIENCE

HOME = URL("https://example.com/mcp")


def test_an_address_is_shown_without_what_may_be_secret():
    assert (
        show_url(URL("https://me:pw@example.com:8443/a/b?key=1#x"))
        == "https://example.com:8443/a/b"
    )


def test_user_and_password_become_a_header():
    url, headers = without_credentials(URL("http://me:p%40w@example.com/"))

    assert url == URL("http://example.com/")
    assert headers == {"Authorization": "Basic bWU6cEB3"}
    assert without_credentials(HOME) == (HOME, {})


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        ("/other", "https://example.com/other"),
        ("other?a=1", "https://example.com/other?a=1"),
        ("https://user:pw@example.com/x#y", "https://example.com/x"),
        ("//evil.example/x", "https://evil.example/x"),
        ("javascript:alert(1)", None),
        ("file:///etc/passwd", None),
        ("http://[bad", None),
        ("http://a:99999999/", None),
    ],
)
def test_a_reference_is_seen_from_where_it_was_given(reference: str, target: str | None):
    assert join_url(HOME, reference) == (None if target is None else URL(target))


@pytest.mark.parametrize(
    ("start", "target", "stays"),
    [
        ("https://example.com/mcp", "https://example.com/", True),
        ("https://example.com/mcp", "https://example.com:443/", True),
        ("https://EXAMPLE.com/mcp", "https://example.com/", True),
        ("http://example.com/mcp", "https://example.com/mcp", True),
        ("http://example.com:8080/mcp", "https://example.com/mcp", False),
        ("https://example.com/mcp", "http://example.com/mcp", False),
        ("https://example.com/mcp", "https://example.com:444/", False),
        ("https://example.com/mcp", "https://www.example.com/", False),
        ("http://example.com/mcp", "https://example.org/mcp", False),
    ],
)
def test_only_a_redirect_that_stays_home_keeps_our_headers(start: str, target: str, stays: bool):
    assert stays_home(URL(start), URL(target)) is stays


def test_an_origin_is_scheme_host_and_port():
    assert same_origin(HOME, URL("https://example.com:443/other"))
    assert not same_origin(HOME, URL("http://example.com:443/mcp"))


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://example.com/", "http://proxy:3128"),
        ("http://example.com/", None),
        ("https://inside.example.com/", None),
        ("https://127.0.0.1/", None),
        ("https://localhost/", None),
        ("https://[::1]/", None),
    ],
)
def test_the_environment_names_the_proxy(
    url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
):
    for name in ("HTTP_PROXY", "http_proxy", "https_proxy", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "inside.example.com")

    assert proxy_for(URL(url)) == proxy


NOWHERE = URL("http://several.invalid")


class Resolving:
    """A loop that knows the addresses of a host, whatever its name."""

    def __init__(self, *ports: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._ports = ports

    async def getaddrinfo(self, *_: Any, **__: Any) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in self._ports
        ]

    async def create_connection(self, make: Any, host: str, port: int, **options: Any) -> Any:
        if port == SLOW:
            await anyio.sleep_forever()
        return await self._loop.create_connection(make, host, port, **options)


SLOW = 1
REFUSING = 2


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    "others", [(), (REFUSING,), (REFUSING, REFUSING), (SLOW,), (SLOW, REFUSING)]
)
async def test_the_first_address_that_answers_is_taken(listening: int, others: tuple[int, ...]):
    loop: Any = Resolving(*others, listening, SLOW)
    with anyio.fail_after(PATIENCE):
        transport, _ = await open_route(loop, asyncio.Protocol, NOWHERE)
    made = transport.get_extra_info("socket")
    try:
        assert made.getpeername()[1] == listening
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        transport.abort()


async def test_the_first_refusal_is_told_when_all_refuse():
    loop: Any = Resolving(REFUSING, REFUSING)
    with anyio.fail_after(PATIENCE), pytest.raises(ConnectionRefusedError):
        await open_route(loop, asyncio.Protocol, NOWHERE)


async def test_a_host_may_have_no_address():
    loop: Any = Resolving()
    with pytest.raises(OSError, match="does not resolve"):
        await open_route(loop, asyncio.Protocol, NOWHERE)


async def test_giving_up_leaves_no_attempt_behind():
    loop: Any = Resolving(SLOW, SLOW, SLOW)
    with anyio.move_on_after(0.05) as given_up:
        await open_route(loop, asyncio.Protocol, NOWHERE)

    assert given_up.cancelled_caught


def test_the_families_take_turns():
    def address(family: socket.AddressFamily, number: int) -> Any:
        return (family, 1, 6, "", (number,))

    six = [address(socket.AF_INET6, number) for number in range(3)]
    four = [address(socket.AF_INET, number) for number in range(2)]

    assert in_turns([*six, *four]) == [six[0], four[0], six[1], four[1], six[2]]
    assert in_turns([]) == []
