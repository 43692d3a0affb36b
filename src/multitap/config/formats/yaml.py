"""YAML 1.2 with the place of every value."""

import re
import warnings
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import ReusedAnchorWarning, YAMLError

from multitap.config.documents import KeyPath, Malformed, Mark, Parsed

MOST_NODES = 100_000
"""Aliases make a small text an endless document."""
DEEPEST = 100

_BRACKET = re.compile(r"[\[\]{}]")


def parse(text: str) -> Parsed:
    """Read one document.

    Raises:
        Malformed: with the offset of the first thing that does not fit.
    """
    _check_depth(text)
    yaml: Any = YAML(typ="safe", pure=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML 1.2 allows it
            root = yaml.compose(text)
    except (YAMLError, ValueError) as exc:
        raise _malformed(exc) from exc
    if root is None:  # comments only
        return Parsed({}, {(): Mark(0, 0)})
    reader = _Reader(yaml.constructor)
    data = reader.value((), root, root.start_mark.index)
    return Parsed(data, reader.marks, tuple(reader.duplicates))


def _check_depth(text: str) -> None:
    """Thousands of open brackets would take the parser seconds before it gives up."""
    depth = 0
    for match in _BRACKET.finditer(text):
        depth += 1 if match.group() in "[{" else -1
        if depth > DEEPEST:
            raise Malformed("nested too deeply", match.start())


def _malformed(exc: Any) -> Malformed:
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    problem = getattr(exc, "problem", None) or "this is no valid YAML"
    return Malformed(problem, mark.index if mark else 0)


class _Reader:
    def __init__(self, constructor: Any) -> None:
        self.constructor = constructor
        self.marks: dict[KeyPath, Mark] = {}
        self.duplicates: list[KeyPath] = []

    def value(self, key: KeyPath, node: Any, key_at: int) -> Any:
        at: int = node.start_mark.index
        if len(self.marks) >= MOST_NODES:
            raise Malformed("the document is too large", at)
        self.marks[key] = Mark(key_at, at)
        match node.id:
            case "mapping":
                return self.table(key, node)
            case "sequence":
                return [
                    self.value((*key, index), item, item.start_mark.index)
                    for index, item in enumerate(node.value)
                ]
            case _:
                return self.scalar(node)

    def table(self, key: KeyPath, node: Any) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for name_node, value_node in node.value:
            at: int = name_node.start_mark.index
            if name_node.id != "scalar":
                raise Malformed("expected a plain name as key", at)
            name = str(name_node.value)
            if name in table:
                self.duplicates.append((*key, name))
                del table[name]  # so that the last one also stands last
            table[name] = self.value((*key, name), value_node, at)
        return table

    def scalar(self, node: Any) -> Any:
        try:
            return self.constructor.construct_object(node)
        except (YAMLError, ValueError, OverflowError) as exc:
            raise Malformed("this value is not valid", node.start_mark.index) from exc
