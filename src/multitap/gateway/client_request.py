"""One request of a client while it is being answered."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from multitap.gateway.client import (
    USUAL_LEVEL,
    Client,
    Outlet,
    fit,
    is_grave,
    log_level,
    wants_log,
)
from multitap.gateway.client_message import EMPTY, Params, notification
from multitap.tasks import LightTask
from multitap.upstream.on_behalf_of import CallContext
from multitap.wire.jsonrpc import vocabulary
from multitap.wire.jsonrpc.vocabulary import METHOD_NOT_FOUND
from multitap.wire.wire import OnProgress, RpcError

_REMOVED = frozenset({"notifications/elicitation/complete"})
"""Notifications that the stateless era has removed."""


class ClientRequest(msgspec.Struct, eq=False, frozen=True):
    """The client, the id and the outlet of a request; an `OnBehalfOf` to servers."""

    client: Client
    """The client that sent it."""
    slot_holder: object
    """The holder whose share of the server's slots it uses."""
    request_id: Raw
    """Its JSON-RPC id, undecoded."""
    outlet: Outlet
    """Takes messages that precede the answer."""
    params: Params
    """Its parameters."""
    light: LightTask | None
    """The light task that it runs in, if any."""
    capabilities: Raw
    log_level: str | None
    principal: str
    caller: str
    modern: bool = False
    """Whether it belongs to the stateless era."""
    drives_rounds: bool = False
    """Whether the client itself answers what servers ask back."""

    @property
    def holder(self) -> str:
        return self.client.holder

    @property
    def owner(self) -> object:
        # without a session, two requests of one token may come from two programs
        return self.client if self.client.single else self

    def context(self) -> CallContext:
        """The context of the calls made for it."""
        on_progress = self.on_progress() if self.params.meta else None
        return CallContext(client=self, on_progress=on_progress)

    def on_progress(self) -> OnProgress | None:
        """Sends progress to the client; None if it did not ask for it."""
        token = self.params.meta.get("progressToken")
        if token is None:
            return None

        def report(progress: float, total: float | None, message: str | None) -> None:
            told: dict[str, Any] = {"progressToken": token, "progress": _plain(progress)}
            if total is not None:
                told["total"] = _plain(total)
            if message is not None:
                told["message"] = message
            self.outlet.send(notification("notifications/progress", told))

        return report

    def on_notification(self, method: str, params: Raw) -> None:
        wanted = not (self.modern and method in _REMOVED)
        if method == "notifications/message":
            wanted = self._wants(params)
        if wanted:
            self.outlet.send(notification(method, params))

    async def ask(self, method: str, params: Mapping[str, Any]) -> Raw:
        if self.modern:
            # raises a better reason if the client could not answer at all
            fit(self.capabilities, method, params)
            raise RpcError(METHOD_NOT_FOUND, "the client cannot be asked during this request")
        return await self.client.ask(method, params, self.outlet)

    def _wants(self, params: Raw) -> bool:
        if not self.modern:
            return wants_log(self.client, params)
        return self.log_level is not None and is_grave(params, self.log_level)


def _plain(number: float) -> float | int:
    # a count as the server wrote it: `3`, not `3.0`
    return int(number) if number.is_integer() else number


def session_turn(
    client: Client, request_id: Raw, outlet: Outlet, params: Params, light: LightTask | None
) -> ClientRequest:
    """A request of the handshake era; the capabilities are those of the handshake."""
    return ClientRequest(
        client,
        client.slot_holder,
        request_id,
        outlet,
        params,
        light,
        client.capabilities,
        client.log_level or USUAL_LEVEL,
        client.principal,
        client.caller,
    )


def modern_turn(
    client: Client, request_id: Raw, outlet: Outlet, params: Params, light: LightTask | None
) -> ClientRequest:
    """A request of the stateless era, which carries its client's capabilities."""
    meta = params.meta
    capabilities = meta.get(vocabulary.CLIENT_CAPABILITIES_KEY, EMPTY)
    said = meta.get(vocabulary.LOG_LEVEL_KEY)
    info = meta.get(vocabulary.CLIENT_INFO_KEY)
    return ClientRequest(
        client,
        client.slot_holder,
        request_id,
        outlet,
        params,
        light,
        capabilities,
        None if said is None else log_level(said),
        client.principal,
        client.caller if info is None else client.caller_of(info),
        # positional: keyword arguments cost every call a little
        True,
        True,
    )
