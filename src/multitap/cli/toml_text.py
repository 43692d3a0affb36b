"""Formats plain data as TOML."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from multitap.config.documents import is_list, is_table
from multitap.config.edit.toml_edit import quote_text

HEADERS = 2
"""Levels of tables that get a header; deeper ones are written in one line."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml(data: Mapping[str, Any]) -> str:
    """The data as the text of a document."""
    return "\n".join(_lines(data, ())).strip()


def _lines(data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    headed = len(path) < HEADERS
    inner = {key: value for key, value in data.items() if headed and is_table(value)}
    plain = {key: value for key, value in data.items() if key not in inner}
    if path and (plain or not inner):
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, table in inner.items():
        yield from _lines(table, (*path, key))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else quote_text(key)


def _value(value: Any) -> str:
    if is_table(value):
        members = ", ".join(f"{_key(key)} = {_value(member)}" for key, member in value.items())
        return f"{{ {members} }}" if members else "{}"
    if is_list(value):
        return f"[{', '.join(map(_value, value))}]"
    # numbers and booleans are left, which TOML spells as JSON does
    return quote_text(value) if isinstance(value, str) else json.dumps(value)
