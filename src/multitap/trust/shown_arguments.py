"""Arguments of a call for people: without secrets, in full or with the size of what is left out."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from multitap.config.secrets import in_text, is_telling
from multitap.errors import counted
from multitap.printable import printable
from multitap.redaction import MARK, Redactor

LONGEST = 3000
"""Characters in all: what a person can read before they decide, of values of any size."""

ArgumentPlace = tuple[str | int, ...]
"""The names and indexes that lead to a value."""

_LEAST = 60  # characters that are worth showing of a value
_DEEPEST = 12  # levels; a person who reads more of them loses track
_MOST_NAMES = 10  # of arguments that are left out
_MARGIN = 500  # characters around a cut in which a key is recognised as a whole
_encode = msgspec.json.Encoder().encode


def show_arguments(
    arguments: Mapping[str, Any],
    redact: Redactor,
    *,
    first: Collection[ArgumentPlace] = (),
    room: int = LONGEST,
) -> dict[str, Any]:
    """Arguments without secrets; they are in full if there is room for them.

    Otherwise texts, lists and objects say how much of them is left out, at every depth.

    Args:
        arguments: The arguments as sent.
        redact: Removes the secrets of the server that gets them.
        first: What has to be shown before anything else.
        room: Characters of all arguments, as JSON.
    """
    return _Shortening(redact).members(arguments, room, first, _DEEPEST)


def write_lines(arguments: Mapping[str, Any]) -> str:
    """Shown arguments as text, each in a line of its own."""
    lines = [
        f"  {_encode(name).decode()}: {_encode(value).decode()}"
        for name, value in arguments.items()
    ]
    return "\n".join(lines) or "  none"


class _Shortening:
    """Shortens values, each to the room that it gets.

    A value gets at most half of the room that is left, so that a long one cannot keep those after
    it from being seen.
    """

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact

    def members(
        self,
        table: Mapping[str, Any],
        room: int,
        first: Collection[ArgumentPlace],
        depth: int,
        *,
        hides: bool = False,
    ) -> dict[str, Any]:
        is_whole = _size(table) <= room
        names = sorted(table, key=lambda name: not any(place[0] == name for place in first))
        members: dict[str, Any] = {}
        for number, name in enumerate(names):
            rest = names[number:]
            if room < _LEAST and not is_whole:
                key = _free(f"… {counted(len(rest), 'more argument')}", members)
                members[key] = self._left_out_members(table, rest)
                break
            share = room if is_whole or len(rest) == 1 else max(room // 2, _LEAST)
            key = _free(self._text(name, share), members)
            members[key] = self._value(
                table[name], share - len(key), _below(first, name), depth - 1,
                hides=hides or is_telling(name),
            )  # fmt: skip
            if not is_whole:
                room -= _size({key: members[key]})
        return members

    def _items(
        self,
        items: Sequence[Any],
        room: int,
        first: Collection[ArgumentPlace],
        depth: int,
        *,
        hides: bool,
    ) -> list[Any]:
        is_whole = _size(items) <= room
        places = [place[0] for place in first if isinstance(place[0], int)]
        values: dict[int, Any] = {}
        for index in dict.fromkeys((*places, *range(len(items)))):
            if room < _LEAST and not is_whole:
                break
            share = room if is_whole or len(items) == 1 else max(room // 2, _LEAST)
            value = self._value(items[index], share, _below(first, index), depth - 1, hides=hides)
            values[index] = value
            if not is_whole:
                room -= _size(value)
        result: list[Any] = []
        end = 0
        for index in (*sorted(values), len(items)):
            if index > end:
                result.append(
                    f"… {counted(index - end, 'item')} left out ({_amount(items[end:index])})"
                )
            if index < len(items):
                result.append(values[index])
            end = index + 1
        return result

    def _value(
        self,
        value: Any,
        room: int,
        first: Collection[ArgumentPlace],
        depth: int,
        *,
        hides: bool,
    ) -> Any:
        match value:
            case dict() | list() if value and (not depth or room < min(_LEAST, _size(value))):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
                noun = "item" if isinstance(value, list) else "member"
                return f"… {counted(len(value), noun)} left out ({_amount(value)})"  # pyright: ignore[reportUnknownArgumentType]
            case dict():
                return self.members(value, room, first, depth, hides=hides)  # pyright: ignore[reportUnknownArgumentType]
            case list():
                return self._items(value, room, first, depth, hides=hides)  # pyright: ignore[reportUnknownArgumentType]
            case _:
                return self._scalar(value, room, hides=hides)

    def _scalar(self, value: str | float | None, room: int, *, hides: bool) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if hides:
            return MARK
        if isinstance(value, str):
            return self._text(value, room)
        return value if _size(value) <= max(room, _LEAST) else f"… ({_amount(value)})"

    def _text(self, text: str, room: int) -> str:
        room = max(room, _LEAST)
        if _size(text) <= room:
            return self._clean(text)
        # more of the beginning, but the end as well: that is where a path or a command says most
        tail = room // 4
        head = room - tail
        # with a margin, so that a secret across a cut is found as a whole
        margin = max(_MARGIN, self._redact.reach)
        begin = self._clean(text[: head + margin])[:head]
        end = self._clean(text[-(tail + margin) :])[-tail:]
        return f"{begin}… ({len(text) - head - tail:,} characters left out) …{end}"

    def _clean(self, text: str) -> str:
        clean = self._redact(text)
        for secret in {*in_text(clean)}:
            clean = clean.replace(secret, MARK)
        return printable(clean)

    def _left_out_members(self, table: Mapping[str, Any], names: Sequence[str]) -> str:
        some = ", ".join(self._text(name, _LEAST) for name in names[:_MOST_NAMES])
        more = ", …" if len(names) > _MOST_NAMES else ""
        return f"left out ({_amount([table[name] for name in names])}): {some}{more}"


def _below(places: Iterable[ArgumentPlace], step: str | int) -> list[ArgumentPlace]:
    return [place[1:] for place in places if place[0] == step and len(place) > 1]


def _size(value: object) -> int:
    """Characters of a value as JSON."""
    try:
        return len(_encode(value).decode())
    except (ValueError, RecursionError):  # such as half of a surrogate pair
        return len(json.dumps(value, ensure_ascii=False, default=repr))


def _amount(value: object) -> str:
    return counted(_size(value), "character")


def _free(key: str, keys: Collection[str]) -> str:
    """A key that is not taken: two names may be equal once they are shortened."""
    number = 2
    free = key
    while free in keys:
        free = f"{key} ({number})"
        number += 1
    return free
