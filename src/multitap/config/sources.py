"""Finds the configuration files: ours, those of the seed designs, and those of other hosts."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from multitap.config.dialects import DIALECTS, detect
from multitap.config.documents import LARGEST, is_file, is_there, read_file
from multitap.config.owners import entries_of, is_foreign
from multitap.files import USER_FOLDERS, read_regular
from multitap.names import Naming

FILE = "multitap.toml"
FOLDER = "mcpservers"
VARIABLE = "MULTITAP_CONFIG"
EXCELMANUS_VARIABLE = "EXCELMANUS_MCP_CONFIG"


class Source(msgspec.Struct, frozen=True, kw_only=True):
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


class Search(msgspec.Struct, frozen=True):
    """The order of sources, and the defaults."""

    sources: tuple[Source, ...]
    """The weakest first, or, with `first_only`, the strongest."""
    folder: Path = msgspec.field(default_factory=Path.cwd)
    """The current folder."""
    first_only: bool = False
    """Whether only the first existing source is used."""
    defaults: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    env: Mapping[str, str] = msgspec.field(default_factory=lambda: os.environ)
    """The variables of the one who searches, for what is found and the programs in it."""

    def __repr__(self) -> str:
        return f"<Search in {self.folder} for {self.sources!r}>"  # variables may be secret


class Surroundings(msgspec.Struct, frozen=True):
    """What a search depends on."""

    folder: Path
    """The current folder."""
    home: Path
    config: Path
    """The user's configuration directory."""
    env: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<Surroundings of {self.folder}>"  # variables may be secret

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
        sources = [Source(path=path, dialect=dialect, required=True) for path in paths]
        # people who name only files of kode know the tools by the names that kode gives them
        names_kode = {*[dialect or path.name for path in paths]} <= {"kode", ".kode.json"}
        defaults = {"naming": Naming.KODE.value} if names_kode else {}
        return Search(tuple(sources), where.folder, defaults=defaults)
    project = project_folder(where)
    return Search(
        (
            *_both(where.config),
            # commands may be run in the user's own folder of settings, which is no project
            *(_both(project, project) if not _is_same(project, where.config) else ()),
        ),
        where.folder,
    )


def _both(folder: Path, project: Path | None = None) -> tuple[Source, Source]:
    """The folder of servers, then our file, which overrides it."""
    return (
        Source(path=folder / FOLDER, folder=True, project=project),
        Source(path=folder / FILE, dialect="multitap", project=project),
    )


def _is_same(folder: Path, other: Path) -> bool:
    return os.path.realpath(folder) == os.path.realpath(other)


def project_folder(where: Surroundings) -> Path:
    """The nearest folder with a configuration within the repository, else the current one.

    Not further up: anyone may have put a file into `/tmp`. The search ends below the home
    directory, at a folder of somebody else's and at the border of a file system.
    """
    upwards = (where.folder, *_above(where))
    # `.git` is a file in worktrees and submodules
    root = next((index for index, path in enumerate(upwards) if is_there(path / ".git")), 0)
    return next((path for path in upwards[: root + 1] if is_file(path / FILE)), where.folder)


def _above(where: Surroundings) -> Iterator[Path]:
    home = os.path.realpath(where.home)
    try:
        # other file systems are often shared with others, as in containers
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
            Source(path=where.home / ".kode.json", dialect="kode"),
            Source(path=where.folder / ".kode.json", dialect="kode", project=where.folder),
        ),
        where.folder,
        defaults={"naming": Naming.KODE.value},
    )


def otter(where: Surroundings) -> Search:
    """The user's `otter/config.toml`, then the project's `otter.toml`."""
    return Search(
        (
            Source(path=where.config.parent / "otter" / "config.toml", dialect="otter"),
            Source(path=where.folder / "otter.toml", dialect="otter", project=where.folder),
        ),
        where.folder,
    )


def excelmanus(
    where: Surroundings, file: Path | None = None, *, dialect: str | None = "excelmanus"
) -> Search:
    """The first that exists of the variable's file, the argument's, the workspace's, the user's.

    Args:
        where: What the search depends on.
        file: The argument.
        dialect: None to accept servers of other clients beside those of ExcelManus.
    """
    named = where.env.get(EXCELMANUS_VARIABLE)
    paths = [Path(named).expanduser()] if named else []
    paths += [file] if file else []
    return Search(
        (
            *(Source(path=where.folder / path, dialect=dialect) for path in paths),
            Source(path=where.folder / "mcp.json", dialect=dialect, project=where.folder),
            Source(path=where.home / ".excelmanus" / "mcp.json", dialect=dialect),
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
            Source(path=home / FOLDER, folder=True),
            Source(path=base / "tong_work.jsonc", dialect="agent-core"),
            Source(path=home / "config.jsonc", dialect="agent-core"),
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


ENVIRONMENTS = "environments"
CONFIG = "config.jsonc"
USUAL = "default"
"""The environment to use if there are several."""


class SeedFile(msgspec.Struct, frozen=True):
    """A file of a design in the current folder, and that design's search."""

    path: Path
    title: str
    """The name of the design."""
    search: Search


def at_prompt(
    where: Surroundings, files: tuple[Path, ...] = (), *, dialect: str | None = None
) -> tuple[Search, tuple[SeedFile, ...]]:
    """The search of a command, and the files of other designs that it is based on.

    Named files, and files of ours in the folder, take precedence. Otherwise, the first existing
    file of another design determines the search order and naming, on top of the user's own
    configuration; the others are only reported.
    """
    ours = native(where, files, dialect=dialect)
    is_named = any(source.required for source in ours.sources)
    if is_named or any(not source.trusted and is_there(source.path) for source in ours.sources):
        return ours, ()
    seeds = tuple(seed_files(where)) or tuple(_user_files(where, ours))
    if not seeds:
        return ours, ()
    search_ = seeds[0].search
    # the user's own servers are used in every project
    own = tuple(source for source in ours.sources if source.trusted)
    sources = (*own, *_resolve(search_, where))
    return replace(search_, sources=sources, first_only=False), seeds


def seed_files(where: Surroundings) -> Iterator[SeedFile]:
    """The files of other designs in the folder, in order of preference."""
    plain: tuple[tuple[str, str, Callable[[Surroundings], Search]], ...] = (
        (".kode.json", "kode", kode),
        ("otter.toml", "otter", otter),
    )
    for name, title, look in plain:
        if is_file(path := where.folder / name):
            yield SeedFile(path, title, look(where))
    if (environment := _environment(where.folder)) is not None:
        path = where.folder / ENVIRONMENTS / environment / CONFIG
        yield SeedFile(path, "agent-core", agent_core(where, environment, root=where.folder))
    if is_file(path := where.folder / "mcp.json"):
        if names_transports(path):
            # one server that says `transport` must not cost the others that do not
            yield SeedFile(path, "ExcelManus", excelmanus(where, dialect=None))
        else:
            plain_file = Source(path=path, project=where.folder)
            yield SeedFile(path, "Claude Desktop", Search((plain_file,), where.folder))


def names_transports(path: Path) -> bool:
    """Whether a file says `transport`, which only ExcelManus demands of every server."""
    try:
        return b'"transport"' in read_regular(path, LARGEST["json"])
    except OSError:
        return False


def _user_files(where: Surroundings, ours: Search) -> Iterator[SeedFile]:
    """The file that kode uses in all folders, for users who have none of ours."""
    path = where.home / ".kode.json"
    if is_file(path) and not any(is_there(source.path) for source in ours.sources):
        yield SeedFile(path, "kode", kode(where))


def _environment(folder: Path) -> str | None:
    """The only environment in a folder, or the default one among several."""
    try:
        there = [
            path.name
            for path in entries_of(folder / ENVIRONMENTS)
            if is_file(path / CONFIG) and not path.name.startswith(".")
        ]
    except OSError:
        return None
    # choosing one of several would start servers that nobody asked for
    if len(there) > 1:
        return USUAL if USUAL in there else None
    return there[0] if there else None


def _resolve(search_: Search, where: Surroundings) -> Iterator[Source]:
    """The sources to use, with those in the folder marked as the project's."""
    sources = search_.sources
    if search_.first_only:
        there = [source for source in sources if is_there(source.path)]
        sources = tuple(there[:1])
    # someone may work in their home directory: what is in there by design is still theirs
    own = where.home / ".config" / "tong_work"
    for source in sources:
        is_ours = source.trusted and (
            not source.path.is_relative_to(where.folder) or source.path.is_relative_to(own)
        )
        yield source if is_ours else replace(source, project=where.folder)


def several_environments(where: Surroundings) -> bool:
    """Whether the folder has several environments, and none is the default."""
    if _environment(where.folder) is not None or is_there(where.folder / FILE):
        return False
    try:
        places = entries_of(where.folder / ENVIRONMENTS)
        return sum(is_file(path / CONFIG) for path in places) > 1
    except OSError:
        return False


OF_USER = (
    ("claude-code", ".claude.json"),
    ("cursor", ".cursor/mcp.json"),
    ("windsurf", ".codeium/windsurf/mcp_config.json"),
    ("windsurf", ".codeium/mcp_config.json"),
    ("zed", ".config/zed/settings.json"),
    ("cline", ".cline/data/settings/cline_mcp_settings.json"),
    ("cline", ".cline/mcp.json"),
    ("codex", ".codex/config.toml"),
    ("gemini", ".gemini/settings.json"),
    ("goose", ".config/goose/config.yaml"),
    ("continue", ".continue/config.yaml"),
    *(("continue", f".continue/mcpServers/*.{suffix}") for suffix in ("yaml", "yml", "json")),
    ("opencode", ".config/opencode/opencode.json"),
    ("opencode", ".config/opencode/opencode.jsonc"),
    ("kode", ".kode.json"),
    ("excelmanus", ".excelmanus/mcp.json"),
    ("agent-core", ".config/tong_work/agent-core/tong_work.jsonc"),
    ("agent-core", ".config/tong_work/agent-core/environments/*/config.jsonc"),
)
"""Paths below the home directory."""
OF_SYSTEM = (
    ("claude", "Claude/claude_desktop_config.json"),
    ("vscode", "Code/User/mcp.json"),
    ("vscode", "Code/User/profiles/*/mcp.json"),
    ("vscode", "Code - Insiders/User/mcp.json"),
    ("vscode", "VSCodium/User/mcp.json"),
    # an extension: of VS Code, its Insiders edition, VSCodium, Cursor
    ("cline", "*/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"),
    ("otter", "otter/config.toml"),
)
"""Paths below the system's configuration directory."""
OF_PROJECT = (
    ("claude-code", ".mcp.json"),
    ("cursor", ".cursor/mcp.json"),
    ("vscode", ".vscode/mcp.json"),
    ("zed", ".zed/settings.json"),
    ("codex", ".codex/config.toml"),
    ("gemini", ".gemini/settings.json"),
    ("opencode", "opencode.json"),
    ("opencode", "opencode.jsonc"),
    ("kode", ".kode.json"),
    ("otter", "otter.toml"),
    ("excelmanus", "mcp.json"),
    *(("continue", f".continue/mcpServers/*.{suffix}") for suffix in ("yaml", "yml", "json")),
)
_MOVABLE = (
    ("CODEX_HOME", ".codex/"),
    ("CLINE_DATA_DIR", ".cline/data/"),
    ("CONTINUE_GLOBAL_DIR", ".continue/"),
    ("XDG_CONFIG_HOME", ".config/"),
)
"""Variables that relocate a host's folder."""


def host_files(where: Surroundings) -> tuple[Source, ...]:
    """The existing configurations of other hosts, the user's before the project's."""
    of_user = [(dialect, *_of_user(where, pattern)) for dialect, pattern in OF_USER]
    of_system = [(dialect, where.config.parent, pattern) for dialect, pattern in OF_SYSTEM]
    of_project = [(dialect, where.folder, pattern) for dialect, pattern in OF_PROJECT]
    sources = [
        Source(
            path=path, dialect=_dialect_of(path, dialect) if project else dialect, project=project
        )
        for places, project in (
            (of_user, None),
            (of_system, None),
            (of_project, where.folder),
        )
        for dialect, folder, pattern in places
        for path in _matching(folder, pattern)
    ]
    return tuple(source for source in sources if is_there(source.path))


def _dialect_of(path: Path, dialect: str) -> str:
    """The dialect of a project's file, whose name may be that of several hosts."""
    if dialect != "excelmanus":
        return dialect
    document, _ = read_file(path)
    found = detect(document) if document else None
    return dialect if found is DIALECTS[dialect] else "claude"


def host_file(dialect: str, where: Surroundings) -> Path | None:
    """The file for a host's user-level servers, which may not exist; None if it has no file.

    If a host has several editions, the file of the installed one.
    """
    of_user = [_of_user(where, path) for host, path in OF_USER if host == dialect]
    of_system = [(where.config.parent, path) for host, path in OF_SYSTEM if host == dialect]
    files = [folder / path for folder, path in of_user if "*" not in path]
    editions = [folder / path for folder, path in of_system if "*" not in path]
    # a file that exists is the one that the host uses; then the edition that is installed
    there = [path for path in (*files, *editions) if is_there(path)]
    installed = [path for path in editions if is_there(path.parent)]
    return next(iter((*there, *files, *installed, *editions)), None)


def _of_user(where: Surroundings, pattern: str) -> tuple[Path, str]:
    """The base folder of a pattern below the home directory, and the rest of it."""
    if pattern == ".claude.json" and (folder := where.env.get("CLAUDE_CONFIG_DIR")):
        return Path(folder), pattern
    for variable, prefix in _MOVABLE:
        folder = where.env.get(variable)
        if folder and pattern.startswith(prefix):
            return Path(folder), pattern.removeprefix(prefix)
    return where.home, pattern


def _matching(folder: Path, pattern: str) -> Iterable[Path]:
    if "*" not in pattern:
        return (folder / pattern,)
    try:
        return sorted(folder.glob(pattern))
    except OSError:  # a folder without permission
        return ()
