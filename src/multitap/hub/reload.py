"""Keeps a running hub in step with its configuration files."""

import logging
import traceback
import warnings
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from multitap.config.layers import Loaded
from multitap.config.models import ServerConfig, Settings
from multitap.config.problems import Place, Problem, Severity, serious
from multitap.config.projects import TrustState
from multitap.config.sources import Surroundings, native
from multitap.config.watch import changes
from multitap.errors import UnknownName, UntrustedWarning, counted, ungrouped
from multitap.events import Reloaded, ReloadFailed, Withheld, untrusted_words
from multitap.hub.supervisor import Plan
from multitap.tasks import keep_going
from multitap.trust.projects import expand_trusted, load_trusted

if TYPE_CHECKING:
    from multitap.hub.hub import Hub

logger = logging.getLogger(__name__)

Loader = Callable[[], Loaded]
"""Reads the files as they are now."""
HEAD_START = 0.5
"""Seconds after a start before files are watched; changes meanwhile are not missed."""
SECOND_LOOK = 0.25
"""Seconds after which files that no longer name a running server are read again."""
# Five seconds in total: a file that keeps changing for longer is used as it is.
LOOKS = 20
"""How often they are read again at most."""
MOST_PROBLEMS = 100
"""Problems listed in one event and in the log."""


class Reloader:
    """The configuration files of a hub, and the settings it runs with.

    Files that are unreadable or empty change nothing: the hub keeps its settings. An entry that
    cannot be used changes nothing for its server. `loader` reads the files; by default, those that
    the command line finds.
    """

    def __init__(self, loader: Loader = load_trusted) -> None:
        self._loader = loader
        self._latest = loader()
        self.loaded = self._latest
        """The files as they were last applied."""
        # a person and the watcher may reload at the same time
        self._turn = anyio.Lock()
        self._watch: anyio.CancelScope | None = None

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems of the files as last read, applied or not."""
        return self._latest.problems

    def expand(self, name: str, config: ServerConfig) -> ServerConfig:
        """Expand a server's variables; for `open_hub`, so that errors name file and line.

        Raises:
            ConfigError: A variable has no value.
        """
        return expand_trusted(self.loaded, name, config, places=self._places(name))

    async def reload(self, hub: "Hub") -> Reloaded | ReloadFailed:
        """Read the files now and apply them to the hub; the outcome is also published."""
        before = hub.withheld
        async with self._turn:
            watched = self._latest.search.sources
            report = await self._take_over(hub)
            if self._watch is not None and self._latest.search.sources != watched:
                self._watch.cancel()  # `follow` sets up another one
        hub.events.publish(report)
        if isinstance(report, Reloaded):
            for change in report.changes:
                logger.info("%s", change)
        for problem in report.problems:
            logger.warning("%s", problem)
        self._report_withheld(before, hub.withheld)
        return report

    def _report_withheld(self, before: Collection[Withheld], now: Collection[Withheld]) -> None:
        for part in now:
            if part not in before:
                logger.warning("%s", " ".join(filter(None, (part.kind, part.name, part.words))))

    async def follow(self, hub: "Hub") -> None:
        """Reload whenever a file changes, until cancelled; not while `auto_reload` is off."""
        while True:
            with anyio.CancelScope() as self._watch:
                await self._follow_sources(hub)

    async def _follow_sources(self, hub: "Hub") -> None:
        with anyio.move_on_after(HEAD_START):
            await hub.settled()
        latest = self._latest
        decisions = {*latest.approval.files}
        async with aclosing(changes(latest.watched, since=latest.stamps)) as saved:
            async for changed in saved:
                # Withdrawn trust takes effect at once, even while `auto_reload` is off.
                if hub.settings.auto_reload or not decisions.isdisjoint(changed):
                    await self.reload(hub)

    async def _take_over(self, hub: "Hub") -> Reloaded | ReloadFailed:
        running = hub.settings.servers
        try:
            latest = await self._read(running)
        except Exception as exc:  # noqa: BLE001 - boundary: the hub keeps its settings
            return ReloadFailed((f"the configuration cannot be read: {exc}",))
        self._latest = latest
        if not latest.intact:
            return ReloadFailed(_problem_words(latest.errors))
        # A typo in one entry must not stop the server that runs with its previous version.
        unchanged = {name: running[name] for name in _unsettled_servers(latest) if name in running}
        before, self.loaded = self.loaded, latest
        servers = {**latest.settings.servers, **unchanged}
        hub.withheld = withheld_parts(latest)
        plan = hub.apply(latest.settings.with_servers(servers))
        return Reloaded(
            str(plan),
            _problem_words(serious(latest.problems)),
            tuple(sorted(unchanged)),
            _changes(plan, before, latest),
        )

    async def _read(self, running: Iterable[str]) -> Loaded:
        """Read the files; before a server is removed, they are read again.

        A file that is being replaced may be gone, or half written, for a moment.
        """
        latest = await self._load()
        for _ in range(LOOKS):
            named = latest.settings.servers.keys() | latest.merged.servers.keys()
            if not latest.intact or named >= set(running):
                break
            await anyio.sleep(SECOND_LOOK)
            previous, latest = latest, await self._load()
            if previous.stamps == latest.stamps:  # not written since before it was read
                return previous
        return latest

    # Reads and parses many files; the loop serves calls meanwhile. Nobody else uses the result of a
    # reload that was cancelled.
    async def _load(self) -> Loaded:
        return await to_thread.run_sync(self._loader, abandon_on_cancel=True)

    def _places(self, name: str) -> Mapping[str, Place]:
        try:
            return self.loaded.places(name)
        except UnknownName:  # it was added by a program
            return {}


def _changes(plan: Plan, before: Loaded, after: Loaded) -> tuple[str, ...]:
    """The changes per server, each with its place in the files."""
    verbs = (
        *((name, "added", after) for name in sorted(plan.start)),
        *((name, "replaced", after) for name in sorted(plan.replace)),
        *((name, "removed", before) for name in sorted(plan.stop)),
    )
    return tuple(
        f"{name}: {verb} ({place})" if (place := loaded.place(name)) else f"{name}: {verb}"
        for name, verb, loaded in verbs
    )


def _unsettled_servers(loaded: Loaded) -> frozenset[str]:
    """Servers that keep their configuration: the new one is unusable, or not trusted yet.

    Servers of a project that is not, or no longer, trusted are not among them.
    """
    changed = (
        part.name
        for part in loaded.pending
        if part.kind == "server" and part.standing is TrustState.CHANGED
    )
    return frozenset((*loaded.broken, *changed))


def withheld_parts(loaded: Loaded) -> tuple[Withheld, ...]:
    """The parts of projects that are not used, for people and programs that watch the hub."""
    return tuple(
        Withheld(
            part.kind,
            part.name,
            part.words,
            part.hint,
            part.standing is TrustState.CHANGED,
            str(part.root),
        )
        for part in loaded.pending
    )


def warn_of_untrusted(withheld: Collection[Withheld]) -> None:
    """Warn the calling program of parts that are not used: once per process and project.

    A log record would not do: nobody sees it before logging is configured.
    """
    for project in dict.fromkeys(part.project for part in withheld):
        _warn_once(untrusted_words(part for part in withheld if part.project == project))


@cache
def _warn_once(text: str) -> None:
    # the same words are not repeated for another line of the program, as `warnings` alone would
    frame = _calling_frame()
    warnings.warn_explicit(
        text,
        UntrustedWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        frame.f_globals.get("__name__"),
        frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _calling_frame() -> FrameType:
    """The innermost frame of the program that uses this package."""
    stack = [frame for frame, _ in traceback.walk_stack(None)]
    between = {__name__.partition(".")[0], "contextlib", "anyio", "asyncio", "threading"}
    outside = (x for x in stack if x.f_globals.get("__name__", "").partition(".")[0] not in between)
    return next(outside, stack[-1])


def _problem_words(problems: Sequence[Problem]) -> tuple[str, ...]:
    """The first problems in words: a hostile file could fill the logs."""
    more = len(problems) - MOST_PROBLEMS
    lines = tuple(map(str, problems[:MOST_PROBLEMS]))
    return (*lines, f"and {counted(more, 'more problem')}") if more > 0 else lines


@asynccontextmanager
async def auto_reload(hub: "Hub", reloader: Reloader) -> AsyncGenerator[None]:
    """Apply changes of the files to the hub while entered."""
    with ungrouped():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_going, reloader.follow, hub)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()


def find_files(path: Path | None = None) -> Reloader:
    """The user's and the project's files, or one file; problems of entries are logged."""
    if path is None:
        files = Reloader()
    else:
        search = native(Surroundings.here(), (path,))
        files = Reloader(lambda: load_trusted(search))
    files.loaded.check()
    for problem in files.problems:
        if problem.severity is not Severity.NOTE:
            advice = f"; hint: {problem.hint}" if problem.hint else ""
            logger.warning("%s%s", problem, advice)
    return files
