"""Variables in a configuration, put in at the last moment.

`${VAR}`, `${VAR:-default}` and `${env:VAR}` come from the environment, `${auth:NAME}` from the
secrets, `${file:PATH}` from a file; `${workspaceFolder}` and `${userHome}` are folders; `$${` is
`${` itself.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from multitap.config.models import HttpServer, LocalServer, OAuth, ServerConfig, StdioServer
from multitap.config.problems import Place, did_you_mean
from multitap.errors import ConfigError

LARGEST_FILE = 1024 * 1024
SOURCES = ("env", "auth", "file")
FOLDERS = ("workspaceFolder", "workspaceFolderBasename", "userHome", "pathSeparator", "/")

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)(\}?)")
_ADDRESS = re.compile(r"https?://\S+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][\w.]*)\s*=\s*(.*?)\s*")


def _no_secrets(_: str) -> str | None:
    return None


def _read(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.read(LARGEST_FILE)


@dataclass(frozen=True, slots=True)
class Scope:
    """Where the values of variables come from."""

    env: Mapping[str, str] = field(repr=False)
    folder: Path
    """The folder that is worked in."""
    home: Path
    auth: Callable[[str], str | None] = _no_secrets
    """Looks up a secret; None: there is none of that name."""
    read: Callable[[Path], str] = _read


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
        """The field it stands in."""
        self.place = place


@dataclass(frozen=True, slots=True)
class Reference:
    """One variable as it is written."""

    source: str
    """`env`, `auth`, `file` or `folder`."""
    name: str
    default: str | None = None


def parsed(body: str) -> Reference:
    """What stands between `${` and `}`.

    Raises:
        ConfigError: it is no variable.
    """
    head, separator, default = body.partition(":-")
    source, colon, name = head.partition(":")
    given = default if separator else None
    if "${" in body:
        raise ConfigError(f"`${{{body}}}` holds another variable", hint="they cannot be nested")
    if not colon and head in FOLDERS:
        return Reference("folder", head, given)
    if not colon and _NAME.fullmatch(head):
        return Reference("env", head, given)
    if colon and name and source in SOURCES:
        return Reference(source, name, given)
    hint = did_you_mean(source, SOURCES) if colon else None
    hint = hint or "write `$${` where you mean `${` itself"
    raise ConfigError(f"`${{{body}}}` is no variable", hint=hint)


def expand(text: str, scope: Scope) -> str:
    """The text with its variables put in; what they hold is never expanded again.

    Raises:
        ConfigError: a variable has no value, or `${` starts none.
    """

    def value(match: re.Match[str]) -> str:
        if match.group() == "$${":
            return "${"
        return _looked_up(_reference(match), scope)

    return _REFERENCE.sub(value, text)


def references(text: str) -> tuple[Reference, ...]:
    """The variables in a text.

    Raises:
        ConfigError: `${` starts none.
    """
    matches = _REFERENCE.finditer(text)
    return tuple(_reference(match) for match in matches if match.group() != "$${")


def _reference(match: re.Match[str]) -> Reference:
    body, closing = match.groups()
    if not closing:
        hint = "write `$${` where you mean `${` itself"
        raise ConfigError("`${` without `}`", hint=hint)
    return parsed(body)


def _looked_up(reference: Reference, scope: Scope) -> str:
    match reference.source:
        case "folder":
            return _folders(scope)[reference.name]
        case "file":
            return _content(reference.name, scope)
        case "auth":
            found = scope.auth(reference.name)
            hint = f"`multitap secret set {reference.name}`"
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


def _content(name: str, scope: Scope) -> str:
    try:
        return scope.read(located(name, scope)).rstrip("\r\n")
    except (OSError, UnicodeDecodeError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise Unresolved(f"cannot read `{name}`: {reason}", variable=name) from exc


def located(path: str, scope: Scope) -> Path:
    """A path with `~` put in, relative to the folder that is worked in."""
    if path == "~" or path.startswith("~/"):
        return scope.home / path[2:]
    return scope.folder / path


def expand_server(
    config: ServerConfig, scope: Scope, *, places: Mapping[str, Place] | None = None
) -> ServerConfig:
    """The server with all its variables put in; `places` says where each field is written.

    Raises:
        ConfigError: naming the variable, the field and its place.
    """

    def put(key: str, text: str) -> str:
        try:
            return expand(text, scope)
        except ConfigError as exc:
            raise _placed(exc, key, places or {}) from exc

    match config:
        case StdioServer():
            changed = _program(config, scope, put)
        case HttpServer():
            changed = _remote(config, put)
        case LocalServer():
            return config
    given = {name: getattr(config, name) for name in config.model_fields_set}
    try:
        return type(config).model_validate({**given, **changed})
    except ValidationError as exc:
        error = exc.errors(include_input=False)[0]
        reason = error["msg"].removeprefix("Value error, ")
        invalid = ConfigError(f"not valid once its variables are put in: {reason}")
        raise _placed(invalid, str(error["loc"][0]), places or {}) from None


def variables(config: ServerConfig) -> tuple[tuple[str, Reference], ...]:
    """Every variable of a server with the field it stands in; malformed ones are left out."""
    found: list[tuple[str, Reference]] = []
    for key, text in _texts(config):
        with suppress(ConfigError):
            found += ((key, reference) for reference in references(text))
    return tuple(found)


Put = Callable[[str, str], str]
"""From a field's name and text to the text with its variables put in."""


def _program(config: StdioServer, scope: Scope, put: Put) -> dict[str, Any]:
    command = put("command", config.command)
    named = {name: put(f"env.{name}", value) for name, value in config.env.items()}
    changed: dict[str, Any] = {
        "command": str(located(command, scope)) if command.startswith("~/") else command,
        "args": tuple(put("args", argument) for argument in config.args),
        "env": named,
    }
    if config.env_file is not None:
        content = put("env_file", f"${{file:{put('env_file', str(config.env_file))}}}")
        changed |= {"env": {**parse_env(content), **named}, "env_file": None}
    if config.cwd is not None:
        changed["cwd"] = located(put("cwd", str(config.cwd)), scope)
    return changed


def _remote(config: HttpServer, put: Put) -> dict[str, Any]:
    url = put("url", config.url)
    headers = {name: put(f"headers.{name}", value) for name, value in config.headers.items()}
    changed: dict[str, Any] = {"url": url if _ADDRESS.fullmatch(url) else "", "headers": headers}
    if isinstance(config.oauth, OAuth):
        given = config.oauth.model_dump(exclude_unset=True)
        changed["oauth"] = {
            name: put(f"oauth.{name}", value) if isinstance(value, str) else value
            for name, value in given.items()
        }
    return changed


def _texts(config: ServerConfig) -> Iterator[tuple[str, str]]:
    match config:
        case StdioServer():
            yield "command", config.command
            yield from (("args", argument) for argument in config.args)
            yield from ((f"env.{name}", value) for name, value in config.env.items())
            paths = {"env_file": config.env_file, "cwd": config.cwd}
            yield from ((name, str(path)) for name, path in paths.items() if path)
        case HttpServer():
            yield "url", config.url
            yield from ((f"headers.{name}", value) for name, value in config.headers.items())
            given = config.oauth.model_dump() if isinstance(config.oauth, OAuth) else {}
            for name, value in given.items():
                if isinstance(value, str):
                    yield f"oauth.{name}", value
        case LocalServer():
            return


def parse_env(content: str) -> dict[str, str]:
    """`NAME=value` lines; comments, `export` and quotes are understood, variables are not."""
    values: dict[str, str] = {}
    for line in content.splitlines():
        if match := _LINE.fullmatch(line):
            name, value = match.groups()
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            values[name] = value[1:-1] if quoted else value.partition(" #")[0].rstrip()
    return values


def _placed(exc: ConfigError, key: str, places: Mapping[str, Place]) -> ConfigError:
    place = places.get(key)
    where = f"{place}: `{key}`" if place else f"`{key}`"
    message = f"{where}: {exc}"
    if not isinstance(exc, Unresolved):
        return ConfigError(message, hint=exc.hint)
    return Unresolved(message, variable=exc.variable, key=key, place=place, hint=exc.hint)
