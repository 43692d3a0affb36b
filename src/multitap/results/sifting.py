"""Drops the content blocks that no client can use."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from multitap.records import dataclass

AT_ONCE = 64 * 1024
"""Bytes decoded at a time; other threads run only in between."""
_GROUP = 500  # blocks decoded at a time, for the same reason
_NOTHING = Raw(b"")
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


class ValidResult(msgspec.Struct):
    """A result that every client can use as it is."""

    content: list[_Known]
    is_error: bool = msgspec.field(default=False, name="isError")
    resultType: Literal["complete"] = "complete"  # noqa: N815 - the wire's spelling

    def text(self) -> str | None:
        """The whole text, if it contains only text."""
        texts = [block.text for block in self.content if isinstance(block, _Text)]
        return "\n".join(texts) if len(texts) == len(self.content) else None


class LargeResult(msgspec.Struct):
    """The outline of a result that may be valid."""

    content: tuple[Raw, ...]
    is_error: bool = msgspec.field(default=False, name="isError")
    resultType: Literal["complete"] = "complete"  # noqa: N815 - the wire's spelling


parse_sound = msgspec.json.Decoder(ValidResult).decode
"""Decode a typical result; raises `msgspec.DecodeError` if it needs closer inspection."""


class Outlined(msgspec.Struct):
    """The same block by block, for results with a few large blocks."""

    content: tuple[_Undecoded, ...]
    is_error: bool = msgspec.field(default=False, name="isError")
    resultType: Literal["complete"] = "complete"  # noqa: N815 - the wire's spelling


parse_outlined = msgspec.json.Decoder(Outlined).decode
parse_large = msgspec.json.Decoder(LargeResult).decode
"""The same for large results, whose blocks are sifted later."""
_parse_known = msgspec.json.Decoder(list[_Known]).decode
_parse_one = msgspec.json.Decoder(_Known).decode
_parse_type = msgspec.json.Decoder(_Typed).decode
_parse_undecoded = msgspec.json.Decoder(_Undecoded).decode
parse_pieces = msgspec.json.Decoder(tuple[Raw, ...]).decode
"""The blocks of a content list, each undecoded."""


@dataclass(frozen=True, slots=True)
class Sifted:
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
    return sift_pieces(pieces)


def sift_pieces(pieces: Sequence[Raw]) -> Sifted | None:
    """The same for blocks that are already split."""
    problems = {at: words for start, group in _groups(pieces) for at, words in _odd(start, group)}
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
        return is_sound(_parse_undecoded(piece))
    except UNREADABLE:
        return False


def is_sound(block: _Undecoded) -> bool:
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
            given = [one for one in (inside.text, inside.blob) if len(one)]
            return _is_text(inside.uri) and bool(given) and all(map(_is_text, given))
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
    told = [f"block {at}: {words}" for at, words in list(problems.items())[:_REPORTED]]
    if len(problems) > _REPORTED:
        told.append(f"and {len(problems) - _REPORTED:,} more")
    return "; ".join(told)
