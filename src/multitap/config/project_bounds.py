"""Checks that the paths of a project are inside the project, before it is trusted."""

from collections.abc import Iterator
from pathlib import Path

from multitap.config.expand import variables
from multitap.config.models import HttpServer, OAuth, ServerConfig, StdioServer
from multitap.config.owners import is_within
from multitap.config.scope import Scope, expand, locate
from multitap.errors import ConfigError

OUTSIDE = "is outside the project"


# Before trust is given, a path with a variable must not reveal a value of the environment.
def folders_only(folder: Path, root: Path) -> Scope:
    """The variables of a project that nobody has trusted: only folders.

    Args:
        folder: The current folder.
        root: The project's folder, the base of its relative paths.
    """
    return Scope({}, folder, Path.home(), base=root)


def objection(path: str, root: Path, folder: Path) -> str | None:
    """Why a project must not name this path; None if it may.

    Args:
        path: The path as written.
        root: The project's folder.
        folder: The current folder.
    """
    scope = folders_only(folder, root)
    try:
        found = locate(expand(path, scope), scope)
    except ConfigError:
        return "may use no variables but folders"
    return None if is_within(found, root) else OUTSIDE


def objections_to(config: ServerConfig, root: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """The fields of a project's server that lead out of the project, with the reasons."""
    for key, reference in variables(config):
        if reference.source == "file":
            scope = folders_only(folder, root)
            if not is_within(locate(reference.name, scope), root):
                yield key, f"`${{file:{reference.name}}}` {OUTSIDE}"
    for key, path in paths_of(config):
        if reason := objection(str(path), root, folder):
            yield key, reason


def paths_of(config: ServerConfig) -> Iterator[tuple[str, Path]]:
    """The files and folders in the path fields of a server's entry."""
    match config:
        case StdioServer():
            found = {"env_file": config.env_file, "cwd": config.cwd}
        case HttpServer(oauth=OAuth() as oauth):
            # its content is sent to whatever server the same entry names
            found = {"oauth.assertion_file": oauth.assertion_file}
        case _:
            return
    yield from ((key, path) for key, path in found.items() if path is not None)
