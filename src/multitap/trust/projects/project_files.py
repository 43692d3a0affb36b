"""The files of a project that determine what its servers, functions or skills do.

A server's are those that its command, arguments and environment name, the manifests that its
program reads where it runs with the scripts that they name, and for a server of `mcpservers/` the
sources in its folder. What those import from elsewhere is not looked at.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from secrets import token_hex

from multitap.config.expand import parse_env, variables
from multitap.config.folders import files_below
from multitap.config.models import ServerConfig, StdioServer
from multitap.config.owners import is_within, refusal
from multitap.config.project_bounds import folders_only, paths_of
from multitap.config.scope import Scope, expand, locate
from multitap.config.search import FOLDER
from multitap.errors import ConfigError
from multitap.regular_file import open_regular, read_regular

MAX_FILES = 500
"""Files that are read, again before each start, which must not take long. For further ones,
only the size and times count."""
MOST_FILES = 20_000
"""Files that are considered; a project with more always counts as changed."""
LARGEST = 64 * 1024 * 1024
"""Bytes of one file; for a larger one, only the size and the modification time count."""
SOURCES = frozenset(
    (
        *(".py", ".pth", ".js", ".mjs", ".cjs", ".ts", ".mts", ".cts", ".jsx", ".tsx", ".wasm"),
        *(".sh", ".rb", ".pl", ".lua", ".so", ".node", ".toml", ".lock", ".pyc", ".jar", ".php"),
    )
)
MANIFESTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("npm", "npx", "pnpm", "pnpx", "yarn"), ("package.json", ".npmrc", ".yarnrc")),
    **dict.fromkeys(
        ("bun", "bunx"), ("package.json", "bunfig.toml", "tsconfig.json", ".npmrc", ".env")
    ),
    **dict.fromkeys(("uv", "uvx"), ("pyproject.toml", "uv.toml", "uv.lock")),
    "deno": ("deno.json", "deno.jsonc", "package.json"),
    "make": ("Makefile", "makefile", "GNUmakefile"),
    "just": ("justfile", "Justfile", ".justfile"),
    "docker": ("compose.yaml", "docker-compose.yml", "Dockerfile"),
}
"""Files that tell a program what to run, in its working directory."""
_OF_FOLDER = (
    "__main__.py",
    "__init__.py",
    "package.json",
    "index.js",
    "index.mjs",
    "pyproject.toml",
)
_SKIPPED = frozenset(("node_modules", "__pycache__"))
_SEPARATORS = re.compile(r"[\s:=,;\"']+")
_LARGEST_TEXT = 256 * 1024
"""Characters of a manifest that are searched for the names of scripts."""
_CHUNK = 1024 * 1024


def of_server(config: ServerConfig, root: Path, folder: Path) -> dict[str, str]:
    """The files behind a server, by their path in the project, with their current digests.

    Args:
        config: The configuration, with unexpanded variables.
        root: The project's folder.
        folder: The current folder.
    """
    scope = folders_only(folder, root)
    named = [
        locate(reference.name, scope)
        for _, reference in variables(config)
        if reference.source == "file"
    ]
    for _, path in paths_of(config):
        named += _put(str(path), scope, root)
    if isinstance(config, StdioServer):
        named += _of_program(config, root, scope)
    return digests(named, root)


def of_skill(skill: Path, root: Path) -> dict[str, str]:
    """All files of a skill, by their path in the project."""
    return digests(_tree(skill), root)


def digests(paths: Iterable[Path], root: Path) -> dict[str, str]:
    """The digests of existing files in the project."""
    home = Path(os.path.realpath(root))
    found: dict[str, str] = {}
    rest: dict[str, str] = {}
    inside = f"{home}/".replace("//", "/")
    for path in paths:
        # By real path, so that a file behind two links counts once, and a changed link is a change.
        try:
            whole = os.path.realpath(path)
        except ValueError:  # no file has such a name
            continue
        if whole != str(home) and not whole.startswith(inside):
            found |= _way_out(path, home)
            continue
        real = Path(whole)
        name = real.relative_to(home).as_posix()
        if name in found or name in rest:
            continue
        if len(found) == MAX_FILES:
            rest[name] = _times(real)
            if len(rest) == MOST_FILES:
                rest[name] = token_hex()  # never equal: the remaining files may change unnoticed
                break
        elif held := _content_kind(real):
            found[name] = held if refusal(real) is None else f"{held}, and others can change it"
    if rest:
        summary = sha256("\n".join(f"{name} {rest[name]}" for name in sorted(rest)).encode())
        found[f"({len(rest):,} more files)"] = f"sha256:{summary.hexdigest()}"
    return dict(sorted(found.items()))


def _way_out(path: Path, home: Path) -> dict[str, str]:
    """A link out of the project: its target is part of what is trusted."""
    with suppress(OSError, ValueError):  # most words do not name a file
        link = Path(os.path.realpath(path.parent), path.name)
        if link.is_relative_to(home) and link.is_symlink():
            return {link.relative_to(home).as_posix(): f"leads to {os.path.realpath(link)}"}
    return {}


def _times(path: Path) -> str:
    """A file's size and times; the change time cannot be set back."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _content_kind(path: Path) -> str | None:
    """The digest of a file; None if it is not a file, or missing."""
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            if status.st_size > LARGEST:
                return f"{status.st_size} bytes of {status.st_mtime_ns}"
            digest = sha256()
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            return f"sha256:{digest.hexdigest()}"
    except PermissionError:
        return "unreadable"
    except (OSError, ValueError):  # most words do not name a file
        return None


def _of_program(config: StdioServer, root: Path, scope: Scope) -> Iterator[Path]:
    place = _place(config, root, scope)
    values = [*config.env.values()]
    if config.env_file is not None:
        for path in _put(str(config.env_file), scope, root):
            values += parse_env(_text(path)).values()
    if "/" in config.command:
        yield from _put(config.command, scope, place)
    words = [*config.args]
    # NODE_OPTIONS, PYTHONPATH and their like name files that run as well, and so does the word
    # after `sh -c`.
    words += (word for value in (*config.args, *values) for word in _SEPARATORS.split(value))
    program = Path(config.command).name
    manifests = MANIFESTS.get(program, ())
    for word in dict.fromkeys(filter(None, words)):
        for path in _put(word, scope, place):
            yield path
            if os.path.isdir(path):  # noqa: PTH112 - never raises
                # a program on a PATH of the project
                yield from (path / name for name in (*_OF_FOLDER, *manifests, program))
    for name in manifests:
        yield place / name
        yield from _named_in(place / name, root)
    yield from _of_package(program, config.args, place)
    if Path(os.path.realpath(place)).parent == Path(os.path.realpath(root / FOLDER)):
        yield from _tree(place, only=SOURCES)


def _named_in(manifest: Path, root: Path) -> Iterator[Path]:
    """The scripts that a manifest names: `npm start` runs one of them."""
    if is_within(manifest, root):
        words = dict.fromkeys(_SEPARATORS.split(_text(manifest)))
        yield from (manifest.parent / word for word in words if Path(word).suffix in SOURCES)


def _text(path: Path) -> str:
    try:
        return read_regular(path, _LARGEST_TEXT).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _of_package(program: str, args: tuple[str, ...], place: Path) -> Iterator[Path]:
    """A program or module that is found by name in its working directory."""
    if program in MANIFESTS:
        yield from (place / "node_modules" / ".bin" / word for word in args if "/" not in word)
    modules = [module for flag, module in pairwise(args) if flag == "-m"]
    modules += (word[2:] for word in args if word.startswith("-m"))
    for module in filter(None, modules):
        path = place.joinpath(*module.split("."))
        yield path.with_name(f"{path.name}.py")
        yield from (path / name for name in _OF_FOLDER)
        yield from _outer_packages(module, place)


def _outer_packages(module: str, place: Path) -> Iterator[Path]:
    """The code of the packages around a module, which runs first."""
    folder = place
    for name in module.split("."):
        if not os.path.isdir(folder):  # noqa: PTH112 - never raises
            return  # a name may have thousands of parts, which would take quadratic time
        yield folder / "__init__.py"
        folder /= name


def _place(config: StdioServer, root: Path, scope: Scope) -> Path:
    """Where the program runs."""
    paths = () if config.cwd is None else _put(str(config.cwd), scope, root)
    return next(iter(paths), root)


def _put(word: str, scope: Scope, place: Path) -> tuple[Path, ...]:
    with suppress(ConfigError, ValueError):
        found = expand(word, scope)
        if "\0" not in found:
            return (locate(found, scope) if found.startswith("~") else place / found,)
    return ()


def _tree(folder: Path, *, only: frozenset[str] | None = None) -> Iterator[Path]:
    """The files below a folder, without hidden ones and installed packages, in a fixed order."""
    for path in files_below(folder, skips=lambda name: name in _SKIPPED or name.startswith(".")):
        if path.name == "package.json" or only is None or path.suffix in only:
            yield path
