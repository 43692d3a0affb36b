"""A tool's result that is decoded only as far as it is read."""

import gc
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from multitap.errors import BadAnswer, quoted
from multitap.results.blocks import Block, block
from multitap.results.long_text import EXACT, LongText
from multitap.results.sifting import UNREADABLE, Sifted, parse_pieces, sift

_NOTHING = Raw(b"")
_Source = TypeVar("_Source")
_Read = TypeVar("_Read")
_COMPLETE = b'"complete"'
_NULL = b"null"


class Outline(msgspec.Struct):
    """The members of an answer, each undecoded."""

    content: Raw = _NOTHING
    kind: Raw = msgspec.field(default=_NOTHING, name="resultType")
    is_error: Raw = msgspec.field(default=_NOTHING, name="isError")
    structured: Raw = msgspec.field(default=_NOTHING, name="structuredContent")
    meta: Raw = msgspec.field(default=_NOTHING, name="_meta")


_parse_outline = msgspec.json.Decoder(Outline).decode


class LazyAnswer:
    """Decodes the parts of one answer on access, which may raise `BadAnswer`."""

    __slots__ = ("_outline", "_raw", "_server", "_text", "_tool")

    def __init__(self, raw: Raw | bytes, server: str, tool: str) -> None:
        self._raw = raw
        self._server = server
        self._tool = tool
        self._outline: Outline | None = None
        self._text: LongText | None = None

    @property
    def outline(self) -> Outline:
        if self._outline is None:
            self._outline = self.read(_parse_outline, self._raw)
        return self._outline

    @property
    def text(self) -> LongText:
        """All text, assembled as far as it is read."""
        if self._text is None:
            self._text = LongText(self._parts_from, len(self._raw))
        return self._text

    @property
    def has_structured(self) -> bool:
        """Whether there is structured content."""
        structured = self.outline.structured
        return len(structured) > len(_NULL) or bytes(structured) not in {b"", _NULL}

    @property
    def is_complete(self) -> bool:
        """Whether it is a final answer, not `input_required` or a task."""
        outline = self.outline
        return len(outline.content) > 0 and bytes(outline.kind) in {b"", _COMPLETE}

    def pieces(self) -> tuple[Raw, ...]:
        """The blocks, each undecoded."""
        return self.read(_pieces, self.outline.content)

    def block(self, piece: Raw) -> Block:
        """One decoded block."""
        return self.read(block, piece)

    def structured(self) -> Any:
        """The structured content."""
        return self.read(_json, self.outline.structured)

    def meta(self) -> dict[str, Any]:
        """The `_meta` of the answer."""
        return self.read(_meta, self.outline.meta)

    def sifted(self) -> Sifted | None:
        """The content without blocks that no client can use; None if all are usable."""
        content = self.outline.content
        return sift(content) if len(content) else None

    def read(self, read: Callable[[_Source], _Read], source: _Source) -> _Read:
        """The result of `read` on a part of the answer.

        Raises:
            BadAnswer: It cannot be read.
        """
        try:
            return read(source)
        except UNREADABLE as exc:
            raise BadAnswer(
                self._server, f"the answer of {quoted(self._tool)} cannot be read: {exc}"
            ) from None

    def _parts_from(self, number: int) -> Iterator[str]:
        """The text of the blocks, separated by line breaks."""
        pieces = self.pieces()
        # servers should repeat structured content as text, and many do not
        if not pieces and number == 0 and self.has_structured:
            yield self.read(_decode, self.outline.structured)
        for at in range(number, len(pieces)):
            made = str(self.block(pieces[at]))
            yield f"\n{made}" if at else made


def _pieces(content: Raw) -> tuple[Raw, ...]:
    if len(content) <= len(_NULL) and bytes(content) in {b"", _NULL}:
        return ()
    try:
        return parse_pieces(content)
    except msgspec.ValidationError:
        return (content,)


def _json(raw: Raw) -> Any:
    # If somebody else has switched it off, it stays off.
    if len(raw) <= EXACT or not gc.isenabled():
        return msgspec.json.decode(raw) if len(raw) else None
    gc.disable()  # the collector would scan the half-decoded data repeatedly, for half of the time
    try:
        return msgspec.json.decode(raw)
    finally:
        gc.enable()


def _meta(raw: Raw) -> dict[str, Any]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any]) if len(raw) else {}
    except msgspec.ValidationError:
        return {}


def _decode(raw: Raw) -> str:
    return bytes(raw).decode()
