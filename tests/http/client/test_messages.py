"""Heads of requests, and compressed bodies."""

import gzip
import tracemalloc
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from multitap.errors import RequestFailed
from multitap.http.client.messages import Decompressor, encode_head, line, merge, without

HERE = URL("http://host:81/path?q=a b")


def test_the_last_layer_that_names_a_header_wins_in_whatever_case():
    assert merge({"Accept": "a", "X": "1"}, {"ACCEPT": "b"}) == {"Accept": "b", "X": "1"}


def test_a_header_is_left_out_in_whatever_case():
    assert without({"Accept": "a", "x-y": "1"}, "X-Y") == {"Accept": "a"}


@pytest.mark.parametrize(
    ("url", "host", "target"),
    [
        ("http://a.example", "a.example", "/"),
        ("http://a.example:80/x", "a.example", "/x"),
        ("http://a.example:81/x?y=%20", "a.example:81", "/x?y=%20"),
        ("http://[::1]:81/x", "[::1]:81", "/x"),
        ("http://bücher.example/ü", "xn--bcher-kva.example", "/%C3%BC"),
    ],
)
def test_the_head_says_where_it_goes(url: str, host: str, target: str):
    head = encode_head("GET", URL(url), {})

    assert head == f"GET {target} HTTP/1.1\r\nHost: {host}\r\n".encode()


def test_a_proxy_is_told_the_whole_address():
    assert encode_head("GET", HERE, {}, proxied=True).startswith(
        b"GET http://host:81/path?q=a+b HTTP"
    )


def test_a_configured_host_is_said_instead_of_ours():
    assert encode_head("GET", HERE, {"host": "other"}) == (
        b"GET /path?q=a+b HTTP/1.1\r\nHost: other\r\n"
    )


def test_nobody_else_says_where_a_message_ends():
    head = encode_head("POST", HERE, {"Content-length": "5", "Transfer-Encoding": "chunked"})

    assert head == b"POST /path?q=a+b HTTP/1.1\r\nHost: host:81\r\n"


def test_text_that_is_not_ascii_travels_as_utf_8():
    assert line("X-Name", "Ünal") == "X-Name: Ünal\r\n".encode()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X", "a\r\nEvil: 1"), ("X", "a\nb"), ("X", "a\rb"), ("X", "a\0b"), ("X", "a\n"),
        ("X", "\ud800"), ("X: 1\r\nEvil", "1"), ("X Y", "1"), ("X:", "1"), ("", "1"), ("Ü", "1"),
        ("X\n", "1"),
    ],
)  # fmt: skip
def test_a_header_that_would_be_more_than_one_is_refused_and_not_shown(name: str, value: str):
    with pytest.raises(RequestFailed, match="not allowed in a header") as failure:
        line(name, value)

    assert not failure.value.sent
    assert "Evil: 1" not in str(failure.value)


@pytest.mark.parametrize("path", ["/a b", "/a\r\nEvil: 1", "/\0", "/ü"])
def test_an_address_that_would_end_the_line_is_refused(path: str):
    with pytest.raises(RequestFailed, match="not allowed in a request"):
        encode_head("GET", URL.build(scheme="http", host="h", path=path, encoded=True), {})


@given(name=st.text(max_size=8), value=st.text(max_size=20))
def test_whatever_is_said_is_one_line(name: str, value: str):
    try:
        said = line(name, value)
    except RequestFailed:
        return

    assert said.endswith(b"\r\n")
    assert not {b"\r", b"\n", b"\0"} & {said[i : i + 1] for i in range(len(said) - 2)}


def raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKED = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate without a header": ("deflate", raw),
    "members": ("gzip", lambda data: gzip.compress(data[:3]) + gzip.compress(data[3:])),
    "padded members": ("gzip", lambda data: gzip.compress(data) + b"\0\0" + gzip.compress(b"")),
}


def unpacked(encoding: str, *chunks: bytes) -> list[bytes]:
    decoder = Decompressor(encoding)
    pieces: list[bytes] = []
    for chunk in chunks:
        decoder.feed(chunk)
        while not decoder.hungry:
            pieces.append(decoder.piece())
    return pieces


@pytest.mark.parametrize(("encoding", "pack"), PACKED.values(), ids=PACKED)
@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300), max_size=5))
def test_where_the_chunks_are_cut_makes_no_difference(encoding, pack, data, cuts):
    packed = pack(data)
    edges = sorted({0, len(packed), *(cut for cut in cuts if cut < len(packed))})

    pieces = unpacked(encoding, *(packed[start:end] for start, end in pairwise(edges)))

    assert b"".join(pieces) == data


def test_a_bomb_goes_off_a_piece_at_a_time():
    bomb = gzip.compress(b" " * 2**26)
    decoder = Decompressor("gzip")
    tracemalloc.start()
    try:
        decoder.feed(bomb)
        size = 0
        while not decoder.hungry:
            size += len(decoder.piece())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert size == 2**26
    assert peak < 2**20


def test_many_small_members_are_looked_at_a_few_at_a_time():
    decoder = Decompressor("gzip")
    decoder.feed(gzip.compress(b"x") * 10_000)
    rounds = 0
    while not decoder.hungry:
        assert len(decoder.piece()) <= 1
        rounds += 1

    assert rounds >= 10_000


@pytest.mark.parametrize(
    "data", [b"no gzip", gzip.compress(b"x") + b"rest"], ids=["no gzip", "more after it"]
)
def test_damage_is_noticed(data: bytes):
    with pytest.raises(zlib.error):
        unpacked("gzip", data)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", ""])
def test_an_encoding_that_nobody_asked_for_is_refused(encoding: str):
    with pytest.raises(ValueError):
        Decompressor(encoding)
