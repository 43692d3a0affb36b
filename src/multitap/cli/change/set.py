"""`multitap set`: changes settings of a server, typed as `key=value`."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, get_args, get_origin

import click

from multitap.cli.change.entries import Assignment, assign
from multitap.cli.completion import complete_server, complete_setting, last_tools
from multitap.cli.configuration import load_configuration
from multitap.cli.options import CommonOptions, EditOptions, edit_options
from multitap.config.checks import ConfigModel, fields_of
from multitap.config.dialects.native import bare_type
from multitap.config.documents import is_list, is_table
from multitap.config.models import Duration, HttpServer, OAuth, StdioServer
from multitap.config.problems import did_you_mean
from multitap.errors import ConfigError, UnknownName

_TRUE, _FALSE = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off"})
_OR_FLAGS = frozenset({("sandbox",)})
"""Settings that accept a word as well as `true` and `false`."""
_TOOL = "tools."
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


@click.command("set")
@click.argument("name", shell_complete=complete_server)
@click.argument(
    "settings",
    nargs=-1,
    metavar="KEY=VALUE...",
    shell_complete=complete_setting,
)
@click.option(
    "--describe",
    "descriptions",
    multiple=True,
    metavar="TOOL=TEXT",
    help="Replace the description of a tool; TOOL= restores it (repeatable)",
)
@edit_options
def set_(
    options: CommonOptions,
    name: str,
    settings: Sequence[str],
    descriptions: Sequence[str],
    how: EditOptions,
) -> int:
    """Change settings of a server

    KEY is a key of multitap.toml, with dots between levels: env.TOKEN, filter.deny. KEY= without
    a value unsets it. Lists are words as a shell splits them, or JSON. tools.OLD=NEW renames a
    tool.
    """
    if not settings and not descriptions:
        raise click.UsageError("missing argument 'KEY=VALUE...'")
    changes = [
        *(assignment(word) for word in settings if not word.startswith(_TOOL)),
        *(
            _of_tool(options, name, "tool_names", word.removeprefix(_TOOL))
            for word in settings
            if word.startswith(_TOOL)
        ),
        *(_of_tool(options, name, "tool_descriptions", word) for word in descriptions),
    ]
    return assign(options, name, changes, how)


def _of_tool(options: CommonOptions, server: str, key: str, word: str) -> Assignment:
    """Parse `TOOL=TEXT`; the tool by its own name, or as it is listed."""
    typed, sign, text = word.partition("=")
    if not sign or not typed:
        raise ConfigError(f"{word!r} names no tool", hint="write `TOOL=TEXT`, or `TOOL=` to unset")
    loaded = load_configuration(options)
    config = loaded.settings.servers.get(server)
    tools = last_tools(loaded).get(server, ()) if config else ()
    own = {tool.own: tool.own for tool in tools}
    listed = {tool.exposed: tool.own for tool in tools}
    renamed = {name: raw for raw, name in config.tool_names.items()} if config else {}
    # the server's own names win: another tool may be listed under one of them
    by_name = {**renamed, **listed, **own}
    if tools and typed not in by_name:
        hint = did_you_mean(typed, by_name) or f"`multitap tools -s {server}` lists its tools"
        raise UnknownName(f"{server} has no tool named {typed!r}", hint=hint)
    # callers see the server's name in front of it anyway
    value = text.removeprefix(f"{server}_") if key == "tool_names" else text
    return Assignment((key, by_name.get(typed, typed)), value or None)


def assignment(word: str) -> Assignment:
    """Parse `key=value`; `key=` unsets the setting.

    Raises:
        ConfigError: There is no such setting, or the value does not fit it.
    """
    key, sign, text = word.partition("=")
    if not sign or not key:
        raise ConfigError(
            f"{word!r} is not a setting", hint="write `key=value`, or `key=` to unset"
        )
    path = _path(key)
    kind = _kind(path)
    if path in _OR_FLAGS and text.lower() in _TRUE | _FALSE:
        kind = bool
    return Assignment(path, _to_type(key, text, kind) if text else None)


def setting_names() -> list[str]:
    """The settings of a server."""
    return sorted(_fields())


def _path(key: str) -> tuple[str, ...]:
    """Split a dotted key; names may contain dots only in tables with arbitrary names."""
    first, _, rest = key.rstrip(".").partition(".")
    if not rest:
        return (first,)
    kind = bare_type(_fields().get(first, str))
    return (first, rest) if get_origin(kind) is Mapping else (first, *rest.split("."))


def _fields() -> Mapping[str, Any]:
    return {**_types(StdioServer), **_types(HttpServer)}


def _types(kind: type[ConfigModel]) -> Mapping[str, Any]:
    return {field.name: field.type for field in fields_of(kind)}


def _kind(path: tuple[str, ...]) -> Any:
    fields: Mapping[str, Any] = _fields()
    kind: Any = None
    for index, step in enumerate(path):
        if step not in fields:
            where = f" in `{'.'.join(path[:index])}`" if index else ""
            hint = did_you_mean(step, fields) or f"known keys: {', '.join(sorted(fields))}"
            raise ConfigError(f"there is no setting `{step}`{where}", hint=hint)
        # `oauth` is a table or false, and only the table has keys
        kind = OAuth if path[: index + 1] == ("oauth",) else bare_type(fields[step])
        if get_origin(kind) is Mapping and index + 1 < len(path):
            return bare_type(get_args(kind)[1])
        fields = _types(kind) if _is_model(kind) else {}
    return kind


def _to_type(key: str, text: str, kind: Any) -> Any:
    value: Any = text
    if kind is bool or (kind is OAuth and text.lower() in _FALSE):
        value = _flag(key, text)
    elif kind is int:
        value = int(_number(key, text, "a whole number", whole=True))
    elif kind is float:
        value = _number(key, text, "a number")
    elif kind == Duration:
        # `1m30s` stays as typed: files accept the same form
        value = _plain_number(text) if _NUMBER.fullmatch(text) else text
    elif get_origin(kind) is tuple:
        value = _words(key, text)
    elif get_origin(kind) is Mapping or _is_model(kind):
        value = _table(key, text)
    return value


def _is_model(kind: Any) -> TypeGuard[type[ConfigModel]]:
    return isinstance(kind, type) and issubclass(kind, ConfigModel)


def _flag(key: str, text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise _wrong(key, "`true` or `false`")


def _number(key: str, text: str, expected: str, *, whole: bool = False) -> float:
    if not _NUMBER.fullmatch(text) or (whole and "." in text):
        raise _wrong(key, expected)
    return _plain_number(text)


def _plain_number(text: str) -> float:
    return float(text) if "." in text else int(text)


def _words(key: str, text: str) -> list[Any]:
    """A list in JSON, or words as a shell splits them."""
    if text.lstrip().startswith("["):
        values = _json(key, text, "a list of strings")
        if is_list(values) and all(isinstance(value, str) for value in values):
            return values
        raise _wrong(key, "a list of strings")
    try:
        return [*shlex.split(text)]
    except ValueError:
        raise _wrong(key, "words; a quote is not closed") from None


def _table(key: str, text: str) -> Mapping[str, Any]:
    expected = f"a JSON object, or one member: `{key.rstrip('.')}.NAME=value`"
    value = _json(key, text, expected)
    if is_table(value):
        return value
    raise _wrong(key, expected)


def _json(key: str, text: str, expected: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong(key, expected) from None


def _wrong(key: str, expected: str) -> ConfigError:
    return ConfigError(f"`{key}`: expected {expected}", hint="nothing was written")
