"""What servers ask of the host, brought to the client for whose sake they ask."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import mcp_types as types
from msgspec import Raw
from pydantic import BaseModel, ValidationError

from multitap.serve.peer import Peer
from multitap.upstream.caller import guest_of
from multitap.upstream.handlers import Asked, Handlers
from multitap.wire.wire import RpcError

_Answer = TypeVar("_Answer", bound=BaseModel)


class Asking:
    """The host's answers to servers: those of clients.

    A question that belongs to no call for certain goes to the only client there is. Where there
    are several it is refused, because it might be told to the wrong one.

    Args:
        peers: All clients that can be asked unasked.
        host: Answers what no client can.
    """

    def __init__(self, peers: Callable[[], tuple[Peer, ...]], host: Handlers = Handlers()) -> None:
        self._peers = peers
        self._host = host

    def handlers(self) -> Handlers:
        return Handlers(elicit=self._elicit, sample=self._sample, roots=self._roots)

    async def _elicit(
        self, asked: Asked, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        try:
            return await self._typed(asked, "elicitation/create", params, types.ElicitResult)
        except RpcError as exc:
            return await self._host.elicit(asked, params) if self._host.elicit else _error(exc)

    async def _sample(
        self, asked: Asked, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        kind = types.CreateMessageResultWithTools if params.tools else types.CreateMessageResult
        try:
            return await self._typed(asked, "sampling/createMessage", params, kind)
        except RpcError as exc:
            return await self._host.sample(asked, params) if self._host.sample else _error(exc)

    async def _roots(self, asked: Asked) -> types.ListRootsResult | types.ErrorData:
        try:
            return await self._typed(asked, "roots/list", None, types.ListRootsResult)
        except RpcError:
            if self._host.roots:
                return await self._host.roots(asked)
            return types.ListRootsResult(roots=[])

    async def _typed(
        self, asked: Asked, method: str, params: BaseModel | None, model: type[_Answer]
    ) -> _Answer:
        told: dict[str, Any] = {}
        if params is not None:
            told = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        answer = await self._ask(asked, method, told)
        try:
            return model.model_validate_json(bytes(answer))
        except ValidationError:
            raise RpcError(-32603, f"the client's answer to {method!r} is none") from None

    async def _ask(self, asked: Asked, method: str, params: Mapping[str, Any]) -> Raw:
        if (guest := guest_of(asked.call)) is not None:
            return await guest.ask(method, params)
        peers = self._peers()
        if len(peers) != 1:
            raise RpcError(-32601, f"{method}: it is not certain which client is meant")
        return await peers[0].ask(method, params)


def _error(exc: RpcError) -> types.ErrorData:
    return types.ErrorData(code=exc.code, message=str(exc), data=exc.data)
