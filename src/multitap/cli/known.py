"""What is known of the servers without asking any of them."""

from collections.abc import Iterator

from multitap.books import Books
from multitap.cli.asked import Asked
from multitap.cli.configured import configured, state_directory
from multitap.config import Loaded
from multitap.store import fingerprint
from multitap.store.archive import Archive
from multitap.store.catalogs import decode
from multitap.store.database import FILE_NAME


def server_names(asked: Asked) -> list[str]:
    """All configured servers."""
    return [*configured(asked).settings.servers]


def tool_names(asked: Asked) -> list[str]:
    """The tools that the servers had the last time, as callers see them."""
    loaded = configured(asked)
    directory = state_directory(loaded)
    if not (directory / FILE_NAME).is_file():
        return []
    archive = Archive(directory)
    try:
        return [*_remembered(loaded, archive)]
    finally:
        archive.close()


def _remembered(loaded: Loaded, archive: Archive) -> Iterator[str]:
    settings = loaded.settings
    books = Books(settings.servers, settings.naming, archive.choices, lasting=True)
    for name, config in settings.servers.items():
        if config.enabled and (saved := archive.saved.get((name, fingerprint(config)))):
            tools = [str(tool.get("name")) for tool in decode(saved[1]).tools]
            yield from books.tools.give(name, tools).values()
