"""One request of a client, while it is being answered."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from multitap.serve.message import EMPTY, Params, notification, text_of
from multitap.serve.peer import USUAL_LEVEL, Outlet, Peer, fitted, is_grave, log_level, wants_log
from multitap.tasks import LightTask
from multitap.upstream.caller import CallContext
from multitap.wire import vocabulary
from multitap.wire.wire import OnProgress, RpcError

_REMOVED = frozenset({"notifications/elicitation/complete"})
"""What the stateless era does not know any more."""


class Turn:
    """Who asks, and where what concerns the request goes; a `Guest` to servers.

    Args:
        peer: Who asks.
        request_id: Under which id, as it came.
        outlet: Where messages about the request go before its answer.
        params: What it says.
        modern: Whether it is of the stateless era.
        light: What it is worked on in.
    """

    __slots__ = (
        "capabilities", "light", "log_level", "modern", "outlet", "params", "peer", "request_id",
        "rival",
    )  # fmt: skip

    def __init__(
        self,
        peer: Peer,
        request_id: Raw,
        outlet: Outlet,
        params: Params,
        light: LightTask | None = None,
        *,
        modern: bool,
    ) -> None:
        self.peer = peer
        self.rival = peer.rival
        self.light = light
        self.request_id = request_id
        self.outlet = outlet
        self.params = params
        self.modern = modern
        if modern:
            meta = params.meta
            self.capabilities = meta.get(vocabulary.CLIENT_CAPABILITIES_KEY, EMPTY)
            self.log_level = log_level(meta.get(vocabulary.LOG_LEVEL_KEY))
        else:
            self.capabilities = peer.capabilities
            self.log_level = peer.log_level or USUAL_LEVEL

    @property
    def party(self) -> object:
        return self.peer if self.peer.single else self

    @property
    def can_be_asked(self) -> bool:
        """Whether the client says that it answers anything that servers may ask."""
        return bytes(self.capabilities) != b"{}"

    @property
    def drives_rounds(self) -> bool:
        return self.modern

    def context(self) -> CallContext:
        """For the servers that are asked because of it."""
        on_progress = self.on_progress() if self.params.meta else None
        return CallContext(guest=self, on_progress=on_progress)

    def on_progress(self) -> OnProgress | None:
        """Tells the client of progress; None where it does not want to know."""
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

    def notified(self, method: str, params: Raw) -> None:
        wanted = not (self.modern and method in _REMOVED)
        if method == "notifications/message":
            wanted = self._wants(params)
        if wanted:
            self.outlet.send(notification(method, params))

    async def ask(self, method: str, params: Mapping[str, Any]) -> Raw:
        if self.modern:
            fitted(self.capabilities, method, params)
            raise RpcError(-32601, "the client can not be asked during this request")
        return await self.peer.ask(method, params, self.outlet)

    def _wants(self, params: Raw) -> bool:
        if not self.modern:
            return wants_log(self.peer, params)
        return self.log_level is not None and is_grave(params, self.log_level)


def _plain(number: float) -> float | int:
    return int(number) if number.is_integer() else number


def client_name(params: Params) -> str | None:
    """What a client of the stateless era calls itself."""
    info = params.meta.get(vocabulary.CLIENT_INFO_KEY)
    if info is None:
        return None
    try:
        return text_of(msgspec.json.decode(info, type=dict[str, Raw]).get("name"))
    except (msgspec.DecodeError, RecursionError):
        return None
