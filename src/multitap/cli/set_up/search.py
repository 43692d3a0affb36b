"""`multitap search`: finds servers in the bundled catalog and in the registry."""

import re
import shlex
import shutil
from typing import Any

import click

from multitap.cli.options import json_option
from multitap.cli.set_up.published import registry_address
from multitap.cli.signals import run_async
from multitap.cli.terminal import Exit, advise, note, say_json, table
from multitap.errors import ConfigError, MultitapError
from multitap.published.packages import CatalogServer, servers
from multitap.published.registry import RegistryClient
from multitap.published.server_json import PublishedServer

_NEAR = 0.5
"""How well a server matches to be listed, compared with the best match."""
_MOST = 10


@click.command()
@click.argument("terms", nargs=-1, metavar="[WORD]...")
@click.option("--offline", is_flag=True, help="Search the bundled catalog only")
@json_option
def search(terms: tuple[str, ...], *, offline: bool, as_json: bool) -> int:
    """Find servers to add, in the catalog and the registry

    Say what a server should do, such as `read pdf files`. Without a WORD, list the whole catalog,
    which comes with Multitap. The registry is the official one, unless `registry` in your
    configuration or MULTITAP_REGISTRY names another.
    """
    text = " ".join(terms)
    bundled = matching(text) if text else [*servers().values()]
    published, trouble = ([], None) if offline or not text else _registry(text)
    guesses = [] if bundled or published else similar(text)
    if as_json:
        say_json(
            {
                "catalog": [
                    {"name": server.name, "description": server.description, "tools": server.tools}
                    for server in (*bundled, *guesses)
                ],
                "registry": [_plain(server) for server in published],
                "error": trouble,
            }
        )
    else:
        rows = [(server.name, "catalog", server.description) for server in bundled or guesses]
        rows += [(server.name, _source(server), server.description) for server in published]
        if rows:
            table(("NAME", "FROM", "DESCRIPTION"), rows)
            which, name = ("the first one", rows[0][0]) if text else ("one", "NAME")
            advise(f"`multitap add {shlex.quote(name)}` adds {which}")
    if not text and not as_json:
        note("the registry has many more: `multitap search WORD` looks there, too")
    if trouble:
        note(f"the registry was not searched: {trouble}")
    if not bundled and not published and not guesses:
        note(f"nothing matches {text!r}")
        return Exit.UNAVAILABLE if trouble else Exit.FAILED
    return Exit.DONE


def matching(text: str) -> list[CatalogServer]:
    """Servers of the catalog with all of these words, the best match first."""
    return sorted(
        (server for server in servers().values() if _has_all(_words(server), text)),
        # its name comes before what it says of itself, and that before what others call it
        key=lambda server: (
            text not in server.name,
            not _has_all(f"{server.name} {server.description}", text),
            len(server.name),
        ),
    )


def similar(text: str) -> list[CatalogServer]:
    """Servers of the catalog that do something like this, the best match first."""
    from multitap.tools.search.index import Index  # noqa: PLC0415 - rarely
    from multitap.tools.tool import ToolDef  # noqa: PLC0415 - see above

    index = Index(
        ToolDef(name, f"{server.description}: {server.also}", {}, dict)
        for name, server in servers().items()
    )
    hits = index.search(text, _MOST)
    return [servers()[hit.tool.name] for hit in hits if hit.score >= _NEAR * hits[0].score]


def _words(server: CatalogServer) -> str:
    return f"{server.name} {server.description} {server.package.name} {server.also}"


def _has_all(about: str, text: str) -> bool:
    """Whether every word of a text begins a word of the other."""
    return all(re.search(rf"\b{re.escape(word)}", about, re.IGNORECASE) for word in text.split())


def _registry(text: str) -> tuple[list[PublishedServer], str | None]:
    client = RegistryClient(registry_address())
    # the bundled catalog works without a network, so this is only a note
    try:
        return run_async(lambda: client.search(text)), None
    except MultitapError as exc:
        return [], str(exc)


def _source(server: PublishedServer) -> str:
    return "registry" if server.status == "active" else f"registry, {server.status}"


def _plain(server: PublishedServer) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "name": server.name,
        "title": server.title,
        "description": server.description,
        "version": server.version,
        "status": server.status,
    }
    try:
        draft = server.best(shutil.which)
    except ConfigError as exc:
        return {**plain, "problem": str(exc)}
    return {**plain, "fields": draft.fields, "inputs": [field.name for field in draft.inputs]}
