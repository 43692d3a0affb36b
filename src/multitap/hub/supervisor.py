"""Keeps the running links equal to the configured servers."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import anyio

from multitap.config import ServerConfig
from multitap.errors import UnknownName, quoted
from multitap.events import LinkState
from multitap.records import dataclass
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


def plan(
    running: Mapping[str, ServerConfig],
    wanted: Mapping[str, ServerConfig],
    coming: Mapping[str, ServerConfig] = MappingProxyType({}),
) -> Plan:
    """What to do so that `running` becomes `wanted`; unchanged servers are left alone.

    Args:
        running: What serves.
        wanted: What is configured.
        coming: Successors of running servers that are not up yet.
    """
    both = running.keys() & wanted.keys()
    changed = frozenset(
        name for name in both if wanted[name] not in (running[name], coming.get(name))
    )
    return Plan(
        start=frozenset(wanted.keys() - running.keys()),
        stop=frozenset(running.keys() - wanted.keys()),
        replace=changed,
        keep=frozenset(both - changed),
    )


class Supervisor:
    """Owns the links: the serving ones, and those about to take their place.

    A changed server serves by its previous configuration until its successor is up. If the
    successor fails, it is tried again and again, and the previous one serves on. A server that is
    lost meanwhile is not brought back, because its configuration is no longer wanted: the
    successor takes its place, up or not.

    Args:
        tasks: Where links run.
        make: Makes a link for a configured server.
        on_change: Called when a link was swapped or removed.
    """

    def __init__(
        self,
        tasks: Tasks,
        make: Callable[[str, ServerConfig], Link],
        on_change: Callable[[], None],
    ) -> None:
        self.links: dict[str, Link] = {}
        self.coming: dict[str, Link] = {}
        """Successors that are not up yet, by the name of the server."""
        self.drain_timeout = 10.0
        """Seconds a leaving link may finish its calls."""
        self._tasks = tasks
        self._make = make
        self._on_change = on_change
        self._scopes: dict[Link, CancelHandle] = {}

    @property
    def is_settled(self) -> bool:
        """Whether no server is still on its way up or being swapped.

        A successor that has failed once no longer counts: it may never come up.
        """
        return all(link.is_settled for link in self.links.values()) and not any(
            link.availability.settling for link in self.coming.values()
        )

    def link(self, server: str) -> Link:
        """The link that serves for a server.

        Raises:
            UnknownName: No such server is configured.
        """
        try:
            return self.links[server]
        except KeyError:
            raise UnknownName(
                f"no server named {quoted(server)}", hint="`multitap status` lists all servers"
            ) from None

    def apply(self, wanted: Mapping[str, ServerConfig]) -> Plan:
        """Start, swap and stop until the links are the wanted servers; returns at once."""
        running, coming = _configs(self.links), _configs(self.coming)
        todo = plan(running, wanted, coming)
        for name in [name for name in coming if wanted.get(name) != coming[name]]:
            self._cancel(self.coming.pop(name))
        for name in todo.stop:
            self._tasks.start_soon(self._retire, self.links.pop(name))
        for name in wanted:  # in the order of the settings, which is that of the starts
            if name in todo.start:
                self.links[name] = self._launch(name, wanted[name])
        for name in todo.replace:
            self._replace(name, wanted[name])
        self.links = {name: self.links[name] for name in wanted}  # in the order of the settings
        if todo.stop or todo.start:
            self._on_change()
        return todo

    def link_changed(self, link: Link) -> None:
        """A link is in another state: swap it if it is a successor, or has one, that is due."""
        new = self.coming.get(link.name)
        if new is not None and (is_up(new) or not _is_kept(self.links[link.name])):
            self._swap(link.name, new)

    def login_changed(self, name: str, is_logged_in: bool) -> None:  # noqa: FBT001 - a callback
        """React to a changed login: servers that wait for it, or lost it, are tried again."""
        for link in (self.coming.get(name), self.links.get(name)):
            if link is not None and (
                link.state is LinkState.NEEDS_AUTH
                or (link.state is LinkState.CONNECTED and not is_logged_in)
            ):
                link.restart()

    def _replace(self, name: str, config: ServerConfig) -> None:
        new = self._launch(name, config)
        if config.enabled and _is_kept(self.links[name]) and not is_up(new):
            self.coming[name] = new
        else:
            self._swap(name, new)

    def _swap(self, name: str, new: Link) -> None:
        self.coming.pop(name, None)
        old, self.links[name] = self.links[name], new
        if old.live and new.config.enabled and new.offers is None:
            new.listing.expect(old.offers)  # calls rather wait for it than find nothing
        self._on_change()
        self._tasks.start_soon(self._retire, old)

    def _launch(self, name: str, config: ServerConfig) -> Link:
        link = self._make(name, config)
        if config.enabled:
            scope = self._scopes[link] = CancelHandle()
            self._tasks.start_soon(self._run, link, scope, name=f"link {name}")
        return link

    async def _run(self, link: Link, scope: CancelHandle) -> None:
        # A cancellation that meets a link while it gives up a lost server would go down with that
        # server's error, and break off the end of its process: in a group of its own it is given
        # on until the link has ended, and spares what is shielded.
        with scope:  # perhaps cancelled already: changes may come faster than tasks start
            async with anyio.create_task_group() as alone:
                alone.start_soon(link.run, name=f"link {link.name}")

    async def _retire(self, link: Link) -> None:
        # It has left `links` already, so that no new call reaches it; those under way may finish.
        await link.requests.drain(self.drain_timeout)
        self._cancel(link)

    def _cancel(self, link: Link) -> None:
        if scope := self._scopes.pop(link, None):
            scope.cancel()


def _configs(links: Mapping[str, Link]) -> dict[str, ServerConfig]:
    return {name: link.config for name, link in links.items()}


def is_up(link: Link) -> bool:
    """Whether a server can take calls: it is connected, or sleeps until a call wakes it."""
    return link.state is LinkState.CONNECTED or link.availability.is_asleep


def _is_kept(link: Link) -> bool:
    """Whether it keeps its place before a successor; one that was lost does not."""
    return link.live and link.failure is None
