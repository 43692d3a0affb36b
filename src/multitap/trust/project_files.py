"""The files of a project that determine what its servers, functions or skills do."""

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import msgspec

from multitap.config.models import ServerConfig, StdioServer
from multitap.config.owners import is_shared, is_within, refusal
from multitap.config.project_bounds import folders_only, paths_of
from multitap.config.sources import FOLDER
from multitap.config.variables import Scope, expand, locate, parse_env, variables_of
from multitap.errors import ConfigError
from multitap.files import open_regular, read_regular
from multitap.trust.packages import launch_of

MAX_FILES = 2000
"""Sources that are read; for further ones, only the size and times count."""
MAX_LISTED = 500
"""Sources that are listed one by one; of the others, there is one digest."""
MOST_FILES = 20_000
"""Files that are looked at, again before each start, which must not take long."""
LARGEST = 64 * 1024 * 1024
"""Bytes of one file; for a larger one, only the size and the modification time count."""
SOURCES = frozenset(
    (
        *(".py", ".pyi", ".pyx", ".pth", ".pyc", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts"),
        *(".jsx", ".tsx", ".vue", ".svelte", ".wasm", ".node", ".so", ".dylib", ".dll", ".exe"),
        *(".sh", ".bash", ".zsh", ".fish", ".ps1", ".bat", ".cmd", ".awk", ".rb", ".gemspec"),
        *(".pl", ".pm", ".lua", ".php", ".phar", ".go", ".rs", ".c", ".h", ".cc", ".cpp", ".hpp"),
        *(".java", ".kt", ".kts", ".scala", ".clj", ".groovy", ".gradle", ".jar", ".class"),
        *(".cs", ".fs", ".csproj", ".fsproj", ".sln", ".props", ".targets", ".swift", ".dart"),
        *(".ex", ".exs", ".erl", ".hs", ".ml", ".nim", ".zig", ".jl", ".r", ".cr", ".nix"),
        *(".toml", ".lock", ".lockb", ".cfg", ".mk", ".mod", ".sum", ".work", ".just", ".rake"),
    )
)
NAMES = frozenset(
    (
        *("package.json", "package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml"),
        *("pnpm-workspace.yaml", ".npmrc", ".yarnrc", ".yarnrc.yml", "tsconfig.json", "lerna.json"),
        *("deno.json", "deno.jsonc", "import_map.json", "bunfig.toml", "composer.json"),
        *("Pipfile", ".python-version", ".node-version", ".nvmrc", ".tool-versions", ".envrc"),
        *("Makefile", "makefile", "GNUmakefile", "justfile", "Justfile", ".justfile", "Rakefile"),
        *("Gemfile", "Procfile", "Taskfile.yml", "Taskfile.yaml", "pom.xml", "build.xml"),
        *("mvnw", "gradlew", "maven.config", "jvm.config", "gradle.properties", "rust-toolchain"),
        *("compose.yaml", "compose.yml", "nodemon.json", "Vagrantfile", "Containerfile"),
    )
)
_BEGINNINGS = ("requirements", "constraints", "Dockerfile", "docker-compose", "compose.", ".env")
_SKIPPED = frozenset(
    (
        *(".git", ".hg", ".svn", ".jj", "__pycache__", ".mypy_cache", ".pytest_cache"),
        *(".ruff_cache", ".hypothesis"),
    )
)
"""Folders of tools that run nothing from there; a confined server compiles elsewhere."""
_OURS = frozenset(("multitap.toml", "multitap.lock", "otter.toml"))
"""Our own files: each entry is compared on its own."""
_INSTALLED = frozenset(("node_modules", "bower_components", "site-packages"))
_ENVIRONMENT = "pyvenv.cfg"
_SETTLED = 2_000_000_000
"""Nanoseconds after which a further change has other times, on every file system."""
_CHUNK = 1024 * 1024


class SourceFile(msgspec.Struct, frozen=True):
    """A file that may decide what runs."""

    path: str
    """Its real path."""
    status: os.stat_result
    package_folder: str = ""
    """The folder of installed packages that it is in, if any."""


class SourceWalk:
    """Looks for the sources below folders; each is found once.

    Args:
        root: The project's folder, with links resolved.
        skips: Names of folders that are left out.
        everything: Whether every file counts, not only sources.
    """

    def __init__(
        self, root: str, skips: frozenset[str] = frozenset(), *, everything: bool = False
    ) -> None:
        self._root = root
        self._skips = skips
        self._everything = everything
        self._seen: set[str] = set()
        self._left = MOST_FILES
        self.gaps: dict[str, None] = {}
        """What is not watched, in words."""

    def below(self, folder: Path) -> Iterator[SourceFile]:
        """The sources below a folder of the project, in a fixed order."""
        # a link may lead out of the project, where nothing is the project's
        top = os.path.realpath(folder)
        if top != self._root and not top.startswith(f"{self._root}/"):
            return
        waiting = [(top, _package_folder(top, self._root))]
        while waiting:
            place, package = waiting.pop()
            if place in self._seen:
                continue
            self._seen.add(place)
            try:
                with os.scandir(place) as entries:
                    inside = sorted(entries, key=lambda entry: entry.name)
            except OSError:
                continue
            # a virtual environment, whatever its folder is called
            if any(entry.name == _ENVIRONMENT for entry in inside):
                package = package or place
            folders = [entry for entry in inside if entry.is_dir(follow_symlinks=False)]
            files = [entry for entry in inside if not entry.is_dir(follow_symlinks=False)]
            # counted before they are looked at: a project may have millions, to keep us busy
            self._left -= len(files)
            if self._left < 0:
                self._give_up(top)
                return
            yield from filter(None, (self._source(entry, package) for entry in files))
            # reversed, because the last one is taken first: the order must not depend on the disk
            waiting += (
                (entry.path, package or (entry.path if entry.name in _INSTALLED else ""))
                for entry in reversed(folders)
                if self._enters(entry.name, entry.path)
            )

    def _give_up(self, top: str) -> None:
        below = os.path.relpath(top, self._root)
        name = "the project" if below == "." else below
        self.gaps[f"files below {name}, which has more than {MOST_FILES:,}"] = None

    def _enters(self, name: str, path: str) -> bool:
        if name in self._skips:
            self.gaps[f"{os.path.relpath(path, self._root)}, which its build makes"] = None
            return False
        return name not in _SKIPPED

    def _source(self, entry: "os.DirEntry[str]", package: str) -> SourceFile | None:
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return None
        if self._everything or is_source(entry.name, status):
            return SourceFile(entry.path, status, package)
        return None


def is_source(name: str, status: os.stat_result) -> bool:
    """Whether a file may decide what a program does."""
    if stat.S_ISLNK(status.st_mode):
        return True
    if not stat.S_ISREG(status.st_mode) or name in _OURS:
        return False
    return (
        f".{name.rpartition('.')[2].lower()}" in SOURCES
        or name in NAMES
        or name.startswith(_BEGINNINGS)
        # scripts need no suffix
        or bool(status.st_mode & 0o111)
    )


def _package_folder(path: str, root: str) -> str:
    """The outermost folder of installed packages around a path, or itself."""
    place = root
    for name in os.path.relpath(path, root).split("/"):
        place = os.path.join(place, name)
        if name in _INSTALLED or os.path.exists(os.path.join(place, _ENVIRONMENT)):
            return place
    return ""


def digest_sources(sources: Iterator[SourceFile], root: str) -> dict[str, str]:
    """The digests of sources, by their path in the project."""
    listed: dict[str, str] = {}
    others: dict[str, str] = {}
    packages: dict[str, list[str]] = {}
    read, start = 0, len(root.rstrip("/")) + 1
    for source in sources:
        name = source.path[start:]
        if source.package_folder:
            # Package managers link the same file into many projects, which changes its times.
            is_linked = source.status.st_nlink > 1
            held = _source_content(source) if is_linked else _times(source.status)
            packages.setdefault(source.package_folder, []).append(f"{name} {held}")
            continue
        # above that many, times have to do: hashing a large repository takes longer than a start
        read += 1
        held = _source_content(source) if read <= MAX_FILES else _times(source.status)
        if not stat.S_ISLNK(source.status.st_mode) and is_shared(source.status):
            # so that trust is asked for again once others can write what was trusted
            held = f"{held}, and others can change it"
        (listed if len(listed) < MAX_LISTED else others)[name] = held
    for folder, lines in packages.items():
        listed[f"{os.path.relpath(folder, root)}/"] = f"{len(lines):,} files {_summary(lines)}"
    if others:
        lines = [f"{name} {held}" for name, held in others.items()]
        listed[f"({len(lines):,} more files)"] = _summary(lines)
    return listed


def _summary(lines: list[str]) -> str:
    text = "\n".join(lines)
    return f"sha256:{sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()}"


def _times(status: os.stat_result) -> str:
    """A file's size and times; the change time cannot be set back."""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def _source_content(source: SourceFile) -> str:
    status = source.status
    if stat.S_ISLNK(status.st_mode):
        return f"leads to {os.path.realpath(source.path)}"
    if status.st_size > LARGEST:
        return f"{status.st_size} bytes of {status.st_mtime_ns}"
    return content_digest(source.path, status) or "unreadable"


def content_digest(path: str, status: os.stat_result) -> str | None:
    """The digest of a file with this status; None if it cannot be read."""
    now = time.time_ns()
    # A file that was just written may change again within the same tick of the clock.
    mark = now if now - status.st_ctime_ns < _SETTLED else 0
    return _hash(
        path,
        (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns),
        mark,
    )


@lru_cache(maxsize=3 * MAX_FILES)  # a gateway compares them again before each start
def _hash(path: str, _status: tuple[int, ...], _mark: int) -> str | None:
    try:
        with open_regular(Path(path)) as file:
            digest = sha256()
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except (OSError, ValueError):
        return None
    return f"sha256:{digest.hexdigest()}"


_NODE = (
    *("package.json", "package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock"),
    *("pnpm-workspace.yaml", ".pnpmfile.cjs", ".pnp.cjs", ".pnp.loader.mjs", ".npmrc", ".yarnrc"),
    *(".yarnrc.yml", "bun.lock", "bun.lockb", "bunfig.toml", "tsconfig.json", ".env", ".nvmrc"),
)
_PYTHON = (
    *("pyproject.toml", "uv.lock", "uv.toml", "poetry.lock", "poetry.toml", "pdm.lock", "Pipfile"),
    *("Pipfile.lock", "requirements.txt", "setup.py", "setup.cfg", ".python-version", ".env"),
)
_MANIFESTS: Mapping[str, tuple[str, ...]] = {"npm": _NODE, "pypi": _PYTHON, "docker": (".env",)}
"""What a launcher of packages of this kind reads where it runs, and in the folders above."""
_BUILT: Mapping[str, frozenset[str]] = {
    "cargo": frozenset({"target"}),
    **dict.fromkeys(("mvn", "mvnw"), frozenset({"target"})),
    **dict.fromkeys(("gradle", "gradlew"), frozenset({"build", ".gradle"})),
    "dotnet": frozenset({"bin", "obj"}),
    "uv": frozenset({".venv"}),
}
"""Folders that a build tool fills by itself when a server starts."""
_OF_FOLDER = ("__main__.py", "__init__.py", "package.json", "index.js", "index.mjs")
_PYTHONS = re.compile(r"python[\d.]*|pypy[\d.]*")
_NODES = frozenset(("node", "nodejs", "tsx", "ts-node", "bun", "deno"))
_LOCAL_OPTION = re.compile(
    r"--(?:from|with|with-editable|with-requirements|project|directory|prefix|package|config-file"
    r"|env-file|volume|mount|spec|pip-args|workspace)|-[pvCc]"
)
"""Options of launchers that may name a file or a folder whose content runs."""
_SEARCHES = re.compile(
    r"\w*(?:PATH|LIB|OPTIONS|OPTS|HOME|PRELOAD)|(?:LD|DYLD|PYTHON|NODE|RUBY|PERL)\w*|BASH_ENV|ENV"
)
"""Variables that name code to load, or where to find it."""
_SEPARATORS = re.compile(r"[\s:=,;\"'&|<>()`$]+")
_LARGEST_TEXT = 256 * 1024
"""Characters of a manifest or script that are searched for the names of files."""
_MOST_WORDS = 2000
_CALLS_OTHERS = re.compile(
    r"(?:.*\.(?:sh|bash|zsh|mk|just)|package\.json|[Mm]akefile|GNUmakefile|\.?[Jj]ustfile"
    r"|Procfile|Taskfile\.ya?ml|(?:docker-)?compose.*\.ya?ml|Dockerfile.*)"
)
"""Files that name what they run or include, whatever its suffix."""


class WatchedFiles(msgspec.Struct, frozen=True):
    """The files behind a server."""

    files: Mapping[str, str]
    """Their digests, by their path in the project."""
    gaps: tuple[str, ...] = ()
    """What may change unnoticed, in words."""


def of_server(config: ServerConfig, root: Path, folder: Path) -> WatchedFiles:
    """The files behind a server (its variables unexpanded), with their current digests."""
    scope = folders_only(folder, root)
    named = [
        locate(reference.name, scope)
        for _, reference in variables_of(config)
        if reference.source == "file"
    ]
    for _, path in paths_of(config):
        named += _put(str(path), scope, root)
    if not isinstance(config, StdioServer):
        return WatchedFiles(digests(named, root))
    program = _Program(config, root, scope)
    # named files count even where no source is looked for, such as a JSON file of settings
    named += program.named_files()
    real_root = os.path.realpath(root)
    walk = SourceWalk(real_root, _BUILT.get(program.name, frozenset()))
    sources = (source for place in program.source_folders() for source in walk.below(place))
    files = digest_sources(sources, real_root)
    return WatchedFiles(
        dict(sorted({**files, **digests(named, root)}.items())), (*program.gaps(), *walk.gaps)
    )


def of_skill(skill: Path, root: Path) -> dict[str, str]:
    """All files of a skill, by their path in the project."""
    real_root = os.path.realpath(root)
    walk = SourceWalk(real_root, everything=True)
    return digest_sources(walk.below(skill), real_root)


def digests(paths: Iterable[Path], root: Path) -> dict[str, str]:
    """The digests of existing files in the project."""
    home = Path(os.path.realpath(root))
    files: dict[str, str] = {}
    inside = f"{home}/".replace("//", "/")
    for path in dict.fromkeys(paths):
        # By real path, so that a file behind two links counts once, and a changed link is a change.
        try:
            if not os.path.lexists(path):  # most words do not name a file
                continue
            whole = os.path.realpath(path)
        except ValueError:  # no file has such a name
            continue
        if whole != str(home) and not whole.startswith(inside):
            files |= _way_out(path, home)
            continue
        real = Path(whole)
        name = real.relative_to(home).as_posix()
        if name not in files and (held := _content(whole)):
            files[name] = held if refusal(real) is None else f"{held}, and others can change it"
    return dict(sorted(files.items()))


def _way_out(path: Path, home: Path) -> dict[str, str]:
    """A link out of the project: its target is part of what is trusted."""
    with suppress(OSError, ValueError):  # most words do not name a file
        link = Path(os.path.realpath(path.parent), path.name)
        if link.is_relative_to(home) and link.is_symlink():
            return {link.relative_to(home).as_posix(): f"leads to {os.path.realpath(link)}"}
    return {}


def _content(path: str) -> str | None:
    """The digest of a file; None if it is not a file, or missing."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # most words do not name a file
        return None
    if os.path.isdir(path):
        return None
    if status.st_size > LARGEST:
        return f"{status.st_size} bytes of {status.st_mtime_ns}"
    unreadable = "unreadable" if os.path.isfile(path) else None
    return content_digest(path, status) or unreadable


class _Program:
    """What one server's command line reads in its project."""

    def __init__(self, config: StdioServer, root: Path, scope: Scope) -> None:
        self._config = config
        self._root = root
        self._scope = scope
        self.name = Path(config.command).name
        self._launch = launch_of(config.command, config.args)
        paths = () if config.cwd is None else _put(str(config.cwd), scope, root)
        self._place = next(iter(paths), root)
        """Where the program runs."""

    def named_files(self) -> Iterator[Path]:
        """Files that the command line or its variables name, and manifests."""
        config = self._config
        # a bare name is looked up on the PATH, outside the project
        if "/" in config.command:
            yield from _put(config.command, self._scope, self._place)
        values = {**self._values_of_file(), **config.env}.values()
        candidates = [*config.args]
        # NODE_OPTIONS, PYTHONPATH and their like name files that run as well, and so does the word
        # after `sh -c`.
        candidates += (
            word for value in (*config.args, *values) for word in _SEPARATORS.split(value)
        )
        # bounded: each word is looked up on the disk
        for word in dict.fromkeys(filter(None, candidates[:_MOST_WORDS])):
            for path in _put(word, self._scope, self._place):
                yield path
                yield from self._named_in(path)
                if os.path.isdir(path):
                    # a program on a PATH of the project
                    yield from (path / name for name in (*_OF_FOLDER, self.name))
        for folder in self._folders_above():
            yield from self._manifests_in(folder)
        yield from self._modules()

    def source_folders(self) -> Iterator[Path]:
        """Folders whose sources may run."""
        yield from self._search_paths()
        if self._launch is not None:
            yield from self._local_package()
            yield from (path for path in self._local_options() if os.path.isdir(path))
            return
        scripts = self._whole_arguments()
        if self._runs_scripts() and scripts:
            for script in scripts:
                yield self._home_of(script)
            yield from self._package_folders()
            return
        # an unknown program may read anything: the whole project, or its own folder of servers
        in_folder_of_servers = os.path.realpath(self._root / FOLDER)
        is_found = os.path.dirname(os.path.realpath(self._place)) == in_folder_of_servers
        yield self._place if is_found else self._root

    def gaps(self) -> Iterator[str]:
        """What may change unnoticed, in words."""
        if self._launch is not None:
            yield f"the package {self._launch.name}, which {self.name} downloads"
        elif self._runs_scripts():
            homes = {*map(self._home_of, self._whole_arguments())}
            if self._root not in homes and homes:
                yield "files of the project that are not beside its script"

    def _runs_scripts(self) -> bool:
        """Whether it finds modules beside its script, or beside the manifest above that."""
        return bool(_PYTHONS.fullmatch(self.name)) or self.name in _NODES

    def _home_of(self, script: Path) -> Path:
        """The folder in which a script finds its modules, within the project."""
        folder = Path(os.path.realpath(script)).parent
        if self.name in _NODES:
            inside = (place for place in (folder, *folder.parents) if is_within(place, self._root))
            packages = (place for place in inside if os.path.exists(place / "package.json"))
            return next(packages, folder)
        return folder

    def _whole_arguments(self) -> list[Path]:
        paths = [
            path for word in self._config.args for path in _put(word, self._scope, self._place)
        ]
        return [path for path in paths if os.path.isfile(path) and is_within(path, self._root)]

    def _folders_above(self) -> Iterator[Path]:
        """Where it runs, and the folders above that within the project: launchers look there."""
        for folder in (self._place, *self._place.parents):
            if not is_within(folder, self._root):
                return
            yield folder

    def _manifests_in(self, folder: Path) -> Iterator[Path]:
        kind = self._launch.kind if self._launch else ""
        for name in _MANIFESTS.get(kind, (*_NODE, *_PYTHON)):
            yield folder / name
        if self._launch is None:
            for path in _matching(folder):
                yield path
                yield from self._named_in(path)

    def _named_in(self, path: Path) -> Iterator[Path]:
        """The files that a script or a manifest names, such as those that it includes."""
        if _CALLS_OTHERS.fullmatch(path.name) and is_within(path, self._root):
            candidates = dict.fromkeys(_SEPARATORS.split(_text(path)))
            places = (
                path.parent / word for word in [*candidates][:_MOST_WORDS] if word.strip("./")
            )
            yield from (place for place in places if os.path.lexists(place))

    def _local_package(self) -> Iterator[Path]:
        """Packages that are installed in the project, which a launcher prefers."""
        launch = self._launch
        # `npx` runs what is installed here before it downloads anything
        if launch is None or launch.kind != "npm":
            return
        program = launch.name.rpartition("/")[2]
        for folder in self._folders_above():
            modules = folder / "node_modules"
            if any(os.path.lexists(modules / name) for name in (launch.name, f".bin/{program}")):
                yield modules

    def _local_options(self) -> Iterator[Path]:
        """Files and folders that options of a launcher name: `--from ./tool`, `-v ./src:/app`."""
        for option, value in pairwise(("", *self._config.args)):
            name, equals, rest = value.partition("=")
            text = value if _LOCAL_OPTION.fullmatch(option) else rest
            if text and (_LOCAL_OPTION.fullmatch(option) or (equals and _LOCAL_OPTION.match(name))):
                for word in filter(None, _SEPARATORS.split(text)):
                    yield from _put(word, self._scope, self._place)

    def _search_paths(self) -> Iterator[Path]:
        """Folders of the project in variables such as PYTHONPATH, and a command's environment."""
        for name, value in {**self._values_of_file(), **self._config.env}.items():
            if not _SEARCHES.fullmatch(name):
                continue
            for word in filter(None, _SEPARATORS.split(value)):
                for path in _put(word, self._scope, self._place):
                    if is_within(path, self._root) and os.path.lexists(path):
                        yield path if os.path.isdir(path) else path.parent
        if "/" in self._config.command:
            for path in _put(self._config.command, self._scope, self._place):
                if os.path.exists(path.parent.parent / "pyvenv.cfg"):
                    yield path.parent.parent

    def _package_folders(self) -> Iterator[Path]:
        """Folders of packages that a script's imports are found in."""
        for folder in self._folders_above():
            if self.name in _NODES:
                yield folder / "node_modules"
            else:
                yield from (folder / name for name in (".venv", "venv"))

    def _modules(self) -> Iterator[Path]:
        """A program or module that is found by name in its working directory."""
        args = self._config.args
        if self._launch is not None:
            for folder in self._folders_above():
                binaries = folder / "node_modules" / ".bin"
                yield from (binaries / word for word in args if "/" not in word)
        modules = [module for flag, module in pairwise(args) if flag == "-m"]
        modules += (word[2:] for word in args if word.startswith("-m"))
        for module in filter(None, modules):
            path = self._place.joinpath(*module.split("."))
            yield path.with_name(f"{path.name}.py")
            yield from (path / name for name in _OF_FOLDER)
            yield from _outer_packages(module, self._place)

    def _values_of_file(self) -> dict[str, str]:
        if self._config.env_file is not None:
            for path in _put(str(self._config.env_file), self._scope, self._root):
                return parse_env(_text(path))
        return {}


def _matching(folder: Path) -> Iterator[Path]:
    """Files in a folder that name what is run or included."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if _CALLS_OTHERS.fullmatch(entry.name))
    except OSError:
        return
    yield from (folder / name for name in names[:_MOST_WORDS])


def _text(path: Path) -> str:
    try:
        return read_regular(path, _LARGEST_TEXT).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _outer_packages(module: str, place: Path) -> Iterator[Path]:
    """The code of the packages around a module, which runs first."""
    folder = place
    for name in module.split("."):
        if not os.path.isdir(folder):
            return  # a name may have thousands of parts, which would take quadratic time
        yield folder / "__init__.py"
        folder /= name


def _put(word: str, scope: Scope, place: Path) -> tuple[Path, ...]:
    with suppress(ConfigError, ValueError):
        expanded = expand(word, scope)
        if "\0" not in expanded:
            return (locate(expanded, scope) if expanded.startswith("~") else place / expanded,)
    return ()
