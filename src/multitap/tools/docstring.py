"""Reads a docstring into descriptions of a function and its parameters."""

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

_SECTION = re.compile(r"^(Args|Arguments|Parameters):\s*$")
_PARAMETER = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


def parse_docstring(docstring: str) -> tuple[str, Mapping[str, str]]:
    """A docstring without its `Args:`, and the description of each parameter."""
    kept: list[str] = []
    inside: list[str] = []
    within = False
    for line in docstring.splitlines():
        if _SECTION.match(line):
            within = True
        # a line that is not indented ends the section, as in Google's style
        elif within and (not line or line[0].isspace()):
            inside.append(line)
        else:
            within = False
            kept.append(line)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return text, dict(_parameters(inside))


def describe_properties(schema: Mapping[str, Any], parameters: Mapping[str, str]) -> dict[str, Any]:
    """A schema with descriptions added to properties that have none."""
    copy = deepcopy(dict(schema))
    for name, member in copy.get("properties", {}).items():
        if text := parameters.get(name):
            # `Field(description=…)` takes precedence: it is meant for models
            member.setdefault("description", text)
    return copy


def _parameters(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Names and texts; further indented lines continue the previous text."""
    written = [line for line in lines if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in written), default=0)
    name, words = "", [""]
    for line in written:
        if match := _PARAMETER.match(line[indent:]):
            if name:
                yield name, " ".join(words).strip()
            name, words = match[1], [match[2]]
        else:
            words.append(line.strip())
    if name:
        yield name, " ".join(words).strip()
