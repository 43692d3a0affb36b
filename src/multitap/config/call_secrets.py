"""Finds the secrets in the arguments of calls, by their names."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from multitap.config.documents import is_list, is_table
from multitap.config.secrets import in_text, is_secret, is_telling

LEAST_WORD = 3
"""Minimum characters of a secret; short ones are searched for as whole words."""
LARGEST = 64 * 1024
"""Bytes of an argument in which secrets are searched for."""
LONGEST_TEXT = 4096
"""Characters of a text under any other name that is searched for tokens."""
_DEEPEST = 32
_parse_outline = msgspec.json.Decoder(dict[str, Raw]).decode


def in_call(arguments: Mapping[str, Any] | bytes | Raw) -> Iterator[str]:
    """The secrets in the arguments of a call: values under telling names, at any depth.

    Args:
        arguments: The arguments, or their JSON.
    """
    members = arguments if isinstance(arguments, Mapping) else _outline(arguments)
    for name, value in members.items():
        if isinstance(value, Raw):
            value = _content(value)  # noqa: PLW2901 - decoded
        yield from _in_member(value, _DEEPEST, telling=is_telling(name))


def mask_members(value: Any, mask: str, depth: int = 64) -> Any:
    """Plain data with a mask in place of each value under a telling name."""
    if is_table(value) and depth:
        return {
            name: _hidden(member, mask, depth - 1)
            if is_telling(name)
            else mask_members(member, mask, depth - 1)
            for name, member in value.items()
        }
    if is_list(value) and depth:
        return [mask_members(member, mask, depth - 1) for member in value]
    return value


def _outline(arguments: bytes | Raw) -> Mapping[str, Raw]:
    try:
        return _parse_outline(arguments)
    except (msgspec.DecodeError, RecursionError):  # refused, and never sent
        return {}


def _content(value: Raw) -> Any:
    """A member of the arguments; None if it is long, and so no secret."""
    try:
        return msgspec.json.decode(value) if len(value) <= LARGEST else None
    except (msgspec.DecodeError, RecursionError):
        return None


def _in_member(value: Any, depth: int, *, telling: bool) -> Iterator[str]:
    if is_table(value) and depth:
        for name, member in value.items():
            yield from _in_member(member, depth - 1, telling=telling or is_telling(name))
    elif is_list(value) and depth:
        for member in value:
            yield from _in_member(member, depth - 1, telling=telling)
    elif telling and isinstance(value, str | int | float) and not isinstance(value, bool):
        if is_secret(text := str(value), LEAST_WORD, certain=True):
            yield text
    elif isinstance(value, str) and len(value) <= LONGEST_TEXT:
        yield from in_text(value)


def _hidden(value: Any, mask: str, depth: int) -> Any:
    """Whatever is under a telling name, without its values."""
    if is_table(value) and depth:
        return {name: _hidden(member, mask, depth - 1) for name, member in value.items()}
    if is_list(value) and depth:
        return [_hidden(member, mask, depth - 1) for member in value]
    return value if value is None or isinstance(value, bool) else mask
