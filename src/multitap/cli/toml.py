"""Plain data as TOML text."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from multitap.config.documents import is_list, is_table

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml(data: Mapping[str, Any]) -> str:
    """The text of a document; tables of the first two levels get a header of their own."""
    return "\n".join(_lines(data, ())).strip()


def _lines(data: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in data.items() if is_table(value) and len(path) < 2}  # noqa: PLR2004
    plain = {key: value for key, value in data.items() if key not in inner}
    if plain and path:
        yield f"\n[{'.'.join(map(_key, path))}]"
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}"
    for key, table in inner.items():
        yield from _lines(table, (*path, key))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    if is_table(value):
        members = ", ".join(f"{_key(key)} = {_value(member)}" for key, member in value.items())
        return f"{{ {members} }}" if members else "{}"
    if is_list(value):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return "".join(
            char if char.isprintable() else json.dumps(char)[1:-1]
            for char in json.dumps(value, ensure_ascii=False)
        )
    return json.dumps(value)
