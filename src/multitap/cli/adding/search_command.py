"""`multitap search`: finds servers in the bundled catalog and in the registry."""

import shlex
import shutil
from typing import Any

from multitap.cli.adding.published_words import registry_address
from multitap.cli.exits import Exit
from multitap.cli.running import run_async
from multitap.cli.terminal.output import advise, note, say_json
from multitap.cli.terminal.tables import table
from multitap.errors import ConfigError, MultitapError
from multitap.published.bundled_catalog import matching
from multitap.published.registry_client import RegistryClient
from multitap.published.server_json import PublishedServer


def search(words: tuple[str, ...], *, offline: bool, as_json: bool) -> int:
    """List matching servers, those of the catalog first."""
    text = " ".join(words)
    known = matching(text)
    found, trouble = ([], None) if offline else _registry(text)
    if as_json:
        say_json(
            {
                "catalog": [
                    {"name": one.name, "description": one.description, "tools": one.tools}
                    for one in known
                ],
                "registry": [_plain(one) for one in found],
                "error": trouble,
            }
        )
    else:
        rows = [(one.name, "catalog", one.description) for one in known]
        rows += [(one.name, _source(one), one.description) for one in found]
        if rows:
            table(("NAME", "FROM", "DESCRIPTION"), rows)
            advise(f"`multitap add {shlex.quote(rows[0][0])}` adds the first one")
    if trouble:
        note(f"the registry is not searched: {trouble}")
    if not known and not found:
        note(f"nothing matches {text!r}")
        return Exit.UNAVAILABLE if trouble else Exit.FAILED
    return Exit.DONE


def _registry(words: str) -> tuple[list[PublishedServer], str | None]:
    client = RegistryClient(registry_address())
    # the bundled catalog works without a network, so this is only a note
    try:
        return run_async(lambda: client.search(words)), None
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
    return {**plain, "fields": draft.fields, "inputs": [one.name for one in draft.inputs]}
