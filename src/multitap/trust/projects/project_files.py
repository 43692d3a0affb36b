"""The files of a project that determine what its servers, functions or skills do.

A server's are those that its command, arguments and environment name, and those that its program
reads: for a package that a launcher downloads, the manifests that configure the launcher; for
anything else, the sources of the project, with the packages that are installed in it.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from multitap.config.expand import parse_env, variables
from multitap.config.models import ServerConfig, StdioServer
from multitap.config.owners import is_within, refusal
from multitap.config.project_bounds import folders_only, paths_of
from multitap.config.scope import Scope, expand, locate
from multitap.config.search import FOLDER
from multitap.errors import ConfigError
from multitap.records import dataclass
from multitap.regular_file import read_regular
from multitap.trust.pins.packages import launch_of
from multitap.trust.projects.source_files import (
    LARGEST,
    SourceWalk,
    content_digest,
    digest_sources,
)

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


@dataclass(frozen=True, slots=True)
class WatchedFiles:
    """The files behind a server."""

    files: Mapping[str, str]
    """Their digests, by their path in the project."""
    gaps: tuple[str, ...] = ()
    """What may change unnoticed, in words."""


def of_server(config: ServerConfig, root: Path, folder: Path) -> WatchedFiles:
    """The files behind a server, with their current digests.

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
    if not isinstance(config, StdioServer):
        return WatchedFiles(digests(named, root))
    program = _Program(config, root, scope)
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
    found: dict[str, str] = {}
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
            found |= _way_out(path, home)
            continue
        real = Path(whole)
        name = real.relative_to(home).as_posix()
        if name not in found and (held := _content(whole)):
            found[name] = held if refusal(real) is None else f"{held}, and others can change it"
    return dict(sorted(found.items()))


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
        if "/" in config.command:
            yield from _put(config.command, self._scope, self._place)
        values = {**self._values_of_file(), **config.env}.values()
        words = [*config.args]
        # NODE_OPTIONS, PYTHONPATH and their like name files that run as well, and so does the word
        # after `sh -c`.
        words += (word for value in (*config.args, *values) for word in _SEPARATORS.split(value))
        for word in dict.fromkeys(filter(None, words[:_MOST_WORDS])):
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
            words = dict.fromkeys(_SEPARATORS.split(_text(path)))
            places = (path.parent / word for word in [*words][:_MOST_WORDS] if word.strip("./"))
            yield from (place for place in places if os.path.lexists(place))

    def _local_package(self) -> Iterator[Path]:
        """Packages that are installed in the project, which a launcher prefers."""
        launch = self._launch
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
