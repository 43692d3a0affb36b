"""Edits YAML, changing as few lines as possible."""

import re
import warnings
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import ReusedAnchorWarning

from multitap.config import yaml
from multitap.config.documents import KeyPath, is_list, is_table
from multitap.config.edit.json_edit import inline, wrap

_PLAIN = re.compile(r"[A-Za-z_/][\w./@-]*")
# YAML 1.1, which many hosts still read, takes these for booleans and null
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_REST = re.compile(r"[ \t]+#[^\r\n]*|[ \t]*")
_STEP = "  "


def put(text: str, path: KeyPath, value: Any) -> str:
    """The text with a value at a key."""
    root = _compose(text)
    if root is None:
        return _end_line(text) + "\n".join(_members(wrap(path, value), "")) + "\n"
    node, depth = _walk_path(root, path)
    if depth == len(path):
        return _replace(text, root, path, value)
    inner = wrap(path[depth + 1 :], value)
    if _is_flow(node) or not node.value:
        return _in_flow(text, root, path[: depth + 1], inner)
    # in blanks: YAML indents with nothing else
    column = node.start_mark.column
    at = _line_end(text, _end(text, node))
    indent = " " * column
    return f"{text[:at]}\n" + "\n".join(_member(path[depth], inner, indent)) + text[at:]


def put_all(text: str, above: KeyPath, members: Mapping[str | int, Any]) -> str:
    """The text with values at several keys of one table, or several elements of a list."""
    root = _compose(text)
    node, depth = (None, 0) if root is None else _walk_path(root, above)
    if node is None or depth < len(above) or _is_flow(node) or not node.value:
        (step, value), *others = members.items()
        text = put(text, (*above, step), value)  # which makes the table for the others
        return put_all(text, above, dict(others)) if others else text
    for step in [step for step in members if _child(node, step) is not None]:
        text = put(text, (*above, step), members[step])
    new = {step: value for step, value in members.items() if _child(node, step) is None}
    node, _ = _walk_path(_compose(text), above)
    at = _line_end(text, _end(text, node))
    indent = " " * node.start_mark.column
    lines = [line for step, value in new.items() for line in _member(step, value, indent)]
    return "\n".join((text[:at], *lines)) + text[at:]


def drop(text: str, path: KeyPath) -> str:
    """The text without a key or an element of a list."""
    root = _compose(text)
    above, _ = _walk_path(root, path[:-1])
    if _is_flow(above):
        return _replace(text, root, path[:-1], _plain_without(text, path))
    # a key with nothing below it would be null, not an empty table
    if len(above.value) == 1:
        empty: Any = [] if isinstance(path[-1], int) else {}
        return _replace(text, root, path[:-1], empty)
    start, node = _member_at(text, above, path[-1])
    line = text.rfind("\n", 0, start) + 1
    end = _line_end(text, _end(text, node))
    if text[line:start].strip():  # the first key of an element: the next one replaces it
        starts = (key.start_mark.index for key, _ in above.value)
        following = next(at for at in starts if at > start)
        return text[:start] + text[following:]
    following = text.find("\n", end)
    return text[:line] + (text[following + 1 :] if following >= 0 else "")


def rename(text: str, path: KeyPath, name: str) -> str:
    """The text with another name for a key."""
    above, _ = _walk_path(_compose(text), path[:-1])
    node = next(key for key, _ in above.value if str(key.value) == path[-1])
    return text[: node.start_mark.index] + _scalar(name) + text[node.end_mark.index :]


def _compose(text: str) -> Any:
    yaml.parse(text)  # bounded, unlike the round-trip parser
    composer: Any = YAML(typ="safe", pure=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReusedAnchorWarning)
        return composer.compose(text)


def _walk_path(node: Any, path: KeyPath) -> tuple[Any, int]:
    for depth, step in enumerate(path):
        child = _child(node, step)
        if child is None or (_is_null(child) and depth + 1 < len(path)):
            return (node, depth) if child is None else (child, depth + 1)
        node = child
    return node, len(path)


def _child(node: Any, step: str | int) -> Any:
    if node.id == "mapping":
        named = [value for key, value in node.value if str(key.value) == step]
        # of duplicate keys, the last one counts, as for the reader
        return named[-1] if named else None
    if node.id == "sequence" and isinstance(step, int) and step < len(node.value):
        return node.value[step]
    return None


def _is_flow(node: Any) -> bool:
    """Whether a value is on the line of its key, not on its own lines."""
    return node.id == "scalar" or bool(node.flow_style)


def _is_null(node: Any) -> bool:
    return node.id == "scalar" and str(node.tag).endswith(":null")


def _member_at(text: str, above: Any, step: str | int) -> tuple[int, Any]:
    """The offsets of a member, with its dash or key, and of its value."""
    if isinstance(step, int):
        node = above.value[step]
        return text.rfind("-", 0, node.start_mark.index), node
    key, node = next(pair for pair in reversed(above.value) if str(pair[0].value) == step)
    return key.start_mark.index, node


def _end(text: str, node: Any) -> int:
    """The offset of a value's last character; YAML's own mark includes what follows."""
    if not _is_flow(node) and node.value:
        last = node.value[-1]
        return _end(text, last[1] if isinstance(last, tuple) else last)
    end: int = node.end_mark.index
    return len(text[:end].rstrip())


def _replace(text: str, root: Any, path: KeyPath, value: Any) -> str:
    node, _ = _walk_path(root, path)
    if not path:
        return "\n".join(_members(value, "")) + "\n" if value else text[: _begin(text)] + "{}\n"
    above, _ = _walk_path(root, path[:-1])
    end = _end(text, node)
    if _is_flow(above) or not (is_table(value) and value):
        written = _scalar(value) if isinstance(value, str) else inline(value)
        start = _value_start(text, above, path[-1], node)
        return f"{text[:start]} {written}{text[max(end, start) :]}"
    start, _ = _member_at(text, above, path[-1])
    indent = " " * above.start_mark.column
    lines = "\n".join(_member(path[-1], value, indent)).lstrip()
    return text[:start] + lines + text[max(end, start) :]


def _begin(text: str) -> int:
    """The offset of the first line that is neither blank nor a comment."""
    match = re.search(r"^(?!\s*(?:#|$))", text, re.MULTILINE)
    return match.start() if match else len(text)


def _value_start(text: str, above: Any, step: str | int, node: Any) -> int:
    if isinstance(step, int):
        start: int = node.start_mark.index
        return len(text[:start].rstrip())
    key = next(key for key, _ in reversed(above.value) if str(key.value) == step)
    return text.index(":", key.end_mark.index) + 1


def _in_flow(text: str, root: Any, path: KeyPath, value: Any) -> str:
    """The text with a new member in `{…}` or `[…]`, or the first one of an empty key."""
    *container, step = path
    node, _ = _walk_path(root, tuple(container))
    data: Any = yaml.parse(text).data
    for key in container:
        data = data[key]
    if isinstance(step, int):
        return _replace(text, root, tuple(container), [*(data or []), value])
    inner: dict[str, Any] = {**(data or {}), step: value}
    if _is_flow(node) and node.value:
        return text[: node.start_mark.index] + inline(inner) + text[node.end_mark.index :]
    return _replace(text, root, tuple(container), inner)


def _plain_without(text: str, path: KeyPath) -> Any:
    data = yaml.parse(text).data
    for step in path[:-1]:
        data = data[step]
    del data[path[-1]]
    return data


def _members(table: Any, indent: str) -> list[str]:
    return [line for name, value in table.items() for line in _member(name, value, indent)]


def _member(step: str | int, value: Any, indent: str) -> list[str]:
    """The lines of one key with its value, or of one element."""
    if isinstance(step, int):
        if not is_table(value) or not value:
            return [f"{indent}- {_flow(value)}"]
        first, *rest = _members(value, indent + _STEP)
        return [f"{indent}- {first.lstrip()}", *rest]
    name = _scalar(step)
    if is_table(value) and value:
        return [f"{indent}{name}:", *_members(value, indent + _STEP)]
    if is_list(value) and any(map(is_table, value)):
        inner = indent + _STEP
        return [f"{indent}{name}:", *(line for item in value for line in _member(0, item, inner))]
    return [f"{indent}{name}: {_flow(value)}"]


def _flow(value: Any) -> str:
    return _scalar(value) if isinstance(value, str) else inline(value)


def _scalar(text: str) -> str:
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else inline(text)


def _line_end(text: str, at: int) -> int:
    match = _REST.match(text, at)
    return match.end() if match else at


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
