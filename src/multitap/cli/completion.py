"""What a shell may complete: names of servers, and of the tools they had the last time."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from multitap.cli.asked import Asked

if TYPE_CHECKING:
    from multitap.config import Loaded


def complete_server(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The names of configured servers that begin like that."""
    return [name for name in _loaded(ctx).settings.servers if name.startswith(incomplete)]


def complete_tool(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """The names of known tools that begin like that; no server is asked."""
    return [name for name in _tools(_loaded(ctx)) if name.startswith(incomplete)]


def _loaded(ctx: click.Context) -> "Loaded":
    from multitap.cli.configured import configured

    root: dict[str, Any] = ctx.find_root().params
    files = ctx.params.get("files") or root.get("files") or ()
    return configured(Asked(tuple(files), ctx.params.get("dialect")))


def _tools(loaded: "Loaded") -> Iterator[str]:
    from multitap.cli.configured import state_directory
    from multitap.names import expose
    from multitap.store import fingerprint
    from multitap.store.archive import Archive
    from multitap.store.catalogs import decode
    from multitap.store.database import FILE_NAME

    directory = state_directory(loaded)
    if not (directory / FILE_NAME).is_file():
        return
    archive = Archive(directory)
    try:
        servers = loaded.settings.servers
        for server, config in servers.items():
            if config.enabled and (saved := archive.saved.get((server, fingerprint(config)))):
                tools = [str(tool.get("name")) for tool in decode(saved[1]).tools]
                naming = loaded.settings.naming
                yield from expose(server, tools, servers=servers, naming=naming).values()
    finally:
        archive.close()
