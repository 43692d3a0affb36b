"""Applies changes to the text of a file, and verifies the result."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from multitap.config.documents import Document, Format, KeyPath, is_list, is_table
from multitap.config.edit.changes import Change, RemoveValue, RenameKey, SetValue, apply_changes
from multitap.config.files import SUFFIXES, read_text
from multitap.errors import ConfigError


def apply_edits(text: str, path: Path, changes: Iterable[Change]) -> str:
    """The text after changes, with everything else as it was.

    Args:
        text: The whole file; empty for a new one.
        path: The file, which determines the format and is named in errors.
        changes: Applied in order.

    Raises:
        ConfigError: The text is not a valid document, or the changes cannot be made in place.
    """
    wanted = [*changes]
    before, kind = _document(text, path)
    if kind == "yaml" and (ends := text.count("\r\n")) and ends == text.count("\n"):
        # the YAML editor handles one kind of line end; the others use the surrounding one
        return apply_edits(text.replace("\r\n", "\n"), path, wanted).replace("\n", "\r\n")
    expected = apply_changes(before, wanted)
    editor = _editor(kind)
    after = text or ("{}\n" if kind == "json" else "")
    for together in _runs(wanted):
        try:
            after = _apply_run(editor, after, together)
        except (LookupError, StopIteration, TypeError, AttributeError) as exc:
            raise _impossible(path, together[0]) from exc
    # The editors work on text, to keep comments and layout. Here the result is parsed again: a file
    # that differs from what was intended is never written.
    if not wanted or _same(_document(after, path)[0], expected):
        return after
    raise _impossible(path, wanted[0])


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
    taken: set[KeyPath] = set()
    for change in changes:
        if run and (change.path in taken or not _are_beside(run[-1], change)):
            yield run
            run, taken = [], set()
        run.append(change)
        taken.add(change.path)
    if run:
        yield run


def _are_beside(one: Change, other: Change) -> bool:
    """Whether two changes set members of the same table or list."""
    is_both = isinstance(one, SetValue) and isinstance(other, SetValue)
    return is_both and bool(one.path and other.path) and one.path[:-1] == other.path[:-1]


def _apply_run(editor: ModuleType, text: str, changes: list[Change]) -> str:
    change = changes[0]
    match change:
        case SetValue() if len(changes) == 1:
            after: str = editor.put(text, change.path, change.value)
        case SetValue():
            members = {one.path[-1]: one.value for one in changes if isinstance(one, SetValue)}
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


def _same(one: Any, other: Any) -> bool:
    """Whether two documents are equal; empty tables are ignored."""
    if is_table(one) and is_table(other):
        keys = [
            key
            for key in {**one, **other}
            if not (_says_nothing(one.get(key)) and _says_nothing(other.get(key)))
        ]
        return all(key in one and key in other and _same(one[key], other[key]) for key in keys)
    if is_list(one) and is_list(other):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and one == other


def _says_nothing(value: Any) -> bool:
    if is_table(value):
        return all(map(_says_nothing, value.values()))
    return value is None or value == []
