"""Applies changes to the text of a file, whatever its format, and verifies the result."""

from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from multitap.config.documents import (
    SUFFIXES,
    Document,
    Format,
    KeyPath,
    is_list,
    is_table,
    placeholder,
    read_text,
)
from multitap.errors import ConfigError


class SetValue(msgspec.Struct, frozen=True):
    """Sets a value at a path and creates missing tables; an index at the end of a list appends."""

    path: KeyPath
    value: Any


class RemoveValue(msgspec.Struct, frozen=True):
    """Removes a key, or an element of a list."""

    path: KeyPath


class RenameKey(msgspec.Struct, frozen=True):
    """Renames a key of a table, in place."""

    path: KeyPath
    name: str


Change = SetValue | RemoveValue | RenameKey


def apply_changes(data: Any, changes: Iterable[Change]) -> Any:
    """The data of a document after changes, as a new value.

    Raises:
        LookupError, TypeError: The document does not have that path.
    """
    # below a key, so that the document itself can be replaced, too
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
                # in the same order, which is that of the file
                members = [*above.items()]
                above.clear()
                above.update(
                    (change.name if key == path[-1] else key, value) for key, value in members
                )
    return root[""]


def differences(before: Any, after: Any, path: KeyPath = ()) -> list[Change]:
    """The changes that turn one table into another, key by key, so that the rest stays."""
    if not (is_table(before) and is_table(after)):
        return [] if type(before) is type(after) and before == after else [SetValue(path, after)]
    changes: list[Change] = []
    for key, value in after.items():
        if key in before:
            changes += differences(before[key], value, (*path, key))
        else:
            changes.append(SetValue((*path, key), value))
    return [*changes, *(RemoveValue((*path, key)) for key in before if key not in after)]


def _above(root: Any, path: KeyPath, *, make: bool) -> Any:
    """The table or list that contains the last step; missing ones are created."""
    for step, following in pairwise(path):
        # a key of YAML with nothing after it is null, and counts as an empty table
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


def apply_edits(text: str, path: Path, changes: Iterable[Change]) -> str:
    """The text after changes, with everything else as it was.

    Args:
        text: The whole file; empty for a new one.
        path: The file, which determines the format and is named in errors.
        changes: Applied in order.

    Raises:
        ConfigError: The text is not a valid document, or the changes cannot be made in place.
    """
    pending = [*changes]
    before, kind = _document(text, path)
    if kind == "yaml" and (ends := text.count("\r\n")) and ends == text.count("\n"):
        # the YAML editor handles one kind of line end; the others use the surrounding one
        return apply_edits(text.replace("\r\n", "\n"), path, pending).replace("\n", "\r\n")
    expected = apply_changes(before, pending)
    editor = _editor(kind)
    nothing = f"{placeholder(kind)}\n"
    # what was written into an emptied file goes when something is added again
    after = "" if text == nothing else text
    if kind == "json":
        after = after or nothing
    for together in _runs(pending):
        try:
            after = _apply_run(editor, after, together)
        except (LookupError, StopIteration, TypeError, AttributeError) as exc:
            raise _impossible(path, together[0]) from exc
    if text and not after.strip():
        # an empty file counts as one that is just being written: its servers would go on
        after = nothing
    # The editors work on text, to keep comments and layout. Here the result is parsed again: a file
    # that differs from what was intended is never written.
    if not pending or _same(_document(after, path)[0], expected):
        return after
    raise _impossible(path, pending[0])


def parse(text: str, path: Path) -> Document:
    """The document in a text.

    Raises:
        ConfigError: It is not valid; names the place and the reason.
    """
    document, problems = read_text(text, path)
    if document is None:
        first = problems[0]
        hint = first.hint or "correct it first; a file that cannot be read is not changed"
        raise ConfigError(f"{first.place}: {first.message}", hint=hint)
    return document


def _document(text: str, path: Path) -> tuple[Any, Format]:
    if not text.strip():
        return {}, SUFFIXES.get(path.suffix.lower(), "json")
    document = parse(text, path)
    return document.data, document.format


def _editor(kind: Format) -> ModuleType:
    # the YAML parser alone takes 60 ms to load
    match kind:
        case "json":
            from multitap.config.edit import json_edit  # noqa: PLC0415

            return json_edit
        case "toml":
            from multitap.config.edit import toml_edit  # noqa: PLC0415

            return toml_edit
        case "yaml":
            from multitap.config.edit import yaml_edit  # noqa: PLC0415

            return yaml_edit


def _runs(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """The changes in order, grouped if they set different members of one table.

    The text is parsed once per group: once per member of a large table would take minutes.
    """
    run: list[Change] = []
    seen: set[KeyPath] = set()
    for change in changes:
        if run and (change.path in seen or not _are_beside(run[-1], change)):
            yield run
            run, seen = [], set()
        run.append(change)
        seen.add(change.path)
    if run:
        yield run


def _are_beside(change: Change, other: Change) -> bool:
    """Whether two changes set members of the same table or list."""
    is_both = isinstance(change, SetValue) and isinstance(other, SetValue)
    return is_both and bool(change.path and other.path) and change.path[:-1] == other.path[:-1]


def _apply_run(editor: ModuleType, text: str, changes: list[Change]) -> str:
    change = changes[0]
    match change:
        case SetValue() if len(changes) == 1:
            after: str = editor.put(text, change.path, change.value)
        case SetValue():
            members = {
                change.path[-1]: change.value for change in changes if isinstance(change, SetValue)
            }
            after = editor.put_all(text, change.path[:-1], members)
        case RemoveValue():
            after = editor.drop(text, change.path)
        case RenameKey():
            after = editor.rename(text, change.path, change.name)
    return after


def _impossible(path: Path, change: Change) -> ConfigError:
    key = ".".join(map(str, change.path))
    return ConfigError(
        f"{path}: `{key}` cannot be changed in place", hint="the file is as it was; edit it by hand"
    )


def _same(left: Any, other: Any) -> bool:
    """Whether two documents are equal; empty tables are ignored."""
    if is_table(left) and is_table(other):
        keys = [
            key
            for key in {**left, **other}
            if not (_says_nothing(left.get(key)) and _says_nothing(other.get(key)))
        ]
        return all(key in left and key in other and _same(left[key], other[key]) for key in keys)
    if is_list(left) and is_list(other):
        return len(left) == len(other) and all(map(_same, left, other))
    # by type, too: `1 == True`, and a host may refuse one of them
    return type(left) is type(other) and left == other


def _says_nothing(value: Any) -> bool:
    if is_table(value):
        return all(map(_says_nothing, value.values()))
    return value is None or value == []
