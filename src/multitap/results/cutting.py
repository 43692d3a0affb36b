"""Cuts results to a size: JSON stays JSON, texts end at a line, and both say what is missing."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import msgspec

from multitap.selectors import describe

_DEEPEST = 6  # members on the way to the list that is cut
_LINE_SHARE = 2  # a text is cut at a line's end in the last half, else anywhere
_EXCERPTS = ((400, 20), (120, 5), (40, 2))
"""Characters of a text and entries of a list, for values that have no long list; tried in turn."""
# bytes for `_cut`, the note about what is missing
_LEAST_ROOM = 64

_encode = msgspec.json.encode


class Handle(msgspec.Struct, frozen=True):
    """How the reader of a cut result gets the rest."""

    id: str
    """Empty if the result is not kept."""
    by: str = "read_result"
    """What the reader calls."""


NOT_KEPT = Handle("", "")


class Note(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a cut result says about itself, as `_cut` in JSON."""

    shown: int
    of: int
    unit: str = ""
    """What is counted if it is not rows."""
    where: str = msgspec.field(default="", name="in")
    """The member that was cut."""
    start: int = msgspec.field(default=0, name="from")
    result: str = ""
    """The handle of the whole result; empty if it is not kept."""
    next: int | None = None
    """Where the rest begins."""
    read: str = ""
    """What reads it."""


class Piece(msgspec.Struct, frozen=True):
    """A part of a value or text, and whether anything is missing."""

    text: str
    is_cut: bool


def cut_json(value: Any, room: int, handle: Handle, start: int = 0) -> Piece:
    """A value as JSON of about `room` bytes, with whole rows of its longest list.

    Args:
        value: Any JSON value.
        room: Bytes.
        handle: How the reader gets the rest.
        start: The first row to show.
    """
    whole = _encode(value)
    if len(whole) <= room and not start:
        return Piece(whole.decode(), is_cut=False)
    place = _longest_list(value)
    rows = _at(value, place)
    if _is_list(rows):
        # whatever is beside the list is shown as well, and takes room
        beside = len(whole) - len(_encode(rows)) if place else 0
        fitting = [*_fitting(rows[start:], room - beside - _LEAST_ROOM)]
        if fitting or (start and start >= len(rows)):
            end = start + len(fitting)
            note = Note(
                shown=len(fitting),
                of=len(rows),
                where=".".join(place),
                start=start,
                result=handle.id,
                next=end if handle.id and end < len(rows) else None,
                read=handle.by,
            )
            cut = {"rows": fitting} if not place else _replaced(value, place, fitting)
            return Piece(_encode({**cut, "_cut": note}).decode(), is_cut=True)
    return Piece(_excerpt(value, len(whole), room, handle), is_cut=True)


def cut_text(
    text: str, room: int, handle: Handle, start: int = 0, size: int | None = None
) -> Piece:
    """A text of about `room` characters from `start` on, cut at the end of a line if possible.

    Args:
        text: The text, at least as far as it may be shown.
        room: Characters.
        handle: How the reader gets the rest.
        start: The first character to show.
        size: Characters of the whole text, if `text` is only its beginning.
    """
    size = len(text) if size is None else size
    end = start + room
    if end >= size:
        return Piece(text[start:], is_cut=bool(start))
    line = text.rfind("\n", start + room // _LINE_SHARE, end)
    end = end if line < 0 else line + 1
    rest = f"… characters {start:,} to {end:,} of {size:,}"
    if handle.id:
        rest += f'; `{handle.by}` with result "{handle.id}" and from {end} goes on'
    return Piece(f"{text[start:end]}\n{rest}", is_cut=True)


def _longest_list(value: Any) -> tuple[str, ...]:
    """The way to the list that takes most room: at each level, into the largest member."""
    place: tuple[str, ...] = ()
    while _is_object(value) and value and len(place) < _DEEPEST:
        sizes = {name: len(_encode(member)) for name, member in value.items()}
        name = max(sizes, key=sizes.__getitem__)
        place, value = (*place, name), value[name]
    return place


def _at(value: Any, place: Sequence[str]) -> Any:
    for name in place:
        value = value[name]
    return value


def _replaced(value: Any, place: Sequence[str], rows: list[Any]) -> Any:
    if not place:
        return rows
    name, *rest = place
    return {**value, name: _replaced(value[name], rest, rows)}


def _fitting(rows: Sequence[Any], room: int) -> Iterator[Any]:
    for row in rows:
        room -= len(_encode(row)) + 1
        if room < 0:
            return
        yield row


def _excerpt(value: Any, size: int, room: int, handle: Handle) -> str:
    """The beginnings of long texts and lists; if that is too much, the shape alone."""
    for letters, entries in _EXCERPTS:
        short = _encode(_shortened(value, letters, entries))
        if len(short) + _LEAST_ROOM <= room:
            note = Note(shown=len(short), of=size, unit="bytes", result=handle.id, read=handle.by)
            return _encode({"excerpt": msgspec.Raw(short), "_cut": note}).decode()
    note = Note(shown=0, of=size, unit="bytes", result=handle.id, read=handle.by)
    return _encode({"shape": describe(value), "_cut": note}).decode()


def _shortened(value: Any, letters: int, entries: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= letters else f"{value[:letters]}…"
    if _is_list(value):
        rest = len(value) - entries
        first = [_shortened(entry, letters, entries) for entry in value[:entries]]
        return [*first, f"… {rest:,} more"] if rest > 0 else first
    if _is_object(value):
        members = [*value.items()]
        rest = len(members) - entries
        short = {name: _shortened(member, letters, entries) for name, member in members[:entries]}
        return {**short, "…": f"{rest:,} more"} if rest > 0 else short
    return value


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)
