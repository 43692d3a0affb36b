"""One tool's answer, undecoded until somebody looks inside."""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from multitap.content.blocks import Block, block
from multitap.content.kept import KeptResult, KeptResults
from multitap.content.lazy import lazy
from multitap.errors import BadAnswer, quoted

_NOTHING = Raw(b"")
_Source = TypeVar("_Source")
_Read = TypeVar("_Read")
_MOST_WORDY = 20  # characters of text that one byte of an answer can become


class _Outline(msgspec.Struct):
    content: Raw = _NOTHING
    is_error: Raw = msgspec.field(default=_NOTHING, name="isError")
    structured: Raw = msgspec.field(default=_NOTHING, name="structuredContent")
    meta: Raw = msgspec.field(default=_NOTHING, name="_meta")


_parse_outline = msgspec.json.Decoder(_Outline).decode
_parse_pieces = msgspec.json.Decoder(tuple[Raw, ...] | None).decode


class ToolResult:
    """What a tool answered.

    Every look inside may raise `BadAnswer`: only then is the answer decoded.
    """

    code: int | None = None
    """The protocol error's code, if the answer was one."""
    data: Any = None
    """What came with the protocol error."""

    def __init__(
        self, raw: Raw | bytes, *, server: str = "", tool: str = "", seconds: float = 0.0
    ) -> None:
        self.raw = raw
        """The result as it came."""
        self.server = server
        self.tool = tool
        self.seconds = seconds
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
        outline = self._parsed or self._outline
        return bytes(outline.is_error) == b"true"

    @property
    def success(self) -> bool:
        return not self.is_error

    @lazy
    def blocks(self) -> tuple[Block, ...]:
        return self._read(_blocks, self._outline.content)

    @property
    def text(self) -> str:
        """All text, and a line for everything that is none; structured content if that is all.

        Where it is longer than allowed it is cut, with a note on how to get the rest.
        """
        return self._whole if self._kept is None else self._kept.capped.text

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
        return keep.keep(self._whole, limit) if len(self._whole) > limit else None

    @lazy
    def _whole(self) -> str:
        if not self.blocks and self.structured is not None:
            return self._read(_decoded, self._outline.structured)
        return "\n".join(map(str, self.blocks))

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
        """The answer as data, for tools that give it."""
        return self._read(_json, self._outline.structured)

    @lazy
    def meta(self) -> dict[str, Any]:
        return self._read(_meta, self._outline.meta)

    def capped(self, limit: int, keep: KeptResults) -> "ToolResult":
        """The same result, its text cut to `limit` characters and the whole kept in `keep`.

        Both happen when somebody looks at the text.
        """
        if len(self.raw) * _MOST_WORDY <= limit:
            return self
        view = ToolResult(self.raw, server=self.server, tool=self.tool, seconds=self.seconds)
        view.code, view.data, view._parsed = self.code, self.data, self._parsed
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


def _blocks(content: Raw) -> tuple[Block, ...]:
    if not len(content):
        return ()
    try:
        pieces = _parse_pieces(content) or ()
    except msgspec.ValidationError:
        pieces = (content,)
    return tuple(map(block, pieces))


def _json(raw: Raw) -> Any:
    return msgspec.json.decode(raw) if len(raw) else None


def _meta(raw: Raw) -> dict[str, Any]:
    try:
        return msgspec.json.decode(raw, type=dict[str, Any]) if len(raw) else {}
    except msgspec.ValidationError:
        return {}


def _decoded(raw: Raw) -> str:
    return bytes(raw).decode()
