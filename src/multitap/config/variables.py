"""Finds variables in text and resolves them, and expands those of a server just before it is used.

`${VAR}`, `${VAR:-default}` and `${env:VAR}` come from the environment, `${auth:NAME}` from the
secrets, `${file:PATH}` from a file; `${workspaceFolder}` and `${userHome}` are folders; `$${` is
`${` itself.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from multitap.config.access import AccessSettings
from multitap.config.checks import InvalidSettings
from multitap.config.models import (
    HttpServer,
    LocalServer,
    ModelConfig,
    OAuth,
    SandboxRules,
    ServerConfig,
    StdioServer,
)
from multitap.config.problems import Place, did_you_mean
from multitap.config.secrets import in_value, is_telling
from multitap.errors import ConfigError
from multitap.files import read_regular

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


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of variables."""

    env: Mapping[str, str]
    folder: Path
    """The current folder."""
    home: Path
    auth: Callable[[str], str | None] = _no_secrets
    """Looks up a secret; None if there is none of that name. May raise `Unresolved`."""
    read: Callable[[Path], str] = _read
    base: Path | None = None
    """The base of relative paths, if not the current folder."""

    def __repr__(self) -> str:
        return f"<Scope of {self.folder}>"  # variables may be secret

    @classmethod
    def of_process(cls, folder: Path | None = None) -> "Scope":
        """The environment and home of this process; the current folder if none is given."""
        return cls(env=os.environ, folder=folder or Path.cwd(), home=Path.home())


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


class Reference(msgspec.Struct, frozen=True):
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
    default_value = default if separator else None
    if "${" in body:
        raise ConfigError(f"`${{{body}}}` contains another variable", hint="they cannot be nested")
    if not colon and head in FOLDERS:
        return Reference("folder", head, default_value)
    if not colon and _NAME.fullmatch(head):
        return Reference("env", head, default_value)
    if colon and name and source in SOURCES:
        return Reference(source, name, default_value)
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
        text_ = _look_up(reference, scope)
        on_value(reference, text_)
        return text_

    # once: a value is data, and must not name another secret
    return _REFERENCE.sub(value, text)


def put_values(text: str, value: Callable[[Reference], str | None]) -> str:
    """The text with some of its variables replaced; those without a value stay as they are.

    Values come from others than the text: whatever they contain, it is not a variable.

    Raises:
        ConfigError: A value would make one together with what follows it.
    """

    def put(match: re.Match[str]) -> str:
        text_ = None if match.group() == "$${" else value(_reference(match))
        if text_ is None:
            return match.group()
        if text_.endswith("$") and text[match.end() : match.end() + 1] in {"$", "{"}:
            raise ConfigError("a value must not end with `$` before another variable")
        return text_.replace("${", "$${")

    return _REFERENCE.sub(put, text) if "${" in text else text


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
            value_ = scope.auth(reference.name)
            hint = f"run `multitap secret set {reference.name}`"
        case _:
            value_ = scope.env.get(reference.name)
            hint = f"set it, or write `${{{reference.name}:-default}}`"
    # as in a shell, `:-` also replaces an empty value
    if value_ or (value_ is not None and reference.default is None):
        return value_
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
        # editors end a file with a line break, which is no part of a token
        return scope.read(locate(name, scope)).rstrip("\r\n")
    except (OSError, UnicodeDecodeError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise Unresolved(f"cannot read `{name}`: {reason}", variable=name) from exc


def locate(path: str, scope: Scope) -> Path:
    """A path with `~` expanded; relative ones start at the scope's base."""
    if path == "~" or path.startswith("~/"):
        return scope.home / path[2:]
    return (scope.base or scope.folder) / path


_ADDRESS = re.compile(r"https?://\S+")
_ASSIGNED_NAME = re.compile(r"(?:export\s+)?([A-Za-z_][\w.]*)")


def expand_server(
    config: ServerConfig, scope: Scope, *, places: Mapping[str, Place] | None = None
) -> ServerConfig:
    """The server with its variables expanded; `places` says where each field is written.

    Raises:
        ConfigError: Names the variable, the field and its place.
    """
    put = _FieldExpander(scope, places or {})
    match config:
        case StdioServer():
            changed = _program(config, put)
        case HttpServer():
            changed = _remote(config, put)
        case LocalServer():
            return config
    try:
        # Checked again: a variable may contain a line break for a header, or an invalid address.
        expanded = config.replace(**changed)
    except InvalidSettings as exc:
        mistake = exc.mistakes[0]
        invalid = ConfigError(f"not valid after its variables are expanded: {mistake.message}")
        raise put.at_field(invalid, str(mistake.path[0])) from None
    # A redactor of its own: the values of earlier starts are not this one's.
    expanded.beside.pop("redact", None)
    # From here on, these values are redacted from logs and errors of this server.
    expanded.redact.learn(put.confided)
    return expanded


def expand_model(config: ModelConfig, scope: Scope) -> ModelConfig:
    """The model with its variables expanded.

    Raises:
        ConfigError: Names the variable and the field.
    """
    put = _FieldExpander(scope, {})
    texts = {"name": config.name, "base_url": config.base_url, "api_key": config.api_key}
    values = {key: put(f"model.{key}", text) for key, text in texts.items() if text is not None}
    if not _ADDRESS.fullmatch(values.get("base_url", "http://default")):
        raise ConfigError("`model.base_url` is not an address after its variables are expanded")
    return config.replace(**values)


def expand_access(access: AccessSettings, scope: Scope) -> AccessSettings:
    """The access settings with the variables in their secrets expanded.

    Raises:
        ConfigError: Names the variable and the field.
    """
    put = _FieldExpander(scope, {})
    providers = {
        name: provider
        if provider.client_secret is None
        else provider.replace(
            client_secret=put(f"access.oidc.{name}.client_secret", provider.client_secret)
        )
        for name, provider in access.oidc.items()
    }
    access = access.replace(oidc=providers) if providers else access
    if access.sign_in is None:
        return access
    clients = {
        name: client
        if client.client_secret is None
        else client.replace(
            client_secret=put(f"access.sign_in.clients.{name}.client_secret", client.client_secret)
        )
        for name, client in access.sign_in.clients.items()
    }
    return access.replace(sign_in=access.sign_in.replace(clients=clients))


def variables_of(config: ServerConfig) -> tuple[tuple[str, Reference], ...]:
    """Every variable of a server with its field; malformed ones are left out."""
    references_found: list[tuple[str, Reference]] = []
    for key, text in _texts(config):
        with suppress(ConfigError):
            references_found += ((key, reference) for reference in references(text))
    return tuple(references_found)


def may_wait(config: ServerConfig) -> bool:
    """Whether expanding the variables may be slow because it reads a keyring or files.

    The files of a project's server are also compared with the trusted ones.
    """
    sources = {reference.source for _, reference in variables_of(config)}
    has_file = isinstance(config, StdioServer) and config.env_file is not None
    return config.provenance == "project" or has_file or not sources.isdisjoint({"auth", "file"})


class _FieldExpander(msgspec.Struct, frozen=True):
    """Expands variables in the fields of one server."""

    scope: Scope
    places: Mapping[str, Place]
    confided: set[str] = msgspec.field(default_factory=set[str])
    """Secret values of variables."""

    def __repr__(self) -> str:
        return f"<_FieldExpander in {self.scope!r}>"

    def __call__(self, key: str, text: str) -> str:
        try:
            return expand(text, self.scope, on_value=partial(self._confide, key))
        except ConfigError as exc:
            raise self.at_field(exc, key) from exc

    # Except folders: redacting the home folder in every message would hide no secret.
    def _confide(self, key: str, reference: Reference, value: str) -> None:
        if reference.source != "folder":
            telling = reference.source == "auth" or is_telling(key) or is_telling(reference.name)
            self.confided.update(in_value(value, telling=telling))

    def content(self, key: str, path: str) -> str:
        """The content of the file that a field names."""
        name = self(key, path)
        try:
            return content(name, self.scope)
        except Unresolved as exc:
            raise self.at_field(exc, key) from exc

    def at_field(self, exc: ConfigError, key: str) -> ConfigError:
        """The error with its field."""
        place = self.places.get(key)
        where = f"{place}: `{key}`" if place else f"`{key}`"
        message = f"{where}: {exc}"
        if not isinstance(exc, Unresolved):
            return ConfigError(message, hint=exc.hint)
        return Unresolved(message, variable=exc.variable, key=key, place=place, hint=exc.hint)


def _program(config: StdioServer, put: _FieldExpander) -> dict[str, Any]:
    command = put("command", config.command)
    named = {name: put(f"env.{name}", value) for name, value in config.env.items()}
    changed: dict[str, Any] = {
        # no shell is there to expand it
        "command": str(locate(command, put.scope)) if command.startswith("~/") else command,
        "args": tuple(put("args", argument) for argument in config.args),
        "env": named,
    }
    if config.env_file is not None:
        lines = put.content("env_file", str(config.env_file))
        # read now, and checked: nobody opens the file again
        changed |= {"env": {**parse_env(lines), **named}, "env_file": None}
    if config.cwd is not None:
        changed["cwd"] = locate(put("cwd", str(config.cwd)), put.scope)
    if (rules := config.sandbox_rules) != SandboxRules():
        changed["sandbox_rules"] = rules.replace(
            read=tuple(_place(path, "read", put) for path in rules.read),
            write=tuple(_place(path, "write", put) for path in rules.write),
            hosts=tuple(put("sandbox_rules.hosts", host) for host in rules.hosts),
        )
    return changed


def _place(path: Path, field: str, put: _FieldExpander) -> Path:
    return locate(put(f"sandbox_rules.{field}", str(path)), put.scope)


def _remote(config: HttpServer, put: _FieldExpander) -> dict[str, Any]:
    url = put("url", config.url)
    headers = {name: put(f"headers.{name}", value) for name, value in config.headers.items()}
    # an empty one fails the check of the whole server, which names the field
    changed: dict[str, Any] = {"url": url if _ADDRESS.fullmatch(url) else "", "headers": headers}
    if isinstance(config.oauth, OAuth):
        login: dict[str, Any] = {
            name: put(f"oauth.{name}", value)
            for name, value in structs.asdict(config.oauth).items()
            if isinstance(value, str)
        }
        if (path := config.oauth.assertion_file) is not None:
            place = put("oauth.assertion_file", str(path))
            login["assertion_file"] = locate(place, put.scope)
        changed["oauth"] = config.oauth.replace(**login)
    return changed


def _texts(config: ServerConfig) -> Iterator[tuple[str, str]]:
    match config:
        case StdioServer():
            yield "command", config.command
            yield from (("args", argument) for argument in config.args)
            yield from ((f"env.{name}", value) for name, value in config.env.items())
            paths = {"env_file": config.env_file, "cwd": config.cwd}
            yield from ((name, str(path)) for name, path in paths.items() if path)
            rules = config.sandbox_rules
            yield from (("sandbox_rules.read", str(path)) for path in rules.read)
            yield from (("sandbox_rules.write", str(path)) for path in rules.write)
            yield from (("sandbox_rules.hosts", host) for host in rules.hosts)
        case HttpServer():
            yield "url", config.url
            yield from ((f"headers.{name}", value) for name, value in config.headers.items())
            login = structs.asdict(config.oauth) if isinstance(config.oauth, OAuth) else {}
            for name, value in login.items():
                if isinstance(value, str | Path):
                    yield f"oauth.{name}", str(value)
        case LocalServer():
            return


def parse_env(text: str) -> dict[str, str]:
    """`NAME=value` lines; comments, `export` and quotes are understood, variables are not."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        left, sign, value = (part.strip() for part in line.partition("="))
        if sign and (match := _ASSIGNED_NAME.fullmatch(left)):
            name = match[1]
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            # a `#` is part of the value unless a blank is before it
            values[name] = value[1:-1] if quoted else value.partition(" #")[0].rstrip()
    return values
