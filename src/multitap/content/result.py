"""One tool's answer, undecoded until somebody looks inside."""

import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

import msgspec
from msgspec import Raw

from multitap.content.blocks import Block, ImageBlock, block
from multitap.content.kept import EXACT, KeptResult, KeptResults, LongText
from multitap.content.lazy import lazy
from multitap.content.sifting import parse_pieces, sift
from multitap.errors import BadAnswer, quoted

_NOTHING = Raw(b"")
_Source = TypeVar("_Source")
_Read = TypeVar("_Read")
_MOST_WORDY = 20  # characters of text that one byte of an answer can become
_IMAGE = b'"image"'
_COMPLETE = b'"complete"'
_NULL = b"null"


class _Outline(msgspec.Struct):
    content: Raw = _NOTHING
    kind: Raw = msgspec.field(default=_NOTHING, name="resultType")
    is_error: Raw = msgspec.field(default=_NOTHING, name="isError")
    structured: Raw = msgspec.field(default=_NOTHING, name="structuredContent")
    meta: Raw = msgspec.field(default=_NOTHING, name="_meta")


_parse_outline = msgspec.json.Decoder(_Outline).decode
_parse_table = msgspec.json.Decoder(dict[str, Raw]).decode


class ToolResult:
    """What a tool answered.

    Every look inside may raise `BadAnswer`: only then is the answer decoded.
    """

    code: int | None = None
    """The protocol error's code, if the answer was one."""
    data: Any = None
    """What came with the protocol error."""
    warnings: tuple[str, ...] = ()
    """What is wrong with the answer: it does not fit the tool's schema, or blocks were dropped."""

    def __init__(
        self, raw: Raw | bytes, *, server: str = "", tool: str = "", seconds: float = 0.0
    ) -> None:
        self.raw = raw
        """The result as it came, but for blocks that were dropped."""
        self.server = server
        self.tool = tool
        self.seconds = seconds
        """How long the call took, all attempts together."""
        self.is_error_known: bool | None = None
        """Whether the tool says that it failed, where somebody looked already."""
        self._parsed: _Outline | None = None
        self._cap: tuple[int, KeptResults] | None = None

    @classmethod
    def from_error(
        cls,
        message: str,
        *,
        code: int,
        data: Any = None,
        server: str = "",
        tool: str = "",
        seconds: float = 0.0,
    ) -> "ToolResult":
        """A protocol error as a failed result, in the server's own words."""
        text = message.encode("utf-8", "replace").decode()
        raw = msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True})
        result = cls(raw, server=server, tool=tool, seconds=seconds)
        result.code = code
        result.data = data
        return result

    def __repr__(self) -> str:
        return f"<ToolResult {self.server}/{self.tool}, {len(self.raw)} bytes>"

    @property
    def is_error(self) -> bool:
        """The tool says that it failed."""
        if self.is_error_known is not None:
            return self.is_error_known
        outline = self._parsed or self._outline
        return bytes(outline.is_error) == b"true"

    @property
    def success(self) -> bool:
        return not self.is_error

    @lazy
    def blocks(self) -> Sequence[Block]:
        """The pieces; those of a large answer are decoded one by one, as they are looked at."""
        pieces = self._read(_pieces, self._outline.content)
        if len(self.raw) > EXACT:
            return _Blocks(pieces, self._block)
        return tuple(map(self._block, pieces))

    @property
    def images(self) -> Iterator[ImageBlock]:
        """The images among the blocks; nothing else is decoded for them."""
        if _IMAGE in bytes(self._outline.content):
            for piece in self._read(_pieces, self._outline.content):
                if _IMAGE in bytes(piece) and isinstance(made := self._block(piece), ImageBlock):
                    yield made

    @property
    def text(self) -> str:
        """All text, and a line for everything that is none; structured content if that is all.

        Where it is longer than allowed it is cut, with a note on how to get the rest.
        """
        return self._text.whole() if self._kept is None else self._kept.shown

    def beginning(self, length: int) -> str:
        """The first `length` characters of the whole text; the rest is not decoded."""
        return self._text.beginning(length)[:length]

    @property
    def truncated(self) -> bool:
        """`text` was cut."""
        return self._kept is not None

    @property
    def result_id(self) -> str | None:
        """Where the whole text is kept, if it was cut."""
        return None if self._kept is None else self._kept.id

    @lazy
    def _kept(self) -> KeptResult | None:
        if self._cap is None:
            return None
        limit, keep = self._cap
        if len(self._text.beginning(limit + 1)) <= limit:
            return None
        return keep.keep(self._text, limit)

    @lazy
    def _text(self) -> LongText:
        return LongText(self._parts_from, len(self.raw))

    def _parts_from(self, number: int) -> Iterator[str]:
        """The text of the blocks, which a line break keeps apart."""
        pieces = self._read(_pieces, self._outline.content)
        if not pieces and number == 0 and self.has_structured:
            yield self._read(_decoded, self._outline.structured)
        for at in range(number, len(pieces)):
            made = str(self._block(pieces[at]))
            yield f"\n{made}" if at else made

    def _block(self, piece: Raw) -> Block:
        return self._read(block, piece)

    @property
    def output(self) -> str:
        """The same as `text`."""
        return self.text

    @property
    def error(self) -> str | None:
        """Why the tool failed, in its own words; None where it did not."""
        if self.success:
            return None
        return self.text or "the tool says that it failed, and not why"

    @lazy
    def structured(self) -> Any:
        """The answer as data, for tools that give it; all of it is decoded."""
        return self._read(_json, self._outline.structured)

    @property
    def has_structured(self) -> bool:
        """Whether there is an answer as data."""
        structured = self._outline.structured
        return len(structured) > len(_NULL) or bytes(structured) not in {b"", _NULL}

    @property
    def raw_structured(self) -> Raw:
        """The answer as data, undecoded."""
        return self._outline.structured

    @property
    def is_complete(self) -> bool:
        """Whether it is an answer, rather than a question or a promise."""
        outline = self._outline
        return len(outline.content) > 0 and bytes(outline.kind) in {b"", _COMPLETE}

    @lazy
    def meta(self) -> dict[str, Any]:
        return self._read(_meta, self._outline.meta)

    def sift(self) -> None:
        """Drop the blocks that no client can use, with a warning; before anybody looks inside."""
        content = self._outline.content
        if not len(content) or (sifted := sift(content)) is None:
            return
        table = self._read(_parse_table, self.raw)
        table["content"] = Raw(sifted.content)
        self.raw = Raw(msgspec.json.encode(table))
        self._parsed = None
        self.warnings += (f"malformed content was dropped: {sifted.problem}",)

    def capped(self, limit: int, keep: KeptResults) -> "ToolResult":
        """The same result, its text cut to `limit` characters and the whole kept in `keep`.

        Both happen when somebody looks at the text.
        """
        if len(self.raw) * _MOST_WORDY <= limit:
            return self
        view = ToolResult(self.raw, server=self.server, tool=self.tool, seconds=self.seconds)
        view.code, view.data, view._parsed = self.code, self.data, self._parsed
        view.is_error_known = self.is_error_known
        view.warnings = self.warnings
        view._cap = (limit, keep)
        return view

    @property
    def _outline(self) -> _Outline:
        if self._parsed is None:
            self._parsed = self._read(_parse_outline, self.raw)
        return self._parsed

    def _read(self, read: Callable[[_Source], _Read], source: _Source) -> _Read:
        try:
            return read(source)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise BadAnswer(
                self.server, f"the answer of {quoted(self.tool)} cannot be read: {exc}"
            ) from None


class _Blocks(Sequence[Block]):
    """Blocks that are made whenever one looks at them."""

    def __init__(self, pieces: Sequence[Raw], make: Callable[[Raw], Block]) -> None:
        self._pieces = pieces
        self._make = make

    def __len__(self) -> int:
        return len(self._pieces)

    @overload
    def __getitem__(self, at: int) -> Block: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Block]: ...
    def __getitem__(self, at: int | slice) -> Block | Sequence[Block]:
        if isinstance(at, slice):
            return _Blocks(self._pieces[at], self._make)
        return self._make(self._pieces[at])

    def __repr__(self) -> str:
        return f"<{len(self)} blocks>"


def _pieces(content: Raw) -> tuple[Raw, ...]:
    if len(content) <= len(_NULL) and bytes(content) in {b"", _NULL}:
        return ()
    try:
        return parse_pieces(content)
    except msgspec.ValidationError:
        return (content,)


def _json(raw: Raw) -> Any:
    if len(raw) <= EXACT or not gc.isenabled():
        return msgspec.json.decode(raw) if len(raw) else None
    gc.disable()  # it would look through what is half decoded again and again: half of the time
    try:
        return msgspec.json.decode(raw)
    finally:
        gc.enable()


def _meta(raw: Raw) -> dict[str, Any]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any]) if len(raw) else {}
    except msgspec.ValidationError:
        return {}


def _decoded(raw: Raw) -> str:
    return bytes(raw).decode()
