"""Keeps the running links equal to the configured servers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from multitap.config import ServerConfig
from multitap.tasks import CancelHandle, Tasks
from multitap.upstream.link import Link


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do; printable."""

    start: frozenset[str] = frozenset()
    stop: frozenset[str] = frozenset()
    replace: frozenset[str] = frozenset()
    keep: frozenset[str] = frozenset()

    def __str__(self) -> str:
        parts = [
            f"{verb} {', '.join(sorted(names))}"
            for verb, names in (
                ("start", self.start),
                ("stop", self.stop),
                ("replace", self.replace),
                ("keep", self.keep),
            )
            if names
        ]
        return "; ".join(parts) or "nothing to do"


def plan(running: Mapping[str, ServerConfig], wanted: Mapping[str, ServerConfig]) -> Plan:
    """What to do so that `running` becomes `wanted`; unchanged servers are left alone."""
    both = running.keys() & wanted.keys()
    changed = frozenset(name for name in both if running[name] != wanted[name])
    return Plan(
        start=frozenset(wanted.keys() - running.keys()),
        stop=frozenset(running.keys() - wanted.keys()),
        replace=changed,
        keep=frozenset(both - changed),
    )


class Supervisor:
    """Owns the links: the serving ones, and those about to take their place.

    Args:
        tasks: Where links run.
        make: Makes a link for a configured server.
        on_change: Told when a link was swapped or removed.
        drain_timeout: Seconds a leaving link may finish its calls.
    """

    def __init__(
        self,
        tasks: Tasks,
        make: Callable[[str, ServerConfig], Link],
        on_change: Callable[[], None],
    ) -> None:
        self.links: dict[str, Link] = {}
        self.drain_timeout = 10.0
        self._coming: dict[str, Link] = {}
        self._tasks = tasks
        self._make = make
        self._on_change = on_change
        self._scopes: dict[Link, CancelHandle] = {}

    @property
    def settled(self) -> bool:
        """Whether no server is still on its way up or being swapped."""
        return not self._coming and all(link.settled for link in self.links.values())

    def apply(self, wanted: Mapping[str, ServerConfig]) -> Plan:
        """Start, swap and stop until the links are the wanted servers; returns at once."""
        aimed = {**self.links, **self._coming}
        todo = plan({name: link.config for name, link in aimed.items()}, wanted)
        for name in todo.stop:
            self._abandon_coming(name)
            if link := self.links.pop(name, None):
                self._tasks.start_soon(self._retire, link)
        for name in wanted:  # in the order of the settings, which is that of the starts
            if name in todo.start:
                self.links[name] = self._launch(name, wanted[name])
        for name in todo.replace:
            self._abandon_coming(name)
            self._replace(name, wanted[name])
        self.links = {name: self.links[name] for name in wanted}  # in the order of the settings
        if todo.stop or todo.start:
            self._on_change()
        return todo

    def _replace(self, name: str, config: ServerConfig) -> None:
        old = self.links[name]
        new = self._launch(name, config)
        if old.config.enabled and config.enabled and old.live:
            self._coming[name] = new
            self._tasks.start_soon(self._swap, name, old, new)
        else:  # nothing to lose by swapping at once
            self.links[name] = new
            self._tasks.start_soon(self._retire, old)
            self._on_change()

    def _launch(self, name: str, config: ServerConfig) -> Link:
        link = self._make(name, config)
        if config.enabled:
            self._scopes[link] = CancelHandle()
            self._tasks.start_soon(self._run, link, name=f"link {name}")
        return link

    async def _run(self, link: Link) -> None:
        with self._scopes[link]:
            await link.run()

    async def _swap(self, name: str, old: Link, new: Link) -> None:
        """Let the old one serve until the new one has answered or failed."""
        await new.first_settled.wait()
        if self._coming.get(name) is not new:
            return  # overtaken by a later change
        del self._coming[name]
        self.links[name] = new
        self._on_change()
        await self._retire(old)

    async def _retire(self, link: Link) -> None:
        await link.drain(self.drain_timeout)
        self._cancel(link)

    def _abandon_coming(self, name: str) -> None:
        if link := self._coming.pop(name, None):
            self._cancel(link)
            link.first_settled.set()

    def _cancel(self, link: Link) -> None:
        if scope := self._scopes.pop(link, None):
            scope.cancel()
