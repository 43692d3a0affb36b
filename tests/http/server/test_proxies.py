"""What proxies say about their clients counts only if they are named."""

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.errors import ConfigError
from multitap.http.server.proxies import (
    NotProxied,
    ProxyHeader,
    TrustedProxies,
    parse_hop,
    parse_proxy_header,
)
from multitap.http.server.server import bind, open_http_server
from tests.gateway.hostile.raw import dial, http

OURS = TrustedProxies(["10.0.0.0/8", "fd00::1", "127.0.0.1"])


def client(*headers):
    return OURS.client([(name.encode(), value.encode()) for name, value in headers])


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("1.2.3.4", "1.2.3.4"),
        (" 1.2.3.4:80 ", "1.2.3.4"),
        ("2001:db8::1", "2001:db8::1"),
        ('"[2001:db8::1]:4711"', "2001:db8::1"),
        ("[::ffff:1.2.3.4]", "1.2.3.4"),
        ("unknown", None),
        ("_hidden", None),
        ("1.2.3", None),
        ("", None),
    ],
)
def test_an_address_is_read_in_all_its_forms(text, address):
    parsed = parse_hop(text)

    assert (None if parsed is None else str(parsed)) == address


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ([("x-forwarded-for", "9.9.9.9, 1.2.3.4")], "1.2.3.4"),
        ([("x-forwarded-for", "9.9.9.9, 1.2.3.4, 10.0.0.7")], "1.2.3.4"),
        ([("x-forwarded-for", "9.9.9.9"), ("x-forwarded-for", "1.2.3.4")], "1.2.3.4"),
        ([("x-forwarded-for", "9.9.9.9, unknown")], None),
        ([("forwarded", 'for=9.9.9.9, for="[2001:db8::1]:99";proto=https')], "2001:db8::1"),
        ([("forwarded", "for=1.2.3.4"), ("x-forwarded-for", "1.2.3.4")], "1.2.3.4"),
        # a client adds the header that the proxy does not set
        ([("forwarded", "for=9.9.9.9"), ("x-forwarded-for", "1.2.3.4")], None),
        ([("x-forwarded-for", ", ".join(["9.9.9.9", *["10.0.0.1"] * 40]))], None),
        ([], None),
    ],
)
def test_the_last_address_that_no_proxy_of_ours_has_counts(headers, address):
    assert client(*headers).address == address


def test_scheme_and_host_are_those_of_the_last_proxy():
    said = client(
        ("x-forwarded-proto", "http, https"), ("x-forwarded-host", "a.example, B.example")
    )

    assert said.is_secure
    assert said.host == "b.example"


def test_what_is_no_address_is_refused_at_the_start():
    with pytest.raises(ConfigError, match=r"'proxy\.example' .* is not an address"):
        TrustedProxies(["proxy.example"])


def v2(address, rest=b"", command=0x21):
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    family = 0x21 if ":" in address else 0x11
    ends = packed + packed + struct.pack("!HH", 1, 2) + rest
    return struct.pack("!12sBBH", b"\r\n\r\n\x00\r\nQUIT\n", command, family, len(ends)) + ends


HEADERS = [
    (b"PROXY TCP4 1.2.3.4 10.0.0.1 5 6\r\n", "1.2.3.4"),
    (b"PROXY TCP6 2001:db8::1 ::1 5 6\r\n", "2001:db8::1"),
    (b"PROXY UNKNOWN\r\n", None),
    (v2("1.2.3.4"), "1.2.3.4"),
    (v2("2001:db8::1", rest=b"\x03\x00\x04abcd"), "2001:db8::1"),
    (v2("1.2.3.4", command=0x20), None),
]


@pytest.mark.parametrize(("header", "address"), HEADERS)
def test_a_header_is_read_however_it_arrives(header, address):
    for size in range(len(header)):
        assert parse_proxy_header(header[:size]) is None

    assert parse_proxy_header(header + b"GET / HTTP/1.1") == ProxyHeader(len(header), address)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n", b"PROXY TCP4 x y 1 2\r\n", b"PROXY " + b"x" * 200, b"\x16\x03"]
)
def test_what_is_no_header_is_refused(data):
    with pytest.raises(NotProxied):
        parse_proxy_header(data)


@given(st.binary(max_size=200), st.sampled_from([header for header, _ in HEADERS]))
def test_no_bytes_do_harm(data, header):
    for text in (data, header[:20] + data):
        try:
            parse_proxy_header(text)
        except NotProxied:
            continue


class Who:
    """Answers with the address that a request counts against."""

    def admit(self, head):
        return None

    def handle(self, http_request):
        http_request.respond(200, (http_request.head.address.encode(),))


@pytest.fixture(params=[True, False], ids=["uvloop", "asyncio"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


@pytest.mark.parametrize(("header", "address"), HEADERS)
async def test_a_connection_counts_as_the_clients_that_a_proxy_names(header, address):
    async with open_http_server(Who(), bind("127.0.0.1", 0), proxies=OURS) as server:
        port = int(server.url.rpartition(":")[2])
        async with dial(port) as line:
            await line.send(header[:5])
            first = await line.asks(header[5:] + http("GET"))
            second = await line.asks(http("GET"))
        async with dial(port) as line:
            await line.send(http("GET"))
            assert await line.closed() == b""

    shown = address and ("2001:db8::/64" if ":" in address else address)
    assert first.body.decode() == second.body.decode() == (shown or "127.0.0.1")


async def test_a_stranger_cannot_name_a_client():
    others = TrustedProxies(["10.0.0.1"])
    async with open_http_server(Who(), bind("127.0.0.1", 0), proxies=others) as server:
        port = int(server.url.rpartition(":")[2])
        async with dial(port) as line:
            assert (await line.asks(http("GET"))).body == b"127.0.0.1"
        async with dial(port) as line:
            assert (await line.asks(HEADERS[0][0] + http("GET"))).status == 400
