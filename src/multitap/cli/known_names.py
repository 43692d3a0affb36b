"""Names of servers and tools that are known without starting anything."""

from collections.abc import Iterator, Mapping, Sequence

from multitap.catalog.name_registries import NameRegistries
from multitap.cli.configuration.chosen_configuration import configuration_loader
from multitap.cli.options import CommonOptions
from multitap.config import Loaded, Problem
from multitap.names import ToolNames
from multitap.store import fingerprint
from multitap.store.archive import Archive
from multitap.store.database import FILE_NAME
from multitap.store.stored_catalogs import decode
from multitap.trust.policy.idle_rules import idle_rules


def server_names(options: CommonOptions) -> list[str]:
    """All configured servers."""
    return [*configuration_loader(options)().settings.servers]


def tool_names(options: CommonOptions) -> list[str]:
    """The tools of the last run, by the names that callers use."""
    loaded = configuration_loader(options)()
    servers = loaded.settings.servers
    return [
        tool.exposed
        for server, tools in _last_tools(loaded).items()
        if servers[server].enabled
        for tool in tools
    ]


def rule_warnings(loaded: Loaded) -> tuple[Problem, ...]:
    """Warnings about rules of the policy that match none of the tools of the last run."""
    settings = loaded.settings
    if not settings.has_rules:
        return ()
    # also servers that cannot be used now: a rule may be for one of them
    return tuple(
        idle_rules(settings, {**dict.fromkeys(loaded.merged.servers), **_last_tools(loaded)})
    )


def _last_tools(loaded: Loaded) -> Mapping[str, Sequence[ToolNames]]:
    directory = loaded.state_directory
    # opening would create it, and completion must leave nothing behind
    if not (directory / FILE_NAME).is_file():
        return {}
    archive = Archive(directory)
    try:
        return dict(_stored_tools(loaded, archive))
    finally:
        archive.close()


def _stored_tools(loaded: Loaded, archive: Archive) -> Iterator[tuple[str, Sequence[ToolNames]]]:
    settings = loaded.settings
    registries = NameRegistries(settings.servers, settings.naming, archive.choices, lasting=True)
    for name, config in settings.servers.items():
        if saved := archive.saved.get((name, fingerprint(config))):
            own = [str(tool.get("name")) for tool in decode(saved[1]).tools]
            renamed = [config.tool_names.get(raw, raw) for raw in own]
            names = registries.tools.give(name, renamed)
            yield (
                name,
                [ToolNames(names[tool], raw, name) for raw, tool in zip(own, renamed, strict=True)],
            )
