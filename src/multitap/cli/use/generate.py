"""`multitap generate`: writes a typed Python client for a server."""

import keyword
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from multitap.cli.completion import complete_server
from multitap.cli.edits import run_edits
from multitap.cli.options import FILE, CommonOptions, gateway_or_server_options
from multitap.cli.terminal import Exit, say
from multitap.cli.use.listing import list_offers
from multitap.config.documents import is_list, is_table
from multitap.config.edit.journal import SHARED, FileEdit
from multitap.control.messages import ToolLine
from multitap.errors import ConfigError, counted
from multitap.printable import printable


@click.command()
@click.argument("server", shell_complete=complete_server)
@click.option(
    "-o",
    "--output",
    type=FILE,
    metavar="FILE",
    help="Write to FILE instead of printing",
)
@click.option(
    "--async", "is_async", is_flag=True, help="Write it for `open_hub` instead of `SyncHub`"
)
@gateway_or_server_options
def generate(options: CommonOptions, server: str, *, output: Path | None, is_async: bool) -> int:
    """Write a typed Python client for a server

    A class with a method for each tool, whose parameters have the types of its schema.
    """
    # in a fixed order: a new version of the file differs only where the tools do
    tools = sorted(
        list_offers(options, lambda control: control.tools(), server=server),
        key=lambda tool: tool.tool,
    )
    text = client_module(server, tools, is_async=is_async)
    if output is None:
        say(text.rstrip("\n"))
        return Exit.DONE

    def written(before: str) -> str:
        # a file that a person wrote is never overwritten
        if before and not before.startswith(MARK):
            raise ConfigError(
                f"{output} was not written by `multitap generate`",
                hint="name another file with `-o`, or move this one away",
            )
        return text

    edit = FileEdit(output, written, SHARED)
    done = f"wrote {counted(len(tools), 'tool')} to {output}"
    return run_edits(f"generate {server}", [edit], dry_run=False, done=done)


MARK = '"""Written by `multitap generate'
"""The beginning of a generated file; other files are not replaced."""

_SIMPLE = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "object": "dict[str, Any]",
    "array": "list[Any]",
}
_GIVEN = """\
def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in arguments.items() if value is not None}
"""
_DEEPEST, _MOST = 4, 20  # deeper types would be unreadable
_LONGEST = 2000
_WIDTH = 92


def client_module(server: str, tools: Iterable[ToolLine], *, is_async: bool = False) -> str:
    """The text of a module.

    A server's texts become names, literals and docstrings, never code.
    """
    hub = "Hub" if is_async else "SyncHub"
    names: set[str] = set()
    methods = "\n".join(_method(tool, names, is_async=is_async) for tool in tools)
    name = _identifier(server.title().replace("_", ""), set())
    text = _literal_words(server)
    parts = [
        f'{MARK} {text}`; run it again when its tools have changed."""',
        "from typing import Any, Literal" if "Literal[" in methods else "from typing import Any",
        f"from multitap import {hub}, ToolResult\n",
        f'class {name}:\n    """Calls the tools of {text}; `hub` has that server."""',
        f"    def __init__(self, hub: {hub}) -> None:\n        self._hub = hub",
        f"{methods}\n",
        _GIVEN,
    ]
    return "\n\n".join(parts)


def annotation(schema: object, depth: int = 0) -> str:
    """The Python type for a schema; `Any` if there is none."""
    if not is_table(schema) or depth > _DEEPEST:
        return "Any"
    if is_list(choices := schema.get("enum")) and 0 < len(choices) <= _MOST:
        simple = all(choice is None or isinstance(choice, str | int | bool) for choice in choices)
        return f"Literal[{', '.join(map(repr, choices))}]" if simple else "Any"
    for key in ("anyOf", "oneOf"):
        if is_list(ways := schema.get(key)):
            return _union(annotation(way, depth + 1) for way in ways[:_MOST])
    kind = schema.get("type")
    if is_list(kind):
        return _union(annotation({**schema, "type": kind_}, depth + 1) for kind_ in kind[:_MOST])
    if kind == "array":
        return f"list[{annotation(schema.get('items'), depth + 1)}]"
    return _SIMPLE.get(kind, "Any") if isinstance(kind, str) else "Any"


def _method(tool: ToolLine, used: set[str], *, is_async: bool) -> str:
    names: set[str] = {"self"}
    required: dict[str, str] = {}
    optional: dict[str, str] = {}
    parameters: list[str] = []
    properties: Mapping[str, Any] = tool.input_schema.get("properties") or {}
    needed: Collection[object] = tool.input_schema.get("required") or ()
    # parameters without a default must come first
    for key in sorted(properties, key=lambda key: key not in needed):
        parameter, kind = _identifier(key, names), annotation(properties[key])
        if key in needed:
            required[key] = parameter
            parameters.append(f"{parameter}: {kind}")
        else:
            optional[key] = parameter
            parameters.append(f"{parameter}: {_union((kind, 'None'))} = None")
    call = f"self._hub.call({tool.name!r}, {_arguments(required, optional)})"
    head = ", ".join(("self", *(["*"] if parameters else []), *parameters))
    before, wait = ("async ", "await ") if is_async else ("", "")
    return "\n".join(
        (
            f"    {before}def {_identifier(tool.tool, used)}({head}) -> ToolResult:",
            *_docstring(tool.description),
            f"        return {wait}{call}\n",
        )
    )


def _arguments(required: Mapping[str, str], optional: Mapping[str, str]) -> str:
    arguments = ", ".join(f"{key!r}: {name}" for key, name in required.items())
    if not optional:
        return f"{{{arguments}}}"
    others = ", ".join(f"{key!r}: {name}" for key, name in optional.items())
    return f"{{{', '.join(filter(None, (arguments, f'**_given({{{others}}})')))}}}"


def _docstring(text: str) -> list[str]:
    plain = _literal_words(text)
    if not plain:
        return []
    lines = textwrap.wrap(plain, _WIDTH, break_on_hyphens=False)
    lines[0] = f'"""{lines[0]}'
    if len(lines) == 1:
        return [f'        {lines[0]}"""']
    return [*(f"        {line}" for line in lines), '        """']


def _literal_words(text: str) -> str:
    """Text for a docstring, which cannot end it."""
    plain = " ".join(printable(text[:_LONGEST]).split())
    return plain.replace("\\", "\\\\").replace('"', "'")


def _identifier(text: str, used: set[str]) -> str:
    """A valid Python name that is not taken."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", text).strip("_")[:80] or "value"
    plain = f"n{plain}" if plain[0].isdigit() else plain
    # `from` and `class` are common names of arguments
    plain = f"{plain}_" if keyword.iskeyword(plain) else plain
    number, name = 1, plain
    while name in used:
        number += 1
        name = f"{plain}_{number}"
    used.add(name)
    return name


def _union(kinds: Iterable[str]) -> str:
    types = [*dict.fromkeys(kinds)]
    return "Any" if "Any" in types else " | ".join(types) or "Any"
