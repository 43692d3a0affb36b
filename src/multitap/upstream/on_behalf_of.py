"""The client or caller on whose behalf a request is made."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from multitap.wire.wire import OnProgress, Owned


class OnBehalfOf(Protocol):
    """A client of ours whose request is passed on: the server gets to know what it can do."""

    @property
    def capabilities(self) -> Raw:
        """What it can be asked, as JSON."""
        ...

    @property
    def log_level(self) -> str | None:
        """From which level on it wants log messages; None: none."""
        ...

    @property
    def owner(self) -> object:
        """Who it is, for servers that do not say for which of their calls they ask."""
        ...

    @property
    def slot_holder(self) -> object:
        """Who it is among those that call the same server; None: there are no others."""
        ...

    @property
    def caller(self) -> str:
        """Who it is, in words for people."""
        ...

    @property
    def principal(self) -> str:
        """Whom its credentials name; empty where none are asked for."""
        ...

    @property
    def drives_rounds(self) -> bool:
        """Whether it answers what a stateless server asks back by itself."""
        ...

    def on_notification(self, method: str, params: Raw) -> None:
        """Take a notification that belongs to its request; must not block."""
        ...

    async def ask(self, method: str, params: Mapping[str, Any]) -> Raw:
        """Have it answer a request of the server.

        Raises:
            RpcError: It refuses, or cannot be asked.
        """
        ...


class CallContext(msgspec.Struct, Owned, frozen=True, kw_only=True):
    """On whose behalf a call is made, and how long it may take."""

    agent_id: str | None = None
    session_id: str | None = None
    on_progress: OnProgress | None = None
    """Called with the tool's progress, which also restarts `timeout`."""
    timeout: float | None = None
    """Seconds to wait; the server's configured ones if not given."""
    hard_timeout: float | None = None
    """Seconds after which progress does not help; the server's configured ones if not given."""
    approved: bool = False
    """Whether a person has agreed already to what the policy asks about."""
    client: OnBehalfOf | None = None
    """The client whose request it is, where it is not the host's own."""

    @property
    def owner(self) -> object:
        """Whom the server may ask with any of the calls that they made."""
        return self if self.client is None else self.client.owner


NOBODY = CallContext()
"""On behalf of the host itself, within the configured limits."""


def slot_holder_of(call: object | None) -> object:
    """Whose share of a server's time a call takes; None: it is the host's own."""
    return (
        None
        if not isinstance(call, CallContext) or call.client is None
        else call.client.slot_holder
    )


def client_of(call: object | None) -> OnBehalfOf | None:
    """The client for whose sake a server says something, where that is certain."""
    return call.client if isinstance(call, CallContext) else None
