"""Answers a client's `tools/call`."""

from collections.abc import Callable

import anyio

from multitap.catalog.audience import Audience
from multitap.errors import BadAnswer, BadArguments, Denied, Unavailable, UnknownName, quoted
from multitap.gateway import client_errors
from multitap.gateway.client_logins import ClientLogins
from multitap.gateway.client_lookup import ClientLookup
from multitap.gateway.client_message import EMPTY, RESERVED, UNPARSABLE, Result
from multitap.gateway.client_request import ClientRequest
from multitap.gateway.eras.parked_calls import ParkedCalls
from multitap.gateway.eras.translation import to_handshake, to_stateless
from multitap.gateway.jobs import Encoded, Job, JobRunner, extra_members
from multitap.gateway.private_links import PrivateLinks
from multitap.gateway.tool_search import ToolSearch, words_result
from multitap.gateway.view import View
from multitap.hub.hub import Hub
from multitap.hub.router import Route
from multitap.tasks import in_task
from multitap.upstream.link import Link
from multitap.upstream.on_behalf_of import CallContext
from multitap.upstream.session import Era
from multitap.wire.jsonrpc.deadline import Deadline

_HANDSHAKE, _STATELESS = Era.HANDSHAKE, Era.STATELESS  # read once: enum attributes are slow


class ToolCalls:
    """Answers clients' `tools/call`: plain calls directly, the others as jobs.

    Args:
        hub: Has the servers.
        view: Returns what clients of an audience see.
        lookup: Finds tools that the view does not list.
        jobs: Runs calls that wait for more than their server.
        private: Sessions of single clients.
        parked_calls: Calls that wait for their client to return.
        logins: Sends a client's user to log in.
        search: Answers the three tools of search mode.
    """

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        hub: Hub,
        view: Callable[[Audience], View],
        lookup: ClientLookup,
        jobs: JobRunner,
        private: PrivateLinks,
        parked_calls: ParkedCalls,
        logins: ClientLogins,
        search: ToolSearch,
    ) -> None:
        self._hub = hub
        self._view = view
        self._lookup = lookup
        self._jobs = jobs
        self._private = private
        self._parked_calls = parked_calls
        self._logins = logins
        self._search = search

    async def answer(self, request: ClientRequest) -> Result:  # noqa: C901, PLR0911, PLR0912 - in one piece: every call takes this way
        """The result of the tool that a client calls.

        Raises:
            Refused, MultitapError: The call failed.
        """
        params, client, hub, since = request.params, request.client, self._hub, None
        view = client.view
        # inlined from `Gateway.view`, to save a frame
        if (
            view is None
            or view.catalog is not hub.catalog
            or view.profiles is not hub.settings.profiles
            or view.defaults is not hub.gateway_defaults
        ):
            view = client.view = self._view(client.audience)
        route = view.routes.get(params.name)
        if route is None:
            await in_task(request.light)
            if self._view(client.audience).answers_searches and self._search.has(params.name):
                return await self._enter(request)
            since = anyio.current_time()
            if request.modern and self._parked_calls.issued(params.request_state):
                return await self._parked_calls.resume(request, _subject(params.name))
        try:
            if route is None:
                route = await self._find_route(request)
            if not self._is_plain(request, route):
                await in_task(request.light)
                return await self._call_in_turn(request, route, since)
            link = route.link
            said = params.meta
            told = said and "progressToken" in said
            context = request.context() if told else CallContext(client=request)
            deadline = None if since is None else route.deadline(context, since)
            meta = extra = b""
            if (
                params.request_state is not None
                or len(params.input_responses)
                or (said and not RESERVED.issuperset(said))
            ):
                meta, extra = extra_members(request, link)
            called = await hub.calls.make(
                route, params.arguments, context, deadline, request.light, meta, extra
            )
        except (BadArguments, Denied) as exc:
            failed = client_errors.failed_call(exc)
            return to_stateless(failed) if request.modern else failed
        except Unavailable as exc:
            if not self._logins.may_ask(request, exc):
                raise
            await in_task(request.light)
            return await self._call_after_login(request, exc.server)
        try:
            if link.name in view.renaming:
                return self._translate(request, link, called.raw)
            if request.modern is (link.era is _STATELESS):
                return called.raw
            return to_stateless(called.raw) if request.modern else to_handshake(called.raw)
        except UNPARSABLE as exc:
            words = f"the result cannot be read: {exc}"
            raise BadAnswer(link.name, words) from None

    async def _enter(self, request: ClientRequest) -> Result:
        """Answer one of the three tools of search mode."""
        try:
            inner = self._search.inner(request)
        except BadArguments as exc:
            return words_result(request, str(exc), is_error=True)
        if inner is None:
            return await self._search.answer(request)
        name = inner.params.name
        try:
            if self._search.has(name):  # or it could go on calling itself
                raise UnknownName(f"no tool named {quoted(name)}")  # noqa: TRY301
            return await self.answer(inner)
        except UnknownName as exc:
            return await self._search.unknown(inner, exc)

    async def _find_route(self, request: ClientRequest) -> Route:
        """The route to a tool that is not listed (yet)."""
        tool = await self._lookup.find_tool(request, request.params.name)
        return self._view(request.client.audience).route(tool)

    async def _call_after_login(self, request: ClientRequest, server: str) -> Result:
        """The result of a call after the client's user has logged in to the server."""
        arguments = request.params.arguments

        async def work(context: CallContext) -> Result:
            if (asker := context.client) is not None:
                await self._logins.log_in(server, request.client, asker)
            route = await self._find_route(request)
            link = route.link
            meta, extra = extra_members(request, link)
            # its time starts again: a person had to log in first
            called = await self._hub.calls.make(route, arguments, context, None, None, meta, extra)
            return self._translate(request, link, called.raw)

        if not request.modern:
            return await work(request.context())
        return await self._parked_calls.begin(request, _subject(request.params.name), work)

    def _translate(self, request: ClientRequest, link: Link, result: Encoded) -> Result:
        """A result in the format of its client's era, with the addresses that the client uses."""
        references = self._view(request.client.audience).references(link.name)
        if references is not None:
            result = references.in_result(result)
        if request.modern is (link.era is _STATELESS):
            return result
        return to_stateless(result) if request.modern else to_handshake(result)

    def _is_plain(self, request: ClientRequest, route: Route) -> bool:
        """Whether a call waits for nothing but its server.

        Others wait for their turn, for a session of their client's own, or for answers of a client
        that can only be asked in between.
        """
        link = route.link
        era = link.era
        if era is None or not route.is_shared:
            return False
        if request.client.can_be_asked and not self._private.shares(request.client, link):
            return False
        if request.slot_holder is not None:
            # inlined from `Attribution.may_mix`, to save a frame
            mixing = link.attribution
            if mixing.habits.asks or (
                mixing.is_mixing and route.tool.raw_name not in mixing.quiet_subjects
            ):
                return False
        if not request.modern:
            return True
        is_asked_between = route.guard is not None and route.guard.may_ask
        if is_asked_between or (
            era is _HANDSHAKE and (request.log_level is not None or request.capabilities != EMPTY)
        ):
            return False
        state = request.params.request_state
        return state is None or not self._parked_calls.issued(state)

    async def _call_in_turn(
        self, request: ClientRequest, route: Route, since: float | None
    ) -> Result:
        link, arguments = await self._jobs.session(request, route.link), request.params.arguments

        async def call(found: Link, context: CallContext, deadline: Deadline) -> Encoded:
            meta, extra = extra_members(request, found)
            way = route.over(found)
            called = await self._hub.calls.make(
                way, arguments, context, deadline, None, meta, extra
            )
            return called.raw

        may_ask = route.guard is not None and route.guard.may_ask
        job = Job(
            "tools/call", route.tool.name, link, route.tool.raw_name, route.deadline, call, may_ask
        )
        return await self._jobs.run(request, job, since)


def _subject(name: str) -> str:
    """The subject of a parked call; the same as in `JobRunner.run`."""
    return f"tools/call {name}"
