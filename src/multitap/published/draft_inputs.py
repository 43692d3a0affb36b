"""Collects the inputs that a publisher asks for while a draft is made."""

import re
from collections.abc import Mapping
from typing import Any

from multitap.config.edit.server_draft import DraftInput
from multitap.published.foreign_text import as_literal, clean, option_name

MOST_INPUTS = 64
_VARIABLE = re.compile(r"\{([^{}\s]{1,100})\}")


class DraftInputs:
    """The inputs of one draft, by unique names."""

    def __init__(self) -> None:
        self._inputs: dict[str, DraftInput] = {}

    @property
    def all(self) -> tuple[DraftInput, ...]:
        return tuple(self._inputs.values())

    def value(self, name: str, given: Mapping[str, Any], *, multiple: bool = False) -> str:
        """A value with placeholders for the user's input.

        Args:
            name: The name of the value.
            given: As in `server.json`: `value` with `variables`, or an input.
            multiple: Whether it may be given several times.
        """
        fixed = given.get("value")
        if isinstance(fixed, str):
            return self._fill(fixed, _table(given.get("variables")))
        return self._ask(name, given, multiple=multiple)

    def template(self, text: str, variables: Mapping[str, Any]) -> str:
        """A text with each `{name}` replaced by a placeholder for the user's input."""
        return self._fill(text, variables)

    def _fill(self, text: str, variables: Mapping[str, Any]) -> str:
        parts: list[str] = []
        end = 0
        for match in _VARIABLE.finditer(text):
            if match[1] not in variables:
                continue  # literal braces
            parts += (
                as_literal(text[end : match.start()]),
                self.value(match[1], _table(variables[match[1]])),
            )
            end = match.end()
        return "".join((*parts, as_literal(text[end:])))

    def _ask(self, name: str, given: Mapping[str, Any], *, multiple: bool) -> str:
        default = given.get("default")
        wanted = DraftInput(
            self._free(option_name(name)),
            clean(given.get("description") or given.get("placeholder")),
            secret=given.get("isSecret") is True,
            required=given.get("isRequired") is True,
            default=None if default is None else as_literal(default),
            choices=_texts(given.get("choices")),
            multiple=multiple,
            path=given.get("format") == "filepath",
        )
        self._inputs[wanted.name] = wanted
        return f"${{input:{wanted.name}}}"

    def _free(self, name: str) -> str:
        if len(self._inputs) >= MOST_INPUTS:
            raise ValueError(f"it asks for more than {MOST_INPUTS} things")
        number, free = 1, name
        while free in self._inputs:
            number += 1
            free = f"{name}-{number}"
        return free


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(map(as_literal, value)) if isinstance(value, list) else ()  # pyright: ignore[reportUnknownArgumentType]


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]
