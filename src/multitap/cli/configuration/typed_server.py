"""Settings for a single server whose command or URL was typed."""

import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from multitap.cli.options import TypedServer
from multitap.config import Loaded, Search, load
from multitap.config.dialects.draft import Entry, FieldPath, Reading
from multitap.config.dialects.rewrites import literal
from multitap.config.documents import Document, Node
from multitap.config.layers import Layer
from multitap.config.models import URL
from multitap.names import Naming

PLACE = Path("(command line)")
_STATE = "multitap.typed_state"
_ODD = re.compile(r"[^A-Za-z0-9_-]+")
_NAME = re.compile(r"(?!-)[^\n;(){}'\"]+")
"""A word that may be a script or a package, not an option or code for `python -c`."""
_RUNNERS = frozenset({"python", "node", "bun", "deno", "npx", "uvx", "uv", "run", "docker"})


def configuration_of(server: TypedServer) -> Loaded:
    """Settings with only this server, whose tools keep their own names.

    Its state is in a folder that is deleted with the command: a server that is typed later must not
    inherit it.
    """
    ctx = click.get_current_context()
    if _STATE not in ctx.meta:
        ctx.meta[_STATE] = ctx.with_resource(tempfile.TemporaryDirectory())
    node = Document(PLACE, {}).root
    given = _fields(server).items()
    fields: dict[FieldPath, Node] = {(key,): node.of(value) for key, value in given}
    entry = Entry(name_of(server), node, fields)
    preset = {"naming": Naming.BARE.value, "state_dir": ctx.meta[_STATE]}
    return load(Search((), defaults=preset), on_top=(Layer(Reading("typed", (entry,))),))


def name_of(server: TypedServer) -> str:
    """A name for it: its script or package, its program, or its host."""
    if server.url:
        return _tidy(urlsplit(server.url).hostname or "") or "server"
    words = [Path(word).stem for word in server.command]
    plain = [
        word
        for typed, word in zip(server.command, words, strict=True)
        if _NAME.fullmatch(typed) and word.rstrip("0123456789.") not in _RUNNERS
    ]
    return _tidy(next(iter(plain), words[0])) or "server"


def _tidy(word: str) -> str:
    return _ODD.sub("-", word).strip("-")[:40]


def _fields(server: TypedServer) -> dict[str, Any]:
    """The fields of its entry; words are literal, because the shell expands variables."""
    if server.url:
        if not URL.match(server.url):
            raise click.UsageError(f"--url {server.url!r} is not an http:// or https:// address")
        return {
            "url": literal(server.url),
            "headers": dict(_pairs(server.headers, ":", "--header")),
        }
    command, *args = map(literal, server.command)
    return {"command": command, "args": args, "env": dict(_pairs(server.variables, "=", "--env"))}


def _pairs(given: Iterable[str], mark: str, option: str) -> Iterator[tuple[str, str]]:
    for text in given:
        name, found, value = text.partition(mark)
        if not found or not name.strip():
            raise click.UsageError(f"{option} {name!r} has no `{mark}`: expected NAME{mark}VALUE")
        yield name.strip(), literal(value.strip() if mark == ":" else value)
