"""Limits of numbers, as JSON Schema 2020-12 writes them."""

from multitap.tools.providers.walk import OnChange, Path, Schema

_PAIRS = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))


def modernise(node: Schema, note: OnChange, path: Path) -> None:
    """Convert limits of draft 4, whose `exclusiveMinimum` is a boolean, to numbers."""
    for limit, exclusive in _PAIRS:
        if isinstance(node.get(exclusive), bool):
            note(path, f"`{exclusive}` is a number", "only draft 4 has it otherwise")
            if node.pop(exclusive) and limit in node:
                node[exclusive] = node.pop(limit)
