"""Results in the words of the other era."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from multitap.gateway.eras import to_handshake, to_stateless
from multitap.wire.jsonrpc import answer_pieces

SERVER_INFO = "io.modelcontextprotocol/serverInfo"
STALE = ("resultType", "ttlMs", "cacheScope")
LONG = 'long and "quoted" \\ text,\n' * 2700

keys = st.one_of(st.sampled_from([*STALE, "_meta", "content", "", '"', "\\", "ü"]), st.text())
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**53), 2**53),
    st.text(),
    st.sampled_from([LONG, '"resultType":"complete"', '{"ttlMs":1}', "}", ","]),
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
metas = st.dictionaries(st.one_of(st.just(SERVER_INFO), keys), values, max_size=3)
members = st.tuples(keys.filter(lambda key: key != "_meta"), values) | st.tuples(
    st.just("_meta"), metas
)
spaces = st.sampled_from(["", " ", "\n", "\t \r\n"])


@st.composite
def texts(draw):
    """Objects as servers may write them: keys spelled oddly, twice, and with spaces around."""

    def spelled(key):
        escaped = draw(st.booleans())
        units = key.encode("utf-16-be", "surrogatepass")
        odd = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        return f'"{odd}"' if escaped else json.dumps(key, ensure_ascii=draw(st.booleans()))

    space = draw(spaces)
    parts = [
        f"{space}{spelled(key)}{space}:{space}{json.dumps(value)}{space}"
        for key, value in draw(st.lists(members, max_size=5))
    ]
    return f"{{{','.join(parts) or space}}}".encode()


def whole(result):
    return b"".join(result) if isinstance(result, tuple) else bytes(result)


def in_envelope(text):
    """As it comes: a slice of the message that holds it."""

    class Message(msgspec.Struct):
        result: Raw

    return msgspec.json.decode(b'{"id":1,"result":%b,"more":[2]}' % text, type=Message).result


@given(texts())
def test_older_clients_get_all_but_what_they_do_not_know(text):
    expected = {key: value for key, value in json.loads(text).items() if key not in STALE}
    if "_meta" in expected:
        expected["_meta"].pop(SERVER_INFO, None)
        if not expected["_meta"]:
            del expected["_meta"]

    assert json.loads(whole(to_handshake(in_envelope(text)))) == expected


@given(texts(), st.booleans())
def test_newer_clients_get_what_they_need_in_front_of_all_else(text, kept):
    needed = {"resultType": "complete"}
    if kept:
        needed |= {"ttlMs": 0, "cacheScope": "private"}

    assert json.loads(
        whole(to_stateless(in_envelope(text), is_cached=kept))
    ) == needed | json.loads(text)


@pytest.mark.parametrize("translate", [to_handshake, to_stateless])
def test_a_long_member_is_handed_on_as_it_is(translate):
    text = msgspec.json.encode({"content": LONG, "resultType": "complete"})

    pieces = translate(in_envelope(text))

    assert [len(piece) > 1000 for piece in pieces].count(True) == 1
    assert {type(piece) for piece in pieces if len(piece) > 1000} <= {Raw, memoryview}


def test_many_short_members_are_one_piece():
    table = {str(number): "x" * 100 for number in range(10_000)}

    assert isinstance(to_handshake(in_envelope(msgspec.json.encode(table))), bytes)


@pytest.mark.parametrize("result", [b'{"a":1}', Raw(b'{"a":1}'), (b'{"a"', Raw(b":1"), b"}")])
def test_an_answer_holds_the_result_in_one_piece_or_many(result):
    assert json.loads(b"".join(answer_pieces(Raw(b'"x"'), result))) == {
        "jsonrpc": "2.0",
        "id": "x",
        "result": {"a": 1},
    }
