"""The result of a tool call, undecoded until it is read."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, TypeVar, overload

import msgspec
from msgspec import UNSET, Raw, UnsetType

from multitap.errors import BadAnswer, quoted
from multitap.results.blocks import Block, ImageBlock, block
from multitap.results.long_text import (
    EXACT,
    KeptResult,
    KeptResults,
    LongText,
)

AT_ONCE = 64 * 1024
"""Bytes decoded at a time; other threads run only in between."""
_GROUP = 500  # blocks decoded at a time, for the same reason
_NOTHING = Raw(b"")
_NULL = b"null"
_REPORTED = 3  # how many blocks a warning names; a result may have thousands
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Text(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class _Image(msgspec.Struct, tag_field="type", tag="image"):
    data: str
    mimeType: str = ""  # noqa: N815 - the wire's spelling


class _Audio(msgspec.Struct, tag_field="type", tag="audio"):
    data: str
    mimeType: str = ""  # noqa: N815 - the wire's spelling


class _Link(msgspec.Struct, tag_field="type", tag="resource_link"):
    uri: str
    name: str = ""


class _Contents(msgspec.Struct):
    uri: str
    text: str | UnsetType = UNSET
    blob: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.text is UNSET and self.blob is UNSET:
            raise ValueError("Object has neither `text` nor `blob`")


class _Embedded(msgspec.Struct, tag_field="type", tag="resource"):
    resource: _Contents


class _Typed(msgspec.Struct):
    type: str


class _Undecoded(msgspec.Struct):
    """A block, or a resource in one, with undecoded texts: a long one takes no memory."""

    type: str = ""
    text: Raw = _NOTHING
    data: Raw = _NOTHING
    blob: Raw = _NOTHING
    uri: Raw = _NOTHING
    name: Raw = _NOTHING
    mimeType: Raw = _NOTHING  # noqa: N815 - the wire's spelling
    resource: Raw = _NOTHING


_Known = _Text | _Image | _Audio | _Link | _Embedded
_KINDS = frozenset({"text", "image", "audio", "resource_link", "resource"})


def _is_given(value: Raw) -> bool:
    return len(value) > len(_NULL) or bytes(value) not in {b"", _NULL}


class ValidResult(msgspec.Struct):
    """A result that every client can use as it is."""

    content: list[_Known]
    is_error: bool = msgspec.field(default=False, name="isError")
    resultType: Literal["complete"] = "complete"  # noqa: N815 - the wire's spelling
    structured: Raw = msgspec.field(default=_NOTHING, name="structuredContent")
    """Its structured content, undecoded."""

    def text(self) -> str | None:
        """The whole text, if it contains only text."""
        texts = [block.text for block in self.content if isinstance(block, _Text)]
        return "\n".join(texts) if len(texts) == len(self.content) else None


parse_sound = msgspec.json.Decoder(ValidResult).decode
"""Decode a typical result; raises `msgspec.DecodeError` if it needs closer inspection."""


class LargeResult(msgspec.Struct):
    """The same for a large result, with undecoded blocks."""

    content: tuple[_Undecoded, ...]
    is_error: bool = msgspec.field(default=False, name="isError")
    resultType: Literal["complete"] = "complete"  # noqa: N815 - the wire's spelling


parse_large = msgspec.json.Decoder(LargeResult).decode
_parse_known = msgspec.json.Decoder(list[_Known]).decode
_parse_one = msgspec.json.Decoder(_Known).decode
_parse_type = msgspec.json.Decoder(_Typed).decode
_parse_string = msgspec.json.Decoder(str).decode
_parse_undecoded = msgspec.json.Decoder(_Undecoded).decode
parse_pieces = msgspec.json.Decoder(tuple[Raw, ...]).decode
"""The blocks of a content list, each undecoded."""


class Sifted(msgspec.Struct, frozen=True):
    """The remaining content, and why the rest was dropped."""

    content: bytes
    problem: str


def sift(content: Raw) -> Sifted | None:
    """`content` without its malformed blocks; None if all are valid.

    A block is malformed if it has no `type`, or if a field that its kind requires is missing or
    of the wrong type. Blocks of unknown kinds are not checked further.
    """
    if len(content) <= AT_ONCE:
        try:
            _parse_known(content)
        except UNREADABLE:
            pass
        else:
            return None
    try:
        pieces = parse_pieces(content)
    except msgspec.ValidationError:
        return Sifted(b"[]", "its content is not a list")
    return _sift_pieces(pieces)


def _sift_pieces(pieces: Sequence[Raw]) -> Sifted | None:
    problems = {at: why for start, group in _groups(pieces) for at, why in _odd(start, group)}
    if not problems:
        return None
    sound = [piece for at, piece in enumerate(pieces) if at not in problems]
    return Sifted(b"[%b]" % b",".join(sound), _sum_up(problems))


def _groups(pieces: Sequence[Raw]) -> Iterator[tuple[int, list[Raw]]]:
    group: list[Raw] = []
    start = size = 0
    for at, piece in enumerate(pieces):
        if len(piece) > AT_ONCE and group:  # alone, so that it is not copied
            yield start, group
            group, start, size = [], at, 0
        group.append(piece)
        size += len(piece)
        if len(group) == _GROUP or size > AT_ONCE:
            yield start, group
            group, start, size = [], at + 1, 0
    yield start, group


def _odd(start: int, group: Sequence[Raw]) -> Iterator[tuple[int, str]]:
    if len(group) == 1 and _looks_sound(group[0]):
        return
    try:
        _parse_known(b"[%b]" % b",".join(group))
    except UNREADABLE:
        for at, piece in enumerate(group, start=start):
            if (problem := _problem(piece)) is not None:
                yield at, problem


def _looks_sound(piece: Raw) -> bool:
    """Whether a block is certainly valid; others need closer inspection."""
    try:
        return _is_sound(_parse_undecoded(piece))
    except UNREADABLE:
        return False


def _is_sound(block: _Undecoded) -> bool:
    """Whether an undecoded block is certainly valid."""
    match block.type:
        case "text":
            return _is_text(block.text)
        case "image" | "audio":
            return _is_text(block.data) and _may_be_text(block.mimeType)
        case "resource_link":
            return _is_text(block.uri) and _may_be_text(block.name)
        case "resource":
            inside = _parse_undecoded(block.resource)
            contents = [content for content in (inside.text, inside.blob) if len(content)]
            return _is_text(inside.uri) and bool(contents) and all(map(_is_text, contents))
        case _:
            return False


def _is_text(value: Raw) -> bool:
    # it was parsed as JSON already, so its first byte tells its type
    return bytes(memoryview(value)[:1]) == b'"'


def _may_be_text(value: Raw) -> bool:
    return not len(value) or _is_text(value)


def _problem(piece: Raw) -> str | None:
    try:
        _parse_one(piece)
    except msgspec.ValidationError as exc:
        return None if _is_of_other_kind(piece) else str(exc)
    except UNREADABLE:
        return None  # not valid text, which a reader will find out
    return None


def _is_of_other_kind(piece: Raw) -> bool:
    try:
        return _parse_type(piece).type not in _KINDS
    except UNREADABLE:
        return False


def _sum_up(problems: dict[int, str]) -> str:
    lines = [f"block {at}: {problem}" for at, problem in list(problems.items())[:_REPORTED]]
    if len(problems) > _REPORTED:
        lines.append(f"and {len(problems) - _REPORTED:,} more")
    return "; ".join(lines)


_Source = TypeVar("_Source")
_Read = TypeVar("_Read")
_COMPLETE = b'"complete"'


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

    __slots__ = ("_outline", "_raw", "_server", "_text", "_tool", "texts")

    def __init__(self, raw: Raw | bytes, server: str, tool: str) -> None:
        self._raw = raw
        self._server = server
        self._tool = tool
        self._outline: Outline | None = None
        self._text: LongText | None = None
        self.texts: Sequence[Raw] = ()
        """The undecoded texts of its blocks, if it has no other blocks and they were parsed before.

        Spares two of five passes over a large result: a quarter of a call with a megabyte.
        """

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
        return _is_given(self.outline.structured)

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
        if self.texts:
            for at in range(number, len(self.texts)):
                text = self.read(_parse_string, self.texts[at])
                yield f"\n{text}" if at else text
            return
        pieces = self.pieces()
        # servers should repeat structured content as text, and many do not
        if not pieces and number == 0 and self.has_structured:
            yield self.read(_decode, self.outline.structured)
        for at in range(number, len(pieces)):
            text = str(self.block(pieces[at]))
            yield f"\n{text}" if at else text


def _pieces(content: Raw) -> tuple[Raw, ...]:
    if len(content) <= len(_NULL) and bytes(content) in {b"", _NULL}:
        return ()
    try:
        return parse_pieces(content)
    except msgspec.ValidationError:
        return (content,)


def _json(raw: Raw) -> Any:
    return msgspec.json.decode(raw) if len(raw) else None


def _meta(raw: Raw) -> dict[str, Any]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any]) if len(raw) else {}
    except msgspec.ValidationError:
        return {}


def _decode(raw: Raw) -> str:
    return bytes(raw).decode()


_MOST_WORDY = 20  # the most characters of text that one byte of an answer can become
_IMAGE = b'"image"'


_parse_table = msgspec.json.Decoder(dict[str, Raw]).decode


class ToolResult(msgspec.Struct, eq=False, dict=True):
    """The result of a tool call.

    It is decoded on first access, which may raise `BadAnswer`.
    """

    raw: Raw | bytes
    """The result as received, without dropped blocks."""
    server: str = ""
    tool: str = ""
    seconds: float = 0.0
    """Duration of the call, with all attempts."""
    waited: float = 0.0
    """Seconds of it spent waiting for a turn, the connection and the server; 0 if not known."""
    is_error_known: bool | None = None
    """Whether the tool reported a failure, if known already."""
    _sound: ValidResult | None = None
    """All of a small result, if it was decoded already."""
    code: int | None = None
    """The code of the protocol error, if it was one."""
    data: Any = None
    """The data of the protocol error."""
    warnings: tuple[str, ...] = ()
    """Problems of the result: it does not match the tool's schema, or blocks were dropped."""
    _answer: LazyAnswer | None = None
    _cap: tuple[int, KeptResults] | None = None

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
        # the message may have lone surrogates, which no JSON can carry
        text = message.encode("utf-8", "replace").decode()
        raw = msgspec.json.encode({"content": [{"type": "text", "text": text}], "isError": True})
        result = cls(raw, server=server, tool=tool, seconds=seconds)
        result.code = code
        result.data = data
        return result

    def __repr__(self) -> str:
        return f"<ToolResult {self.server}/{self.tool}, {len(self.raw)} bytes>"

    @property
    def answer(self) -> LazyAnswer:
        """The content, decoded as far as it has been read."""
        if self._answer is None:
            self._answer = LazyAnswer(self.raw, self.server, self.tool)
        return self._answer

    @property
    def is_error(self) -> bool:
        """Whether the tool reported a failure."""
        if self.is_error_known is not None:
            return self.is_error_known
        return bytes(self.answer.outline.is_error) == b"true"

    @property
    def success(self) -> bool:
        return not self.is_error

    @cached_property
    def blocks(self) -> Sequence[Block]:
        """The content blocks; those of a large result are decoded one by one as they are read."""
        answer = self.answer
        if len(self.raw) > EXACT:
            return _Blocks(answer.pieces(), answer.block)
        return tuple(map(answer.block, answer.pieces()))

    @property
    def images(self) -> Iterator[ImageBlock]:
        """The image blocks; no other blocks are decoded."""
        answer = self.answer
        # a search for bytes is far cheaper than decoding, and most results have no image
        if _IMAGE in bytes(answer.outline.content):
            for piece in answer.pieces():
                if _IMAGE in bytes(piece) and isinstance(image := answer.block(piece), ImageBlock):
                    yield image

    @property
    def text(self) -> str:
        """All text, with a line for each other block; structured content if there is nothing else.

        A text that is too long is cut, with a note on how to get the rest.
        """
        if self._sound is not None and self._cap is None and (text := self._sound.text()):
            return text
        return self.answer.text.whole() if self._kept is None else self._kept.shown

    def beginning(self, length: int) -> str:
        """The first `length` characters of the whole text; the rest is not decoded."""
        return self.answer.text.beginning(length)[:length]

    @property
    def truncated(self) -> bool:
        """Whether `text` was cut."""
        return self._kept is not None

    @property
    def result_id(self) -> str | None:
        """The id under which the full text is kept, if it was cut."""
        return None if self._kept is None else self._kept.id

    @cached_property
    def _kept(self) -> KeptResult | None:
        if self._cap is None:
            return None
        limit, keep = self._cap
        text = self.answer.text
        return None if len(text.beginning(limit + 1)) <= limit else keep.keep(text, limit)

    @property
    def output(self) -> str:
        """The same as `text`."""
        return self.text

    @property
    def error(self) -> str | None:
        """Why the tool failed, in its own words; None if it did not."""
        if self.success:
            return None
        return self.text or "the tool failed without giving a reason"

    @cached_property
    def structured(self) -> Any:
        """The structured content, if the tool returns any; decodes all of it."""
        return self.answer.structured()

    @cached_property
    def meta(self) -> dict[str, Any]:
        return self.answer.meta()

    def sift(self) -> None:
        """Drop blocks that no client can use, with a warning; call it before reading."""
        sifted = self._sift_large() if len(self.raw) > AT_ONCE else self.answer.sifted()
        if sifted is None:
            return
        table = self.answer.read(_parse_table, self.raw)
        table["content"] = Raw(sifted.content)
        self.raw = Raw(msgspec.json.encode(table))
        # both are about the bytes from before
        self._answer = self._sound = None
        self.warnings += (f"malformed content was dropped: {sifted.problem}",)

    def _sift_large(self) -> Sifted | None:
        """Like `LazyAnswer.sifted`, in one pass over a result of the usual shape."""
        try:
            result = parse_large(self.raw)
            is_sound = all(map(_is_sound, result.content))
        except UNREADABLE:
            is_sound = False
        else:
            self.is_error_known = result.is_error
            if is_sound and all(block.type == "text" for block in result.content):
                self.answer.texts = [block.text for block in result.content]
        return None if is_sound else self.answer.sifted()

    def capped(self, limit: int, keep: KeptResults) -> "ToolResult":
        """The same result, its text cut to `limit` characters and the whole kept in `keep`.

        Both happen when the text is read.
        """
        # it cannot become too long, so nothing has to be decoded to find out
        if len(self.raw) * _MOST_WORDY <= limit:
            return self
        view = ToolResult(self.raw, server=self.server, tool=self.tool, seconds=self.seconds)
        view.code, view.data, view._answer = self.code, self.data, self._answer
        view.is_error_known = self.is_error_known
        view.warnings = self.warnings
        view._cap = (limit, keep)
        return view


class _Blocks(Sequence[Block]):
    """Blocks that are decoded on each access."""

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
