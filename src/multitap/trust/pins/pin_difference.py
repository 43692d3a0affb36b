"""Shows what changed in a tool's definition, line by line, with hidden characters visible."""

from collections.abc import Iterator
from difflib import unified_diff

from multitap.trust.pins.lock_file import ToolPin, visible_json

_TOO_LONG = "(a definition that is too long to be kept: only its digest is known)"
_CONTEXT = 3


def difference(before: ToolPin | None, now: ToolPin) -> Iterator[str]:
    """The removed and added lines; all lines of a new tool."""
    old, new = _lines(before) if before else [], _lines(now)
    for number, line in enumerate(unified_diff(old, new, n=_CONTEXT, lineterm="")):
        if number > 1:  # the two header lines
            yield line


def _lines(pin: ToolPin) -> list[str]:
    if pin.definition is None:
        return [_TOO_LONG, f"sha256 {pin.sha256}"]
    # a long description in one line would hide what is in its middle
    return visible_json(pin.definition).replace("\\n", "\n    ").splitlines()
