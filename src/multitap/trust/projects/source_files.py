"""The sources below a folder, and digests of them that are cheap to compare again.

Sources are read; of installed packages, of which there may be thousands, only sizes and times
count. What a program writes as data (`.json`, `.md`, `.db`) is no source: it would ask again after
each use.
"""

import os
import stat
import time
from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from multitap.config.owners import is_shared
from multitap.records import dataclass
from multitap.regular_file import open_regular

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


@dataclass(frozen=True, slots=True)
class SourceFile:
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
            if any(entry.name == _ENVIRONMENT for entry in inside):
                package = package or place
            folders = [entry for entry in inside if entry.is_dir(follow_symlinks=False)]
            files = [entry for entry in inside if not entry.is_dir(follow_symlinks=False)]
            self._left -= len(files)
            if self._left < 0:
                self._give_up(top)
                return
            yield from filter(None, (self._source(entry, package) for entry in files))
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
            held = _content(source) if is_linked else _times(source.status)
            packages.setdefault(source.package_folder, []).append(f"{name} {held}")
            continue
        read += 1
        held = _content(source) if read <= MAX_FILES else _times(source.status)
        if not stat.S_ISLNK(source.status.st_mode) and is_shared(source.status):
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


def _content(source: SourceFile) -> str:
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
