"""YAML 1.2 with the position of every value."""

import warnings
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import ReusedAnchorWarning, YAMLError

from multitap.config.documents import KeyPath, Malformed, Mark, Meter, Parsed, check_key, check_size


def parse(text: str) -> Parsed:
    """Read one document.

    Raises:
        Malformed: Has the offset of the first error.
    """
    check_size(text, "yaml")
    # Safe: no tag creates an object. Pure: `_limit_size` cannot stop the composer of the C
    # library.
    yaml: Any = YAML(typ="safe", pure=True)
    _limit_size(yaml.composer)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReusedAnchorWarning)  # YAML allows it
            root = yaml.compose(text)
    except Malformed:
        raise
    except (YAMLError, ValueError) as exc:
        raise _syntax_error(exc) from exc
    if root is None:  # comments only
        return Parsed({}, {(): Mark(0, 0)})
    reader = _YamlReader(yaml.constructor)
    data = reader.value((), root, root.start_mark.index)
    return Parsed(data, reader.marks, tuple(reader.duplicates))


def _limit_size(composer: Any) -> None:
    """Make it stop at the limit: it reads no further than it has composed."""
    compose, meter, depth = composer.compose_node, Meter("yaml"), 0

    def compose_node(parent: Any, index: Any) -> Any:
        nonlocal depth
        meter.value(depth, composer.parser.peek_event().start_mark.index)
        depth += 1
        node = compose(parent, index)
        depth -= 1
        return node

    composer.compose_node = compose_node


def _syntax_error(exc: Any) -> Malformed:
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    problem = getattr(exc, "problem", None) or "this is not valid YAML"
    return Malformed(problem, mark.index if mark else 0)


class _YamlReader:
    def __init__(self, constructor: Any) -> None:
        self.constructor = constructor
        self.marks: dict[KeyPath, Mark] = {}
        self.duplicates: list[KeyPath] = []
        self._meter = Meter("yaml")

    def value(self, key: KeyPath, node: Any, key_at: int) -> Any:
        at: int = node.start_mark.index
        self._meter.value(len(key), at)  # counted again: an alias repeats values
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
            check_key(name, at)
            if name in table:
                self.duplicates.append((*key, name))
                del table[name]  # so that the last one also comes last
            table[name] = self.value((*key, name), value_node, at)
        return table

    def scalar(self, node: Any) -> Any:
        try:
            return self.constructor.construct_object(node)
        except (YAMLError, ValueError, OverflowError) as exc:
            raise Malformed("this value is not valid", node.start_mark.index) from exc
