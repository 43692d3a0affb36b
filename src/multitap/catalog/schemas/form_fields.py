"""The fields of a server's form, and whether a typed value fits each."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any
from urllib.parse import urlsplit

import msgspec

MOST_FIELDS = 64
"""Fields of a form; one with more is declined."""
# catches typing mistakes only; the server checks the rest
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_YES = frozenset({"y", "yes", "true", "1", "on"})
_NO = frozenset({"n", "no", "false", "0", "off"})


class InvalidInput(ValueError):
    """The typed text does not fit the field; the message says what does."""


class FormField(msgspec.Struct, frozen=True):
    """One question of a form."""

    name: str
    schema: Mapping[str, Any]
    required: bool

    @property
    def default(self) -> Any:
        return self.schema.get("default")

    @property
    def choices(self) -> tuple[tuple[str, str], ...]:
        """The choices: values, and their labels."""
        return tuple(_choices(self.schema)) or tuple(_choices(_table(self.schema.get("items"))))

    @property
    def words(self) -> str:
        """The kind of value, in words."""
        match self.schema.get("type"):
            case "array":
                return "any of these, separated by commas"
            case "boolean":
                return "yes or no"
            case "integer":
                return f"whole number{_range(self.schema, 'minimum', 'maximum')}"
            case "number":
                return f"number{_range(self.schema, 'minimum', 'maximum')}"
            case _ if self.choices:
                return "one of these"
            case _:
                kind = _FORMATS.get(str(self.schema.get("format")), "text")
                return f"{kind}{_range(self.schema, 'minLength', 'maxLength', ' characters')}"

    def value(self, text: str) -> Any:
        """The value of a typed text.

        Raises:
            InvalidInput: It does not fit the field.
        """
        match self.schema.get("type"):
            case "array":
                return self._several(text)
            case "boolean":
                return _truth(text)
            case "integer" | "number" as kind:
                return _within(_number(text, kind), self.schema)
            case _ if self.choices:
                return self._choose(text)
            case _:
                return _text(text, self.schema)

    def _several(self, text: str) -> list[str]:
        choices = [self._choose(part.strip()) for part in text.split(",") if part.strip()]
        least, most = self.schema.get("minItems", 0), self.schema.get("maxItems", len(choices))
        if not least <= len(choices) <= most:
            raise InvalidInput(f"choose {least} to {most}")
        return [*dict.fromkeys(choices)]

    def _choose(self, text: str) -> str:
        choices = self.choices
        if not choices:
            return text
        for number, (value, title) in enumerate(choices, start=1):
            # people type the value, its label or its number in the list
            if text in {value, title, str(number)}:
                return value
        raise InvalidInput(f"choose one of {', '.join(value for value, _ in choices)}")


def fields_of(schema: Mapping[str, Any]) -> tuple[FormField, ...]:
    """The fields of a form, in its order."""
    required = frozenset(map(str, _list(schema.get("required"))))
    return tuple(
        FormField(name, _table(property_schema), name in required)
        for name, property_schema in _table(schema.get("properties")).items()
    )


def _choices(schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The choices, in any spelling that the protocol has had."""
    for key in ("oneOf", "anyOf"):
        for entry in _list(schema.get(key)):
            if "const" in (option := _table(entry)):
                yield str(option["const"]), str(option.get("title", option["const"]))
    values, names = _list(schema.get("enum")), _list(schema.get("enumNames"))
    for number, value in enumerate(values):
        yield str(value), str(names[number]) if number < len(names) else str(value)


def _truth(text: str) -> bool:
    if text.lower() in _YES:
        return True
    if text.lower() in _NO:
        return False
    raise InvalidInput("type yes or no")


def _number(text: str, kind: str) -> float:
    try:
        return int(text) if kind == "integer" else float(text)
    except ValueError:
        raise InvalidInput(
            "type a whole number" if kind == "integer" else "type a number"
        ) from None


def _within(number: float, schema: Mapping[str, Any]) -> float:
    least, most = schema.get("minimum", number), schema.get("maximum", number)
    # `float` reads `nan` and `inf`, and JSON has neither
    if not math.isfinite(number) or not least <= number <= most:
        raise InvalidInput(f"type a number{_range(schema, 'minimum', 'maximum') or ' such as 42'}")
    return number


def _text(text: str, schema: Mapping[str, Any]) -> str:
    if not schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", len(text)):
        raise InvalidInput(f"type{_range(schema, 'minLength', 'maxLength')} characters")
    kind = str(schema.get("format"))
    if not _is_of(kind, text):
        raise InvalidInput(f"type {_FORMATS[kind]}")
    return text


_FORMATS = {
    "email": "an email address",
    "uri": "a URL",
    "date": "a date (2026-01-31)",
    "date-time": "a date and time (2026-01-31T12:00:00Z)",
}


def _is_of(kind: str, text: str) -> bool:
    try:
        match kind:
            case "email":
                return bool(_EMAIL.fullmatch(text))
            case "uri":
                return bool(urlsplit(text).scheme)
            case "date":
                return bool(date.fromisoformat(text))
            case "date-time":
                # RFC 3339 requires a time zone
                return datetime.fromisoformat(text).tzinfo is not None
            case _:
                return True
    except ValueError:
        return False


def _range(schema: Mapping[str, Any], least: str, most: str, unit: str = "") -> str:
    low, high = schema.get(least), schema.get(most)
    if low is not None and high is not None:
        return f" {low} to {high}{unit}"
    if low is not None:
        return f" at least {low}{unit}"
    return "" if high is None else f" at most {high}{unit}"


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()  # pyright: ignore[reportUnknownVariableType]
