"""What a server was seen to use, and the narrowest sandbox rules for it."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from multitap.config.models import SandboxRules
from multitap.events import HostTraffic, RefusedHost
from multitap.sandbox.places import PrivatePaths, is_within, outermost
from multitap.sandbox.plan import SandboxPlan

_MOST = 200  # hosts that are counted separately: a program may try any number of names


class Traffic:
    """Counts for one program."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._refused: dict[str, tuple[str, int]] = {}

    def on_opened(self, host: str) -> None:
        self._count(host)[0] += 1

    def on_sent(self, host: str, size: int) -> None:
        self._count(host)[1] += size

    def on_received(self, host: str, size: int) -> None:
        self._count(host)[2] += size

    def on_refused(self, host: str, reason: str) -> None:
        if host in self._refused or len(self._refused) < _MOST:
            self._refused[host] = (reason, self._refused.get(host, ("", 0))[1] + 1)

    def hosts(self) -> tuple[HostTraffic, ...]:
        return tuple(HostTraffic(host, *counts) for host, counts in self._counts.items())

    def refusals(self) -> tuple[RefusedHost, ...]:
        return tuple(RefusedHost(host, *details) for host, details in self._refused.items())

    def _count(self, host: str) -> list[int]:
        if host not in self._counts and len(self._counts) >= _MOST:
            host = "others"
        return self._counts.setdefault(host, [0, 0, 0])


_SEVERAL = 4  # files of one folder that are replaced by the folder
_IN_PACKAGE = re.compile(r".*?/(?:node_modules/(?:@[^/]+/)?[^/]+|(?:site|dist)-packages)(?=/)")
"""Up to the package of a file; the rest of it is needed sooner or later."""
_PASSING = ("/proc", "/sys", "/dev", "/run")
"""Paths that programs look up but do not need."""


class LearnedRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that a server needs, and the paths that it cannot get."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    """Paths that no rule can open."""
    proc: bool = False
    """Whether it starts only if all its processes may read their own `/proc/self`."""

    def join(self, other: "LearnedRules") -> "LearnedRules":
        """The union of both."""
        return LearnedRules(
            read=_either(self.read, other.read),
            write=_either(self.write, other.write),
            hosts=_either(self.hosts, other.hosts),
            private=_either(self.private, other.private),
            proc=self.proc or other.proc,
        )

    def as_settings(self) -> SandboxRules:
        """The rules as a server's configuration has them."""
        return SandboxRules(
            read=tuple(map(Path, self.read)),
            write=tuple(map(Path, self.write)),
            hosts=self.hosts,
            proc=self.proc,
        )


def _either(some: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*some, *others}))


def learn_rules(
    plan: SandboxPlan,
    private: PrivatePaths,
    *,
    read: Iterable[str],
    changed: Iterable[str],
    hosts: Iterable[str],
    arguments: Sequence[str],
    home: Path,
) -> LearnedRules:
    """The rules that a server lacks.

    Args:
        arguments: Its arguments; folders among them are meant for it.
        home: The user's home folder, which is not opened as a whole.
    """
    closed = [path for path in changed if not _is_open(path, plan.write, plan.devices)]
    write = outermost(_folder_to_write(path, home) for path in closed if not _is_passing(path))
    write = tuple(path for path in write if not _is_open(path, plan.write))
    folders = [path for path in arguments if os.path.isabs(path) and os.path.isdir(path)]
    looked_at = [
        path
        for path in (*read, *folders)
        if os.path.exists(path)
        and not _is_passing(path)
        and not _is_open(path, plan.read, plan.write, plan.devices, write)
    ]
    reads = _group(looked_at, home)
    refused = [path for path in (*reads, *write) if not private.openable(path)]
    return LearnedRules(
        read=outermost(path for path in reads if path not in refused),
        write=tuple(path for path in write if path not in refused),
        hosts=tuple(sorted({host_rule(host) for host in hosts} - {*plan.hosts})),
        private=tuple(refused),
    )


def _is_open(path: str, *opened: Iterable[str]) -> bool:
    real = os.path.realpath(path)
    return any(is_within(real, place) for places in opened for place in places)


def _is_passing(path: str) -> bool:
    return any(is_within(path, place) for place in _PASSING)


def _folder_to_write(path: str, home: Path) -> str:
    """The path to open for changes: creating a file requires its folder."""
    real = os.path.realpath(path)
    if os.path.isdir(real):
        return real
    folder = os.path.dirname(real)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return real if is_within(str(home), folder) else folder


def _group(paths: Iterable[str], home: Path) -> list[str]:
    """Files, or their folder if there are several."""
    by_folder: dict[str, set[str]] = defaultdict(set)
    for path in paths:
        real = os.path.realpath(path)
        # a program that lists the home folder does not need its keys
        if not is_within(str(home), real):
            by_folder[os.path.dirname(real)].add(real)
    grouped: list[str] = []
    for folder, files in by_folder.items():
        whole = len(files) >= _SEVERAL and not is_within(str(home), folder)
        grouped += [folder] if whole else sorted(files)
    return [*dict.fromkeys(_package(path) for path in grouped)]


def _package(path: str) -> str:
    """The folder of the package that a file belongs to, or the file itself."""
    match = _IN_PACKAGE.match(path)
    return match[0] if match else path


def host_rule(host: str) -> str:
    """The shortest rule for a reached host with its port."""
    return host.removesuffix(":443").removesuffix(":80")
