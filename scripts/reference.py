"""The reference pages of `docs/`, made from the code.

`python -m scripts.reference` writes them again; a test fails when they are stale.
"""

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

import multitap
from multitap import seeds
from multitap.cli.app import SECTIONS
from multitap.cli.app import multitap as program
from multitap.config.schema import json_schema

DOCS = Path(__file__).parent.parent / "docs"
WIDTH = 96
"""Columns of help texts, whatever terminal the script runs in."""

_MADE = "<!-- Made by `make reference`; edit the code instead. -->"
_TABLES: Mapping[str, str] = {
    "StdioServer": "`[servers.NAME]` with a `command`",
    "HttpServer": "`[servers.NAME]` with a `url`",
    "OAuth": "`[servers.NAME.oauth]`",
    "ToolFilter": "`[servers.NAME.filter]`",
    "Limits": "`[servers.NAME.limits]`",
    "SandboxRules": "`[servers.NAME.sandbox_rules]`",
    "Elicitation": "`[servers.NAME.elicitation]`",
    "Sampling": "`[servers.NAME.sampling]`",
    "Serve": "`[serve]`",
    "Profile": "`[profiles.NAME]`",
    "Agent": "`[agents.NAME]`",
    "PromptConfig": "`[prompts.NAME]`",
    "ModelConfig": "`[model]`",
    "Environment": "`[environment]`",
    "PolicyRule": "`[[policy]]`",
    "ArgumentTest": "`[policy.arguments]`",
    "Audit": "`[audit]`",
}
"""The tables of a file, in the order of the page; others come after them."""
_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Hubs": ("multitap.hub",),
    "Settings": ("multitap.config",),
    "Calls": ("multitap.results", "multitap.upstream", "multitap.errors"),
    "Tools": ("multitap.tools",),
    "Environments": ("multitap.env",),
}
_AGENTS = ("AgentEngine",)
"""Defined with the designs, and the way to an agent for everybody."""
_OF_DESIGNS = (
    "For programs that were written for one of them, see [seeds](seeds.md). "
    "`from multitap import …` finds them, too."
)
_MODULES = (
    "multitap.errors",
    "multitap.events",
    "multitap.agent.engine",
    "multitap.agent.engine",
    "multitap.agent.conversation",
)
"""Modules whose classes users import from where they are."""


def troubleshooting() -> str:
    """What every failure means; the text is the one that `multitap help` prints."""
    body = files("multitap.cli.problems").joinpath("troubleshooting.md").read_text(encoding="utf-8")
    return f"""# Troubleshooting

<!-- Made by `make reference` from `src/multitap/cli/problems/troubleshooting.md`; edit that. -->

Find the code or the message. `multitap doctor` names the code of each problem, and
`multitap help CODE` prints the same text without a network; `multitap help 'MESSAGE'`
finds it by the words of an error.

{body}"""


def configuration() -> str:
    """Every key of `multitap.toml`."""
    schema = json_schema()
    tables: dict[str, Any] = schema["$defs"]
    names = [*_TABLES, *sorted(tables.keys() - _TABLES.keys() - {"Amendment", "Naming"})]
    parts = [
        "# Configuration reference",
        _MADE,
        (
            "Every key of `multitap.toml`, with type and default. [The configuration](config.md) "
            "explains files, layers, variables and reload; `multitap config schema` prints it as "
            'JSON Schema for editors. Durations are seconds, or texts such as `"500ms"` and '
            '`"1m30s"`.'
        ),
        "## Top level",
        _table(schema, tables),
    ]
    for name in names:
        table = tables[name]
        parts += [f"## {_TABLES.get(name, name)}", _flat(table)]
        if "properties" in table:
            parts.append(_table(table, tables))
        else:
            parts.append(_type(table, tables))
    return "\n\n".join(parts) + "\n"


def commands() -> str:
    """Every command with its help."""
    parts = [
        "# Command reference",
        _MADE,
        (
            "The help of every command, as `multitap COMMAND --help` prints it. [The command line]"
            "(cli.md) shows the commands at work."
        ),
        _help(program, "multitap"),
    ]
    for section, homes in SECTIONS.items():
        parts.append(f"## {section}")
        for name in homes:
            command = program.get_command(click.Context(program), name)
            if command is not None:
                parts += [*_commands(command, f"multitap {name}")]
    return "\n\n".join(parts) + "\n"


def python() -> str:
    """Every public name; the site puts the documentation of each below it."""
    parts = [
        "# Python reference",
        _MADE,
        (
            "Everything that `from multitap import …` offers, and the modules to import from. "
            "The built site (`make docs`) has all parameters and attributes."
        ),
    ]
    for title, modules in _GROUPS.items():
        parts.append(f"## {title}")
        for name in multitap.__all__:
            found = getattr(multitap, name)
            if getattr(found, "__module__", "").startswith(modules):
                parts += _entry(f"multitap.{name}", f"{found.__module__}.{name}", found)
    parts.append("## Agents")
    for name in _AGENTS:
        found = getattr(seeds, name)
        parts += _entry(f"multitap.{name}", f"{found.__module__}.{name}", found)
    parts.append("## Modules")
    for name in _MODULES:
        parts += _entry(name, name, sys.modules.get(name) or __import__(name, fromlist=["_"]))
    parts += ["## Classes of the five designs", _OF_DESIGNS]
    for name in seeds.__all__:
        if name not in _AGENTS:
            found = getattr(seeds, name)
            parts += _entry(f"multitap.seeds.{name}", f"{found.__module__}.{name}", found)
    return "\n\n".join(parts) + "\n"


PAGES = {
    "troubleshooting.md": troubleshooting,
    "reference-config.md": configuration,
    "reference-cli.md": commands,
    "reference-python.md": python,
}


def slug(heading: str) -> str:
    """The anchor that forges and the site give to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def _entry(name: str, path: str, found: object) -> list[str]:
    summary = (inspect.getdoc(found) or "").partition("\n\n")[0].replace("\n", " ")
    summary = summary.replace("[`open_hub`][multitap.open_hub]", "`open_hub`")
    return [f"### `{name}`", f"<!-- api: {path} -->", summary]


def _commands(command: click.Command, path: str) -> Iterator[str]:
    yield f"### `{path}`"
    yield _help(command, path)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if inner := command.get_command(context, name):
                yield from _commands(inner, f"{path} {name}")


def _help(command: click.Command, path: str) -> str:
    settings = {"help_option_names": ["-h", "--help"]}
    context = click.Context(command, info_name=path, terminal_width=WIDTH, **settings)
    return f"```text\n{command.get_help(context).rstrip()}\n```"


def _table(table: Mapping[str, Any], tables: Mapping[str, Any]) -> str:
    rows = ["| key | type | default | |", "|---|---|---|---|"]
    required = table.get("required", ())
    for key, field in table["properties"].items():
        if key.startswith("$"):
            continue
        default = "required" if key in required else _default(field)
        rows.append(f"| `{key}` | {_type(field, tables)} | {default} | {_flat(field)} |")
    return "\n".join(rows)


def _default(field: Mapping[str, Any]) -> str:  # noqa: PLR0911 - one line per kind of value
    match field.get("default"):
        case None | {} | []:
            return ""
        case True | False as value:
            return f"`{str(value).lower()}`"
        case dict():
            return ""  # a table of its own, described below
        case list() as value:
            return f"`{[*value]}`".replace("'", '"')
        case float() as value:
            return f"`{value:g}`"
        case str() as value:
            return f'`"{value}"`'
        case value:
            return f"`{value}`"


def _type(field: Mapping[str, Any], tables: Mapping[str, Any]) -> str:  # noqa: C901, PLR0911 - one line per kind of type
    match field:
        case {"$ref": str(reference)}:
            name = reference.rpartition("/")[2]
            if "properties" not in tables[name]:
                return _type(tables[name], tables)
            title = _TABLES.get(name, name)
            return f"[{title.partition(' with ')[0]}](#{slug(title)})"
        case {"enum": list(values)}:
            return ", ".join(f'`"{value}"`' for value in values)
        case {"const": value}:
            return f"`{str(value).lower()}`"
        case {"anyOf": list(options)}:
            if any(one.get("examples") for one in options):
                return "duration"
            known = [one for one in options if one.get("$ref") != "#/$defs/Amendment"]
            return " or ".join(dict.fromkeys(_type(one, tables) for one in known))
        case {"type": "array", "items": dict(items)}:
            return f"list of {_type(items, tables)}"
        case {"type": "object", "additionalProperties": dict(values)}:
            return f"table of {_type(values, tables)}"
        case {"type": "string", "format": "path"}:
            return "path"
        case {"type": str(kind)}:
            return {"boolean": "true or false", "object": "table"}.get(kind, kind)
        case _:
            return "any"


def _flat(field: Mapping[str, Any]) -> str:
    words = " ".join(str(field.get("description", "")).split())
    limits = [
        f"at {word} {field[key]:,}"
        for key, word in (("minimum", "least"), ("maximum", "most"))
        if field.get(key)
    ]
    return " ".join(filter(None, (words, f"({', '.join(limits)})" if limits else ""))).replace(
        "|", "\\|"
    )


def main() -> None:
    for name, make in PAGES.items():
        (DOCS / name).write_text(make(), encoding="utf-8")
        sys.stderr.write(f"{DOCS / name}: written\n")


if __name__ == "__main__":
    main()
