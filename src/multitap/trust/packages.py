"""Which package a launcher such as `npx` starts: as written, and as resolved."""

import json
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Literal

import msgspec

from multitap.files import read_regular
from multitap.trust.lock_file import UNKNOWN, LockedPackage

Kind = Literal["npm", "pypi", "docker"]
_EXACT = re.compile(r"v?\d+(\.\d+)*([-+.]?[a-z0-9][\w.+-]*)?", re.IGNORECASE)
_RANGE = re.compile(r"[\[<>=!~; ]")
# PEP 503: a run of these counts as one, in any case of letters
_NORMAL = re.compile(r"[-_.]+")
# the folders that npx and uv make for a package
_NPX = re.compile(r"(/\S*?/_npx/[0-9a-f]+)/")
_UV = re.compile(r"(/\S*?/archive-v\d+/[\w-]+)/")
_SWITCHES = {
    "npx": frozenset({"-y", "--yes", "-q", "--quiet", "--no", "--no-install", "--prefer-offline"}),
    "uvx": frozenset({"-q", "--quiet", "-v", "--verbose", "--offline", "--isolated", "--no-cache"}),
    "docker": frozenset(
        {"-i", "-t", "-it", "-ti", "--rm", "--init", "-d", "--interactive", "--tty", "--privileged"}
        | {"--read-only", "-q", "--quiet", "--no-healthcheck"}
    ),
}
"""Options of each launcher without a value; others take the next argument, or have a `=`."""
_GIVEN = {"npx": frozenset({"-p", "--package"}), "uvx": frozenset({"--from"})}
"""Options that name the package, if it is not the first argument."""
# A launcher has few processes below it; a server that forks all the time must not keep us busy.
_MOST_PROCESSES = 64
# Servers control these files; a lock of thousands of packages has a few megabytes.
_LARGEST_FILE = 64 * 1024 * 1024


class LaunchedPackage(msgspec.Struct, frozen=True):
    """A package in a configuration."""

    kind: Kind
    name: str
    version: str
    """The version as written; may be empty."""

    @property
    def is_exact(self) -> bool:
        """Whether the version is exact, so that each start runs the same package."""
        if self.kind == "docker":
            return self.version.startswith("sha256:")
        return _EXACT.fullmatch(self.version) is not None


def launch_of(command: str, args: Sequence[str]) -> LaunchedPackage | None:
    """The package that a command line starts; None if there is none, or it is unknown."""
    command_line = [PurePath(command).name.removesuffix(".cmd").removesuffix(".exe"), *args]
    match command_line:
        case ["npx" | "bunx" | "pnpx", *rest]:
            return _parse("npm", _package_argument("npx", rest))
        case ["npm", "exec" | "x", *rest] | ["pnpm", "dlx", *rest] | ["yarn", "dlx", *rest]:
            return _parse("npm", _package_argument("npx", rest))
        case ["uvx", *rest] | ["uv", "tool", "run", *rest] | ["pipx", "run", *rest]:
            return _parse("pypi", _package_argument("uvx", rest))
        case ["docker" | "podman" | "nerdctl", "run", *rest]:
            return _parse("docker", _package_argument("docker", rest))
        case _:
            return None


def resolve(launch: LaunchedPackage, pid: int | None) -> LockedPackage:
    """The package that was really started, found by files and processes; blocks.

    Runs no program: a project's launcher may be anything.
    """
    match launch.kind:
        case "docker":
            digest = launch.version if launch.is_exact else UNKNOWN
            return LockedPackage("docker", launch.name, launch.version or UNKNOWN, digest)
        case "npm":
            homes = _homes(_NPX, pid)
            return next(filter(None, (_of_npm(home, launch.name) for home in homes)), None) or (
                LockedPackage("npm", launch.name)
            )
        case "pypi":
            homes = _homes(_UV, pid)
            return next(filter(None, (_of_pypi(home, launch.name) for home in homes)), None) or (
                LockedPackage("pypi", launch.name)
            )


def _package_argument(launcher: str, args: Sequence[str]) -> str:
    """The argument that names the package."""
    named = _GIVEN.get(launcher, frozenset())
    arguments = iter(args)
    for word in arguments:
        option, equals, value = word.partition("=")
        if option in named:
            return value if equals else next(arguments, "")
        if word == "--":
            return next(arguments, "")
        if not word.startswith("-"):
            return word
        if not equals and word not in _SWITCHES[launcher]:
            next(arguments, None)
    return ""


def _parse(kind: Kind, spec: str) -> LaunchedPackage | None:
    if not spec or spec.startswith((".", "/", "git+", "http:", "https:", "file:")):
        return None
    if kind == "docker":
        name, _, version = spec.partition("@")
        if not version and ":" in name.rpartition("/")[2]:
            name, _, version = name.rpartition(":")
        return LaunchedPackage(kind, name, version)
    name, version = spec, ""
    for mark in ("==", "@"):
        head, separator, tail = spec.rpartition(mark)
        if separator and head:  # a scope also begins with `@`
            name, version = head, tail
            break
    return LaunchedPackage(kind, _RANGE.split(name)[0], version)


def _homes(pattern: re.Pattern[str], pid: int | None) -> Iterator[Path]:
    """Folders that a launcher created for a package, found in its processes' arguments."""
    for process in _family(pid):
        try:
            line = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b"\n").decode()
        except (OSError, UnicodeDecodeError):
            continue
        if match := pattern.search(line):
            yield Path(match[1])


def _family(pid: int | None) -> list[int]:
    """A process and its descendants."""
    family = [] if pid is None else [pid]
    for process in family:
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            try:
                family += map(int, children.read_text().split())
            except (OSError, ValueError):
                continue
        if len(family) > _MOST_PROCESSES:
            break
    return family


def _of_npm(home: Path, name: str) -> LockedPackage | None:
    packages = home / "node_modules"
    try:
        described = json.loads(read_regular(packages / name / "package.json", _LARGEST_FILE))
        version = str(described["version"])
        lock = json.loads(read_regular(packages / ".package-lock.json", _LARGEST_FILE))
        integrity = str(lock["packages"][f"node_modules/{name}"].get("integrity", UNKNOWN))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return LockedPackage("npm", name, version, integrity)


def _of_pypi(home: Path, name: str) -> LockedPackage | None:
    normal = _NORMAL.sub("_", name).lower()
    for folder in home.glob("lib/python*/site-packages/*.dist-info"):
        distribution, _, version = folder.name.removesuffix(".dist-info").partition("-")
        if _NORMAL.sub("_", distribution).lower() == normal:
            return LockedPackage("pypi", name, version, _content(folder))
    return None


def _content(folder: Path) -> str:
    """A digest of a Python package's files, without those that its installation adds."""
    try:
        lines = read_regular(folder / "RECORD", _LARGEST_FILE).decode().splitlines()
    except (OSError, UnicodeDecodeError):
        return UNKNOWN
    own = sorted(line for line in lines if not line.startswith(("../", f"{folder.name}/")))
    return f"sha256:{sha256(chr(10).join(own).encode()).hexdigest()}"
