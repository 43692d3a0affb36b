"""Publishes the state changes of servers as events."""

from multitap.events import EventBus, LinkChanged, LinkRemoved, Warned, pending_words
from multitap.hub.supervisor import Supervisor
from multitap.upstream.link import Link


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
        news = LinkChanged(name, link.state, link.failure)
        if self._told.get(name) != (link, news):
            self._told[name] = (link, news)
            self._events.publish(news)

    def _tell_pending(self, name: str) -> None:
        successor = self._supervisor.coming.get(name)
        if successor is None or successor.failure is None:
            return
        text = pending_words(successor.failure)
        if self._warned.get(name) != text:  # it is retried, and usually fails for the same reason
            self._warned[name] = text
            self._events.publish(Warned(name, text))
