"""Expands the variables of a server's configuration just before it is used."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic_core import ValidationError

from multitap.config.models import (
    HttpServer,
    LocalServer,
    ModelConfig,
    OAuth,
    SandboxRules,
    ServerConfig,
    StdioServer,
)
from multitap.config.problems import Place
from multitap.config.scope import Reference, Scope, Unresolved, content, expand, locate, references
from multitap.config.secrets import in_value, is_telling
from multitap.errors import ConfigError
from multitap.records import dataclass

_ADDRESS = re.compile(r"https?://\S+")
_NAME = re.compile(r"(?:export\s+)?([A-Za-z_][\w.]*)")


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
    given = {name: getattr(config, name) for name in config.model_fields_set}
    try:
        # Validated again: a variable may contain a line break for a header, or an invalid
        # address.
        expanded = type(config).model_validate({**given, **changed})
    except ValidationError as exc:
        error = exc.errors(include_input=False)[0]
        reason = error["msg"].removeprefix("Value error, ")
        invalid = ConfigError(f"not valid after its variables are expanded: {reason}")
        raise put.at_field(invalid, str(error["loc"][0])) from None
    expanded = expanded.at_home(config.home)
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
    given = {key: put(f"model.{key}", text) for key, text in texts.items() if text is not None}
    if not _ADDRESS.fullmatch(given.get("base_url", "http://default")):
        raise ConfigError("`model.base_url` is not an address after its variables are expanded")
    return config.model_copy(update=given)


def variables(config: ServerConfig) -> tuple[tuple[str, Reference], ...]:
    """Every variable of a server with its field; malformed ones are left out."""
    found: list[tuple[str, Reference]] = []
    for key, text in _texts(config):
        with suppress(ConfigError):
            found += ((key, reference) for reference in references(text))
    return tuple(found)


def may_wait(config: ServerConfig) -> bool:
    """Whether expanding the variables may be slow because it reads a keyring or files.

    The files of a project's server are also compared with the trusted ones.
    """
    sources = {reference.source for _, reference in variables(config)}
    has_file = isinstance(config, StdioServer) and config.env_file is not None
    return config.provenance == "project" or has_file or not sources.isdisjoint({"auth", "file"})


@dataclass(frozen=True, slots=True)
class _FieldExpander:
    """Expands variables in the fields of one server."""

    scope: Scope
    places: Mapping[str, Place]
    confided: set[str] = field(default_factory=set[str], repr=False)
    """Secret values of variables."""

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
        "command": str(locate(command, put.scope)) if command.startswith("~/") else command,
        "args": tuple(put("args", argument) for argument in config.args),
        "env": named,
    }
    if config.env_file is not None:
        lines = put.content("env_file", str(config.env_file))
        changed |= {"env": {**parse_env(lines), **named}, "env_file": None}
    if config.cwd is not None:
        changed["cwd"] = locate(put("cwd", str(config.cwd)), put.scope)
    if (rules := config.sandbox_rules) != SandboxRules():
        changed["sandbox_rules"] = {
            "read": [_place(path, "read", put) for path in rules.read],
            "write": [_place(path, "write", put) for path in rules.write],
            "hosts": [put("sandbox_rules.hosts", host) for host in rules.hosts],
            "processes": rules.processes,
            "memory": rules.memory,
            "proc": rules.proc,
        }
    return changed


def _place(path: Path, field: str, put: _FieldExpander) -> Path:
    return locate(put(f"sandbox_rules.{field}", str(path)), put.scope)


def _remote(config: HttpServer, put: _FieldExpander) -> dict[str, Any]:
    url = put("url", config.url)
    headers = {name: put(f"headers.{name}", value) for name, value in config.headers.items()}
    changed: dict[str, Any] = {"url": url if _ADDRESS.fullmatch(url) else "", "headers": headers}
    if isinstance(config.oauth, OAuth):
        given = config.oauth.model_dump(exclude_unset=True)
        changed["oauth"] = {
            name: put(f"oauth.{name}", value) if isinstance(value, str) else value
            for name, value in given.items()
        }
        if (path := config.oauth.assertion_file) is not None:
            place = put("oauth.assertion_file", str(path))
            changed["oauth"]["assertion_file"] = locate(place, put.scope)
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
            given = config.oauth.model_dump() if isinstance(config.oauth, OAuth) else {}
            for name, value in given.items():
                if isinstance(value, str | Path):
                    yield f"oauth.{name}", str(value)
        case LocalServer():
            return


def parse_env(text: str) -> dict[str, str]:
    """`NAME=value` lines; comments, `export` and quotes are understood, variables are not."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        given, sign, value = (part.strip() for part in line.partition("="))
        if sign and (match := _NAME.fullmatch(given)):
            name = match[1]
            quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            values[name] = value[1:-1] if quoted else value.partition(" #")[0].rstrip()
    return values
