"""Checks that the paths, hosts and limits of a project's server stay in its bounds.

Before it is trusted, as far as its variables are known; and at each start, with all variables
expanded and links resolved.
"""

import os
from collections.abc import Iterable, Iterator
from errno import EFBIG, EPERM
from pathlib import Path

from multitap.config.dialects.draft import Entry
from multitap.config.models import (
    HttpServer,
    Limits,
    OAuth,
    SandboxRules,
    ServerConfig,
    StdioServer,
)
from multitap.config.owners import is_within
from multitap.config.problems import Problem, Severity
from multitap.config.variables import LARGEST_FILE, Scope, expand, locate, variables_of
from multitap.errors import ConfigError
from multitap.files import open_regular

OUTSIDE = "is outside the project"


# Before trust is given, a path with a variable must not reveal a value of the environment.
def folders_only(folder: Path, root: Path) -> Scope:
    """The variables of a project that nobody has trusted: only folders.

    Args:
        folder: The current folder.
        root: The project's folder, the base of its relative paths.
    """
    return Scope(env={}, folder=folder, home=Path.home(), base=root)


def objection(path: str, root: Path, folder: Path) -> str | None:
    """Why a project must not name this path; None if it may.

    Args:
        path: The path as written.
        root: The project's folder.
        folder: The current folder.
    """
    scope = folders_only(folder, root)
    try:
        expanded = locate(expand(path, scope), scope)
    except ConfigError:
        return "may use no variables but folders"
    return None if is_within(expanded, root) else OUTSIDE


def objections_to(config: ServerConfig, root: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """The fields of a project's server that lead out of the project, with the reasons."""
    for key, reference in variables_of(config):
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
            paths = {"env_file": config.env_file, "cwd": config.cwd}
        case HttpServer(oauth=OAuth() as oauth):
            # its content is sent to whatever server the same entry names
            paths = {"oauth.assertion_file": oauth.assertion_file}
        case _:
            return
    yield from ((key, path) for key, path in paths.items() if path is not None)


def leads_inside(host: str) -> bool:
    """Whether a host rule opens this machine or its own networks; not for one with variables."""
    from multitap.http.addresses import HostRule  # noqa: PLC0415 - few have such rules

    try:
        return HostRule.of(host).leads_inside
    except ValueError:
        return False


def check_expanded(config: ServerConfig, root: Path) -> ServerConfig:
    """The expanded server of a project with real paths, just before it starts.

    Args:
        config: The server with its variables expanded.
        root: The project's folder.

    Raises:
        ConfigError: A path leads out of the project, or a rule to this machine's own networks.
    """
    match config:
        case StdioServer():
            return _check_program(config, root)
        case HttpServer(oauth=OAuth() as oauth) if oauth.assertion_file is not None:
            file = _real_path("oauth.assertion_file", oauth.assertion_file, root)
            login = oauth.replace(assertion_file=file)
            return config.replace(oauth=login)
        case _:
            return config


def _check_program(config: StdioServer, root: Path) -> StdioServer:
    changes: dict[str, object] = {}
    if config.cwd is not None:
        changes["cwd"] = _real_path("cwd", config.cwd, root)
    rules = config.sandbox_rules
    if rules.read or rules.write:
        paths = {
            key: tuple(_real_path(f"sandbox_rules.{key}", path, root) for path in paths)
            for key, paths in (("read", rules.read), ("write", rules.write))
        }
        changes["sandbox_rules"] = rules.replace(**paths)
    for host in rules.hosts:
        if leads_inside(host):
            raise ConfigError(
                f"`sandbox_rules.hosts`: {host!r} is on this machine or in its own network, "
                "which a project cannot open"
            )
    return config.replace(**changes) if changes else config


def _real_path(key: str, path: Path, root: Path) -> Path:
    # A relative path is relative to the project, as for its program.
    real = Path(os.path.realpath(root / path))
    if not is_within(real, root):
        raise ConfigError(f"`{key}`: {str(path)!r} leads to {str(real)!r}, which {OUTSIDE}")
    return real


def read_inside(root: Path, path: Path) -> str:
    """The text of a file of the project, wherever its name leads by now.

    Raises:
        OSError: It cannot be read, or is outside the project.
    """
    with open_regular(path) as file:
        # Of the open file, not of the name: a link may lead elsewhere by the next call.
        if not is_within(_path_of(file.fileno(), path), root):
            raise OSError(EPERM, OUTSIDE)
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise OSError(EFBIG, "it is too large")
    return content.decode().replace("\r\n", "\n")


def _path_of(descriptor: int, path: Path) -> Path:
    """The real path of an open file; by its name where the system does not tell."""
    try:
        return Path(f"/proc/self/fd/{descriptor}").readlink()
    except OSError:
        return Path(os.path.realpath(path))


_HINT = "describe the server in your own configuration if it needs that"


def restrain(
    model: ServerConfig, entry: Entry, root: Path, folder: Path
) -> tuple[ServerConfig, tuple[Problem, ...]]:
    """The server restricted to what a project may allow: nothing outside its folder.

    Args:
        model: The server in the project's file.
        entry: Where it is written.
        root: The project's folder.
        folder: The current folder.
    """
    limits, problems = _within_usual(model.limits, entry)
    changes: dict[str, object] = {} if limits is model.limits else {"limits": limits}
    if isinstance(model, StdioServer):
        if model.sandbox == "off":
            changes["sandbox"] = "auto"
            message = "a project cannot switch the sandbox off"
            problems.append(_problem(entry, ("sandbox",), message))
        rules, refused = _restrain_rules(model.sandbox_rules, entry, root, folder)
        if refused:
            changes["sandbox_rules"] = rules
            problems += refused
    return (model.replace(**changes) if changes else model), tuple(problems)


def _restrain_rules(
    rules: SandboxRules, entry: Entry, root: Path, folder: Path
) -> tuple[SandboxRules, list[Problem]]:
    usual, problems = SandboxRules(), list[Problem]()
    # A project may ask for less than usual, never for more.
    changes: dict[str, object] = {
        "processes": min(rules.processes, usual.processes),
        "memory": min(rules.memory, usual.memory),
    }
    for field in ("read", "write"):
        paths: tuple[Path, ...] = getattr(rules, field)
        # With folders expanded and links resolved, and again at each start with everything else.
        outside = [path for path in paths if objection(str(path), root, folder)]
        if outside:
            changes[field] = tuple(path for path in paths if path not in outside)
            message = f"a project cannot open what is outside its folder: {_list(outside)}"
            problems.append(_problem(entry, ("sandbox_rules", field), message))
    if inner := [host for host in rules.hosts if leads_inside(host)]:
        changes["hosts"] = tuple(host for host in rules.hosts if host not in inner)
        message = f"a project cannot open this machine or its own networks: {_list(inner)}"
        problems.append(_problem(entry, ("sandbox_rules", "hosts"), message))
    for field in ("processes", "memory"):
        if getattr(rules, field) > (most := getattr(usual, field)):
            message = f"a project's server may have at most {most:,}"
            problems.append(_problem(entry, ("sandbox_rules", field), message))
    return rules.replace(**changes), problems


def _list(values: Iterable[object]) -> str:
    return ", ".join(f"`{value}`" for value in sorted(map(str, values)))


def _within_usual(limits: Limits, entry: Entry) -> tuple[Limits, list[Problem]]:
    """Limits that protect us from the server, which its own author can only lower."""
    usual, problems, lowered = Limits(), list[Problem](), dict[str, int]()
    for field in Limits.__struct_fields__:
        most: int = getattr(usual, field)
        if getattr(limits, field) > most:
            lowered[field] = most
            message = f"a project's server may have at most {most:,}"
            problems.append(_problem(entry, ("limits", field), message))
    return (limits.replace(**lowered) if lowered else limits), problems


def _problem(entry: Entry, path: tuple[str, ...], message: str) -> Problem:
    node = entry.fields.get(path, entry.node)
    return Problem(
        severity=Severity.ERROR,
        message=message,
        place=node.key_place,
        key=node.dotted,
        server=entry.name,
        hint=_HINT,
    )
