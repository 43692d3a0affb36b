"""Names of servers and tools that are known without starting anything."""

from collections.abc import Iterator

from multitap.catalog.name_registries import NameRegistries
from multitap.cli.configuration.chosen_configuration import configuration_loader
from multitap.cli.options import CommonOptions
from multitap.config import Loaded
from multitap.store import fingerprint
from multitap.store.archive import Archive
from multitap.store.database import FILE_NAME
from multitap.store.stored_catalogs import decode


def server_names(options: CommonOptions) -> list[str]:
    """All configured servers."""
    return [*configuration_loader(options)().settings.servers]


def tool_names(options: CommonOptions) -> list[str]:
    """The tools of the last run, by the names that callers use."""
    loaded = configuration_loader(options)()
    directory = loaded.state_directory
    # opening would create it, and completion must leave nothing behind
    if not (directory / FILE_NAME).is_file():
        return []
    archive = Archive(directory)
    try:
        return [*_stored_names(loaded, archive)]
    finally:
        archive.close()


def _stored_names(loaded: Loaded, archive: Archive) -> Iterator[str]:
    settings = loaded.settings
    registries = NameRegistries(settings.servers, settings.naming, archive.choices, lasting=True)
    for name, config in settings.servers.items():
        if config.enabled and (saved := archive.saved.get((name, fingerprint(config)))):
            tools = [str(tool.get("name")) for tool in decode(saved[1]).tools]
            yield from registries.tools.give(name, tools).values()
