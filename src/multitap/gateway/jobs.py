"""A client's request to one server, in its turn and in as many rounds as questions take."""

from collections.abc import Awaitable, Callable

import anyio
from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.gateway.client import Client
from multitap.gateway.client_message import EMPTY, RESERVED, Result
from multitap.gateway.client_request import ClientRequest
from multitap.gateway.eras.parked_calls import ParkedCalls
from multitap.gateway.eras.subscriptions import Subscriptions
from multitap.gateway.eras.translation import to_handshake, to_stateless
from multitap.gateway.exclusive_use import ExclusiveUse
from multitap.gateway.private_links import PrivateLinks
from multitap.gateway.view import View
from multitap.records import dataclass
from multitap.upstream.link import Link
from multitap.upstream.on_behalf_of import CallContext
from multitap.upstream.session import Era
from multitap.wire.jsonrpc import envelope
from multitap.wire.jsonrpc.deadline import Deadline
from multitap.wire.jsonrpc.request import members

Encoded = Raw | bytes


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a client to one server."""

    method: str
    name: str
    """The name of the tool, prompt or resource that the client uses."""
    link: Link
    subject: str
    """The tool's own name, or the method: what `Attribution` remembers behaviour by."""
    limit: Callable[[CallContext, float], Deadline]
    """Its deadline, given when it began."""
    do: Callable[[Link, CallContext, Deadline], Awaitable[Encoded]]
    """Sends it over the given link."""
    may_ask: bool = False
    """Whether the policy may ask the client's user about it."""


class JobRunner:
    """Runs jobs, each in its client's session and in turn.

    Args:
        view: Returns what clients of an audience see.
        private: Sessions of single clients.
        exclusive_use: Gives clients their turn.
        parked_calls: Where a job waits for a stateless client to return.
        subscriptions: Which log levels are wanted.
        check_seat: Raises `OnOtherReplica` where a client's own session is at another replica.
    """

    def __init__(
        self,
        view: Callable[[Audience], View],
        private: PrivateLinks,
        exclusive_use: ExclusiveUse,
        parked_calls: ParkedCalls,
        subscriptions: Subscriptions,
        *,
        check_seat: Callable[[Client, str], Awaitable[None]] | None = None,
    ) -> None:
        self._check_seat = check_seat
        self._view = view
        self._private = private
        self._exclusive_use = exclusive_use
        self._parked_calls = parked_calls
        self._subscriptions = subscriptions

    async def session(self, request: ClientRequest, link: Link) -> Link:
        """The link over which a server works for a client: the same for all of its requests."""
        if self._private.shares(request.client, link):
            return link
        if self._check_seat is not None and link.config.session != "shared":
            await self._check_seat(request.client, link.name)
        return await self._private.link(request.client, link)

    async def run(self, request: ClientRequest, job: Job, since: float | None) -> Result:
        """Run a job in turn, with a round for each set of questions to the client."""
        link = job.link

        async def work(context: CallContext) -> Encoded:
            nonlocal since
            # its time starts again after a person has visited a URL
            began, since = since or anyio.current_time(), None
            deadline, holder = job.limit(context, began), request.client.holder
            async with self._exclusive_use.turn(
                link, job.subject, context, holder, deadline
            ) as found:
                result = await job.do(found, context, deadline)
            references = self._view(request.client.audience).references(link.name)
            return result if references is None else references.in_result(result)

        subject = f"{job.method} {job.name}"
        if request.modern and self._parked_calls.issued(request.params.request_state):
            return await self._parked_calls.resume(request, subject)
        if not request.modern or (link.era is Era.STATELESS and not job.may_ask):
            result = await work(request.context())
            return (
                result if request.modern or link.era is not Era.STATELESS else to_handshake(result)
            )

        async def translated(context: CallContext) -> Result:
            result = await work(context)
            if link.era is Era.STATELESS:  # it was not known before
                return result
            return to_stateless(result, kept=job.method == "resources/read")

        await self._subscriptions.log_levels.ensure_level(request.log_level, link)
        if request.capabilities == EMPTY:
            return await translated(request.context())
        return await self._parked_calls.begin(request, subject, translated)


def extra_members(request: ClientRequest, link: Link) -> tuple[bytes, bytes]:
    """The members that a request adds to its own parameters.

    Members of its `_meta`, and of its parameters each after a comma, as JSON.
    """
    params = request.params
    meta = params.meta
    kept = meta.keys() - RESERVED
    said = members({key: meta[key] for key in kept}) if kept else b""
    # a server of the handshake era asks in the middle of a call, and gets its answers there
    extra = b""
    if link.era is not Era.HANDSHAKE:
        if params.request_state is not None:
            extra = b',"requestState":%b' % envelope.encode(params.request_state)
        if len(params.input_responses):
            extra = b'%b,"inputResponses":%b' % (extra, params.input_responses)
    return said, extra
