import gzip
import tracemalloc
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.http.client.decompression import Decompressor


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
