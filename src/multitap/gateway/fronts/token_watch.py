"""Applies token changes to a running gateway, and ends revoked clients' sessions."""

import logging
import time
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from multitap.errors import MultitapError
from multitap.gateway.fronts.access import Access
from multitap.gateway.fronts.sessions import HttpSessions, StatelessClients
from multitap.gateway.fronts.tokens import TokenSources
from multitap.gateway.gateway import Gateway
from multitap.http.server.connections import Connections
from multitap.principal import NO_PERSON, Person

if TYPE_CHECKING:
    from multitap.gateway.fronts.resource_server import ResourceServer
    from multitap.principal import Principal

logger = logging.getLogger(__name__)

LOOK = 0.25
"""Seconds between two checks of the files: a revoked token is refused within a second."""
NOTE = 10.0
"""Seconds between two times that the last use of tokens is saved."""
_SWEEP = 2.0
"""Seconds between two searches for streams whose token has expired."""
_LAST_NOTE = 2.0
"""Seconds to save them at the end, even if the disk is slow."""


class TokenWatch:
    """Applies token changes to one front.

    Args:
        sources: The tokens.
        access: Admits requests.
        gateway: Has the calls of clients.
        sessions: The sessions of the handshake era.
        stateless: Clients without a session.
        resource_server: Admits the tokens of identity providers, if there are any.
    """

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        sources: TokenSources,
        access: Access,
        gateway: Gateway,
        sessions: HttpSessions,
        stateless: StatelessClients,
        resource_server: "ResourceServer | None" = None,
    ) -> None:
        self._sources = sources
        self._access = access
        self._gateway = gateway
        self._sessions = sessions
        self._stateless = stateless
        self._resources = resource_server
        self._swept = 0.0
        self._is_asking = False

    async def run(self, connections: Connections) -> None:
        """Apply token changes until cancelled."""
        noted = anyio.current_time()
        try:
            while True:
                await anyio.sleep(LOOK)
                self._look(connections)
                if self._resources is not None:
                    self._look_abroad(self._resources, connections)
                if anyio.current_time() - noted >= NOTE:
                    await self._note()
                    # the next request of each client is admitted again, which notes the use
                    connections.forget_heads()
                    noted = anyio.current_time()
        finally:
            # always ended by cancellation, which must not lose the uses since the last save
            with anyio.CancelScope(shield=True), anyio.move_on_after(_LAST_NOTE):
                await self._note()

    async def _note(self) -> None:
        """Save who was here, and renew what is known of providers."""
        await self._sources.note_uses()
        if self._resources is None:
            return
        verifier = self._resources.verifier
        # in a task: a provider may be slow, and revocations must not wait for it
        self._gateway.tasks.start_apart(verifier.renew_keys)
        if seen := verifier.take_seen():
            try:
                await anyio.to_thread.run_sync(verifier.people.note, seen)
            except (MultitapError, OSError) as exc:
                logger.warning("the last use of people cannot be saved: %s", exc)

    def _look_abroad(self, resources: "ResourceServer", connections: Connections) -> None:
        """Apply revocations, logouts, changed rules, and the end of tokens."""
        if resources.follow_settings():
            connections.forget_heads()
            # with other rules, browsers have to sign in again
            connections.abort(lambda head: head.admitted is not None and head.admitted.is_admin)
        elif resources.verifier.has_ended():
            connections.forget_heads()
        now = time.time()
        # not at each look: it goes through all connections
        if now - self._swept >= _SWEEP:
            self._swept = now
            connections.abort(lambda head: resources.is_over(head, now))
            if not self._is_asking:
                self._is_asking = True
                self._gateway.tasks.start_apart(self._ask_again, resources, connections)
        verifier = resources.verifier
        if not (new := verifier.refresh()):
            return
        tokens = {entry.digest for entry in new if entry.kind == "token"}

        def is_meant(principal: "Principal") -> bool:
            return verifier.concerns(new, principal)

        # in this order, without an await, as above
        connections.forget_heads()
        connections.abort(
            lambda head: (
                head.admitted is not None
                and (is_meant(head.admitted.principal) or head.admitted.digest.hex() in tokens)
            )
        )
        clients = [session.client for session in self._sessions]
        clients += self._stateless.all()
        self._end(
            frozenset(client.principal.key for client in clients if is_meant(client.principal)),
            # a person without a client here may still have programs
            verifier.people_of(new),
        )
        people = self._gateway.hub.people
        for entry in new:
            if entry.forgets and entry.subject and people is not None:
                person = Person(entry.issuer, entry.subject)
                self._gateway.tasks.start_apart(people.forget_accounts, person)

    async def _ask_again(self, resources: "ResourceServer", connections: Connections) -> None:
        """End streams whose opaque token is not valid any more: it does not say so itself."""
        try:
            listening = [head for head in connections.unanswered() if resources.is_lasting(head)]
            ended = [head for head in listening if await resources.has_ended(head)]
            if ended:
                connections.abort(lambda head: any(head is other for other in ended))
        finally:
            self._is_asking = False

    def _look(self, connections: Connections) -> None:
        gone = self._sources.refresh()
        if gone is None:
            return
        # in this order, without an await: no request can come in with a revoked token after its
        # connections were closed
        self._access.tokens, self._access.keys = self._sources.tokens, self._sources.keys
        connections.forget_heads()
        if gone:
            connections.abort(
                lambda head: head.admitted is not None and head.admitted.principal.key in gone
            )
            self._end(gone, set())

    def _end(self, gone: frozenset[str], people: set[Person]) -> None:
        """End sessions, calls and servers of principals and people that lost access."""
        gateway = self._gateway
        for session in self._sessions:
            if session.client.principal.key in gone:
                people.add(session.client.audience.person or NO_PERSON)
                if self._sessions.shared is not None:
                    self._sessions.shared.end_soon(session)
                self._sessions.close_soon(session)
        for client in self._stateless.drop(gone):
            people.add(client.audience.person or NO_PERSON)
            gateway.tasks.start_apart(gateway.on_left, client)
        gateway.parked_calls.drop(gone)
        if gateway.hub.people is not None:
            gateway.hub.people.drop_all(people)
        for principal in gone:
            gateway.private.drop(principal)
        for person in people:
            gateway.private.drop(person)
