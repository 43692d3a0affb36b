"""Finds variables in text and resolves them.

`${VAR}`, `${VAR:-default}` and `${env:VAR}` come from the environment, `${auth:NAME}` from the
secrets, `${file:PATH}` from a file; `${workspaceFolder}` and `${userHome}` are folders; `$${` is
`${` itself.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path

from multitap.config.problems import Place, did_you_mean
from multitap.errors import ConfigError
from multitap.records import dataclass
from multitap.regular_file import read_regular

# For tokens and certificates; a `${file:}` of a log or a device must not exhaust memory.
LARGEST_FILE = 1024 * 1024
# The caller looks up `auth`, because it knows the server: a secret is bound to servers.
SOURCES = ("env", "auth", "file")
FOLDERS = ("workspaceFolder", "workspaceFolderBasename", "userHome", "pathSeparator", "/")

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _no_secrets(_: str) -> str | None:
    return None


def _read(path: Path) -> str:
    text = read_regular(path, LARGEST_FILE).decode()
    return text.replace("\r\n", "\n")


@dataclass(frozen=True, slots=True)
class Scope:
    """The sources of variables."""

    env: Mapping[str, str] = field(repr=False)
    folder: Path
    """The current folder."""
    home: Path
    auth: Callable[[str], str | None] = _no_secrets
    """Looks up a secret; None if there is none of that name. May raise `Unresolved`."""
    read: Callable[[Path], str] = _read
    base: Path | None = None
    """The base of relative paths, if not the current folder."""

    @classmethod
    def of_process(cls, folder: Path | None = None) -> "Scope":
        """The environment and home of this process; the current folder if none is given."""
        return cls(os.environ, folder or Path.cwd(), Path.home())


class Unresolved(ConfigError):
    """A variable has no value."""

    def __init__(
        self,
        message: str,
        *,
        variable: str,
        key: str = "",
        place: Place | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.variable = variable
        self.key = key
        """Its field."""
        self.place = place


@dataclass(frozen=True, slots=True)
class Reference:
    """One variable as written."""

    source: str
    """`env`, `auth`, `file` or `folder`."""
    name: str
    default: str | None = None


def parse_reference(body: str) -> Reference:
    """Parse the text between `${` and `}`.

    Raises:
        ConfigError: It is not a variable.
    """
    head, separator, default = body.partition(":-")
    source, colon, name = head.partition(":")
    given = default if separator else None
    if "${" in body:
        raise ConfigError(f"`${{{body}}}` contains another variable", hint="they cannot be nested")
    if not colon and head in FOLDERS:
        return Reference("folder", head, given)
    if not colon and _NAME.fullmatch(head):
        return Reference("env", head, given)
    if colon and name and source in SOURCES:
        return Reference(source, name, given)
    hint = did_you_mean(source, SOURCES) if colon else None
    hint = hint or "write `$${` where you mean `${` itself"
    raise ConfigError(f"`${{{body}}}` is not a variable", hint=hint)


OnValue = Callable[[Reference, str], None]


def expand(text: str, scope: Scope, on_value: OnValue = lambda _, __: None) -> str:
    """The text with its variables expanded; their values are not expanded again.

    Args:
        text: The text with variables.
        scope: The sources of variables.
        on_value: Called with each value.

    Raises:
        ConfigError: A variable has no value, or `${` does not start one.
    """

    def value(match: re.Match[str]) -> str:
        if match.group() == "$${":
            return "${"
        reference = _reference(match)
        found = _look_up(reference, scope)
        on_value(reference, found)
        return found

    return _REFERENCE.sub(value, text)


def references(text: str) -> tuple[Reference, ...]:
    """The variables in a text.

    Raises:
        ConfigError: `${` does not start a variable.
    """
    matches = _REFERENCE.finditer(text)
    return tuple(_reference(match) for match in matches if match.group() != "$${")


def _reference(match: re.Match[str]) -> Reference:
    body, closing = match.groups()
    if not closing:
        hint = "write `$${` where you mean `${` itself"
        raise ConfigError("`${` without `}`", hint=hint)
    return parse_reference(body)


def _look_up(reference: Reference, scope: Scope) -> str:
    match reference.source:
        case "folder":
            return _folders(scope)[reference.name]
        case "file":
            return _file(reference, scope)
        case "auth":
            found = scope.auth(reference.name)
            hint = f"run `multitap secret set {reference.name}`"
        case _:
            found = scope.env.get(reference.name)
            hint = f"set it, or write `${{{reference.name}:-default}}`"
    if found or (found is not None and reference.default is None):
        return found
    if reference.default is not None:
        return reference.default
    kind = "secret" if reference.source == "auth" else "variable"
    message = f"the {kind} `{reference.name}` is not set"
    raise Unresolved(message, variable=reference.name, hint=hint)


def _folders(scope: Scope) -> Mapping[str, str]:
    folder, home = str(scope.folder), str(scope.home)
    return dict(zip(FOLDERS, (folder, scope.folder.name, home, "/", "/"), strict=True))


def _file(reference: Reference, scope: Scope) -> str:
    try:
        return content(reference.name, scope)
    except Unresolved:
        if reference.default is None:
            raise
        return reference.default


def content(name: str, scope: Scope) -> str:
    """The content of a file, without a final line break.

    Raises:
        Unresolved: It cannot be read.
    """
    try:
        return scope.read(locate(name, scope)).rstrip("\r\n")
    except (OSError, UnicodeDecodeError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise Unresolved(f"cannot read `{name}`: {reason}", variable=name) from exc


def locate(path: str, scope: Scope) -> Path:
    """A path with `~` expanded; relative ones start at the scope's base."""
    if path == "~" or path.startswith("~/"):
        return scope.home / path[2:]
    return (scope.base or scope.folder) / path
