"""Finds the configuration files."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from multitap.config.files import is_file, is_there
from multitap.config.owners import is_foreign
from multitap.names import Naming
from multitap.records import dataclass
from multitap.user_folders import USER_FOLDERS

FILE = "multitap.toml"
FOLDER = "mcpservers"
VARIABLE = "MULTITAP_CONFIG"
EXCELMANUS_VARIABLE = "EXCELMANUS_MCP_CONFIG"


@dataclass(frozen=True, slots=True)
class Source:
    """One file, or one folder of servers, that may contribute."""

    path: Path
    dialect: str | None = None
    """None to detect it from the content."""
    folder: bool = False
    """Whether it is a folder of servers: each subfolder is one."""
    project: Path | None = None
    """The folder of its project if a search found it: nothing in it counts before a person has
    trusted it. None if the user, or their program, chose it."""
    required: bool = False
    """Whether it was named explicitly, so that it must exist."""

    @property
    def trusted(self) -> bool:
        """Whether the user chose it."""
        return self.project is None


@dataclass(frozen=True, slots=True)
class Search:
    """The order of sources, and the defaults."""

    sources: tuple[Source, ...]
    """The weakest first, or, with `first_only`, the strongest."""
    folder: Path = field(default_factory=Path.cwd)
    """The current folder."""
    first_only: bool = False
    """Whether only the first existing source is used."""
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a search depends on."""

    folder: Path
    """The current folder."""
    home: Path
    config: Path
    """The user's configuration directory."""
    env: Mapping[str, str] = field(repr=False)

    @classmethod
    def here(cls, folder: Path | None = None) -> "Surroundings":
        """The surroundings of this process and its user."""
        config = USER_FOLDERS.user_config_path
        return cls((folder or Path.cwd()).absolute(), Path.home(), config, os.environ)


def native(
    where: Surroundings, files: Sequence[Path] = (), *, dialect: str | None = None
) -> Search:
    """Only named files, if any; otherwise the user's configuration, then the project's."""
    named = files or [Path(part) for part in where.env.get(VARIABLE, "").split(os.pathsep) if part]
    if named:
        paths = [where.folder / path.expanduser() for path in named]
        sources = [Source(path, dialect, required=True) for path in paths]
        names_kode = {*[dialect or path.name for path in paths]} <= {"kode", ".kode.json"}
        defaults = {"naming": Naming.KODE.value} if names_kode else {}
        return Search(tuple(sources), where.folder, defaults=defaults)
    project = project_folder(where)
    return Search(
        (
            *_both(where.config),
            *(_both(project, project) if not _is_same(project, where.config) else ()),
        ),
        where.folder,
    )


def _both(folder: Path, project: Path | None = None) -> tuple[Source, Source]:
    """The folder of servers, then our file, which overrides it."""
    return (
        Source(folder / FOLDER, folder=True, project=project),
        Source(folder / FILE, "multitap", project=project),
    )


def _is_same(folder: Path, other: Path) -> bool:
    return os.path.realpath(folder) == os.path.realpath(other)


def project_folder(where: Surroundings) -> Path:
    """The nearest folder with a configuration within the repository, else the current one.

    Not further up: anyone may have put a file into `/tmp`. The search ends below the home
    directory, at a folder of somebody else's and at the border of a file system.
    """
    upwards = (where.folder, *_above(where))
    root = next((index for index, path in enumerate(upwards) if is_there(path / ".git")), 0)
    return next((path for path in upwards[: root + 1] if is_file(path / FILE)), where.folder)


def _above(where: Surroundings) -> Iterator[Path]:
    home = os.path.realpath(where.home)
    try:
        device = where.folder.stat().st_dev
        if os.path.realpath(where.folder) == home:
            return
        for path in where.folder.parents:
            status = path.stat()
            # Above that, others control the files, and the home folder is not a project.
            if os.path.realpath(path) == home or is_foreign(status) or status.st_dev != device:
                return
            yield path
    except OSError:
        return


def kode(where: Surroundings) -> Search:
    """`~/.kode.json` for all projects, `./.kode.json` for this one."""
    return Search(
        (
            Source(where.home / ".kode.json", "kode"),
            Source(where.folder / ".kode.json", "kode", project=where.folder),
        ),
        where.folder,
        defaults={"naming": Naming.KODE.value},
    )


def otter(where: Surroundings) -> Search:
    """The user's `otter/config.toml`, then the project's `otter.toml`."""
    return Search(
        (
            Source(where.config.parent / "otter" / "config.toml", "otter"),
            Source(where.folder / "otter.toml", "otter", project=where.folder),
        ),
        where.folder,
    )


def excelmanus(where: Surroundings, file: Path | None = None) -> Search:
    """The first that exists of the variable's file, the argument's, the workspace's, the user's."""
    named = where.env.get(EXCELMANUS_VARIABLE)
    chosen = [Path(named).expanduser()] if named else []
    chosen += [file] if file else []
    return Search(
        (
            *(Source(where.folder / path, "excelmanus") for path in chosen),
            Source(where.folder / "mcp.json", "excelmanus", project=where.folder),
            Source(where.home / ".excelmanus" / "mcp.json", "excelmanus"),
        ),
        where.folder,
        first_only=True,
        defaults={"naming": Naming.EXCELMANUS.value},
    )


def agent_core(where: Surroundings, environment: str, *, root: Path | None = None) -> Search:
    """The global file, then the environment's, with its folder of servers below both."""
    base = root or where.home / ".config" / "tong_work" / "agent-core"
    home = base / "environments" / environment
    return Search(
        (
            Source(home / FOLDER, folder=True),
            Source(base / "tong_work.jsonc", "agent-core"),
            Source(home / "config.jsonc", "agent-core"),
        ),
        where.folder,
    )


def start_folder(file: Path) -> Path:
    """The default working directory of programs in a file of the user.

    Never the current folder, which may be a stranger's repository: `npx` would run code from its
    `node_modules`, and programs would read its `.env`.
    """
    whole = file.absolute()
    settings = USER_FOLDERS.user_config_path.parent
    if whole.is_relative_to(settings):
        return Path.home()
    folder = whole.parent
    # `.vscode/mcp.json` and `~/.cursor/mcp.json` apply to the folder around them
    return folder.parent if folder.name.startswith(".") else folder


def state_directory(configured: Path | None = None) -> Path:
    """Where logs, call history and catalogs are kept."""
    return configured or USER_FOLDERS.user_state_path
