"""Shell completion, and the tools of the last run: known without starting a server.

Every command imports this to declare its arguments, so what looks names up is imported on use.
"""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from multitap.cli.options import CommonOptions

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from multitap.config import Loaded, Problem
    from multitap.names import ToolNames
    from multitap.store.database import Archive


def complete_server(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of servers with this prefix."""
    return [name for name in _load(ctx).settings.servers if name.startswith(incomplete)]


def complete_tool(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> "list[CompletionItem]":
    """Names of tools with this prefix, and when their server last listed them."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415 - only a shell asks

    from multitap.cli.use.listing import ago  # noqa: PLC0415 - see above

    loaded = _load(ctx)
    servers, now = loaded.settings.servers, time.time()
    ages = {server: ago(now - at) for server, at in last_listed(loaded).items()}
    return [
        CompletionItem(tool.exposed, help=f"{server}, listed {ages.get(server, 'earlier')}")
        for server, tools in last_tools(loaded).items()
        if servers[server].enabled
        for tool in tools
        if tool.exposed.startswith(incomplete)
    ]


def complete_code(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Failure codes with this prefix."""
    from multitap.cli.problems.help import explanations  # noqa: PLC0415 - only a shell asks

    codes = (explanation.code for explanation in explanations())
    return [code for code in codes if code.startswith(incomplete)]


def complete_client(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of clients with this prefix."""
    from multitap.cli.set_up.clients import CLIENTS  # noqa: PLC0415 - only a shell asks

    return [name for name in (*CLIENTS, "all") if name.startswith(incomplete)]


def complete_dialect(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of dialects with this prefix."""
    from multitap.config.dialects import DIALECTS  # noqa: PLC0415 - only a shell asks

    return [name for name in DIALECTS if name.startswith(incomplete)]


def complete_setting(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Keys of a server with this prefix."""
    from multitap.cli.change.set import setting_names  # noqa: PLC0415 - only a shell asks

    return [f"{name}=" for name in setting_names() if name.startswith(incomplete)]


def complete_published(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names in the bundled catalog with this prefix."""
    from multitap.published.packages import servers  # noqa: PLC0415 - only a shell asks

    return [name for name in servers() if name.startswith(incomplete)]


def _load(ctx: click.Context) -> "Loaded":
    from multitap.cli.configuration import configuration_loader  # noqa: PLC0415 - only a shell asks

    # while a line is completed, options are where they were typed: before the command or after it
    root: dict[str, Any] = ctx.find_root().params
    files = ctx.params.get("files") or root.get("files") or ()
    return configuration_loader(
        CommonOptions(files=tuple(files), dialect=ctx.params.get("dialect"))
    )()


def rule_warnings(loaded: "Loaded") -> "tuple[Problem, ...]":
    """Warnings about rules of the policy that match none of the tools of the last run."""
    settings = loaded.settings
    if not settings.has_rules:
        return ()
    from multitap.trust.policy import idle_rules  # noqa: PLC0415 - most have no rules

    # also servers that cannot be used now: a rule may be for one of them
    tools = {**dict.fromkeys(loaded.merged.servers), **last_tools(loaded)}
    return tuple(idle_rules(settings, tools))


def last_tools(loaded: "Loaded") -> "Mapping[str, Sequence[ToolNames]]":
    """The tools of each server in the last run."""
    with _archive(loaded) as archive:
        return dict(_stored_tools(loaded, archive)) if archive else {}


def last_listed(loaded: "Loaded") -> Mapping[str, float]:
    """When each server, as it is configured now, last said what it offers."""
    from multitap.store import fingerprint  # noqa: PLC0415 - a database

    with _archive(loaded) as archive:
        servers = loaded.settings.servers.items() if archive else ()
        keys = {name: (name, fingerprint(config)) for name, config in servers if config.enabled}
        saved = archive.saved if archive else {}
        return {name: saved[key][0] for name, key in keys.items() if key in saved}


@contextmanager
def _archive(loaded: "Loaded") -> "Generator[Archive | None]":
    from multitap.store.database import FILE_NAME, Archive  # noqa: PLC0415 - takes a while

    directory = loaded.state_directory
    # opening would create it, and completion must leave nothing behind
    if not (directory / FILE_NAME).is_file():
        yield None
        return
    archive = Archive(directory)
    try:
        yield archive
    finally:
        archive.close()


def _stored_tools(
    loaded: "Loaded", archive: "Archive"
) -> "Iterator[tuple[str, Sequence[ToolNames]]]":
    from multitap.catalog.naming import NameRegistries  # noqa: PLC0415 - a database
    from multitap.names import ToolNames  # noqa: PLC0415 - see above
    from multitap.store import fingerprint  # noqa: PLC0415 - see above
    from multitap.store.tables import decode_catalog  # noqa: PLC0415 - see above

    settings = loaded.settings
    registries = NameRegistries(settings.servers, settings.naming, archive.choices, lasting=True)
    for name, config in settings.servers.items():
        if saved := archive.saved.get((name, fingerprint(config))):
            own = [str(tool.get("name")) for tool in decode_catalog(saved[1]).tools]
            renamed = [config.tool_names.get(raw, raw) for raw in own]
            names = registries.tools.give(name, renamed)
            yield (
                name,
                [ToolNames(names[tool], raw, name) for raw, tool in zip(own, renamed, strict=True)],
            )
