"""Code mode: scripts of models, whose calls go the way of all calls.

A call that a person has to approve pauses the script. A client of the handshake era is asked in
between. One of the stateless era gets the question as an answer, and the whole script, sealed, as
the state that it returns with: any replica that has the key goes on from there, once.
"""

import base64
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from secrets import token_hex
from typing import Any, Protocol

import anyio
import msgspec
from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.catalog.catalog import Tool
from multitap.catalog.schemas.schema import is_object
from multitap.code.messages import (
    CallAnswer,
    CallAnswers,
    Dump,
    Peek,
    Report,
    Run,
    ScriptCall,
    ScriptCalls,
    ScriptDone,
    ScriptFailed,
    ScriptLimits,
    State,
)
from multitap.code.pool import ScriptPool, ScriptProcess
from multitap.errors import BadArguments, MultitapError, NotAllowed, counted, quoted, shortened
from multitap.gateway.client import ClientRequest, OnOtherReplica, able
from multitap.gateway.own_tools import (
    CALL_TOOL,
    READ_RESULT,
    RUN_CODE,
    check_arguments,
    running_tool,
)
from multitap.gateway.questions import permission
from multitap.gateway.tool_search import ToolSearch, refusal, text_answer
from multitap.gateway.view import View
from multitap.hub.hub import Hub
from multitap.hub.routes import Route
from multitap.installation import extra_hint
from multitap.results.result import UNREADABLE, ToolResult
from multitap.store.audit_log import AuditRecord
from multitap.trust.arguments import decode_arguments
from multitap.trust.policy import Decision
from multitap.trust.shown_arguments import show_arguments
from multitap.trust.single_use import Seal, SharedRecords, SingleUse, bind
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import EMPTY, INVALID_PARAMS, NOTHING, Result, RpcError, parse_table

PREFIX = "multitap-script:"
LIFE = 600.0
"""Seconds for which a paused script can be continued."""
LARGEST_STATE = 64 * 1024
"""Bytes of a sealed script that a client carries; larger ones are kept here, or by the cluster."""
MOST_PAUSED = 64
"""Paused scripts that this process keeps; beyond that, the oldest is dropped."""
AT_A_TIME = 8
"""Calls of one script that run at the same time."""
MOST_ASKED = 100
"""Calls that a person is asked about at once."""
_LONGEST_ERROR = 2000
_SHOWN_CALLS = 20
_ELICIT = "elicitation/create"
_KEY = "approval"

AnswerCall = Callable[..., Awaitable[Result]]
"""Answers a client's `tools/call`; see `ToolCalls.answer`."""


class Shaper(Protocol):
    """Shapes results; see `ResultShaper`."""

    async def shape(
        self, request: ClientRequest, tools: Sequence[Tool], result: Result
    ) -> Result: ...


class _Progress(msgspec.Struct, kw_only=True):
    """What is known of a script besides its state in the engine."""

    id: str
    left: float
    """Seconds that it may still take."""
    made: list[str] = []
    """The calls that were made, in words."""
    tools: list[str] = []
    approved: list[bytes] = []
    """Digests of the calls that a person has approved and that were not made yet."""
    refused: list[bytes] = []
    asked: list[bytes] = []
    """Digests of the calls that a person is asked about."""
    question: str = ""
    """What the person is asked."""
    state: bytes = b""
    """The script, while it waits."""
    handle: str = ""
    """Where that is kept, if it is too large for a client."""


_parse_progress = msgspec.msgpack.Decoder(_Progress).decode


class _Paused(Exception):
    """The client has to be asked, which takes another request."""


class ScriptRunner:
    """Runs the scripts of a gateway's clients.

    Args:
        hub: Has the servers.
        view: Returns what clients of an audience see.
        answer: Makes the calls.
        search: Answers `search_tools` and `describe_tool`.
        shaper: Shapes what comes of a script.
        seal: Seals what stateless clients carry.
    """

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        hub: Hub,
        view: Callable[[Audience], View],
        answer: AnswerCall,
        search: ToolSearch,
        shaper: Shaper,
        seal: Callable[[], Seal],
    ) -> None:
        self._hub = hub
        self._view = view
        self._answer = answer
        self._search = search
        self._shaper = shaper
        self._seal = seal
        self._pool = ScriptPool()
        self._once = SingleUse(LIFE)
        self._paused: OrderedDict[str, bytes] = OrderedDict()
        self._records: SharedRecords | None = None

    def share(self, records: SharedRecords, seal: Seal) -> None:
        """Let all replicas continue what one of them has paused, once."""
        self._records = records
        self._once.share(records, seal)

    async def close(self) -> None:
        """End the processes."""
        await self._pool.close()

    async def run(self, request: ClientRequest) -> Result:
        """The result of `run_code`."""
        if find_spec("pydantic_monty") is None:
            hint = extra_hint("code")
            return text_answer(request, f"code mode is not installed; {hint}", is_error=True)
        try:
            code = check_arguments(running_tool(), request.params.arguments)["code"]
        except BadArguments as exc:
            return refusal(request, exc)
        await self._search.ready()
        state = request.params.request_state
        if request.is_stateless and state is not None and state.startswith(PREFIX):
            progress, answer = await self._unseal(request, state)
            if answer is None:  # the client came back without an answer
                return await self._pause(request, progress)
            if permission(answer) == "no":
                progress.refused = progress.asked
            else:
                progress.approved = [*progress.approved, *progress.asked]
            order = self._order(request, state=progress.state)
        else:
            progress = _Progress(id=token_hex(6), left=self._hub.settings.serve.timeout)
            order = self._order(request, code=code)
        return await self._finish(request, progress, order)

    def _order(self, request: ClientRequest, code: str = "", state: bytes = b"") -> Run:
        view = self._view(request.client.audience)
        own = [CALL_TOOL, READ_RESULT, "search_tools", "describe_tool"]
        return Run(
            code=code,
            state=state,
            names=[*view.functions, *own],
            servers=sorted({tool.server for tool in view.tools.values()}),
            limits=ScriptLimits(sleep=self._hub.settings.serve.timeout),
        )

    async def _finish(self, request: ClientRequest, progress: _Progress, order: Run) -> Result:
        """Run a script to its end, or until it has to wait for its client."""
        # a process that was interrupted in a script is not used again: it stays unclean
        try:
            async with self._pool.process() as process:
                try:
                    report = await self._drive(request, progress, process, order)
                    process.is_clean = True
                except _Paused:
                    state = await process.ask(Dump())
                    process.is_clean = True
                    progress.state = state.state if isinstance(state, State) else b""
                    return await self._pause(request, progress)
        except TimeoutError:
            limit = self._hub.settings.serve.timeout
            report = ScriptFailed("", f"it took longer than {limit:g} s")
        except MultitapError as exc:
            report = ScriptFailed("", str(exc))
        await self._record(request, progress, "ok" if isinstance(report, ScriptDone) else "error")
        view = self._view(request.client.audience)
        tools = [view.tools[name] for name in progress.tools if name in view.tools]
        if isinstance(report, ScriptDone):
            return await self._shaper.shape(request, tools, text_answer(request, _shown(report)))
        return text_answer(request, _failure(report, progress), is_error=True)

    async def _drive(
        self, request: ClientRequest, progress: _Progress, process: ScriptProcess, order: Run
    ) -> Report:
        """How a script ended; one clock covers its work, its calls and its sleep."""
        answers: Run | CallAnswers = order
        while True:
            began = time.monotonic()
            try:
                with anyio.fail_after(progress.left):
                    report = await process.ask(answers)
            finally:
                progress.left -= time.monotonic() - began
            if not isinstance(report, ScriptCalls):
                return report
            # its own time does not run while a person is asked
            await self._ask_person(request, progress, process, report.calls)
            began = time.monotonic()
            try:
                with anyio.fail_after(progress.left):
                    answers = CallAnswers(await self._make_all(request, progress, report.calls))
            finally:
                progress.left -= time.monotonic() - began

    async def _make_all(
        self, request: ClientRequest, progress: _Progress, calls: Sequence[ScriptCall]
    ) -> list[CallAnswer]:
        answers: dict[int, CallAnswer] = {}
        turns = anyio.CapacityLimiter(AT_A_TIME)

        async def make(call: ScriptCall) -> None:
            async with turns:
                answers[call.id] = await self._make(request, progress, call)

        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(make, call)
        return [answers[call.id] for call in calls]

    async def _make(
        self, request: ClientRequest, progress: _Progress, call: ScriptCall
    ) -> CallAnswer:
        """Make one call, as if the client had made it; what fails is raised in the script."""
        try:
            name, arguments = self._target(request, call)
        except BadArguments as exc:
            return CallAnswer(call.id, error=str(exc))
        listed = self._view(request.client.audience).tools.get(name)
        if listed is not None and not listed.is_for_model:
            return CallAnswer(
                call.id, error=f"the tool {quoted(name)} is for pages, not for models"
            )
        # by its arguments as well: an approval is for exactly this call
        digest = bind(name, arguments)
        if digest in progress.refused:
            with suppress(NotAllowed):
                async with self._hub.lookup.noting_refusal(name, request.context()):
                    raise NotAllowed("a person refused this call of a script")
            return CallAnswer(call.id, error="a person refused this call")
        is_approved = digest in progress.approved
        if is_approved:
            progress.approved.remove(digest)  # for this one call
        inner = _inner(request, progress.id, name, arguments, is_approved=is_approved)
        try:
            if name in {"search_tools", "describe_tool"}:
                result = await self._search.answer(inner)
            else:
                result = await self._answer(inner, is_inner=name != READ_RESULT)
        except (MultitapError, RpcError) as exc:
            progress.made.append(f"{name} in line {call.line} (failed)")
            return CallAnswer(call.id, error=shortened(str(exc), _LONGEST_ERROR))
        except OnOtherReplica:
            # a script cannot move in the middle, and its client can make this call by itself
            return CallAnswer(call.id, error="the client's session with the server is elsewhere")
        raw = b"".join(result) if isinstance(result, tuple) else bytes(result)
        answer = _checked(call.id, raw)
        tool = self._view(request.client.audience).tools.get(name)
        if tool is not None:
            outcome = " (failed)" if answer.error else ""
            progress.made.append(f"{name} in line {call.line}{outcome}")
            if name not in progress.tools:
                progress.tools.append(name)
        return answer

    def _target(self, request: ClientRequest, call: ScriptCall) -> tuple[str, bytes]:
        """The tool that a script calls, and its arguments.

        Raises:
            BadArguments: Values without a name do not match its parameters.
        """
        name, view = call.name, self._view(request.client.audience)
        arguments: dict[str, Any] = msgspec.json.decode(call.arguments)
        values: list[Any] = arguments.pop("*", [])
        if name == CALL_TOOL:
            name = str(arguments.pop("name", values.pop(0) if values else ""))
            table = arguments.pop("arguments", values.pop(0) if values else None)
            arguments = {**arguments, **(table if isinstance(table, dict) else {})}
        name = view.functions.get(name, name)
        if values:
            arguments = {**dict(zip(_parameters(view, name), values, strict=False)), **arguments}
            if len(_parameters(view, name)) < len(values):
                raise BadArguments(f"{name} takes keyword arguments, or one dict", path="")
        return name, msgspec.json.encode(arguments)

    async def _ask_person(
        self,
        request: ClientRequest,
        progress: _Progress,
        process: ScriptProcess,
        calls: Sequence[ScriptCall],
    ) -> None:
        """Ask about all calls that need approval, and those of the same loop, at once.

        Raises:
            _Paused: The client can only be asked by an answer to its request.
        """
        undecided = self._undecided(request, progress, calls)
        if not undecided:
            return
        if len(calls) == 1:  # a loop, perhaps: the same calls follow
            route = undecided[0][1]
            sample = msgspec.json.encode(_sample(route.tool.definition.get("outputSchema")))
            following = await process.ask(Peek(sample, MOST_ASKED - 1))
            if isinstance(following, ScriptCalls):
                undecided += self._undecided(request, progress, following.calls)
        progress.question = _describe_calls(undecided)
        form = _question(progress.question)
        if not able(request.capabilities, _ELICIT, form):
            return  # the calls ask somebody else, or are refused
        progress.asked = [digest for digest, _, _ in undecided]
        # the client may be killed while a person thinks: then this says what was done
        await self._record(request, progress, "waiting")
        if request.is_stateless:
            raise _Paused
        try:
            allowed = permission(await request.ask(_ELICIT, form)) != "no"
        except RpcError:
            allowed = False
        if allowed:
            progress.approved = [*progress.approved, *progress.asked]
        else:
            progress.refused = progress.asked

    def _undecided(
        self, request: ClientRequest, progress: _Progress, calls: Sequence[ScriptCall]
    ) -> list[tuple[bytes, Route, bytes]]:
        """The calls that the policy asks about and nobody has decided yet."""
        view = self._view(request.client.audience)
        undecided: list[tuple[bytes, Route, bytes]] = []
        for call in calls:
            try:
                name, arguments = self._target(request, call)
                tool = view.tools.get(name)
                route = None if tool is None else view.route(tool)
                if route is None or route.guard is None or not route.guard.may_ask:
                    continue
                ruling = route.guard.decide(arguments)
            except BadArguments:
                continue
            digest = bind(name, arguments)
            is_decided = digest in progress.approved or digest in progress.refused
            if ruling.decision is Decision.ASK and not is_decided:
                undecided.append((digest, route, arguments))
        return undecided

    async def _pause(self, request: ClientRequest, progress: _Progress) -> Result:
        """Ask a stateless client, and give it the script to return with."""
        data = msgspec.msgpack.encode(msgspec.structs.replace(progress, handle=""))
        if len(data) > LARGEST_STATE:
            handle = token_hex(12)
            await self._store(handle, self._seal().seal(data, f"script {handle}"))
            small = msgspec.structs.replace(progress, state=b"", handle=handle)
            data = msgspec.msgpack.encode(small)
        sealed = self._seal().seal(data, _purpose(request))
        ticket = PREFIX + base64.urlsafe_b64encode(sealed).decode()
        await self._once.issue("script", ticket)
        return jsonrpc.encode(
            {
                "resultType": "input_required",
                "inputRequests": {
                    _KEY: {"method": _ELICIT, "params": _question(progress.question)}
                },
                "requestState": ticket,
            }
        )

    async def _unseal(self, request: ClientRequest, ticket: str) -> tuple[_Progress, Raw | None]:
        try:
            sealed = base64.b64decode(ticket.removeprefix(PREFIX), b"-_", validate=True)
        except ValueError:
            sealed = b""
        opened = self._seal().unseal(sealed, _purpose(request))
        if opened is None:
            raise RpcError(
                INVALID_PARAMS,
                "requestState is not one of ours, or belongs to another script",
                {"reason": "invalid_request_state"},
            )
        # first: whatever comes now, this state is used
        if not await self._once.take("script", ticket):
            raise _expired()
        progress = _parse_progress(opened.data)
        if progress.handle:
            script = await self._fetch(progress.handle)
            purpose = f"script {progress.handle}"
            whole = None if script is None else self._seal().unseal(script, purpose)
            if whole is None:
                raise _expired()
            progress = _parse_progress(whole.data)
        responses = request.params.input_responses
        answers = parse_table(responses) if len(responses) else {}
        return progress, answers.get(_KEY)

    async def _store(self, handle: str, sealed: bytes) -> None:
        if self._records is not None:
            await self._records.write(f"script/{handle}", sealed, ttl=LIFE)
            return
        self._paused[handle] = sealed
        if len(self._paused) > MOST_PAUSED:
            self._paused.popitem(last=False)

    async def _fetch(self, handle: str) -> bytes | None:
        if self._records is None:
            return self._paused.pop(handle, None)
        key = f"script/{handle}"
        # read and deleted: the ticket can be used once, so nobody else comes for it
        sealed = await self._records.read(key)
        await self._records.delete(key)
        return sealed

    async def _record(self, request: ClientRequest, progress: _Progress, outcome: str) -> None:
        """Record the script itself; its calls name it as their session."""
        audit = self._hub.settings.audit
        if not audit.enabled:
            return
        calls = counted(len(progress.made), "call")
        names = ", ".join(progress.made[-_SHOWN_CALLS:])
        self._hub.store.audit(
            AuditRecord(
                "script",
                time.time(),
                principal=request.principal.name,
                issuer=request.principal.issuer,
                client=request.caller,
                session=session_of(progress.id),
                subject=progress.id,
                outcome=outcome,
                detail=f"{calls}: {names}" if names else calls,
            )
        )
        if audit.required or outcome == "waiting":
            await self._hub.store.write_audit()


def session_of(script: str) -> str:
    """The session that the calls of a script are recorded with."""
    return f"script {script}"


def _inner(
    request: ClientRequest, script: str, name: str, arguments: bytes, *, is_approved: bool
) -> ClientRequest:
    # the client's progress is of the script; a call of it would report another one's numbers
    meta = {key: value for key, value in request.params.meta.items() if key != "progressToken"}
    params = msgspec.structs.replace(
        request.params,
        name=name,
        arguments=Raw(arguments),
        meta=meta,
        request_state=None,
        input_responses=NOTHING,
    )
    return msgspec.structs.replace(
        request,
        params=params,
        # nobody can be asked in the middle of a stateless request, but by pausing the script
        capabilities=EMPTY if request.is_stateless else request.capabilities,
        script=session_of(script),
        is_approved=is_approved,
    )


class _Outcome(msgspec.Struct):
    is_error: bool = msgspec.field(default=False, name="isError")
    kind: str = msgspec.field(default="complete", name="resultType")


_parse_outcome = msgspec.json.Decoder(_Outcome).decode


def _checked(number: int, raw: bytes) -> CallAnswer:
    """A result for the script; one that failed is an error there."""
    try:
        outcome = _parse_outcome(raw)
        if outcome.is_error:
            text = ToolResult(raw).beginning(_LONGEST_ERROR)
            return CallAnswer(number, error=text or "the tool failed without giving a reason")
    except (*UNREADABLE, MultitapError) as exc:
        return CallAnswer(number, error=f"the result cannot be read: {exc}")
    if outcome.kind != "complete":
        return CallAnswer(
            number, error="the tool asks something back, which a script cannot answer"
        )
    return CallAnswer(number, raw)


def _parameters(view: View, name: str) -> list[str]:
    if name in {"search_tools", "describe_tool", READ_RESULT}:
        return {"search_tools": ["query", "limit"], READ_RESULT: ["result"]}.get(name, ["name"])
    tool = view.tools.get(name)
    return [] if tool is None else [*tool.input_schema.get("properties", {})]


_SAMPLES: Mapping[str, Any] = {
    "array": [],
    "string": "",
    "integer": 0,
    "number": 0,
    "boolean": True,
}


def _sample(schema: Any) -> Any:
    """A value that fits a schema, for a look at what a script would do next."""
    if not is_object(schema):
        return {}
    properties = schema.get("properties")
    if is_object(properties):
        return {name: _sample(member) for name, member in properties.items()}
    return _SAMPLES.get(str(schema.get("type")), {})


def _describe_calls(calls: Sequence[tuple[bytes, Route, bytes]]) -> str:
    """The question about some calls of a script."""
    lines = [f"Multitap asks: may a script make {counted(len(calls), 'call')}?"]
    for route in {route.tool.name: route for _, route, _ in calls}.values():
        lines.append(f"The tool {route.tool.raw_name!r} of the server {route.tool.server!r} with:")
        for _, other, arguments in calls:
            if other.tool is route.tool:
                readable = show_arguments(decode_arguments(arguments), route.link.report.redact)
                lines.append(f"  {msgspec.json.encode(readable).decode()}")
    return "\n".join(lines)


def _question(message: str) -> dict[str, Any]:
    return {
        "mode": "form",
        "message": message,
        "requestedSchema": {
            "type": "object",
            "properties": {
                "decision": {
                    "type": "string",
                    "title": "Decision",
                    # no "always": a script may be anything, and its calls are listed above
                    "enum": ["once", "no"],
                    "enumNames": ["Allow exactly these calls", "Refuse"],
                }
            },
            "required": ["decision"],
        },
    }


def _shown(report: ScriptDone) -> str:
    """What a script printed, and its value."""
    if report.result == b"null":
        return report.printed or (
            "the script returned nothing; end it with an expression, `return` or `print`"
        )
    is_text = report.result.startswith(b'"')
    text = msgspec.json.decode(report.result, type=str) if is_text else report.result.decode()
    return f"{report.printed}{text}"


def _failure(report: Report, progress: _Progress) -> str:
    """Why a script failed, where, and what it had done."""
    if not isinstance(report, ScriptFailed):
        return "the script ended in an unknown way"
    where = f" in line {report.line}" if report.line else ""
    text = f"the script failed{where}: {shortened(report.reason, _LONGEST_ERROR)}"
    if calls := progress.made:
        listed = ", ".join(calls[-_SHOWN_CALLS:])
        more = len(calls) - _SHOWN_CALLS
        first = f"{more} others, " if more > 0 else ""
        text += f"\ncalls made before: {first}{listed}; do not make them again"
    else:
        text += "\nno call was made"
    return f"{report.printed}{text}"


def _purpose(request: ClientRequest) -> str:
    """What a state is sealed for: it may leak, so it is valid for one principal and script only."""
    arguments = request.params.arguments
    plain = msgspec.json.encode(msgspec.json.decode(arguments), order="deterministic")
    return f"script {bind(request.principal.key, RUN_CODE, plain).hex()}"


def _expired() -> RpcError:
    return RpcError(
        INVALID_PARAMS,
        "the script that this continues has ended, has expired, or was continued before",
        {"reason": "expired"},
    )
