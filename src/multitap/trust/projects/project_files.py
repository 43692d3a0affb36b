"""The files of a project that determine what its servers, functions or skills do.

A server's are those that its command, arguments and environment name, the manifests that its
program reads where it runs, and for a server of `mcpservers/` the sources in its folder. What those
import from elsewhere is not looked at.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from secrets import token_hex

from multitap.config.expand import variables
from multitap.config.models import ServerConfig, StdioServer
from multitap.config.owners import is_within, refusal
from multitap.config.project_bounds import folders_only
from multitap.config.scope import Scope, expand, located
from multitap.config.search import FOLDER
from multitap.errors import ConfigError

MAX_FILES = 500
"""Files that are read: all of them again before each start, which must not take long. Of those
beyond, only the size and the times of change count."""
MOST_FILES = 20_000
"""Files that are looked at; a project with more cannot be compared, and so is never unchanged."""
LARGEST = 64 * 1024 * 1024
"""Bytes of one file; of a larger one, only the size and the time of change count."""
SOURCES = frozenset(
    (
        *(".py", ".pth", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".jsx", ".tsx", ".wasm"),
        *(".sh", ".rb", ".pl", ".lua", ".so", ".node", ".toml", ".lock"),
    )
)
MANIFESTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("npm", "npx", "pnpm", "pnpx", "yarn"), ("package.json", ".npmrc", ".yarnrc")),
    **dict.fromkeys(("bun", "bunx"), ("package.json", "bunfig.toml", ".npmrc")),
    **dict.fromkeys(("uv", "uvx"), ("pyproject.toml", "uv.toml", "uv.lock")),
    "deno": ("deno.json", "deno.jsonc", "package.json"),
    "make": ("Makefile", "makefile", "GNUmakefile"),
    "just": ("justfile", "Justfile", ".justfile"),
    "docker": ("compose.yaml", "docker-compose.yml", "Dockerfile"),
}
"""What a program reads in the folder it runs in, to know what to run."""
_OF_FOLDER = (
    "__main__.py",
    "__init__.py",
    "package.json",
    "index.js",
    "index.mjs",
    "pyproject.toml",
)
_SKIPPED = frozenset(("node_modules", "__pycache__"))
_SEPARATORS = re.compile(r"[\s:=,;]+")
_CHUNK = 1024 * 1024


def of_server(config: ServerConfig, root: Path, folder: Path) -> dict[str, str]:
    """The files behind a server, by their path in the project, with what each holds now.

    Args:
        config: With its variables still in it.
        root: The project's folder.
        folder: The folder that is worked in.
    """
    scope = folders_only(folder)
    named = [
        located(reference.name, scope)
        for _, reference in variables(config)
        if reference.source == "file"
    ]
    if isinstance(config, StdioServer):
        named += _of_program(config, root, scope)
    return digests(named, root)


def of_skill(skill: Path, root: Path) -> dict[str, str]:
    """All files of a skill, by their path in the project."""
    return digests(_tree(skill), root)


def digests(paths: Iterable[Path], root: Path) -> dict[str, str]:
    """What those files hold that are in the project, and are there."""
    home = Path(os.path.realpath(root))
    found: dict[str, str] = {}
    rest: dict[str, str] = {}
    for path in paths:
        if not is_within(path, root):
            continue
        # By real path, so that a file behind two links counts once, and a changed link changes what
        # is trusted.
        real = Path(os.path.realpath(path))
        name = real.relative_to(home).as_posix()
        if name in found or name in rest:
            continue
        if len(found) == MAX_FILES:
            rest[name] = _times(real)
            if len(rest) == MOST_FILES:
                rest[name] = token_hex()  # equal to nothing: what follows may change unseen
                break
        elif held := _held(real):
            found[name] = held if refusal(real) is None else f"{held}, and others can change it"
    if rest:
        summary = sha256("\n".join(f"{name} {rest[name]}" for name in sorted(rest)).encode())
        found[f"({len(rest):,} more files)"] = f"sha256:{summary.hexdigest()}"
    return dict(sorted(found.items()))


def _times(path: Path) -> str:
    """A file's size and times; nobody can set the second one back."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _held(path: Path) -> str | None:
    """What a file holds, in one word; None: it is not a file, or not there."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            if status.st_size > LARGEST:
                return f"{status.st_size} bytes of {status.st_mtime_ns}"
            digest = sha256()
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            return f"sha256:{digest.hexdigest()}"
    except PermissionError:
        return "unreadable"
    except (OSError, ValueError):  # many words are no names of files
        return None


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # nobody may ever write to a pipe


def _of_program(config: StdioServer, root: Path, scope: Scope) -> Iterator[Path]:
    place = _place(config, scope)
    if config.env_file is not None:
        yield from _put(str(config.env_file), scope, scope.folder)
    if "/" in config.command:
        yield from _put(config.command, scope, place)
    words = [*config.args]
    # NODE_OPTIONS, PYTHONPATH and their like name files that run as well.
    words += (word for value in config.env.values() for word in _SEPARATORS.split(value))
    words += (word.partition("=")[2] for word in config.args if "=" in word)
    for word in filter(None, words):
        for path in _put(word, scope, place):
            yield path
            if os.path.isdir(path) and not is_within(root, path):  # noqa: PTH112 - never raises
                yield from (path / name for name in _OF_FOLDER)
    program = Path(config.command).name
    yield from (place / name for name in MANIFESTS.get(program, ()))
    yield from _of_package(program, config.args, place)
    if Path(os.path.realpath(place)).parent == Path(os.path.realpath(root / FOLDER)):
        yield from _tree(place, only=SOURCES)


def _of_package(program: str, args: tuple[str, ...], place: Path) -> Iterator[Path]:
    """A program or module that is found by its name where it runs."""
    if program in MANIFESTS:
        yield from (place / "node_modules" / ".bin" / word for word in args if "/" not in word)
    for flag, module in pairwise(args):
        if flag == "-m":
            path = place.joinpath(*module.split("."))
            yield from (path.with_name(f"{path.name}.py"), *(path / name for name in _OF_FOLDER))


def _place(config: StdioServer, scope: Scope) -> Path:
    """Where the program runs."""
    paths = () if config.cwd is None else _put(str(config.cwd), scope, scope.folder)
    return next(iter(paths), scope.folder)


def _put(word: str, scope: Scope, place: Path) -> tuple[Path, ...]:
    with suppress(ConfigError, ValueError):
        found = expand(word, scope)
        if "\0" not in found:
            return (located(found, scope) if found.startswith("~") else place / found,)
    return ()


def _tree(folder: Path, *, only: frozenset[str] | None = None) -> Iterator[Path]:
    """The files below a folder, hidden ones and installed packages aside, in a fixed order."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(one for one in folders if one not in _SKIPPED and one[0] != ".")
        for name in sorted(files):
            if name == "package.json" or only is None or Path(name).suffix in only:
                yield Path(place, name)
