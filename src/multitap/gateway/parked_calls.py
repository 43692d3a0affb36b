"""Calls that wait in the gateway while their stateless client answers a question.

A server of the handshake era asks in the middle of a call. A client of the stateless era can only
be asked by an answer to its request, which it then repeats. In between, the call waits here.
"""

import asyncio
import base64
import os
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import cached_property
from itertools import count
from typing import Any

import anyio
import msgspec
from msgspec import Raw

from multitap.errors import ServerError
from multitap.gateway.client import Client, ClientRequest, OnOtherReplica, able, fit
from multitap.gateway.client_errors import OVERLOADED
from multitap.limits import Shares
from multitap.principal import Principal
from multitap.tasks import CancelHandle, Tasks
from multitap.telemetry.spans import CURRENT
from multitap.trust.single_use import Issued, Seal, bind
from multitap.upstream.questions import CallContext
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import (
    INVALID_PARAMS,
    SERVER_ERROR,
    UNPARSABLE,
    Result,
    RpcError,
    parse_table,
)
from multitap.wire.wire import OnProgress

TTL = 600.0
"""Seconds a call waits for its client to return: a person may have to think, or log in."""
MOST, MOST_EACH = 1024, 24
"""Calls that may wait: in total, and per holder; beyond that the oldest is dropped."""
MOST_ERRANDS = 5
"""How often a person is sent to a URL before the call fails: some servers never stop asking."""

_PREFIX = "multitap:"
_ELICIT = "elicitation/create"

Work = Callable[[CallContext], Awaitable[Result]]
"""Makes the call in the given context."""


class _State(msgspec.Struct, array_like=True):
    parked: str
    replica: str
    """The replica where the call waits."""


class _Elicited(msgspec.Struct):
    action: str = ""


class _Places(msgspec.Struct):
    elicitations: list[dict[str, Any]] = []


def places_of(exc: ServerError) -> list[dict[str, Any]]:
    """The URLs that a handshake server wants a person to visit before a call can succeed."""
    if exc.code != jsonrpc.URL_ELICITATION_REQUIRED:
        return []
    try:
        return msgspec.convert(exc.data, _Places).elicitations
    except msgspec.ValidationError:
        return []


class ParkedCall:
    """A call that waits; an `OnBehalfOf` that outlives the requests it is made for."""

    def __init__(self, request: ClientRequest, subject: str) -> None:
        self.id = secrets.token_urlsafe(12)
        self.client = request.client
        self.caller = request.caller
        self.subject = subject
        self.arguments = request.params.arguments
        self.scope = CancelHandle()
        self.capabilities = request.capabilities
        self.log_level = request.log_level
        self.drives_rounds = True
        self.can_be_asked_now = True
        span = CURRENT.get()
        self.span = None if span is None else span.context
        """The span of the request that began it, if that is recorded."""
        self._turn: ClientRequest | None = request
        self._asks: dict[str, tuple[dict[str, Any], asyncio.Future[Raw]]] = {}
        self._keys = count(1)
        self._stirred = asyncio.Event()
        self.collected = asyncio.Event()
        """Set once its client has the result, or can no longer ask for it."""
        self._ended: tuple[Result | None, Exception | None] | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self.tickets = Issued(1)
        """The ticket of the current round; an earlier one is no longer valid."""
        self.is_counted = True
        """Whether it still counts against its client's share."""

    @property
    def slot_holder(self) -> object:
        return self.client.slot_holder

    @property
    def principal(self) -> Principal:
        return self.client.principal

    @property
    def holder(self) -> str:
        return self.client.holder

    @property
    def owner(self) -> object:
        return self.client if self.client.single else self

    async def run(self, work: Work) -> None:
        """Make the call; `round` returns or raises its outcome."""
        with self.scope:
            try:
                context = CallContext(client=self, on_progress=self._on_progress())
                self._ended = (await self._work(work, context), None)
            except Exception as exc:  # noqa: BLE001 - boundary: it is raised where the client waits
                self._ended = (None, exc)
        # outside the block: also after a cancellation
        self._stirred.set()

    async def _work(self, work: Work, context: CallContext) -> Result:
        """Make the call, and repeat it after each URL that a person has visited."""
        for _ in range(MOST_ERRANDS):
            try:
                return await work(context)
            except ServerError as exc:
                if not await self._went(places_of(exc)):
                    raise
        return await work(context)

    async def _went(self, places: list[dict[str, Any]]) -> bool:
        """Whether the client's user agrees to visit all URLs that the server names."""
        if not all(able(self.capabilities, _ELICIT, place) for place in places):
            return False
        for place in places:
            answer = msgspec.json.decode(await self.ask(_ELICIT, place), type=_Elicited)
            if answer.action != "accept":
                return False
        return bool(places)

    async def round(self, request: ClientRequest, ttl: float) -> Result | None:
        """The result, or None when the client has to be asked first, for which it has `ttl`."""
        self._turn = request
        if self._expiry is not None:
            self._expiry.cancel()
        try:
            while self._ended is None and not self.questions:
                # nothing is awaited since the look above, so no news is lost
                self._stirred.clear()
                await self._stirred.wait()
        except asyncio.CancelledError:
            # its client cancelled or left during a round: the result will not be collected
            self.expire()
            raise
        if self._ended is None:
            # its request is answered: until the next one the client cannot be reached
            self._turn = None
            self._expiry = asyncio.get_running_loop().call_later(ttl, self.expire)
            return None
        self.collected.set()
        result, failure = self._ended
        if failure is not None:
            raise failure
        if result is None:
            raise RpcError(SERVER_ERROR, "the call was cancelled", {"reason": "cancelled"})
        return result

    @property
    def waits(self) -> bool:
        """Whether it waits for its client to return."""
        return self._turn is None and not self.collected.is_set()

    def expire(self) -> None:
        """Cancel it: its client has not returned in time."""
        # both: the call ends, and `_run` does not wait for its client either
        self.scope.cancel()
        self.collected.set()

    @property
    def goes_on(self) -> bool:
        return self._ended is None and not self.scope.stopped

    @property
    def answered(self) -> bool:
        """Whether the server has answered, and so asks nothing more because of it."""
        return self._ended is not None

    @property
    def questions(self) -> dict[str, Any]:
        """The questions that the client has not answered yet."""
        questions = self._asks.items()
        return {key: request for key, (request, answer) in questions if not answer.done()}

    def adopt(self, request: dict[str, Any], answer: "asyncio.Future[Raw]") -> None:
        """Ask the client something with the next answer to it."""
        key = f"{request['method'].partition('/')[0]}-{next(self._keys)}"
        # kept until it is answered: a client that repeats its request is asked the same again
        self._asks[key] = (request, answer)
        self._stirred.set()

    def release(self) -> list[tuple[dict[str, Any], "asyncio.Future[Raw]"]]:
        """Remove and return the questions that it can no longer put to its client."""
        left = [(request, answer) for request, answer in self._asks.values() if not answer.done()]
        self._asks.clear()
        return left

    def take(self, responses: Mapping[str, Raw]) -> None:
        """Pass on the client's answers; questions without one are asked again."""
        for key, response in responses.items():
            if (pending := self._asks.pop(key, None)) is not None and not pending[1].done():
                pending[1].set_result(response)

    async def ask(self, method: str, params: Mapping[str, Any]) -> Raw:
        question = {**fit(self.capabilities, method, params)}
        question.pop("elicitationId", None)  # this era has no ids for elicitations
        answer: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self.adopt({"method": method, "params": question}, answer)
        return await answer

    def on_notification(self, method: str, params: Raw) -> None:
        if self._turn is not None:
            self._turn.on_notification(method, params)

    def _on_progress(self) -> OnProgress | None:
        if self._turn is None or self._turn.on_progress() is None:
            return None

        def report(progress: float, total: float | None, message: str | None) -> None:
            # each round of the client brings a progress token of its own
            if self._turn is not None and (on_progress := self._turn.on_progress()) is not None:
                on_progress(progress, total, message)

        return report


class ParkedCalls:
    """All calls that wait for their clients, and the sealed tickets that clients return with.

    Args:
        ttl: Seconds a call waits for its client to return.
    """

    def __init__(
        self,
        tasks: Tasks,
        key: bytes | None = None,
        *,
        ttl: float = TTL,
        most: int = MOST,
        replica: str = "",
    ) -> None:
        self._replica = replica
        self._tasks = tasks
        self._ttl = ttl
        # tickets end with the process, unless replicas share a key
        self._key = key or os.urandom(32)
        self._parked_calls: dict[str, ParkedCall] = {}
        self._shares = Shares(most, "calls that wait for their clients")

    def __len__(self) -> int:
        return len(self._parked_calls)

    @cached_property
    def seal(self) -> Seal:
        """Seals what stateless clients carry."""
        return Seal(self._key)

    @staticmethod
    def issued(state: str | None) -> bool:
        """Whether a `requestState` is one of ours, rather than a server's."""
        return state is not None and state.startswith(_PREFIX)

    async def begin(self, request: ClientRequest, subject: str, work: Work) -> Result:
        """Make a call; returns its result, or the questions for the client.

        Raises:
            RpcError: Too many calls are in progress.
        """
        self._claim(request.client)
        parked = ParkedCall(request, subject)
        self._parked_calls[parked.id] = parked
        # in a task of its own: the request that began it may end long before it
        self._tasks.start_apart(self._run, parked, work)
        return await self._round(parked, request)

    async def resume(self, request: ClientRequest, subject: str) -> Result:
        """Continue a call that its client returns to.

        Raises:
            RpcError: The ticket is not ours, not theirs, of another call, used, or too old.
            OnOtherReplica: The call waits at another replica.
        """
        state = self._unseal(request, subject)
        if self._replica and state.replica != self._replica:
            raise OnOtherReplica(state.replica)
        try:
            raw_responses = request.params.input_responses
            responses = parse_table(raw_responses) if len(raw_responses) else {}
        except UNPARSABLE:
            raise RpcError(INVALID_PARAMS, "inputResponses must be an object") from None
        # nothing is awaited until `_round`: it cannot expire in between
        parked = self._parked_calls.get(state.parked)
        if parked is None or not parked.tickets.take(request.params.request_state or ""):
            raise RpcError(
                INVALID_PARAMS,
                "the call this continues has ended, has expired, or was continued before",
                {"reason": "expired"},
            )
        parked.take(responses)
        # a round is a request of its own, often in another trace
        if (span := CURRENT.get()) is not None and parked.span is not None:
            span.links.append(parked.span)
        return await self._round(parked, request)

    def _claim(self, client: Client) -> None:
        """Count one more call; if there are too many, drop the one that has waited longest."""
        # below that no holder can have too many
        if len(self._parked_calls) >= MOST_EACH:
            own = self._waiting(client.holder)
            if len(own) >= MOST_EACH:
                self._give_up(own[0])
        if self._shares.take(client.holder):
            return
        waiting = self._waiting(client.holder)
        if not waiting and self._shares.total >= self._shares.most:
            waiting = self._waiting()
        if waiting:
            self._give_up(waiting[0])
        if not self._shares.take(client.holder):
            reason = self._shares.refusal(client.holder)
            raise RpcError(OVERLOADED, reason, {"reason": "overloaded"})

    def _waiting(self, holder: str | None = None) -> list[ParkedCall]:
        """The waiting calls, of all holders or of one, oldest first."""
        parked_calls = self._parked_calls.values()
        return [
            parked
            for parked in parked_calls
            if parked.waits and holder in {None, parked.client.holder}
        ]

    def drop(self, principals: Collection[str]) -> None:
        """Cancel all calls of some principals, by their keys."""
        for parked in tuple(self._parked_calls.values()):
            if parked.client.principal.key in principals:
                self._give_up(parked)

    def _give_up(self, parked: ParkedCall) -> None:
        parked.expire()
        self._release(parked)

    def _release(self, parked: ParkedCall) -> None:
        # reached twice for a dropped call: at once, to free its place, and when its task ends
        if parked.is_counted:
            parked.is_counted = False
            self._shares.give(parked.client.holder)

    def _hand_over(self, ended: ParkedCall) -> None:
        """Move the open questions of an ended call to another call of the same client.

        A server that asks on a pipe does not say for which of its calls.
        """
        heir = None
        if ended.answered:
            others = (
                parked for parked in self._parked_calls.values() if parked.owner is ended.owner
            )
            heir = next((parked for parked in others if parked.goes_on), None)
        for request, answer in ended.release():
            if heir is not None:
                heir.adopt(request, answer)
            else:
                answer.set_exception(RpcError(SERVER_ERROR, "the call was cancelled"))

    async def _run(self, parked: ParkedCall, work: Work) -> None:
        try:
            await parked.run(work)
            # at once, not when it is collected: the server waits for these answers
            self._hand_over(parked)
            with anyio.move_on_after(self._ttl):  # its client may be away, asking a person
                await parked.collected.wait()
        finally:
            del self._parked_calls[parked.id]
            self._release(parked)

    async def _round(self, parked: ParkedCall, request: ClientRequest) -> Result:
        result = await parked.round(request, self._ttl)
        if result is not None:
            return result
        state = msgspec.json.encode(_State(parked.id, self._replica))
        purpose = _purpose(parked.client, parked.subject, parked.arguments)
        sealed = base64.urlsafe_b64encode(self.seal.seal(state, purpose))
        ticket = _PREFIX + sealed.decode()
        parked.tickets.issue(ticket, life=self._ttl)
        return jsonrpc.encode(
            {
                "resultType": "input_required",
                "inputRequests": parked.questions,
                "requestState": ticket,
            }
        )

    def _unseal(self, request: ClientRequest, subject: str) -> _State:
        params = request.params
        try:
            ticket = (params.request_state or "").removeprefix(_PREFIX)
            sealed = base64.b64decode(ticket, b"-_", validate=True)
        except ValueError:
            sealed = b""
        opened = self.seal.unseal(sealed, _purpose(request.client, subject, params.arguments))
        if opened is None:
            raise RpcError(
                INVALID_PARAMS,
                "requestState is not one of ours, or belongs to another request",
                {"reason": "invalid_request_state"},
            )
        return msgspec.json.decode(opened.data, type=_State)


def _purpose(client: Client, subject: str, arguments: Raw) -> str:
    """What a ticket is sealed for: it may leak, so it is valid for one principal and call only."""
    # however the JSON is written: the call goes on with the arguments that it began with
    plain = msgspec.json.encode(msgspec.json.decode(arguments), order="deterministic")
    return f"ticket {bind(client.principal.key, subject, plain).hex()}"
