"""Brings servers' questions to the right client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw

from multitap.errors import quoted
from multitap.gateway.client import SHOWS_PAGES, Client, ClientRequest, wants_log
from multitap.gateway.pass_through import is_custom
from multitap.gateway.person_questions import PersonQuestions
from multitap.gateway.private_links import PER_CLIENT
from multitap.trust.questions import sign
from multitap.trust.shown_arguments import write_lines
from multitap.upstream.questions import (
    Handlers,
    Permission,
    PermitRequest,
    RequestOrigin,
    client_of,
)
from multitap.wire.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNPARSABLE,
    RpcError,
    notification,
    parse_table,
    text_of,
)

if TYPE_CHECKING:
    import mcp_types as types
    import pydantic

_CHOICES = {
    "once": "Allow this call",
    "always": "Allow calls of this tool until I disconnect",
    "no": "Refuse",
}


class _Filled(msgspec.Struct):
    action: str = ""
    content: dict[str, Any] | None = None


_parse = msgspec.json.Decoder(_Filled).decode


def question(request: PermitRequest) -> dict[str, Any]:
    """The parameters of `elicitation/create`."""
    lines = [
        f"Multitap asks: may the tool {request.tool!r} of the server {request.server!r} be called?",
    ]
    if request.reason:
        lines.append(f"Reason: {request.reason}")
    # at the end: a client may cut a long text
    lines.append(f"Arguments:\n{write_lines(request.arguments)}")
    return {
        "mode": "form",
        "message": "\n".join(lines),
        "requestedSchema": {
            "type": "object",
            "properties": {
                "decision": {
                    "type": "string",
                    "title": "Decision",
                    "enum": [*_CHOICES],
                    "enumNames": [*_CHOICES.values()],
                }
            },
            "required": ["decision"],
        },
    }


def permission(answer: Raw) -> Permission:
    """The person's decision; anything but a clear yes is a no."""
    try:
        filled = _parse(answer)
    except UNPARSABLE:
        return "no"
    decision = (filled.content or {}).get("decision")
    if filled.action != "accept" or decision not in {"once", "always"}:
        return "no"
    return "once" if decision == "once" else "always"


_Answer = TypeVar("_Answer", bound="pydantic.BaseModel")

_ELICIT, _SAMPLE = "elicitation/create", "sampling/createMessage"
MOST_AWAY = 1024
"""URL elicitations whose client is remembered until the server reports their end."""


class ServerRequests:
    """Answers servers' requests by asking clients.

    What belongs to no call goes to the only client that sees the server. What may belong to one
    of several clients is refused, because it might be told to the wrong one.

    Args:
        only: The only client that can be asked unasked and sees a server; None if there are more.
        person: Answers what the host cannot either, as long as a screen is open.
        on_rooted: Called with the name of a server that a client has told its roots.
    """

    def __init__(
        self,
        only: Callable[[str], Client | None],
        sees: Callable[[Client, str], bool],
        host: Handlers = Handlers(),
        person: PersonQuestions | None = None,
        on_rooted: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._on_rooted = on_rooted
        self._only = only
        self._sees = sees
        self._host = host
        self._person = person or PersonQuestions()
        self._away: dict[tuple[str, str], Client] = {}

    def handlers(self) -> Handlers:
        return Handlers(
            elicit=self._elicit,
            sample=self._sample,
            sample_tools=True,
            sample_context=True,
            roots=self._roots,
            permit=self._permit,
            extensions=SHOWS_PAGES,
            custom=self._custom,
            said=self._on_notification,
        )

    async def _elicit(
        self, origin: RequestOrigin, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        import mcp_types as types  # noqa: PLC0415 - most gateways pass no question on

        self._remember(origin, params)
        try:
            return await self._ask_typed(origin, _ELICIT, params, types.ElicitResult)
        except RpcError as exc:
            # others answer only if the client cannot be asked: a refusal is final
            if exc.code != METHOD_NOT_FOUND:
                return _error(exc)
            if self._host.elicit is not None:
                return await self._host.elicit(origin, params)
            return await self._from_person(origin, _ELICIT, params, types.ElicitResult, exc)

    async def _permit(self, request: PermitRequest) -> Permission | None:
        """Ask the client's user whether a call may be made; without one, ask the host."""
        form = question(request)
        if (on_behalf_of := client_of(request.call)) is not None:
            try:
                return permission(await on_behalf_of.ask(_ELICIT, form))
            except RpcError as exc:
                # only a client that cannot be asked is passed over; a failure is a no
                if exc.code != METHOD_NOT_FOUND:
                    return "no"
        if self._host.permit is not None:
            return await self._host.permit(request)
        try:
            answer = await self._person.ask("policy", request.server, _ELICIT, form, request.call)
        except RpcError:
            return "no"
        return None if answer is None else permission(answer)

    async def _sample(
        self, origin: RequestOrigin, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        import mcp_types as types  # noqa: PLC0415 - most gateways pass no question on

        kind = types.CreateMessageResultWithTools if params.tools else types.CreateMessageResult
        prompt = sign(origin.server, params.system_prompt)
        signed = params.model_copy(update={"system_prompt": prompt})
        try:
            return await self._ask_typed(origin, _SAMPLE, signed, kind)
        except RpcError as exc:
            if exc.code != METHOD_NOT_FOUND:
                return _error(exc)  # a refusal is final: the host is not asked as well
            if self._host.sample is not None:
                return await self._host.sample(origin, params)
            return await self._from_person(origin, _SAMPLE, signed, kind, exc)

    async def _roots(self, origin: RequestOrigin) -> types.ListRootsResult | types.ErrorData:
        import mcp_types as types  # noqa: PLC0415 - most gateways pass no question on

        try:
            roots = await self._ask_typed(origin, "roots/list", None, types.ListRootsResult)
        except RpcError:
            if self._host.roots:
                return await self._host.roots(origin)
            return types.ListRootsResult(roots=[])
        self._on_rooted(origin.server)
        return roots

    async def _ask_typed(
        self,
        origin: RequestOrigin,
        method: str,
        params: pydantic.BaseModel | None,
        model: type[_Answer],
    ) -> _Answer:
        return _valid(await self._ask(origin, method, _plain(params)), method, model)

    async def _from_person(
        self,
        origin: RequestOrigin,
        method: str,
        params: pydantic.BaseModel,
        model: type[_Answer],
        otherwise: RpcError,
    ) -> _Answer | types.ErrorData:
        """The answer of the person at a screen; if there is none, the client's error."""
        try:
            answer = await self._person.ask(
                "server", origin.server, method, _plain(params), origin.call
            )
            return _error(otherwise) if answer is None else _valid(answer, method, model)
        except RpcError as exc:
            return _error(exc)

    async def _custom(self, origin: RequestOrigin, method: str, params: Raw) -> Raw:
        """Pass on a request that only the client understands, in the era that has such requests."""
        on_behalf_of = client_of(origin.call)
        client = on_behalf_of.client if isinstance(on_behalf_of, ClientRequest) else None
        if origin.call is None:
            client = self._only(origin.server)
        if client is None or not client.shook_hands or not is_custom(method):
            raise RpcError(METHOD_NOT_FOUND, "Method not found", method)
        outlet = on_behalf_of.outlet if isinstance(on_behalf_of, ClientRequest) else None
        try:
            table = parse_table(params) if len(params) else {}
        except UNPARSABLE as exc:
            raise RpcError(INVALID_PARAMS, f"Invalid params: {exc}") from None
        return await client.ask(method, table, outlet)

    async def _ask(self, origin: RequestOrigin, method: str, params: Mapping[str, Any]) -> Raw:
        if (on_behalf_of := client_of(origin.call)) is not None:
            return await on_behalf_of.ask(method, params)
        # a call that we made for ourselves has no client to ask
        if origin.call is not None or (client := self._only(origin.server)) is None:
            reason = f"{method}: it is unclear which client should answer; {PER_CLIENT}"
            raise RpcError(METHOD_NOT_FOUND, reason)
        return await client.ask(method, params)

    def _on_notification(self, server: str, method: str, params: Raw) -> None:
        """Forward a notification to its client, if it is certain which one that is."""
        client = self._only(server)
        if method == "notifications/elicitation/complete":
            # popped: a server may report an end once, and only for an elicitation that it started
            client = self._away.pop((server, _elicitation(params)), None)
            # its profile may have changed since it was asked
            if client is not None and not self._sees(client, server):
                return
        elif method == "notifications/message" and not (client and wants_log(client, params)):
            return
        if client is not None:
            client.outlet.send(notification(method, params))

    def _remember(self, origin: RequestOrigin, params: types.ElicitRequestParams) -> None:
        """Remember which client to notify when a URL elicitation is complete."""
        import mcp_types as types  # noqa: PLC0415 - most gateways pass no question on

        elicitation_id = (
            params.elicitation_id if isinstance(params, types.ElicitRequestURLParams) else None
        )
        on_behalf_of = client_of(origin.call)
        client = on_behalf_of.client if isinstance(on_behalf_of, ClientRequest) else None
        if origin.call is None:
            client = self._only(origin.server)
        if elicitation_id is None or client is None:
            return
        self._away[origin.server, elicitation_id] = client
        # some are never completed: forget the oldest
        if len(self._away) > MOST_AWAY:
            del self._away[next(iter(self._away))]


def _plain(params: pydantic.BaseModel | None) -> dict[str, Any]:
    if params is None:
        return {}
    return params.model_dump(by_alias=True, mode="json", exclude_none=True)


def _valid(answer: Raw, method: str, model: type[_Answer]) -> _Answer:
    import pydantic  # noqa: PLC0415 - most gateways pass no question on

    try:
        return model.model_validate_json(bytes(answer))
    except pydantic.ValidationError:
        raise RpcError(
            INTERNAL_ERROR, f"the client's answer to {quoted(method)} is not valid"
        ) from None


def _elicitation(params: Raw) -> str:
    try:
        return text_of(parse_table(params).get("elicitationId")) or ""
    except UNPARSABLE:
        return ""


def _error(exc: RpcError) -> types.ErrorData:
    import mcp_types as types  # noqa: PLC0415 - most gateways pass no question on

    return types.ErrorData(code=exc.code, message=str(exc), data=exc.data)
