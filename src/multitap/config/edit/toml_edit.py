"""Edits TOML, changing as few lines as possible.

Comments and blank lines between two tables stay when one of the tables is removed: they may be
about the other one.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from multitap.config import toml
from multitap.config.documents import KeyPath, is_list, is_table
from multitap.config.edit.changes import Change, RemoveValue, SetValue, apply_changes
from multitap.config.toml import Locator, Statement

_HEADED = 2
"""Maximum depth of a table with a header; deeper ones are inline."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_REST = re.compile(r"[ \t]*(?:#[^\r\n]*)?")


def put(text: str, path: KeyPath, value: Any) -> str:
    """The text with a value at a key."""
    statements = Locator(text).statements
    if around := _pair_around(statements, path):
        return _amend(text, around, SetValue(path[len(around.path) :], value))
    exact = [
        statement for statement in statements if statement.path == path and not statement.is_header
    ]
    if exact and not is_table(value):
        return text[: exact[0].value] + render(value) + text[exact[0].end :].lstrip(" \t")
    if any(
        _starts(statement.path, path) for statement in statements
    ):  # another kind of value, or a table
        return put(drop(text, path), path, value)
    if _has_header(statements, path, value):
        return _with_table(text, path, value)
    return _with_pair(text, statements, path, value)


def put_all(text: str, above: KeyPath, members: Mapping[str | int, Any]) -> str:
    """The text with values at several keys of one table, or several elements of a list."""
    statements = Locator(text).statements
    tables = {statement.path[: len(above) + 1] for statement in statements}
    in_one_piece = _pair_around(statements, (*above, "")) is not None
    headed = all(
        (*above, step) not in tables and _has_header(statements, (*above, step), value)
        for step, value in members.items()
    )
    for step, value in members.items():
        # new tables go to the end, and do not move located positions
        write = _with_table if headed and not in_one_piece else put
        text = write(text, (*above, step), value)
    return text


def _has_header(statements: Iterable[Statement], path: KeyPath, value: Any) -> bool:
    """Whether a new value is a table with its own header."""
    headed = any(statement.is_header and statement.path == path[:-1] for statement in statements)
    nested = headed and len(path) > _HEADED
    return isinstance(path[-1], int) or (is_table(value) and not nested)


def drop(text: str, path: KeyPath) -> str:
    """The text without a key, a table or a member of an array of tables."""
    statements = Locator(text).statements
    if around := _pair_around(statements, path):
        return _amend(text, around, RemoveValue(path[len(around.path) :]))
    # from the end: a cut moves every position after it
    for statement in reversed(
        [statement for statement in statements if _starts(statement.path, path)]
    ):
        text = _without_lines(text, statement)
    return text


def rename(text: str, path: KeyPath, name: str) -> str:
    """The text with another name for a key, in every header that mentions it."""
    statements = Locator(text).statements
    if around := _pair_around(statements, path):
        before = toml.parse(text).data
        for step in path[:-1]:
            before = before[step]
        members = {name if key == path[-1] else key: value for key, value in before.items()}
        return _amend(text, around, SetValue(path[len(around.path) : -1], members))
    offsets = sorted(
        {at for statement in statements for step, at in statement.steps if step == path}
    )
    # from the end, as in `drop`
    for at in reversed(offsets):
        text = text[:at] + key(name) + text[_key_end(text, at) :]
    return text


def render(value: Any) -> str:
    """A value as written after `=`, on one line."""
    if is_table(value):
        members = ", ".join(f"{key(name)} = {render(member)}" for name, member in value.items())
        return f"{{ {members} }}" if members else "{}"
    if is_list(value):
        return f"[{', '.join(map(render, value))}]"
    if isinstance(value, str):
        return quote_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # numbers and booleans look as in JSON; a date raises a `TypeError`, and the edit is refused
    return json.dumps(value)


def key(name: str | int) -> str:
    """A part of a key, in quotes where it needs them."""
    text = str(name)
    return text if _BARE.fullmatch(text) else quote_text(text)


def table_lines(path: KeyPath, table: Any) -> list[str]:
    """A table with its header; nested tables are inline."""
    names = [step for step in path if isinstance(step, str)]
    header = ".".join(map(key, names))
    lines = [f"[[{header}]]" if isinstance(path[-1], int) else f"[{header}]"]
    return [*lines, *(f"{key(name)} = {render(member)}" for name, member in table.items())]


def _starts(path: KeyPath, prefix: KeyPath) -> bool:
    return path[: len(prefix)] == prefix


def _pair_around(statements: Iterable[Statement], path: KeyPath) -> Statement | None:
    """The key whose inline value contains a path."""
    return next(
        (
            statement
            for statement in statements
            if not statement.is_header
            and len(statement.path) < len(path)
            and _starts(path, statement.path)
        ),
        None,
    )


def _amend(text: str, statement: Statement, change: Change) -> str:
    """The text with an inline value rewritten."""
    data = toml.parse(f"x = {text[statement.value : statement.end]}\n").data["x"]
    value = (
        change.value
        if isinstance(change, SetValue) and not change.path
        else apply_changes(data, [change])
    )
    return text[: statement.value] + render(value) + text[statement.end :].lstrip(" \t")


def _with_table(text: str, path: KeyPath, table: Any) -> str:
    newline = _newline(text)
    lines = newline.join(table_lines(path, table))
    if not text.strip():
        return text + lines + newline
    gap = "" if text.endswith(newline * 2) else newline
    end = "" if text.endswith("\n") else newline
    return text + end + gap + lines + newline


def _with_pair(text: str, statements: Sequence[Statement], path: KeyPath, value: Any) -> str:
    newline, table = _newline(text), path[:-1]
    beside = _last_of(statements, table)
    if beside is not None:
        section, last = beside
        dotted = ".".join(map(key, path[len(section) :]))
        at = _line_end(text, last.end)
        return f"{text[:at]}{newline}{dotted} = {render(value)}{text[at:]}"
    if table and not any(_starts(statement.path, table) for statement in statements):
        return put(text, table, {str(path[-1]): value})
    header = f"[{'.'.join(map(key, table))}]{newline}" if table else ""
    line = f"{header}{key(path[-1])} = {render(value)}{newline}"
    below = [statement for statement in statements if _starts(statement.path, table)]
    if not below:
        return text + ("" if not text or text.endswith("\n") else newline) + line
    at = text.rfind("\n", 0, below[0].start) + 1
    return f"{text[:at]}{line}{newline}{text[at:]}"


def _last_of(statements: Iterable[Statement], table: KeyPath) -> tuple[KeyPath, Statement] | None:
    """The position after which a new key can be inserted, and the table of its header."""
    section: KeyPath = ()
    last: tuple[KeyPath, Statement] | None = None
    for statement in statements:
        section = statement.path if statement.is_header else section
        in_table = (
            statement.path == table if statement.is_header else _starts(statement.path, table)
        )
        if in_table and _starts(table, section):
            last = section, statement
    return last


def _without_lines(text: str, statement: Statement) -> str:
    start = text.rfind("\n", 0, statement.start) + 1
    end = _line_end(text, statement.end)
    following = text.find("\n", end)
    rest = text[following + 1 :] if following >= 0 else ""
    before = text[:start]
    if (
        statement.is_header
        and before.endswith(("\n\n", "\n\r\n"))
        and rest.startswith(("\n", "\r\n"))
    ):
        rest = rest.removeprefix("\r").removeprefix("\n")  # keep a single blank line
    return before + rest


def _line_end(text: str, at: int) -> int:
    """The offset after the blanks and comment that follow a value."""
    match = _REST.match(text, at)
    return match.end() if match else at


def _key_end(text: str, at: int) -> int:
    if text[at] in "\"'":
        end = text.find(text[at], at + 1)
        while text[at] == '"' and text[end - 1] == "\\":
            end = text.find('"', end + 1)
        return end + 1
    match = _BARE.match(text, at)
    return match.end() if match else at


def to_toml(data: Mapping[str, Any]) -> str:
    """Plain data as the text of a document."""
    return "\n".join(_document(data, ())).strip()


def _document(data: Mapping[str, Any], path: KeyPath) -> Iterator[str]:
    inner = {name: value for name, value in data.items() if len(path) < _HEADED and is_table(value)}
    plain = {name: value for name, value in data.items() if name not in inner}
    if path and (plain or not inner):
        yield f"\n[{'.'.join(map(key, path))}]"
    for name, value in plain.items():
        yield f"{key(name)} = {render(value)}"
    for name, table in inner.items():
        yield from _document(table, (*path, name))


def quote_text(text: str) -> str:
    """A text as a TOML string on one line."""
    body = text.replace("\\", "\\\\").replace('"', '\\"')
    escaped = "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in body)
    return f'"{escaped}"'


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
