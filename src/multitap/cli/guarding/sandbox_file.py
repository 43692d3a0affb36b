"""Writes sandbox rules into the file that describes the server."""

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multitap.cli.terminal.toml_text import toml
from multitap.config.formats.limits import LARGEST
from multitap.regular_file import read_regular

_TABLE = "sandbox_rules"
_HEADER = re.compile(r"^\s*\[", re.MULTILINE)


def write_rules(path: Path, name: str, rules: Mapping[str, Sequence[str]]) -> bool:
    """Put the rules in place of those that there are; False: that is for a person to do.

    Only what can be added or replaced as a table of its own is changed: comments and the rest of
    the file stay as they are.
    """
    if path.suffix != ".toml":
        return False
    try:
        text = read_regular(path, LARGEST["toml"]).decode()
        before = tomllib.loads(text)
    except (OSError, ValueError):
        return False
    fresh = _with_table(text, name, rules)
    try:
        after = tomllib.loads(fresh)
    except ValueError:
        return False
    if _without(after, name) != _without(before, name):
        return False
    if after.get("servers", {}).get(name, {}).get(_TABLE) != {k: [*v] for k, v in rules.items()}:
        return False
    return _replaced(path, fresh)


def _with_table(text: str, name: str, rules: Mapping[str, Sequence[str]]) -> str:
    body = toml({"servers": {name: {}}}).removesuffix("]") + f".{_TABLE}]"
    lines = [body.strip(), *toml({**rules}).splitlines()]
    table = "\n".join(lines) + "\n"
    quoted = "|".join({re.escape(name), re.escape(f'"{name}"'), re.escape(f"'{name}'")})
    header = re.compile(
        rf"^\s*\[\s*servers\s*\.\s*(?:{quoted})\s*\.\s*{_TABLE}\s*\].*$", re.MULTILINE
    )
    if (found := header.search(text)) is None:
        return f"{text.rstrip()}\n\n{table}"
    following = _HEADER.search(text, found.end())
    rest = text[following.start() :].lstrip("\n") if following else ""
    return f"{text[: found.start()]}{table}" + (f"\n{rest}" if rest else "")


def _without(data: Mapping[str, Any], name: str) -> object:
    servers: Mapping[str, Any] = data.get("servers", {})
    entry: Mapping[str, Any] = servers.get(name, {})
    kept = {key: value for key, value in entry.items() if key != _TABLE}
    return {**data, "servers": {**servers, name: kept}}


def _replaced(path: Path, text: str) -> bool:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        mode = path.stat().st_mode & 0o777
        with open(  # noqa: PTH123 - for its mode
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8"
        ) as file:
            file.write(text)
        fresh.replace(Path(os.path.realpath(path)))
    except OSError:
        fresh.unlink(missing_ok=True)
        return False
    return True
