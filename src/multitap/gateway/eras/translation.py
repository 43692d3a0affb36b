"""Translates results from one era to the other, leaving values undecoded."""

from collections.abc import Mapping

from msgspec import Raw

from multitap.gateway.client_message import Result, parse_table
from multitap.wire.jsonrpc import envelope, vocabulary

_LONG = 64 * 1024
"""Bytes above which a member of a result is passed on without a copy."""
_STALE = ("resultType", "ttlMs", "cacheScope")
_COMPLETE = b'{"resultType":"complete"'
_NOT_KEPT = _COMPLETE + b',"ttlMs":0,"cacheScope":"private"'


def to_stateless(result: Raw | bytes, *, kept: bool = False) -> Result:
    """A result of the handshake era with the fields that the stateless era requires.

    Args:
        result: As the server sent it.
        kept: Whether clients may cache such results, and so need a lifetime.
    """
    body = memoryview(result)[1:]
    head = _NOT_KEPT if kept else _COMPLETE
    # an empty object needs no comma; more white space than this is not expected
    if bytes(body[:64]).lstrip()[:1] != b"}":
        head += b","
    return (head, body) if len(body) > _LONG else b"".join((head, body))


def to_handshake(result: Raw | bytes) -> Result:
    """A result of the stateless era without the fields that older clients do not know."""
    table = parse_table(result)
    for key in _STALE:
        table.pop(key, None)
    if (meta := table.get("_meta")) is not None:
        kept = parse_table(meta)
        kept.pop(vocabulary.SERVER_INFO_KEY, None)
        if kept:
            table["_meta"] = Raw(envelope.encode(kept))
        else:
            del table["_meta"]
    return _join(table)


def _join(table: Mapping[str, Raw]) -> Result:
    """A JSON object of these members; long ones are not copied."""
    parts: list[Raw | bytes] = []
    short: list[Raw | bytes] = [b"{"]
    for key, value in table.items():
        short += (envelope.encode(key), b":")
        if len(value) > _LONG:
            parts += (b"".join(short), value)
            short = [b","]
        else:
            short += (value, b",")
    if table:
        short.pop()  # the last comma
    short.append(b"}")
    return (*parts, b"".join(short)) if parts else b"".join(short)
