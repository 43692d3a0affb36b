"""The result of a tool call, undecoded until it is read."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

import msgspec
from msgspec import Raw

from multitap.results.blocks import Block, ImageBlock
from multitap.results.lazy_answer import LazyAnswer
from multitap.results.long_text import (
    EXACT,
    KeptResult,
    KeptResults,
)
from multitap.results.sifting import (
    AT_ONCE,
    UNREADABLE,
    Sifted,
    ValidResult,
    is_sound,
    parse_large,
    parse_outlined,
    sift_pieces,
)

_T = TypeVar("_T")


class lazy(Generic[_T]):  # noqa: N801 - used as a decorator, as `property` is
    """Like `functools.cached_property`, without the lock that it takes on Python 3.11."""

    def __init__(self, work: Callable[[Any], _T]) -> None:
        self._work = work
        self._name = work.__name__
        self.__doc__ = work.__doc__

    def __get__(self, instance: object, owner: type[object]) -> _T:
        value = instance.__dict__[self._name] = self._work(instance)
        return value


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

    @lazy
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
                if _IMAGE in bytes(piece) and isinstance(made := answer.block(piece), ImageBlock):
                    yield made

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

    @lazy
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

    @lazy
    def structured(self) -> Any:
        """The structured content, if the tool returns any; decodes all of it."""
        return self.answer.structured()

    @lazy
    def meta(self) -> dict[str, Any]:
        return self.answer.meta()

    def sift(self) -> None:
        """Drop blocks that no client can use, with a warning; call it before reading."""
        sifted = self._sifted_large() if len(self.raw) > AT_ONCE else self.answer.sifted()
        if sifted is None:
            return
        table = self.answer.read(_parse_table, self.raw)
        table["content"] = Raw(sifted.content)
        self.raw = Raw(msgspec.json.encode(table))
        self._answer = self._sound = None
        self.warnings += (f"malformed content was dropped: {sifted.problem}",)

    def _sifted_large(self) -> Sifted | None:
        """Like `LazyAnswer.sifted`, with fewer passes over a result of the usual shape."""
        try:
            seen = parse_outlined(self.raw)
            if all(map(is_sound, seen.content)):  # enough for most results
                self.is_error_known = seen.is_error
                return None
        except UNREADABLE:
            pass
        try:
            outline = parse_large(self.raw)
        except UNREADABLE:
            return self.answer.sifted()
        self.is_error_known = outline.is_error
        return sift_pieces(outline.content)

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
