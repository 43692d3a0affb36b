"""`multitap search`: finds servers in the bundled catalog and in the registry."""

import shlex
import shutil
from typing import Any

import click

from multitap.cli.options import json_option
from multitap.cli.set_up.published import registry_address
from multitap.cli.signals import run_async
from multitap.cli.terminal import Exit, advise, note, say_json, table
from multitap.errors import ConfigError, MultitapError
from multitap.published.packages import matching
from multitap.published.registry import RegistryClient
from multitap.published.server_json import PublishedServer


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
@click.option("--offline", is_flag=True, help="Search the bundled catalog only")
@json_option
def search(words: tuple[str, ...], *, offline: bool, as_json: bool) -> int:
    """Find servers to add, in the catalog and the registry

    The catalog comes with Multitap. The registry is the official one, unless `registry` in your
    configuration or MULTITAP_REGISTRY names another.
    """
    text = " ".join(words)
    bundled = matching(text)
    published, trouble = ([], None) if offline else _registry(text)
    if as_json:
        say_json(
            {
                "catalog": [
                    {"name": server.name, "description": server.description, "tools": server.tools}
                    for server in bundled
                ],
                "registry": [_plain(server) for server in published],
                "error": trouble,
            }
        )
    else:
        rows = [(server.name, "catalog", server.description) for server in bundled]
        rows += [(server.name, _source(server), server.description) for server in published]
        if rows:
            table(("NAME", "FROM", "DESCRIPTION"), rows)
            advise(f"`multitap add {shlex.quote(rows[0][0])}` adds the first one")
    if trouble:
        note(f"the registry is not searched: {trouble}")
    if not bundled and not published:
        note(f"nothing matches {text!r}")
        return Exit.UNAVAILABLE if trouble else Exit.FAILED
    return Exit.DONE


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
