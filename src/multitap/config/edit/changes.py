"""The changes to make in a document, independent of its format."""

from collections.abc import Iterable
from copy import deepcopy
from itertools import pairwise
from typing import Any

from multitap.config.documents import KeyPath, is_list, is_table
from multitap.records import dataclass


@dataclass(frozen=True, slots=True)
class SetValue:
    """Sets a value at a path and creates missing tables; an index at the end of a list appends."""

    path: KeyPath
    value: Any


@dataclass(frozen=True, slots=True)
class RemoveValue:
    """Removes a key, or an element of a list."""

    path: KeyPath


@dataclass(frozen=True, slots=True)
class RenameKey:
    """Renames a key of a table, in place."""

    path: KeyPath
    name: str


Change = SetValue | RemoveValue | RenameKey


def apply_changes(data: Any, changes: Iterable[Change]) -> Any:
    """The data of a document after changes, as a new value.

    Raises:
        LookupError, TypeError: The document does not have that path.
    """
    root: Any = {"": deepcopy(data)}
    for change in changes:
        path = ("", *change.path)
        above = _above(root, path, make=isinstance(change, SetValue))
        match change:
            case SetValue():
                _set(above, path[-1], deepcopy(change.value))
            case RemoveValue():
                del above[path[-1]]
            case RenameKey():
                members = [*above.items()]
                above.clear()
                above.update((change.name if key == path[-1] else key, one) for key, one in members)
    return root[""]


def differences(before: Any, after: Any, path: KeyPath = ()) -> list[Change]:
    """The changes that turn one table into another, key by key, so that the rest stays."""
    if not (is_table(before) and is_table(after)):
        return [] if type(before) is type(after) and before == after else [SetValue(path, after)]
    found: list[Change] = []
    for key, value in after.items():
        if key in before:
            found += differences(before[key], value, (*path, key))
        else:
            found.append(SetValue((*path, key), value))
    return [*found, *(RemoveValue((*path, key)) for key in before if key not in after)]


def _above(root: Any, path: KeyPath, *, make: bool) -> Any:
    """The table or list that contains the last step; missing ones are created."""
    for step, following in pairwise(path):
        if make and (not has(root, step) or root[step] is None):
            _set(root, step, [] if isinstance(following, int) else {})
        root = root[step]
    return root


def has(data: Any, step: str | int) -> bool:
    """Whether a table has a key, or a list an element."""
    if is_table(data):
        return step in data
    return is_list(data) and isinstance(step, int) and 0 <= step < len(data)


def _set(above: Any, step: str | int, value: Any) -> None:
    if not has(above, step) and isinstance(step, int):
        above.append(value)
    else:
        above[step] = value
