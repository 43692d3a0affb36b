"""Edits JSON with comments, changing as few characters as possible."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from multitap.config import jsonc
from multitap.config.documents import (
    KeyPath,
    Malformed,
    Mark,
    Parsed,
    is_list,
    is_table,
    quoted_end,
)
from multitap.config.edit.changes import has

WIDTH = 80
"""Maximum characters of a list on one line."""

_SKIP = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_REST = re.compile(r"[ \t]*(?:/\*[^\n]*?\*/[ \t]*)?(?://[^\r\n]*)?")
_SCALAR = re.compile(r"[^\s,\]}/]+")
_INDENT = re.compile(r"^([ \t]+)\S", re.MULTILINE)
_Named = Iterable[tuple[str, Any]]
"""Members of a table or list, each with the text before its value."""
# strings and comments, too: a bracket in one of them closes nothing
_TOKEN = re.compile(r'"|//[^\n]*|/\*.*?\*/|[][{}]', re.DOTALL)


def put(text: str, path: KeyPath, value: Any) -> str:
    """The text with a value at a key."""
    parsed = jsonc.parse(text)
    there, depth = _walk_path(parsed.data, path)
    if there is None and depth < len(path):  # `null` counts as a missing table
        return put(text, path[:depth], wrap(path[depth:], value))
    if depth == len(path):
        mark = parsed.marks[path]
        inner = _render(text, value, _indent_at(text, mark.key))
        return text[: mark.value] + inner + text[_value_end(text, mark.value) :]
    return _add(text, parsed, path[:depth], {path[depth]: wrap(path[depth + 1 :], value)})


def put_all(text: str, above: KeyPath, members: Mapping[str | int, Any]) -> str:
    """The text with values at several keys of one table, or several elements of a list."""
    there, depth = _walk_path(jsonc.parse(text).data, above)
    if depth < len(above) or not (is_table(there) or is_list(there)):
        (step, value), *others = members.items()
        text = put(text, (*above, step), value)  # creates the table for the others
        return put_all(text, above, dict(others)) if others else text
    for step in [step for step in members if has(there, step)]:
        text = put(text, (*above, step), members[step])
    new = {step: value for step, value in members.items() if not has(there, step)}
    return _add(text, jsonc.parse(text), above, new) if new else text


def _add(text: str, parsed: Parsed, above: KeyPath, members: Mapping[str | int, Any]) -> str:
    """The text with new members of a table or list."""
    opening = parsed.marks[above].value
    there, _ = _walk_path(parsed.data, above)
    children = [parsed.marks[(*above, step)] for step in _steps(there)]
    named = [
        ("" if isinstance(step, int) else f"{inline(step)}: ", value)
        for step, value in members.items()
    ]
    if not children:
        return _insert_first(text, opening, named)
    return _insert(text, opening, children, named)


def drop(text: str, path: KeyPath) -> str:
    """The text without a key, even if it is duplicated."""
    # in a loop: JSON allows duplicate keys, and dropping the last would make the first effective
    while True:
        parsed = jsonc.parse(text)
        if _walk_path(parsed.data, path)[1] < len(path):
            return text
        text = _without(text, parsed, path)
        if isinstance(path[-1], int):
            return text


def rename(text: str, path: KeyPath, name: str) -> str:
    """The text with another name for a key."""
    at = jsonc.parse(text).marks[path].key
    end = quoted_end(text, at) or at
    return text[:at] + inline(name) + text[end:]


def inline(value: Any) -> str:
    """A value on one line; half of a surrogate pair is written as an escape."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or _is_unicode(text) else json.dumps(value)


def wrap(path: KeyPath, value: Any) -> Any:
    """A value wrapped in the tables and lists that lead to it."""
    for step in reversed(path):
        value = [value] if isinstance(step, int) else {step: value}
    return value


def _is_unicode(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def _walk_path(data: Any, path: KeyPath) -> tuple[Any, int]:
    """The deepest existing value on a path, and its number of steps."""
    for depth, step in enumerate(path):
        if not has(data, step):
            return data, depth
        data = data[step]
    return data, len(path)


def _insert(text: str, opening: int, children: list[Mark], named: _Named) -> str:
    first, last = children[0], children[-1]
    end = _value_end(text, last.value)
    comma = _SKIP.match(text, end)
    after = comma.end() if comma else end
    has_comma = text[after : after + 1] == ","
    tail = after + 1 if has_comma else end
    # preserve the layout: values on one line stay there
    if "\n" not in text[opening : first.key]:  # everything on one line
        head = text[:tail] + ("" if has_comma else ",")
        added = ",".join(f" {name}{inline(value)}" for name, value in named)
        return head + added + text[tail:]
    rest = _REST.match(text, tail)
    line_end = rest.end() if rest and text[rest.end() : rest.end() + 1] in "\r\n" else tail
    indent = _indent_at(text, last.key)
    member = _lines(text, named, indent)
    between = text[end:line_end] if has_comma else "," + text[end:line_end]
    return text[:end] + between + member + ("," if has_comma else "") + text[line_end:]


def _lines(text: str, named: _Named, indent: str) -> str:
    """Members, each on its own line."""
    start = _newline(text) + indent
    return ",".join(f"{start}{name}{_render(text, value, indent)}" for name, value in named)


def _insert_first(text: str, opening: int, named: _Named) -> str:
    """The first member of a table or list; comments in it stay."""
    end = _value_end(text, opening)
    outer = _indent_at(text, opening)
    indent = outer + _unit(text)
    member = _lines(text, named, indent) + _newline(text) + outer
    return text[: end - 1].rstrip() + member + text[end - 1 :]


def _without(text: str, parsed: Any, path: KeyPath) -> str:
    mark: Mark = parsed.marks[path]
    end = _value_end(text, mark.value)
    skipped = _SKIP.match(text, end)
    after = skipped.end() if skipped else end
    if text[after : after + 1] == ",":
        return _cut(text, mark.key, after + 1)
    # a comma before the closing bracket is an error to most readers of JSON
    comma = _comma_before(text, parsed, path)
    if comma is not None and "\n" not in text[comma : mark.key]:
        return text[:comma] + text[end:]
    shortened = _cut(text, mark.key, end)
    return shortened if comma is None else shortened[:comma] + shortened[comma + 1 :]


def _comma_before(text: str, parsed: Any, path: KeyPath) -> int | None:
    """The offset of the comma that would remain after the previous member."""
    above, _ = _walk_path(parsed.data, path[:-1])
    starts = [parsed.marks[(*path[:-1], step)] for step in _steps(above)]
    before = [mark for mark in starts if mark.key < parsed.marks[path].key]
    if not before:
        return None
    skipped = _SKIP.match(text, _value_end(text, before[-1].value))
    at = skipped.end() if skipped else 0
    return at if text[at : at + 1] == "," else None


def _cut(text: str, start: int, end: int) -> str:
    """The text without a piece, and without its line if that becomes empty."""
    rest = _REST.match(text, end)
    line_end = rest.end() if rest else end
    line_start = text.rfind("\n", 0, start) + 1
    alone = not text[line_start:start].strip()
    if alone and text[line_end : line_end + 1] in {"\r", "\n", ""}:
        following = text.find("\n", line_end)
        return text[:line_start] + (text[following + 1 :] if following >= 0 else "")
    if text[end : end + 1] == " ":
        end += 1
    return text[:start] + text[end:]


def _steps(container: Any) -> list[str | int]:
    return [*range(len(container))] if is_list(container) else [*container]


def _value_end(text: str, at: int) -> int:
    """The end of the value that starts at an offset of a valid document."""
    if text[at] == '"':
        return quoted_end(text, at) or len(text)
    if text[at] not in "{[":
        match = _SCALAR.match(text, at)
        return match.end() if match else at
    depth = 0
    while token := _TOKEN.search(text, at):
        at = token.end()
        match token[0]:
            case '"':
                at = quoted_end(text, token.start()) or len(text)
            case "{" | "[":
                depth += 1
            case "}" | "]":
                depth -= 1
                if not depth:
                    return at
            case _:
                continue
    raise Malformed("a bracket is never closed", at)


def _render(text: str, value: Any, indent: str) -> str:
    """A value as written after a key, on several lines if that is easier to read."""
    unit, newline = _unit(text), _newline(text)
    if is_table(value) and value:
        inner = indent + unit
        members = (
            f"{newline}{inner}{inline(key)}: {_render(text, member, inner)}"
            for key, member in value.items()
        )
        return "{" + ",".join(members) + newline + indent + "}"
    if is_list(value) and value and not _is_short(value):
        inner = indent + unit
        members = (f"{newline}{inner}{_render(text, member, inner)}" for member in value)
        return "[" + ",".join(members) + newline + indent + "]"
    return inline(value)


def _is_short(value: list[Any]) -> bool:
    return not any(map(is_table, value)) and len(inline(value)) <= WIDTH


def _indent_at(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _unit(text: str) -> str:
    match = _INDENT.search(text)
    return match[1] if match else "  "


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
