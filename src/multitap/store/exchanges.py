"""The arguments and results of calls, kept only on request."""

import json
import secrets
from collections.abc import Callable
from typing import Any

import msgspec

from multitap.config.call_secrets import in_call, mask_members
from multitap.redaction import MARK, Redactor
from multitap.store.log_query import encodable

MAX_EXCHANGES = 2_000
"""How many are kept."""
MAX_AGE = 7 * 86_400.0
"""Seconds after which one is deleted."""
LONGEST = 64 * 1024
"""Characters of a request or a response that are kept."""

_MOST_MASKED = 1024 * 1024  # bytes of arguments that are decoded for it

TABLE = """
CREATE TABLE IF NOT EXISTS exchanges (
    id TEXT PRIMARY KEY,
    at REAL NOT NULL,
    arguments TEXT NOT NULL,
    result TEXT NOT NULL
)
"""
INSERT = "INSERT OR REPLACE INTO exchanges (id, at, arguments, result)"
SELECT = "SELECT id, arguments, result FROM exchanges WHERE id = ?"
TRIM = """
DELETE FROM exchanges WHERE at < ? OR rowid <= (SELECT max(rowid) FROM exchanges) - ?
"""


class RecordedExchange(msgspec.Struct, frozen=True):
    """The arguments and the result of one call, as JSON, without secrets."""

    id: str
    arguments: str
    result: str

    def row(self, at: float) -> tuple[Any, ...]:
        """The values for `INSERT`."""
        return (self.id, at, encodable(self.arguments), encodable(self.result))


def keep_exchange(arguments: bytes, result: bytes, redact: Redactor) -> RecordedExchange:
    """The exchange of a call that has just ended."""
    values = {*in_call(arguments)}
    room = LONGEST + max([redact.reach, *map(len, values)])
    hide = redact.with_values(values)  # servers repeat what they were given
    return RecordedExchange(
        secrets.token_hex(8), _bound(_mask(arguments), hide, room), _bound(result, hide, room)
    )


def _mask(arguments: bytes) -> bytes:
    """Arguments without the values of telling names, however short they are."""
    if len(arguments) > _MOST_MASKED:
        return arguments  # of these, only the beginning is kept
    try:
        return msgspec.json.encode(mask_members(msgspec.json.decode(arguments), MARK))
    except (ValueError, RecursionError):
        return arguments


def _bound(data: bytes, redact: Callable[[str], str], room: int) -> str:
    # redacted with a margin, so that a secret across the cut is found as a whole
    text = bytes(memoryview(data)[: 4 * room]).decode("utf-8", "replace")
    clean = redact(text[:room])
    return clean if len(clean) <= LONGEST else f"{clean[:LONGEST]}…"


def indent_json(text: str) -> str:
    """JSON with indentation; any other text unchanged."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:  # it was cut
        return text
