"""Applies token changes to a running gateway, and ends revoked clients' sessions."""

import anyio

from multitap.gateway.fronts.access import Access
from multitap.gateway.fronts.sessions import HttpSessions, StatelessClients
from multitap.gateway.fronts.tokens import TokenSources
from multitap.gateway.gateway import Gateway
from multitap.http.server.connections import Connections

LOOK = 0.25
"""Seconds between two checks of the files: a revoked token is refused within a second."""
NOTE = 10.0
"""Seconds between two times that the last use of tokens is saved."""
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
        """Apply token changes until cancelled."""
        noted = anyio.current_time()
        try:
            while True:
                await anyio.sleep(LOOK)
                self._look(connections)
                if anyio.current_time() - noted >= NOTE:
                    await self._sources.note_uses()
                    # the next request of each client is admitted again, which notes the use
                    connections.forget_heads()
                    noted = anyio.current_time()
        finally:
            # always ended by cancellation, which must not lose the uses since the last save
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
            connections.abort(
                lambda head: head.admitted is not None and head.admitted.principal.key in gone
            )
            self._end(gone)

    def _end(self, gone: frozenset[str]) -> None:
        """End sessions, calls and connections of principals that lost access."""
        gateway = self._gateway
        for session in self._sessions:
            if session.client.principal.key in gone:
                if self._sessions.shared is not None:
                    self._sessions.shared.end_soon(session)
                self._sessions.close_soon(session)
        for client in self._stateless.drop(gone):
            gateway.tasks.start_soon(gateway.on_left, client)
        gateway.parked_calls.drop(gone)
        for principal in gone:
            gateway.private.drop(principal)
