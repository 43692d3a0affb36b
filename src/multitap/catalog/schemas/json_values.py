"""The types of JSON values, and paths to them."""

from collections.abc import Iterable
from typing import Any, TypeGuard


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list | tuple)


def pointer(path: Iterable[str | int]) -> str:
    """The JSON pointer (RFC 6901) of a path; empty for the whole."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)
