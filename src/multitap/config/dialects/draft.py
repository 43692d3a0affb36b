"""One server between a host's format and ours: its fields, and how variables are spelled."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from multitap.config.documents import Node, kind_in_words
from multitap.config.problems import Problem, Severity
from multitap.config.variables import FOLDERS

FieldPath = tuple[str, ...]
"""A field of our models: `("command",)`, `("env", "TOKEN")`."""
Rewrite = Callable[[str], str]
"""Converts a dialect's variable syntax to ours."""

# Names become parts of tool names and messages; a longer one makes only its entry invalid.
LONGEST_NAME = 200


class Entry(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One server's entry in one file; without `command` and `url` it only amends another."""

    name: str
    node: Node
    fields: Mapping[FieldPath, Node]
    extra: Mapping[str, Node] = msgspec.field(default_factory=dict[str, Node])
    """Keys without effect here, by their path; kept for writing the entry back."""
    broken: bool = False
    """Whether it has an error and must not be used."""
    words: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """The dialect's names for our fields, if they differ."""

    @property
    def complete(self) -> bool:
        return ("command",) in self.fields or ("url",) in self.fields


class Reading(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The content of one file."""

    dialect: str
    entries: tuple[Entry, ...] = ()
    settings: Mapping[FieldPath, Node] = msgspec.field(default_factory=dict[FieldPath, Node])
    problems: tuple[Problem, ...] = ()
    refused: bool = False
    """Whether it was not read because somebody else can change it."""


class Draft:
    """Collects fields and problems while one entry, or the settings of a file, are read."""

    def __init__(self, node: Node, *, server: str | None, base: Path, rewrite: Rewrite) -> None:
        self.node = node
        self.server = server
        self.base = base
        """What relative paths are relative to."""
        self.rewrite = rewrite
        self.fields: dict[FieldPath, Node] = {}
        self.extra: dict[str, Node] = {}
        self.problems: list[Problem] = []

    @property
    def broken(self) -> bool:
        return any(problem.severity is Severity.ERROR for problem in self.problems)

    def set(self, field_path: str | FieldPath, node: Node, value: Any) -> None:
        path = (field_path,) if isinstance(field_path, str) else field_path
        self.fields[path] = node.of(value)

    def text(self, node: Node) -> str | None:
        """The string in `node` with our variable syntax; None, with a problem, if it is not one."""
        if isinstance(node.value, str):
            return self.rewrite(node.value)
        self.wrong(node, "a string")
        return None

    def keep(self, node: Node) -> None:
        """Remember a key without effect here."""
        self.extra[".".join(map(str, node.key[len(self.node.key) :]))] = node

    def wrong(self, node: Node, expected: str, *, hint: str | None = None) -> None:
        message = f"expected {expected}, got {kind_in_words(node.value)}"
        self.add(Severity.ERROR, node, message, expected=expected, hint=hint)

    def missing(self, word: str, *, hint: str | None = None) -> None:
        """Report a missing key."""
        node = self.node
        key = f"{node.dotted}.{word}" if node.key else word
        message = f"`{word}` is missing"
        self.problems.append(
            Problem(
                severity=Severity.ERROR,
                message=message,
                place=node.key_place,
                key=key,
                server=self.server,
                expected=word,
                hint=hint,
            )
        )

    def error(
        self, node: Node, message: str, *, expected: str | None = None, hint: str | None = None
    ) -> None:
        self.add(Severity.ERROR, node, message, expected=expected, hint=hint)

    def add(
        self,
        severity: Severity,
        node: Node,
        message: str,
        *,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        # an error is about the value, the others are about a key that is there at all
        place = node.place if severity is Severity.ERROR else node.key_place
        self.problems.append(
            Problem(
                severity=severity,
                message=message,
                place=place,
                key=node.dotted,
                server=self.server,
                expected=expected,
                hint=hint,
            )
        )


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
        present = [text for text in texts if text is not None]
        # all or none: half of a list of arguments is another command
        if len(present) < len(texts):
            return None
        del self.fields[path]
        return present

    def names(self, *table: str) -> list[str]:
        """The names in a table that are not written yet."""
        size = len(table)
        inside = (path for path in self.fields if path[:size] == table and len(path) > size)
        return [*dict.fromkeys(path[size] for path in inside)]


_BARE = re.compile(r"(?<!\$)\$([A-Za-z_]\w*)")
# a name ends at `$` and `{`: otherwise a text full of `${` would take quadratic time
_SECRET = re.compile(r"\$\{\{\s*(?:secrets|inputs)\.([^}\s$]+)\s*\}\}")
_BRACES = re.compile(r"\$?\{(env|file):([^}{]+)\}|\$\{")

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_NAMED = re.compile(r"(?<!\$)\$\{env:([A-Za-z_][A-Za-z0-9_]*)(\}|:-)")
_NO_FORM = "\0"
"""Marks text that the host cannot express; no configuration contains it."""


def literal(text: str) -> str:
    """For hosts without variables, where `${` is plain text."""
    return text.replace("${", "$${")


def only(*forms: str) -> Rewrite:
    """For hosts with only these forms, where every other `${` is plain text."""
    other = re.compile(r"\$\{(?!" + "|".join(forms) + ")")
    return lambda text: other.sub("$${", text)


def bare(text: str) -> str:
    """`$NAME` besides `${NAME}`."""
    return _BARE.sub(r"${\1}", text)


def secrets(text: str) -> str:
    """`${{ secrets.NAME }}`."""
    return _SECRET.sub(r"${env:\1}", text)


def respelling(
    rewrite: Rewrite,
    *,
    env: str | None = None,
    default: str | None = None,
    folders: bool = False,
    **sources: str,
) -> Respell:
    """Converts our variables to those of a host.

    The result is parsed again: a text that would then mean something else cannot be expressed.

    Args:
        rewrite: Converts the host's syntax to ours.
        env: The host's form of an environment variable, with `%s` for the name.
        default: The same for one with a default.
        folders: Whether it supports `${workspaceFolder}` and similar ones.
        sources: The forms of our other sources, such as `file`.
    """
    forms = {"env": env, **sources}

    def spelled(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        source, colon, name = match[1].partition(":-")[0].rpartition(":")
        default_value = match[1].partition(":-")[2] if ":-" in match[1] else None
        if not colon and name in FOLDERS:
            return match[0] if folders and default_value is None else _NO_FORM
        form = forms.get(source or "env") if default_value is None else default
        if form is None or (default_value is not None and source not in {"", "env"}):
            return _NO_FORM
        return form % (name if default_value is None else (name, default_value))

    def respell(text: str) -> str | None:
        respelled = _REFERENCE.sub(spelled, text)
        fits = _NO_FORM not in respelled and canonical(rewrite(respelled)) == canonical(text)
        return respelled if fits else None

    return respell


def canonical(text: str) -> str:
    """A text with a uniform spelling of environment variables."""
    return _NAMED.sub(r"${\1\2", text)


def braces(folder: Path) -> Rewrite:
    """`{env:NAME}` and `{file:path}`, the path relative to `folder`."""

    def replaced(match: re.Match[str]) -> str:
        source, name = match.groups()
        if source is None:
            return "$${"
        if source == "file" and not name.startswith("~"):
            name = str(folder / name)
        return f"${{{source}:{name}}}"

    return lambda text: _BRACES.sub(replaced, text)
