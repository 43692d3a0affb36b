"""The fields of a server that still have to be written in another host's format."""

from collections.abc import Callable, Mapping
from typing import Any

from multitap.config.dialects.draft import FieldPath

Respell = Callable[[str], str | None]
"""From our way to write variables to a dialect's; None if it has none for them."""


class UnwrittenFields:
    """What a dialect's rules take from, key by key; what is left, it cannot express."""

    def __init__(self, fields: Mapping[FieldPath, Any], respell: Respell) -> None:
        self.fields = dict(fields)
        self._respell = respell

    def look(self, *path: str) -> Any:
        """The value of a field, which stays."""
        return self.fields.get(path)

    def take(self, *path: str) -> Any:
        """The value of a field, or None."""
        return self.fields.pop(path, None)

    def text(self, *path: str) -> str | None:
        """A text in the dialect's spelling; one that has none stays, and is None."""
        if path not in self.fields:
            return None
        text = self._respell(str(self.fields[path]))
        if text is not None:
            del self.fields[path]
        return text

    def texts(self, *path: str) -> list[str] | None:
        """The same for a list, which is taken only as a whole."""
        if path not in self.fields:
            return None
        texts = [self._respell(str(text)) for text in self.fields[path]]
        known = [text for text in texts if text is not None]
        if len(known) < len(texts):
            return None
        del self.fields[path]
        return known

    def names(self, *table: str) -> list[str]:
        """The names in a table that are still to be written."""
        size = len(table)
        inside = (path for path in self.fields if path[:size] == table and len(path) > size)
        return [*dict.fromkeys(path[size] for path in inside)]
