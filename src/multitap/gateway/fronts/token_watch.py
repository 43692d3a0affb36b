"""Applies token changes to a running gateway, and ends revoked clients' sessions."""

import anyio

from multitap.gateway.fronts.http_sessions import HttpSessions
from multitap.gateway.fronts.stateless_clients import StatelessClients
from multitap.gateway.fronts.token_sources import TokenSources
from multitap.gateway.gateway import Gateway
from multitap.http.server.access import Access
from multitap.http.server.connections import Connections

LOOK = 0.25
"""Seconds between two looks at the files: a token that is revoked is refused within a second."""
NOTE = 10.0
"""Seconds between two notes of when tokens were used."""
_LAST_NOTE = 2.0
"""Seconds for the last one, which a slow disk must not stretch."""


class TokenWatch:
    """Follows the tokens of one front.

    Args:
        sources: The tokens.
        access: Who may ask.
        gateway: What the clients used.
        sessions: Those of the handshake era.
        stateless: Clients that are in none.
    """

    def __init__(
        self,
        sources: TokenSources,
        access: Access,
        gateway: Gateway,
        sessions: HttpSessions,
        stateless: StatelessClients,
    ) -> None:
        self._sources = sources
        self._access = access
        self._gateway = gateway
        self._sessions = sessions
        self._stateless = stateless

    async def run(self, connections: Connections) -> None:
        """Look after the tokens until cancelled.

        Args:
            connections: Those of the clients.
        """
        noted = anyio.current_time()
        try:
            while True:
                await anyio.sleep(LOOK)
                self._look(connections)
                if anyio.current_time() - noted >= NOTE:
                    await self._sources.note_uses()
                    # a client that stays is checked once more, and so is known to stay
                    connections.forget_heads()
                    noted = anyio.current_time()
        finally:
            # cancelled is how this always ends, and the uses since the last note would be lost
            with anyio.CancelScope(shield=True), anyio.move_on_after(_LAST_NOTE):
                await self._sources.note_uses()

    def _look(self, connections: Connections) -> None:
        gone = self._sources.refresh()
        if gone is None:
            return
        # in this order, without an await: no request can come in with a revoked token after its
        # connections were closed
        self._access.tokens, self._access.keys = self._sources.tokens, self._sources.keys
        connections.forget_heads()
        if gone:
            connections.abort(lambda head: head.admitted.principal in gone)
            self._end(gone)

    def _end(self, gone: frozenset[str]) -> None:
        """End everything of principals that may come in no more."""
        gateway = self._gateway
        for session in self._sessions:
            if session.client.principal in gone:
                if self._sessions.shared is not None:
                    self._sessions.shared.end_soon(session)
                self._sessions.close_soon(session)
        for client in self._stateless.drop(gone):
            gateway.tasks.start_soon(gateway.on_left, client)
        gateway.parked_calls.drop(gone)
        for principal in gone:
            gateway.private.drop(principal)
