"""Keeps the running links equal to the configured servers."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import anyio
import msgspec

from multitap.config.models import ServerConfig
from multitap.errors import UnknownName, quoted
from multitap.events import EventBus, LinkChanged, LinkRemoved, LinkState, Warned, pending_words
from multitap.tasks import CancelHandle, Tasks
from multitap.upstream.link import Link


class Plan(msgspec.Struct, frozen=True):
    """Which servers to start, stop, replace and keep; printable."""

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
        running: The serving links.
        wanted: The configured servers.
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
    """Owns the links: the serving ones, and their successors.

    A changed server runs with its previous configuration until its successor is up. A successor
    that fails is retried, and the previous server continues. A previous server that is lost
    meanwhile is not restarted, because its configuration is outdated: the successor takes its
    place, up or not.

    Args:
        tasks: Runs the links.
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
        """Seconds for a leaving link to finish its calls."""
        self._tasks = tasks
        self._make = make
        self._on_change = on_change
        self._scopes: dict[Link, CancelHandle] = {}

    @property
    def is_settled(self) -> bool:
        """Whether no server is starting or being replaced.

        Successors that have failed once do not count: they may never come up.
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
        """Start, replace and stop links to match the wanted servers; returns at once."""
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
        """Handle a changed link: if a successor is up, it takes its place."""
        new = self.coming.get(link.name)
        if new is not None and (is_up(new) or not _is_kept(self.links[link.name])):
            self._swap(link.name, new)

    def login_changed(self, name: str, is_logged_in: bool) -> None:  # noqa: FBT001 - a callback
        """Reconnect servers that waited for a login, or lost it."""
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
            new.listing.expect(old.offers)  # so that calls wait for it instead of failing
        self._on_change()
        self._tasks.start_soon(self._retire, old)

    def _launch(self, name: str, config: ServerConfig) -> Link:
        link = self._make(name, config)
        if config.enabled:
            scope = self._scopes[link] = CancelHandle()
            self._tasks.start_soon(self._run, link, scope, name=f"link {name}")
        return link

    async def _run(self, link: Link, scope: CancelHandle) -> None:
        # A cancellation while a link handles a lost server would be replaced by that server's
        # error, and interrupt the end of its process. In a group of its own it is repeated until
        # the link has ended, and respects shields.
        with scope:  # perhaps cancelled already: changes may come faster than tasks start
            async with anyio.create_task_group() as alone:
                alone.start_soon(link.run, name=f"link {link.name}")

    async def _retire(self, link: Link) -> None:
        # It is no longer in `links`, so no new call reaches it; those in progress may finish.
        await link.requests.drain(self.drain_timeout)
        self._cancel(link)

    def _cancel(self, link: Link) -> None:
        if scope := self._scopes.pop(link, None):
            scope.cancel()


def _configs(links: Mapping[str, Link]) -> dict[str, ServerConfig]:
    return {name: link.config for name, link in links.items()}


def is_up(link: Link) -> bool:
    """Whether a server can take calls: it is connected, or starts with the first call."""
    return link.state is LinkState.CONNECTED or link.availability.is_asleep


def _is_kept(link: Link) -> bool:
    """Whether a link serves until its successor is up; a lost one does not."""
    return link.live and link.failure is None


class StateEvents:
    """Publishes each state change of each server once.

    Args:
        events: Publishes them.
        supervisor: Has the links.
    """

    def __init__(self, events: EventBus, supervisor: Supervisor) -> None:
        self._events = events
        self._supervisor = supervisor
        self._told: dict[str, tuple[Link, LinkChanged]] = {}
        self._warned: dict[str, str] = {}
        """The last published reason why each successor is not up."""

    def on_change(self, name: str) -> None:
        """Publish the new state of a server's link or its successor."""
        self._tell_state(name)
        self._tell_pending(name)

    def on_replace(self, name: str) -> None:
        """Forget why the last successor failed: there is a new configuration."""
        self._warned.pop(name, None)
        self._tell_state(name)

    def on_remove(self, name: str) -> None:
        """Publish that a server is no longer configured."""
        self._told.pop(name, None)
        self._warned.pop(name, None)
        self._events.publish(LinkRemoved(name))

    def _tell_state(self, name: str) -> None:
        if (link := self._supervisor.links.get(name)) is None:
            return
        event = LinkChanged(name, link.state, link.failure)
        if self._told.get(name) != (link, event):
            self._told[name] = (link, event)
            self._events.publish(event)

    def _tell_pending(self, name: str) -> None:
        successor = self._supervisor.coming.get(name)
        if successor is None or successor.failure is None:
            return
        text = pending_words(successor.failure)
        if self._warned.get(name) != text:  # it is retried, and usually fails for the same reason
            self._warned[name] = text
            self._events.publish(Warned(name, text))
