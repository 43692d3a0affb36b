"""Heads that repeat themselves, so that each is parsed once.

Most requests of a client, and most responses of a server, differ only in their bodies and in the
`Content-Length`.
"""

import re
from typing import Generic, TypeVar

_Head = TypeVar("_Head")
_LENGTH = re.compile(rb"(\r\ncontent-length: ?)\d+", re.IGNORECASE)
_DIGITS = 9
"""Digits of a length; longer ones are for the parser to refuse."""


class HeadCache(Generic[_Head]):
    """The last heads of one connection, by their exact bytes without the length of the body."""

    __slots__ = ("_field", "_heads", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._heads: dict[bytes, _Head] = {}
        self._field = b""
        """How the sender begins the line with the length."""

    def find(self, data: bytes, end: int) -> tuple[_Head, int] | None:
        """What is known of the head that ends there, and the length of its body."""
        field = self._field
        at = data.find(field, 0, end)
        if at < 0:
            return None
        at += len(field)
        line_end = data.find(b"\r", at)
        digits = data[at:line_end]
        head = self._heads.get(data[:at] + data[line_end:end])
        if head is None or not digits.isdigit() or len(digits) > _DIGITS:
            return None
        return head, int(digits)

    def add(self, data: bytes, end: int, head: _Head) -> None:
        """Remember a head that was parsed, unless its body has no length."""
        if (found := _LENGTH.search(data, 0, end)) is None:
            return
        if len(self._heads) >= self._most or self._field != found[1]:
            self._heads.clear()
            self._field = found[1]
        self._heads[data[: found.end(1)] + data[found.end() : end]] = head

    def clear(self) -> None:
        self._heads.clear()
