"""Tracing of one server's messages; free of cost while it is not used."""

from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager, suppress

import anyio

from multitap.upstream.session import Session
from multitap.upstream.traced_wire import OnMessage, Redact, TracedMessage, TracedWire
from multitap.wire.wire import Wire

BACKLOG = 4096
"""Messages that wait for a slow follower; further ones are dropped."""


class Tracing:
    """The followers of one server, and its sessions, whichever links they belong to.

    A followed session uses a traced wire, and gets its own one back when the last follower leaves.
    """

    def __init__(self) -> None:
        self._followers: list[OnMessage] = []
        self._sessions: dict[Session, Redact] = {}

    @contextmanager
    def follow(self, on_message: OnMessage) -> Generator[None]:
        """Within the block, `on_message` is called with each message to and from the server."""
        self._followers.append(on_message)
        self._adapt()
        try:
            yield
        finally:
            self._followers.remove(on_message)
            self._adapt()

    def through(self, wire: Wire, redact: Redact) -> Wire:
        """The wire to use: a traced one while there are followers, else the same."""
        return TracedWire(wire, redact, self._tell) if self._followers else wire

    @contextmanager
    def during(self, session: Session, redact: Redact) -> Generator[None]:
        """Within the block, a session can be followed."""
        self._sessions[session] = redact
        self._adapt()
        try:
            yield
        finally:
            del self._sessions[session]

    def _adapt(self) -> None:
        for session, redact in self._sessions.items():
            wire = session.wire
            if isinstance(wire, TracedWire):
                if not self._followers:
                    session.travel(wire.release())
            elif self._followers:
                traced = TracedWire(wire, redact, self._tell)
                traced.attach(session.inbound)
                session.travel(traced)

    def _tell(self, message: TracedMessage) -> None:
        for follower in tuple(self._followers):
            follower(message)


@contextmanager
def follow_messages(tracing: Tracing) -> Generator[AsyncIterator[TracedMessage]]:
    """Within the block, iterate over the messages as they pass; a slow reader misses some."""
    send, receive = anyio.create_memory_object_stream[TracedMessage](BACKLOG)

    def tell(message: TracedMessage) -> None:
        with suppress(anyio.WouldBlock, anyio.BrokenResourceError):
            send.send_nowait(message)

    with send, receive, tracing.follow(tell):
        yield receive
