"""The fields of a server that still have to be written in another host's format."""

from collections.abc import Callable, Mapping
from typing import Any

from multitap.config.dialects.draft import FieldPath

Respell = Callable[[str], str | None]
"""Converts our variable syntax to a dialect's; None if that is not possible."""


class UnwrittenFields:
    """The fields that a dialect's rules take, one by one; the rest cannot be expressed."""

    def __init__(self, fields: Mapping[FieldPath, Any], respell: Respell) -> None:
        self.fields = dict(fields)
        self._respell = respell

    def look(self, *path: str) -> Any:
        """The value of a field, without taking it."""
        return self.fields.get(path)

    def take(self, *path: str) -> Any:
        """Take the value of a field; None if it is absent."""
        return self.fields.pop(path, None)

    def text(self, *path: str) -> str | None:
        """Take a text in the dialect's syntax; None, and not taken, if it cannot be expressed."""
        if path not in self.fields:
            return None
        text = self._respell(str(self.fields[path]))
        if text is not None:
            del self.fields[path]
        return text

    def texts(self, *path: str) -> list[str] | None:
        """The same for a list, taken only as a whole."""
        if path not in self.fields:
            return None
        texts = [self._respell(str(text)) for text in self.fields[path]]
        known = [text for text in texts if text is not None]
        if len(known) < len(texts):
            return None
        del self.fields[path]
        return known

    def names(self, *table: str) -> list[str]:
        """The names in a table that are not written yet."""
        size = len(table)
        inside = (path for path in self.fields if path[:size] == table and len(path) > size)
        return [*dict.fromkeys(path[size] for path in inside)]
