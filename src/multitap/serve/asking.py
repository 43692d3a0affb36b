"""What servers ask of the host, brought to the client for whose sake they ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Raw

from multitap.errors import quoted
from multitap.later import Later
from multitap.serve.floor import PER_CLIENT
from multitap.serve.message import UNPARSABLE, notification, parse_table, text_of
from multitap.serve.peer import Peer, wants_log
from multitap.serve.turn import Turn
from multitap.upstream.caller import guest_of
from multitap.upstream.handlers import Asked, Handlers
from multitap.wire.wire import RpcError

if TYPE_CHECKING:
    import mcp_types as types
    import pydantic
else:
    types = Later("mcp_types")
    pydantic = Later("pydantic")

_Answer = TypeVar("_Answer", bound="pydantic.BaseModel")

MOST_AWAY = 1024
"""Persons sent elsewhere of whom is remembered who sent them."""


class Asking:
    """The host's answers to servers: those of clients.

    What belongs to no call goes to the only client that sees the server. What may belong to one
    of several clients is refused, because it might be told to the wrong one.

    Args:
        only: The only client that can be asked unasked and sees a server; None: there are more.
        sees: Whether a client sees a server.
        host: Answers what no client can.
    """

    def __init__(
        self,
        only: Callable[[str], Peer | None],
        sees: Callable[[Peer, str], bool],
        host: Handlers = Handlers(),
    ) -> None:
        self._only = only
        self._sees = sees
        self._host = host
        self._away: dict[tuple[str, str], Peer] = {}

    def handlers(self) -> Handlers:
        return Handlers(
            elicit=self._elicit,
            sample=self._sample,
            sample_tools=True,
            sample_context=True,
            roots=self._roots,
            said=self._said,
        )

    async def _elicit(
        self, asked: Asked, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        self._remember(asked, params)
        try:
            return await self._typed(asked, "elicitation/create", params, types.ElicitResult)
        except RpcError as exc:
            if exc.code != types.METHOD_NOT_FOUND or self._host.elicit is None:
                return _error(exc)
            return await self._host.elicit(asked, params)

    async def _sample(
        self, asked: Asked, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        kind = types.CreateMessageResultWithTools if params.tools else types.CreateMessageResult
        try:
            return await self._typed(asked, "sampling/createMessage", params, kind)
        except RpcError as exc:
            if exc.code != types.METHOD_NOT_FOUND or self._host.sample is None:
                return _error(exc)  # a person who declines is not gone around
            return await self._host.sample(asked, params)

    async def _roots(self, asked: Asked) -> types.ListRootsResult | types.ErrorData:
        try:
            return await self._typed(asked, "roots/list", None, types.ListRootsResult)
        except RpcError:
            if self._host.roots:
                return await self._host.roots(asked)
            return types.ListRootsResult(roots=[])

    async def _typed(
        self, asked: Asked, method: str, params: pydantic.BaseModel | None, model: type[_Answer]
    ) -> _Answer:
        told: dict[str, Any] = {}
        if params is not None:
            told = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        answer = await self._ask(asked, method, told)
        try:
            return model.model_validate_json(bytes(answer))
        except pydantic.ValidationError:
            raise RpcError(-32603, f"the client's answer to {quoted(method)} is none") from None

    async def _ask(self, asked: Asked, method: str, params: Mapping[str, Any]) -> Raw:
        if (guest := guest_of(asked.call)) is not None:
            return await guest.ask(method, params)
        if asked.call is not None or (peer := self._only(asked.server)) is None:
            words = f"{method}: it is not certain which client is meant; {PER_CLIENT}"
            raise RpcError(-32601, words)
        return await peer.ask(method, params)

    def _said(self, server: str, method: str, params: Raw) -> None:
        """Tell the client that a notification is meant for, where that is certain."""
        peer = self._only(server)
        if method == "notifications/elicitation/complete":
            peer = self._away.pop((server, _elicitation(params)), None)
            if peer is not None and not self._sees(peer, server):
                return
        elif method == "notifications/message" and not (peer and wants_log(peer, params)):
            return
        if peer is not None:
            peer.outlet.send(notification(method, params))

    def _remember(self, asked: Asked, params: types.ElicitRequestParams) -> None:
        """Keep in mind who is to hear of it when a person has been elsewhere."""
        given = params.elicitation_id if isinstance(params, types.ElicitRequestURLParams) else None
        guest = guest_of(asked.call)
        peer = guest.peer if isinstance(guest, Turn) else None
        if asked.call is None:
            peer = self._only(asked.server)
        if given is None or peer is None:
            return
        self._away[asked.server, given] = peer
        if len(self._away) > MOST_AWAY:
            del self._away[next(iter(self._away))]


def _elicitation(params: Raw) -> str:
    try:
        return text_of(parse_table(params).get("elicitationId")) or ""
    except UNPARSABLE:
        return ""


def _error(exc: RpcError) -> types.ErrorData:
    return types.ErrorData(code=exc.code, message=str(exc), data=exc.data)
