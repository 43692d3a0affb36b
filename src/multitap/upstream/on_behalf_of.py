"""The client or caller on whose behalf a request is made."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from multitap.wire.wire import OnProgress, OwnedCall


class OnBehalfOf(Protocol):
    """A client whose request is forwarded; the server learns its capabilities."""

    @property
    def capabilities(self) -> Raw:
        """Its capabilities, as JSON."""
        ...

    @property
    def log_level(self) -> str | None:
        """The lowest level of log messages that it wants; None: no messages."""
        ...

    @property
    def owner(self) -> object:
        """Its identity, for servers that do not say which call a question belongs to."""
        ...

    @property
    def slot_holder(self) -> object:
        """Its identity among the callers of one server; None if there are no others."""
        ...

    @property
    def caller(self) -> str:
        """Its name, for people."""
        ...

    @property
    def principal(self) -> str:
        """The identity in its credentials; empty if none are required."""
        ...

    @property
    def holder(self) -> str:
        """Its principal, or its address if it has none."""
        ...

    @property
    def drives_rounds(self) -> bool:
        """Whether it answers what a stateless server asks back by itself."""
        ...

    def on_notification(self, method: str, params: Raw) -> None:
        """Receive a notification that belongs to its request; must not block."""
        ...

    async def ask(self, method: str, params: Mapping[str, Any]) -> Raw:
        """Forward a request of the server to it.

        Raises:
            RpcError: It refuses, or cannot be asked.
        """
        ...


class CallContext(msgspec.Struct, OwnedCall, frozen=True, kw_only=True):
    """The caller of a call, and its limits."""

    agent_id: str | None = None
    session_id: str | None = None
    on_progress: OnProgress | None = None
    """Called with the tool's progress, which also restarts `timeout`."""
    timeout: float | None = None
    """Seconds to wait; by default, the server's setting."""
    hard_timeout: float | None = None
    """Seconds after which the call ends despite progress; by default, the server's setting."""
    approved: bool = False
    """Whether a person has already approved what the policy asks about."""
    client: OnBehalfOf | None = None
    """The client whose request it is, if it is not the host's own."""

    @property
    def owner(self) -> object:
        """Who may answer the server's questions about any of their calls."""
        return self if self.client is None else self.client.owner


NOBODY = CallContext()
"""The host itself, within the configured limits."""


def slot_holder_of(call: object | None) -> object:
    """The holder whose share of a server's slots a call uses; None for the host itself."""
    return (
        None
        if not isinstance(call, CallContext) or call.client is None
        else call.client.slot_holder
    )


def client_of(call: object | None) -> OnBehalfOf | None:
    """The client that a server's message belongs to, if that is certain."""
    return call.client if isinstance(call, CallContext) else None
