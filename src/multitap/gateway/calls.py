"""Answers clients' calls, reads and prompts."""

from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import msgspec
from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.catalog.catalog import PAGE_SCHEME, Prompt, Tool
from multitap.errors import (
    LONGEST_QUOTE,
    BadAnswer,
    BadArguments,
    Denied,
    NotAllowed,
    ServerError,
    Unavailable,
    UnknownName,
    quoted,
    shortened,
)
from multitap.events import FailureCode, withheld_note
from multitap.gateway import client_errors
from multitap.gateway.client import Client, ClientRequest
from multitap.gateway.connections import AccountConnections, NeedsAccount
from multitap.gateway.eras import to_handshake, to_private, to_stateless
from multitap.gateway.lists import is_for_all
from multitap.gateway.logins import ClientLogins
from multitap.gateway.own_tools import READ_RESULT, RUN_CODE
from multitap.gateway.parked_calls import ParkedCalls
from multitap.gateway.private_links import ExclusiveUse, PrivateLinks
from multitap.gateway.quotas import Quotas
from multitap.gateway.shaping import ResultShaper
from multitap.gateway.skills import SCHEME, with_address
from multitap.gateway.subscriptions import Subscriptions, parse_wanted
from multitap.gateway.tool_search import ToolSearch, refusal, text_answer
from multitap.gateway.traces import RequestTraces
from multitap.gateway.variants import Variants
from multitap.gateway.view import View
from multitap.hub.calls import PendingCall
from multitap.hub.hub import Hub
from multitap.hub.personal_servers import is_connect
from multitap.hub.routes import Route, hidden_from_client, look_up, unknown
from multitap.results import ToolResult
from multitap.results.select import shape
from multitap.selectors import Selector
from multitap.trust.single_use import Seal, SharedRecords
from multitap.upstream.handshake import Era
from multitap.upstream.link import Link
from multitap.upstream.questions import CallContext, slot_holder_of
from multitap.upstream.tasks import needs_task
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import (
    EMPTY,
    RESERVED_KEYS,
    UNPARSABLE,
    Result,
    RpcError,
    parse_table,
    text_of,
)
from multitap.wire.request import Deadline, make_request, members

if TYPE_CHECKING:
    from multitap.gateway import scripts as script_runner

Encoded = Raw | bytes
_TASKS = jsonrpc.TASKS.encode()
_STATELESS_KEYS = RESERVED_KEYS - {"progressToken"}
"""Keys of `_meta` that nothing follows from but the era, and who asks."""
_SHOWN = 20  # tools that are named once an account is connected
_HANDSHAKE, _STATELESS = Era.HANDSHAKE, Era.STATELESS  # read once: enum attributes are slow


class Job(msgspec.Struct, frozen=True, kw_only=True):
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

    async def make(
        self, request: ClientRequest, job: Job, context: CallContext, since: float
    ) -> Encoded:
        """Run a job in turn, in a context; the result is in the format of its server's era."""
        deadline, holder = job.limit(context, since), request.client.holder
        async with self._exclusive_use.turn(
            job.link, job.subject, context, holder, deadline
        ) as link:
            result = await job.do(link, context, deadline)
        references = self._view(request.client.audience).references(job.link.name)
        return result if references is None else references.in_result(result)

    async def run(self, request: ClientRequest, job: Job, since: float | None) -> Result:
        """Run a job in turn, with a round for each set of questions to the client."""
        link = job.link

        async def work(context: CallContext) -> Encoded:
            nonlocal since
            # its time starts again after a person has visited a URL
            began, since = since or anyio.current_time(), None
            return await self.make(request, job, context, began)

        subject = f"{job.method} {job.name}"
        if request.is_stateless and self._parked_calls.issued(request.params.request_state):
            return await self._parked_calls.resume(request, subject)
        if link.person is not None and request.client.log_level is not None:
            # one person's session: the level is not that of all clients of the server
            await self._subscriptions.log_levels.ensure_level(request.client.log_level, link)
        if not request.is_stateless or (link.era is _STATELESS and not job.may_ask):
            return for_client(request, link, await work(request.context()))

        async def translated(context: CallContext) -> Result:
            # the era of the link may be known only afterwards
            result, is_cached = await work(context), job.method == "resources/read"
            return for_client(request, link, result, is_cached=is_cached)

        await self._subscriptions.log_levels.ensure_level(request.log_level, link)
        if request.capabilities == EMPTY:
            return await translated(request.context())
        return await self._parked_calls.begin(request, subject, translated)


def for_client(
    request: ClientRequest, link: Link, result: Encoded, *, is_cached: bool = False
) -> Result:
    """A server's result in the format of its client's era.

    Args:
        request: The client's request.
        link: The server.
        result: As the server sent it.
        is_cached: Whether clients may cache such results, and so need a lifetime.
    """
    if request.is_stateless is (link.era is _STATELESS):
        return result
    if request.is_stateless:
        return to_stateless(result, is_cached=is_cached)
    return to_handshake(result)


def extra_members(request: ClientRequest, link: Link) -> tuple[bytes, bytes]:
    """The members that a request adds to its own parameters.

    Members of its `_meta`, and of its parameters each after a comma, as JSON.
    """
    params = request.params
    meta = params.meta
    keys = meta.keys() - RESERVED_KEYS
    meta_members = members({key: meta[key] for key in keys}) if keys else b""
    # a server of the handshake era asks in the middle of a call, and gets its answers there
    extra = b""
    if link.era is not _HANDSHAKE:
        if params.request_state is not None:
            extra = b',"requestState":%b' % jsonrpc.encode(params.request_state)
        if len(params.input_responses):
            extra = b'%b,"inputResponses":%b' % (extra, params.input_responses)
    return meta_members, extra


_Found = TypeVar("_Found")


class ClientLookup:
    """Finds what clients name, and waits for servers that still start."""

    def __init__(self, hub: Hub, view: Callable[[Audience], View], variants: Variants) -> None:
        self._hub = hub
        self._view = view
        self._variants = variants

    async def find_tool(self, request: ClientRequest, name: str) -> Tool:
        """The tool with this name; waits for starting servers that may have it.

        Raises:
            UnknownName: There is none.
            NotAllowed: A filter hides it.
            Unavailable: The server that may have it failed, or is not up in time.
        """
        audience = request.client.audience

        def find() -> Tool | None:
            view = self._view(audience)
            return view.tools.get(name) or look_up(
                view.catalog, name, shows=view.shows, rank=_app_rank(request)
            )

        async with self._hub.lookup.noting_refusal(name, request.context()):
            tool = await self.wait_for(request, find, name)
            view = self._view(audience)
            if tool is None:
                if len(alike := _shown_alike(view, name)) > 1:
                    raise UnknownName(
                        f"several servers have a tool named {quoted(name)}",
                        hint=f"use one of {', '.join(alike)}",
                    )
                raise unknown(view.tools, name, withheld_note(self._hub.withheld))
            if not view.shows(tool):
                raise hidden_from_client(name)
        return tool

    def shown_tool(self, request: ClientRequest, name: str) -> Tool | None:
        """The tool with this name that the client sees now, if there is one."""
        view = self._view(request.client.audience)
        try:
            return view.tools.get(name) or look_up(
                view.catalog, name, shows=view.shows, rank=_app_rank(request)
            )
        except NotAllowed:
            return None

    async def find_prompt(self, request: ClientRequest, name: str) -> Prompt:
        """The prompt with this name; waits for starting servers that may have it.

        Raises:
            UnknownName: There is none.
            Unavailable: The server that may have it failed, or is not up in time.
        """
        audience = request.client.audience
        prompt = await self.wait_for(request, lambda: self._view(audience).prompts.get(name), name)
        if prompt is None:
            hint = withheld_note(self._hub.withheld) or None
            raise UnknownName(f"no prompt named {quoted(name)}", hint=hint)
        return prompt

    async def find_resource(self, request: ClientRequest, uri: str) -> tuple[Link, str]:
        """The server of a resource and its URI there; waits for starting servers that may have it.

        Raises:
            RpcError: There is none.
            Unavailable: The server that may have it failed, or is not up in time.
        """
        audience = request.client.audience
        await self.wait_for(request, lambda: self._view(audience).resource(uri))
        return self.resource(request, uri)

    async def find_template(self, request: ClientRequest, uri: str) -> tuple[Link, str]:
        """The server of a resource template and its URI there; waits like `find_resource`.

        Raises:
            UnknownName: There is none.
            Unavailable: The server that may have it failed, or is not up in time.
        """
        audience = request.client.audience
        template = await self.wait_for(request, lambda: self._view(audience).template(uri))
        if template is None:
            raise UnknownName(f"no resource template {quoted(uri)}")
        return template

    def resource(self, request: ClientRequest, uri: str) -> tuple[Link, str]:
        """The server that has a resource now, and its URI there.

        Raises:
            RpcError: There is none.
        """
        view = self._view(request.client.audience)
        resource = view.resource(uri)
        if resource is None and uri.startswith(PAGE_SCHEME):
            # a page reads another one of its own server, which need not list it
            server = request.last_app
            if server is not None and view.has(server) and server in view.catalog.links:
                view.catalog.check_readable(server, uri)
                return view.catalog.links[server], uri
        if resource is None:
            stateless, handshake = client_errors.INVALID_PARAMS, client_errors.NO_RESOURCE
            code = stateless if request.is_stateless else handshake
            raise RpcError(
                code, f"Resource not found: {shortened(uri, LONGEST_QUOTE)}", {"uri": uri}
            )
        return resource

    async def wait_for(
        self, request: ClientRequest, find: Callable[[], _Found | None], name: str | None = None
    ) -> _Found | None:
        """What `find` returns once the servers that may have it are up.

        Args:
            request: The client's request.
            find: Looks for it.
            name: The name of a tool or prompt, which may tell whose it is.

        Raises:
            Unavailable: The server that may have it failed, or is not up in time.
        """
        audience, people, links_now = request.client.audience, self._hub.people, None
        if audience.person is not None and people is not None and people.is_needed:
            if find() is None:
                await people.wait_ready(audience.person)
            links_now = lambda: self._view(audience).catalog.links  # noqa: E731
        else:
            await self._variants.wait_ready(audience.declared)
        return await self._hub.lookup.wait_for(
            find,
            name,
            defaults=self._hub.gateway_defaults,
            has=lambda server: self._view(audience).has(server),
            links_now=links_now,
        )


def _app_rank(request: ClientRequest) -> Callable[[Tool], int]:
    """Which of several tools of one name a page of the client means: that of the last one read."""
    return lambda tool: request.app_rank(tool.server) if tool.is_for_apps else 0


def _shown_alike(view: View, name: str) -> list[str]:
    return [tool.name for tool in view.catalog.tools_with_raw_name(name) if view.shows(tool)]


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
        shaper: Shapes results for models.
        connections: Has people connect their own accounts.
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
        shaper: ResultShaper,
        connections: AccountConnections,
    ) -> None:
        self._hub = hub
        self._view = view
        self._lookup = lookup
        self._jobs = jobs
        self._private = private
        self._parked_calls = parked_calls
        self._logins = logins
        self._search = search
        self._shaper = shaper
        self.shared: tuple[SharedRecords, Seal] | None = None
        """What replicas share of paused scripts."""
        self.quotas: Quotas | None = None
        """Limits what principals use; None without quotas."""
        self.traces: RequestTraces | None = None
        """Records some of the requests; None if traces are off."""
        self.on_rejected: Callable[[str], None] = lambda _: None
        """Counts calls that reach no tool, by reason."""
        self._connections = connections

        self.take_task: Callable[[ClientRequest, Route, float | None], Awaitable[Result]] | None
        self.take_task = None
        """Makes a call for a client that takes a task instead of the result."""

    def answer(self, request: ClientRequest) -> Awaitable[Result]:
        """The result of the tool that a client calls.

        Raises:
            RpcError, MultitapError: The call failed.
        """
        if self.traces is None and self.quotas is None:
            return self._answer(request)
        if self.quotas is None:
            return self._traced(request)
        return self._counted(request, self._traced)

    def begin(self, request: ClientRequest, on_news: Callable[[], None]) -> PendingCall | None:
        """Make a call without a task; None if it waits for more than its server.

        `on_news` is called once, when `end` may have its result. Until then and afterwards,
        `finish` can go on with it in a task.
        """
        params = request.params
        if self.traces is not None or self.quotas is not None or params.request_state is not None:
            return None
        if (meta := params.meta) and not _STATELESS_KEYS.issuperset(meta):
            return None
        view = self._view(request.client.audience)
        route = view.routes.get(params.name)
        if (
            route is None
            or route.link.name in view.renaming
            or len(params.input_responses)
            or not self._is_plain(request, route)
        ):
            return None
        context = CallContext(client=request)
        return self._hub.calls.begin(route, params.arguments, context, on_news)

    def end(self, request: ClientRequest, call: PendingCall) -> Result | None:
        """The result of a call that was begun, if it is here and as usual; None: `finish` it."""
        called = self._hub.calls.end(call)
        if called is None:
            return None
        request.result = called
        try:
            return for_client(request, call.route.link, called.raw)
        except UNPARSABLE:
            return None

    def finish(self, request: ClientRequest, call: PendingCall) -> Awaitable[Result]:
        """Go on with a call that was begun; raises what `answer` raises."""
        return self._answer(request, call=call)

    async def _counted(
        self, request: ClientRequest, answer: Callable[[ClientRequest], Awaitable[Result]]
    ) -> Result:
        """The same within the quota of its principal."""
        if (quotas := self.quotas) is None:
            return await answer(request)
        principal = request.principal.key or request.principal.name
        try:
            await quotas.admit(principal)
        except RpcError:
            self.on_rejected("quota")
            raise
        result = await answer(request)
        size = sum(map(len, result)) if isinstance(result, tuple) else len(result)
        await quotas.on_result(principal, size)
        return result

    def _traced(self, request: ClientRequest) -> Awaitable[Result]:
        """The same, recorded if that is wanted."""
        traces = self.traces
        if traces is not None and (span := traces.begin(request, "tools/call")) is not None:
            return traces.serve(span, request, self._answer)
        return self._answer(request)

    async def _answer(  # noqa: C901, PLR0911, PLR0912 - in one piece: every call takes this way
        self, request: ClientRequest, *, is_inner: bool = False, call: PendingCall | None = None
    ) -> Result:
        """The same.

        Args:
            request: The client's request.
            is_inner: Whether a tool of our own makes the call, and shapes the result.
            call: The call, if it was begun.
        """
        params, client, since = request.params, request.client, None
        view = self._view(client.audience)
        route = view.routes.get(params.name) if call is None else call.route
        if route is None:
            if view.answers_searches and self._search.has(params.name):
                return await self._enter(request)
            if params.name == RUN_CODE and view.runs_code and request.script is None:
                return await self.scripts.run(request)
            if (view.shapes_results or params.name == READ_RESULT) and not is_inner:
                return await self._shaped(request)
            since = anyio.current_time()
            if request.is_stateless and self._parked_calls.issued(params.request_state):
                return await self._parked_calls.resume(request, _subject(params.name))
        try:
            if route is None:
                route = await self._find_route(request)
            if call is None and not self._is_plain(request, route):
                # what shapes the result, or runs in a script, waits for it
                is_direct = not is_inner and request.script is None
                if is_direct and self.take_task is not None and _takes_task(request):
                    return await self.take_task(request, route, since)
                return await self._call_in_turn(request, route, since)
            link = route.link
            own_meta = params.meta
            is_usual = request.script is None and not (own_meta and "progressToken" in own_meta)
            context = CallContext(client=request) if is_usual else request.context()
            deadline = None if since is None else route.deadline(context, since)
            meta = extra = b""
            if (
                params.request_state is not None
                or len(params.input_responses)
                or (own_meta and not RESERVED_KEYS.issuperset(own_meta))
            ):
                meta, extra = extra_members(request, link)
            calls = self._hub.calls
            called = await (
                calls.make(
                    route, params.arguments, context, deadline=deadline, meta=meta, extra=extra
                )
                if call is None
                else calls.finish(call)
            )
        except (BadArguments, Denied) as exc:
            failed = client_errors.failed_call(exc)
            return to_stateless(failed) if request.is_stateless else failed
        except Unavailable as exc:
            if self._connections.concerns(request, exc):
                return await self._call_after_connecting(request, exc)
            if not self._logins.may_ask(request, exc):
                raise
            return await self._call_after_login(request, exc.server)
        except ServerError as exc:
            if route is None or not needs_task(exc):
                raise
            # from now on known: its calls wait for a task
            route.link.task_tools.add(route.tool.raw_name)
            return await self._call_in_turn(request, route, since)
        request.result = called
        # routes that a view remembers select nothing
        raw = called.raw if since is None else await _selected(route, called.raw)
        try:
            if link.name in view.renaming:
                return self._translate(request, link, raw)
            return for_client(request, link, raw)
        except UNPARSABLE as exc:
            message = f"the result cannot be read: {exc}"
            raise BadAnswer(link.name, message) from None

    @cached_property
    def scripts(self) -> "script_runner.ScriptRunner":
        """Runs scripts in code mode; made when the first one comes."""
        from multitap.gateway import scripts as script_runner  # noqa: PLC0415 - in code mode only

        seal = self._parked_calls.seal
        runner = script_runner.ScriptRunner(
            self._hub, self._view, self._answer_script, self._search, self._shaper, lambda: seal
        )
        if self.shared is not None:
            runner.share(*self.shared)
        return runner

    async def _answer_script(self, request: ClientRequest, *, is_inner: bool) -> Result:
        """A call of a script, which counts for the quota of its principal like any other."""
        return await self._counted(request, partial(self._answer, is_inner=is_inner))

    async def close(self) -> None:
        """End what code mode has started."""
        if "scripts" in self.__dict__:
            await self.scripts.close()

    async def _shaped(self, request: ClientRequest, selector: Selector | None = None) -> Result:
        """The result of a call, shaped for a model."""
        name, view = request.params.name, self._view(request.client.audience)
        if name == READ_RESULT and name not in view.tools:
            return await self._shaper.answer(request)
        result = await self._answer(request, is_inner=True)
        if not view.answers_searches and not view.shapes_results:
            return result  # a server has a tool of that name
        tool = self._lookup.shown_tool(request, name)
        if tool is not None and not tool.is_for_model:
            return result  # for a page, which expects what its server sends
        return await self._shaper.shape(request, () if tool is None else (tool,), result, selector)

    async def _enter(self, request: ClientRequest) -> Result:
        """Answer one of the three tools of search mode."""
        try:
            call = self._search.inner(request)
        except BadArguments as exc:
            return refusal(request, exc)
        if call is None:
            return await self._search.answer(request)
        inner, selector = call
        name = inner.params.name
        try:
            if self._search.has(name):  # or it could go on calling itself
                raise UnknownName(f"no tool named {quoted(name)}")  # noqa: TRY301
            tool = self._lookup.shown_tool(inner, name)
            if tool is not None and not tool.is_for_model:
                raise UnknownName(f"the tool {quoted(name)} is for pages, not for models")  # noqa: TRY301
            result = await self._shaped(inner, selector)
            request.result = inner.result
            return result  # noqa: TRY300 - what is raised is answered below
        except UnknownName as exc:
            return await self._search.unknown(inner, exc)

    async def _find_route(self, request: ClientRequest) -> Route:
        """The route to a tool that is not listed (yet)."""
        try:
            tool = await self._lookup.find_tool(request, request.params.name)
            return self._view(request.client.audience).route(tool)
        except UnknownName as exc:
            self.on_rejected("not_allowed" if isinstance(exc, NotAllowed) else "unknown")
            raise
        except client_errors.ScopeNeeded:
            self.on_rejected("scope")
            raise

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
            called = await self._hub.calls.make(route, arguments, context, meta=meta, extra=extra)
            return self._translate(request, link, await _selected(route, called.raw))

        if not request.is_stateless:
            return await work(request.context())
        return await self._parked_calls.begin(request, _subject(request.params.name), work)

    async def _call_after_connecting(self, request: ClientRequest, exc: Unavailable) -> Result:
        """The result of a call after its person has connected an account at the server."""
        server, name = exc.server, request.params.name
        reason = _why(exc)

        async def work(context: CallContext) -> Result:
            asker = context.client or request
            try:
                await self._connections.connect(
                    request, server, asker, context.on_progress, reason=reason
                )
                route = await self._find_route(request)
            except NeedsAccount as needs:
                # in words: the model passes them on to the person
                text = f"{needs}; {needs.hint}" if needs.hint else str(needs)
                return text_answer(request, text, is_error=True)
            except UnknownName:
                return text_answer(request, self._describe_offers(request, server))
            link = route.link
            if is_connect(route.tool):
                return text_answer(request, self._describe_offers(request, server))
            meta, extra = extra_members(request, link)
            # its time starts again: a person had to come first
            called = await self._hub.calls.make(
                route, request.params.arguments, context, meta=meta, extra=extra
            )
            return self._translate(request, link, await _selected(route, called.raw))

        if not request.is_stateless:
            return await work(request.context())
        return await self._parked_calls.begin(request, _subject(name), work)

    def _describe_offers(self, request: ClientRequest, server: str) -> str:
        tools = self._view(request.client.audience).tools.values()
        names = [tool.name for tool in tools if tool.server == server and not is_connect(tool)]
        listed = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        return f"Your account at {server} is connected. Its tools: {listed or 'none'}."

    def _translate(self, request: ClientRequest, link: Link, result: Encoded) -> Result:
        """A result in the format of its client's era, with the addresses that the client uses."""
        references = self._view(request.client.audience).references(link.name)
        if references is not None:
            result = references.in_result(result)
        return for_client(request, link, result)

    def _is_plain(self, request: ClientRequest, route: Route) -> bool:
        """Whether a call waits for nothing but its server.

        Others wait for their turn, for a session of their client's own, or for answers of a client
        that can only be asked in between, or become tasks.
        """
        link = route.link
        era = link.era
        if era is None or not route.is_shared:
            return False
        client, has_others = request.client, request.slot_holder is not None
        if (client.can_be_asked and not self._private.shares(client, link)) or (
            has_others and link.attribution.may_mix(route.tool.raw_name)
        ):
            return False
        if not request.is_stateless:
            return not len(request.params.task)
        has_said_more = request.log_level is not None or request.capabilities != EMPTY
        if _is_asked_between(route) or (has_said_more and era is _HANDSHAKE):
            return False
        if has_said_more and _takes_task(request):
            return False
        state = request.params.request_state
        return state is None or not self._parked_calls.issued(state)

    async def _call_in_turn(
        self, request: ClientRequest, route: Route, since: float | None
    ) -> Result:
        if route.link.person is not None and is_connect(route.tool):
            state = request.params.request_state
            if request.is_stateless and self._parked_calls.issued(state):
                return await self._parked_calls.resume(request, _subject(request.params.name))
            failure = route.link.failure
            if failure is not None and failure.code is not FailureCode.AUTH:
                # it is connected, and something else is wrong: another link would not help
                return text_answer(request, f"{route.link.name}: {failure}", is_error=True)
            return await self._call_after_connecting(request, Unavailable(route.link.name, ""))
        began = perf_counter()
        link = await self._jobs.session(request, route.link)
        return await self._jobs.run(request, self.job(request, route, link, began), since)

    def job(
        self, request: ClientRequest, route: Route, link: Link, began: float | None = None
    ) -> Job:
        """A client's call of a tool, over one of the links to its server.

        Args:
            request: The client's request.
            route: The route to the tool.
            link: The server.
            began: When it began to wait for a session and its turn, by `perf_counter`; None if
                nobody waits for its answer.
        """
        arguments, tool, shared = request.params.arguments, route.tool.raw_name, route.link
        if shared.era is _STATELESS and tool in shared.task_tools:
            link = shared  # the older session of a server with both eras has no such tasks

        async def make(link: Link, context: CallContext, deadline: Deadline) -> ToolResult:
            meta, extra = extra_members(request, link)
            return await self._hub.calls.make(
                route.over(link), arguments, context, deadline=deadline, meta=meta, extra=extra
            )

        async def call(link: Link, context: CallContext, deadline: Deadline) -> Encoded:
            in_turn = perf_counter()
            try:
                called = await make(link, context, deadline)
            except ServerError as exc:
                if link.era is _STATELESS or shared.era is not _STATELESS or not needs_task(exc):
                    raise
                shared.task_tools.add(tool)
                called = await make(shared, context, deadline)
                raw = to_handshake(called.raw)
                return await _selected(route, b"".join(raw) if isinstance(raw, tuple) else raw)
            if began is not None and called.waited:
                called.waited += in_turn - began
                request.result = called
            return await _selected(route, called.raw)

        return Job(
            method="tools/call",
            name=route.tool.name,
            link=link,
            subject=tool,
            limit=route.deadline,
            do=call,
            may_ask=_is_asked_between(route),
        )


def _takes_task(request: ClientRequest) -> bool:
    """Whether a client takes a task instead of a result."""
    if request.is_stateless:
        return request.capabilities != EMPTY and _TASKS in bytes(request.capabilities)
    return len(request.params.task) > 0


def _is_asked_between(route: Route) -> bool:
    """Whether a stateless client may have to be asked between two rounds of a call.

    By the policy, or by a task for which the call waits.
    """
    if route.guard is not None and route.guard.may_ask:
        return True
    return route.task_support == "required" or route.tool.raw_name in route.link.task_tools


async def _selected(route: Route, raw: Encoded) -> Encoded:
    """A result with what the configuration selects of it."""
    expression = route.link.config.select.get(route.tool.raw_name)
    return raw if expression is None else await shape(raw, Selector(expression))


def _why(exc: Unavailable) -> str:
    """Why an account does not work, without the name of its server."""
    if exc.failure is not None:
        return exc.failure.message
    return str(exc).removeprefix(f"{exc.server}: ")


def _subject(name: str) -> str:
    """The subject of a parked call; the same as in `JobRunner.run`."""
    return f"tools/call {name}"


class _Complete(msgspec.Struct):
    ref: dict[str, Any] = {}
    argument: Raw = EMPTY
    context: Raw | msgspec.UnsetType = msgspec.UNSET


class OfferRequests:
    """Answers requests for what servers offer besides tools, one method for each."""

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        hub: Hub,
        lookup: ClientLookup,
        jobs: JobRunner,
        subscriptions: Subscriptions,
        shaper: ResultShaper,
        parked_calls: ParkedCalls,
        connections: AccountConnections,
    ) -> None:
        self._hub = hub
        self._lookup = lookup
        self._jobs = jobs
        self._subscriptions = subscriptions
        self._shaper = shaper
        self._parked_calls = parked_calls
        self._connections = connections

    async def prompt(self, request: ClientRequest, _: Raw) -> Result:
        name, since = request.params.name, anyio.current_time()
        prompt = await self._lookup.find_prompt(request, name)
        params = {"name": prompt.raw_name, "arguments": request.params.arguments}
        return await self._request(request, prompt.link, "prompts/get", params, name, since)

    async def read(self, request: ClientRequest, _: Raw) -> Result:
        address, since = request.params.uri, anyio.current_time()
        if (stored := await self._shaper.read(request, address)) is not None:
            return stored
        link, uri = await self._lookup.find_resource(request, address)
        if address.startswith(PAGE_SCHEME):
            # it may call tools of its own server by their bare names from now on
            request.on_page_read(link.name)
        result = await self._request(request, link, "resources/read", {"uri": uri}, uri, since)
        if request.is_stateless and not is_for_all(request):
            result = to_private(result)
        if address != uri and address.startswith(SCHEME):
            # its skill is known by this address, whether or not the server has to share its own
            return with_address(result, uri, address)
        return result

    async def complete(self, request: ClientRequest, params: Raw) -> Result:
        completion = msgspec.json.decode(params, type=_Complete)
        ref, since = completion.ref, anyio.current_time()
        if ref.get("type") == "ref/prompt":
            prompt = await self._lookup.find_prompt(request, str(ref.get("name", "")))
            link, ref = prompt.link, {**ref, "name": prompt.raw_name}
        else:
            link, uri = await self._lookup.find_template(request, str(ref.get("uri", "")))
            ref = {**ref, "uri": uri}
        # the argument stays undecoded: only the server knows what it means
        message: dict[str, Any] = {"ref": ref, "argument": completion.argument}
        if completion.context is not msgspec.UNSET:
            message["context"] = completion.context
        return await self._request(request, link, "completion/complete", message, "", since)

    async def send(
        self, request: ClientRequest, link: Link, method: str, params: dict[str, Any]
    ) -> Result:
        """Send a request of an extension to a server; nobody knows what it does."""
        since = anyio.current_time()
        return await self._request(request, link, method, params, "", since, repeatable=False)

    async def _request(  # noqa: PLR0917 - each of its few callers gives them all
        self,
        client_request: ClientRequest,
        link: Link,
        method: str,
        params: dict[str, Any],
        name: str,
        since: float | None,
        *,
        repeatable: bool = True,
    ) -> Result:
        """Send a request to a server; a read-only one may be sent again."""

        def send(link: Link, since: float | None) -> Awaitable[Result]:
            return self._send(
                client_request, link, method, params, name, since, repeatable=repeatable
            )

        try:
            return await send(link, since)
        except Unavailable as exc:
            if not self._connections.concerns(client_request, exc):
                raise
            server, reason = exc.server, _why(exc)

        async def work(context: CallContext) -> Result:
            asker = context.client or client_request
            await self._connections.connect(
                client_request, server, asker, context.on_progress, reason=reason
            )
            people, person = self._hub.people, client_request.client.audience.person
            own = None if people is None else people.link(person, server)
            return await send(own or link, None)

        if not client_request.is_stateless:
            return await work(client_request.context())
        return await self._parked_calls.begin(client_request, f"{method} {name}", work)

    async def _send(  # noqa: PLR0917 - as above
        self,
        client_request: ClientRequest,
        link: Link,
        method: str,
        params: dict[str, Any],
        name: str,
        since: float | None,
        *,
        repeatable: bool,
    ) -> Result:
        # a server with a session per client answers this client only on that one
        link = await self._jobs.session(client_request, link)
        defaults = self._hub.gateway_defaults

        def limit(context: CallContext, since: float) -> Deadline:
            return defaults.deadline(link.config, context=context, since=since)

        async def ask(link: Link, context: CallContext, deadline: Deadline) -> Encoded:
            request = make_request(
                method,
                params,
                deadline,
                call=context,
                slot_holder=slot_holder_of(context),
                on_progress=context.on_progress,
                repeatable=repeatable,
            )
            request.meta, extra = extra_members(client_request, link)
            # without parameters of its own there is nothing for the comma to follow
            request.params = (
                b"%b%b" % (request.params or b"", extra) if request.params else extra[1:]
            )
            return await link.request(request)

        job = Job(method=method, name=name, link=link, subject=method, limit=limit, do=ask)
        return await self._jobs.run(client_request, job, since)

    async def subscribe(self, request: ClientRequest, params: Raw) -> Result:
        uri = text_of(parse_table(params).get("uri")) or ""
        link, raw = await self._lookup.find_resource(request, uri)
        link = await self._jobs.session(request, link)
        await self._subscriptions.subscribe(request.client, uri, link, raw)
        return b"{}"

    async def unsubscribe(self, request: ClientRequest, params: Raw) -> Result:
        uri = text_of(parse_table(params).get("uri")) or ""
        await self._subscriptions.unsubscribe(request.client, uri)
        return b"{}"

    async def listen(self, request: ClientRequest, params: Raw) -> Result:
        if not request.is_stateless:
            raise RpcError(client_errors.NO_METHOD, "Method not found: subscriptions/listen")
        requested = parse_table(params).get("notifications", EMPTY)
        try:
            notifications = parse_wanted(requested)
        except UNPARSABLE:
            raise RpcError(
                client_errors.INVALID_PARAMS, "the notifications cannot be read"
            ) from None
        # resources are looked up one by one: some may be unknown while the others are followed
        return await self._subscriptions.listen(
            request, notifications, lambda uri: self._follow(request, uri)
        )

    async def _follow(self, request: ClientRequest, uri: str) -> tuple[Link, str]:
        link, raw = await self._lookup.find_resource(request, uri)
        return await self._jobs.session(request, link), raw
