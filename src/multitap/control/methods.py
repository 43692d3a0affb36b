# methods have no bodies here: they are sent, or answered by a subclass
# mypy: disable-error-code="empty-body"
# pyright: reportReturnType=false
"""What a running gateway can be asked: the signature of each method is its schema.

`ControlService` answers in the process of the gateway, `ControlClient` asks from any other one.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Raw

from multitap.control.messages import (
    About,
    Delivery,
    Figures,
    GatewayState,
    PersonReply,
    ProgressStep,
    PromptLine,
    ReloadReport,
    ResourceLine,
    ServerQuestion,
    TaskLine,
    ToolLine,
)

if TYPE_CHECKING:
    from multitap.control.editing import AdditionReview, FoundServers, NewServer
    from multitap.control.overview import (
        AccessOverview,
        AuditPage,
        NewTokenText,
        Pulse,
        WorkerFigures,
    )
    from multitap.gateway.person_questions import OpenQuestion
    from multitap.store.queries import CallHistory, Page
    from multitap.store.tables import Activity, CallRecord, RecordedExchange
    from multitap.telemetry.spans import Span
    from multitap.upstream.tracing import TracedMessage

_Params = ParamSpec("_Params")
_Answer = TypeVar("_Answer")
_COROUTINE = 0x80  # `inspect.CO_COROUTINE`, without the import: every command loads this file
_NULL, _NO_ARGUMENTS = Raw(b"null"), Raw(b"{}")


class ActionUser:
    """Who waits for an action: this one sees no progress, and cannot be asked."""

    caller = "command line"
    """Named in the records of calls."""
    can_answer = False

    def on_progress(self, step: ProgressStep) -> None:
        """Show how far the action has come."""

    async def answer(self, question: ServerQuestion) -> PersonReply:
        """The answer to a question that a server asks during the action."""
        return PersonReply(error=f"{question.method}: a command line cannot answer questions")


NOBODY = ActionUser()


class Method:
    """One method: its name, its arguments in JSON, and the type of its answer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = function.__name__
        self._function = function
        code = function.__code__
        names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
        self.names = tuple(name for name in names if name != "person")
        """Its parameters."""
        self.takes_person = "person" in names
        """Whether it may take long, report progress and ask questions."""
        self.is_stream = not code.co_flags & _COROUTINE
        """Whether it is answered by a stream of items."""

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments in Python, by name."""
        return {**dict(zip(self.names, args, strict=False)), **kwargs}

    def unpack(self, arguments: bytes | Raw) -> dict[str, Any]:
        """Arguments in JSON, by name.

        Raises:
            msgspec.DecodeError: They do not match the signature.
        """
        parsed = msgspec.json.decode(arguments, type=self._parameters)
        return {name: getattr(parsed, name) for name in parsed.__struct_fields__}

    @cached_property
    def answer(self) -> Any:
        """The type of its answer, or of the items of its stream."""
        answer = self._hints["return"]
        return get_args(get_args(answer)[0])[0] if self.is_stream else answer

    @cached_property
    def _parameters(self) -> type[msgspec.Struct]:
        values = self._function.__defaults__ or ()
        defaults = dict(zip(self.names[-len(values) :], values, strict=False)) if values else {}
        fields: list[Any] = [
            (name, self._hints[name], defaults[name])
            if name in defaults
            else (name, self._hints[name])
            for name in self.names
        ]
        if self.takes_person:  # on the way it is only known whether somebody can answer
            fields.append(("person", bool, False))
        return msgspec.defstruct(self.name, fields, frozen=True, kw_only=True)

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self._function)
        except NameError:
            return get_type_hints(self._function, localns=_late_types())


def _late_types() -> dict[str, Any]:
    # they bring asyncio and SQLite with them, which most commands do not need
    from multitap.control import editing, overview  # noqa: PLC0415
    from multitap.gateway import person_questions  # noqa: PLC0415
    from multitap.store import queries, tables  # noqa: PLC0415
    from multitap.telemetry import spans  # noqa: PLC0415
    from multitap.upstream import tracing  # noqa: PLC0415

    modules = (spans, tracing, tables, queries, person_questions, overview, editing)
    return {name: value for module in modules for name, value in vars(module).items()}


class MethodTable(dict[str, Method]):
    """Methods by name; as a decorator, it adds one that is sent by `send` of its object."""

    def __call__(self, function: Callable[_Params, _Answer]) -> Callable[_Params, _Answer]:
        method = self[function.__name__] = Method(function)

        @wraps(function)
        def send(*args: _Params.args, **kwargs: _Params.kwargs) -> _Answer:
            asker: Any = args[0]
            answer: _Answer = asker.send(method, method.pack(args[1:], kwargs))
            return answer

        return send


method = MethodTable()
worker_method = MethodTable()


class Control:
    """Everything that a gateway answers."""

    def send(self, method: Method, arguments: dict[str, Any]) -> Any:
        """Have a method answered elsewhere; arguments include the `person`, if there is one."""
        raise NotImplementedError(method.name, arguments)

    @method
    async def about(self) -> About:
        """Which gateway it is."""

    @method
    async def state(self) -> GatewayState:
        """How its servers are."""

    @method
    async def tools(self) -> list[ToolLine]:
        """Its tools."""

    @method
    async def resources(self) -> list[ResourceLine]:
        """Its resources and templates."""

    @method
    async def prompts(self) -> list[PromptLine]:
        """Its prompts."""

    @method
    async def figures(self) -> Figures:
        """Calls and clients since it started."""

    @method
    async def reload(self) -> ReloadReport:
        """Reload its files."""

    @method
    async def restart(self, server: str) -> None:
        """Restart a server; returns at once."""

    @method
    async def switch(self, server: str, on: bool) -> ReloadReport:  # noqa: FBT001 - in JSON it has a name
        """Enable or disable a server in its file."""

    @method
    async def remove_server(self, server: str) -> ReloadReport:
        """Remove a server from its file."""

    @method
    async def rename_server(self, server: str, name: str) -> ReloadReport:
        """Rename a server in its file."""

    @method
    async def change_tool(
        self, server: str, tool: str, name: str | None = None, description: str | None = None
    ) -> ReloadReport:
        """Rename or describe a tool, by its own name; "" restores what the server says."""

    @method
    async def find_servers(self, text: str = "") -> "FoundServers":
        """Servers of the catalog and the registry."""

    @method
    async def review_server(self, new: "NewServer") -> "AdditionReview":
        """What adding a server would do."""

    @method
    async def add_server(
        self, new: "NewServer", digest: str, *, person: ActionUser = NOBODY
    ) -> str:
        """Add a server as it was reviewed; what others describe stays disabled."""

    @method
    async def review_disabled(self, server: str) -> "AdditionReview":
        """What enabling a server would do that others describe."""

    @method
    async def enable_reviewed(
        self, server: str, digest: str, key: str, *, person: ActionUser = NOBODY
    ) -> ReloadReport:
        """Enable a server as it was reviewed; needs a new key to the console.

        Only the user's own commands make keys: a browser alone cannot start a stranger's program.
        """

    @method
    async def console(self) -> str:
        """A link that opens its web console once."""

    @method
    async def calls(
        self, query: str = "", limit: int = 100, cursor: str | None = None
    ) -> "Page[CallRecord]":
        """Past calls, newest first; the query has the syntax of `RecordFilter`."""

    @method
    async def log(
        self, query: str = "", limit: int = 100, cursor: str | None = None
    ) -> "Page[Activity]":
        """What happened, newest first, calls included."""

    @method
    async def exchange(self, exchange_id: str) -> "RecordedExchange | None":
        """What a call sent and received; None if that is not kept."""

    @method
    async def spans(self, trace_id: str = "", most: int = 20) -> "list[Span]":
        """The spans of traces whose id begins so; without one, of the last requests only."""

    @method
    async def history(self, span: float = 900.0) -> "CallHistory":
        """How calls went over the last `span` seconds."""

    @method
    async def stderr(self, server: str) -> str:
        """The last lines that a server wrote to its standard error."""

    @method
    async def pulse(self, seen: int = 0, most: int = 100) -> "Pulse":
        """The counters, and up to `most` calls after the first `seen` ones."""

    @method
    def pulses(
        self, seen: int = 0, most: int = 100, every: float = 0.1
    ) -> "AbstractAsyncContextManager[AsyncIterator[Pulse]]":
        """A pulse for every change, at least `every` seconds apart.

        One with a `GatewayOverview` is sent every second, so that both sides notice if the other
        is gone. Like `questions`, it shows that a person is present.
        """

    @method
    def events(
        self, server: str | None = None
    ) -> "AbstractAsyncContextManager[AsyncIterator[Activity]]":
        """What happens from now on."""

    @method
    def trace(self, server: str) -> "AbstractAsyncContextManager[AsyncIterator[TracedMessage]]":
        """The messages to and from a server from now on."""

    @method
    async def trust_review(self) -> str:
        """What untrusted projects would do; trusting is left to `multitap trust`.

        A page in a browser shows it. A browser that reaches the gateway must not be able to make it
        run something new.
        """

    @method
    async def access(self) -> "AccessOverview":
        """Tokens, and changed tools that wait for a review."""

    @method
    async def audit(self, query: str = "", limit: int = 100) -> "AuditPage":
        """Who did what, newest first."""

    @method
    async def create_token(
        self,
        name: str,
        profile: str | None = None,
        allow: tuple[str, ...] = (),
        lasts: float | None = None,
        rate: str | None = None,
    ) -> "NewTokenText":
        """Create a token that expires after `lasts` seconds."""

    @method
    async def revoke_token(self, name: str) -> list[str]:
        """Revoke a token by its id, or all those of a name; returns their ids."""

    @method
    async def revoke_person(self, label: str, undo: bool = False) -> None:  # noqa: FBT001, FBT002 - in JSON it has a name
        """Refuse a person of an identity provider from now on, or let them come back."""

    @method
    async def accept_pins(self, server: str, digest: str) -> None:
        """Pin what a `PinReview` showed."""

    @method
    async def questions(self) -> "list[OpenQuestion]":
        """What waits for a person.

        Asking shows that a person is present: for `ATTENTION` seconds, questions that no client
        can answer wait for them.
        """

    @method
    async def answer_question(
        self, number: int, result: Raw = _NULL, error: str | None = None
    ) -> bool:
        """Answer an `OpenQuestion`; returns whether it was still open."""

    @method
    async def tool(
        self, name: str, timeout: float | None = None, *, person: ActionUser = NOBODY
    ) -> ToolLine:
        """One tool, once its server is up."""

    @method
    async def prompt(
        self, name: str, timeout: float | None = None, *, person: ActionUser = NOBODY
    ) -> PromptLine:
        """One prompt, once its server is up."""

    @method
    async def call(
        self,
        name: str,
        arguments: Raw = _NO_ARGUMENTS,
        timeout: float | None = None,
        *,
        person: ActionUser = NOBODY,
    ) -> Delivery:
        """Call a tool."""

    @method
    async def start(self, name: str, arguments: Raw = _NO_ARGUMENTS) -> str:
        """Call a tool without waiting for the result; returns the id of the task."""

    @method
    async def tasks(self) -> list[TaskLine]:
        """The tasks of all clients and commands, newest first."""

    @method
    async def task(self, task_id: str) -> TaskLine:
        """One task, with its result."""

    @method
    async def cancel_task(self, task_id: str) -> TaskLine:
        """Cancel a task; one that has ended stays as it is."""

    @method
    async def read(
        self,
        uri: str,
        server: str | None = None,
        timeout: float | None = None,
        *,
        person: ActionUser = NOBODY,
    ) -> Delivery:
        """Read a resource."""

    @method
    async def fill(
        self,
        name: str,
        arguments: dict[str, str],
        timeout: float | None = None,
        *,
        person: ActionUser = NOBODY,
    ) -> Delivery:
        """Fill in a prompt."""

    @method
    async def login(
        self, server: str, timeout: float | None = None, *, person: ActionUser = NOBODY
    ) -> None:
        """Log in to a server; the person is asked to visit a page."""

    @method
    async def answer(
        self, action: str, number: int, result: Raw = _NULL, error: str | None = None
    ) -> bool:
        """Answer a question of a server during an action; returns whether it was still open."""


class WorkerControl:
    """What the workers of one gateway ask each other; each answers for itself."""

    def send(self, method: Method, arguments: dict[str, Any]) -> Any:
        """Have a method answered by another worker."""
        raise NotImplementedError(method.name, arguments)

    @worker_method
    async def figures_here(self) -> "WorkerFigures":
        """Its calls and clients."""

    @worker_method
    async def pulse_here(self, seen: int, most: int) -> "Pulse":
        """Its counters, and its latest calls after the first `seen` ones."""

    @worker_method
    async def exchange_here(self, exchange_id: str) -> "RecordedExchange | None":
        """The exchange of a recent call, which may not be in the store yet."""

    @worker_method
    async def spans_here(self, trace_id: str, most: int) -> "list[Span]":
        """The same of one process."""

    @worker_method
    async def questions_here(self) -> "list[OpenQuestion]":
        """What waits for a person."""

    @worker_method
    async def answer_question_here(self, number: int, result: Raw, error: str | None) -> bool:
        """Answer an open question; returns whether it is one of its own."""

    @worker_method
    async def answer_here(self, action: str, number: int, result: Raw, error: str | None) -> bool:
        """Answer a question during an action; returns whether it runs there."""

    @worker_method
    async def reload_here(self) -> None:
        """Reload its files."""

    @worker_method
    async def take_key_here(self, digest: bytes) -> bool:
        """Use up a key to the console; returns whether it was issued there."""

    @worker_method
    async def wait_for_token_here(self, token_id: str) -> None:
        """Wait until it knows a token."""
