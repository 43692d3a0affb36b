"""The hub for synchronous code."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar, Unpack

import anyio

from multitap.catalog.catalog import Catalog
from multitap.config.models import Settings
from multitap.errors import HubClosed, MultitapError
from multitap.events import Snapshot
from multitap.hub.hub import Hub, HubSource, open_hub, refuse_fork
from multitap.hub.metrics import Metrics
from multitap.hub.reload import warn_of_untrusted
from multitap.hub.supervisor import Plan
from multitap.hub.task_runs import CallQuestion, StartedCall
from multitap.results import KeptResult, ToolResult
from multitap.store.task_records import TaskStatus
from multitap.upstream.questions import NOBODY, CallContext, Handlers

if TYPE_CHECKING:
    import mcp_types as types
    from pydantic import BaseModel

    from multitap.config.models import ToolFilter
    from multitap.tools import ToolInfo, ToolRegistry
    from multitap.tools.providers import Offer, ToolCall
    from multitap.tools.providers.offers import Answered
    from multitap.tools.registry import TokenCost

_T = TypeVar("_T")
_Registered = TypeVar("_Registered", bound="ToolInfo | Callable[..., Any]")
# Servers get time to end, but a hub that hangs must not keep the program from exiting.
_JOIN = 30.0


class SyncHub:
    """A hub in its own thread: the same methods, from any thread, with or without a running loop.

    One background loop serves all threads; a call costs no thread of its own. Handlers run in the
    background loop. A forked process has no such thread: open a hub in each, after the fork.

    ```python
    with SyncHub(settings) as hub:
        hub.settled()
        print(hub.call("clock_now").text)
    ```

    Without a `with` block, `open()` opens it and `close()` stops its servers.

    Args:
        settings: The servers, and how to run them, as [`open_hub`][multitap.open_hub] takes them;
            by default, the configuration files.
        handlers: Callbacks for what servers ask of the host.
    """

    def __init__(
        self, settings: HubSource | None = None, *, handlers: Handlers = Handlers()
    ) -> None:
        self._thread = _HubThread(settings, handlers)

    def open(self) -> Self:
        """Start the servers; returns this hub.

        Raises:
            ConfigError: The settings cannot be used.
        """
        self._thread.open()
        return self

    def close(self) -> None:
        """Stop every server; a hub that is closed, or was never open, stays as it is."""
        self._thread.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def catalog(self) -> Catalog:
        return self._thread.running().catalog

    @property
    def metrics(self) -> Metrics:
        return self._thread.running().metrics

    def settled(self) -> None:
        """See `Hub.settled`."""
        self._thread.wait(lambda hub: hub.settled())

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        context: CallContext = NOBODY,
    ) -> ToolResult:
        """See `Hub.call`."""
        return self._thread.wait(
            lambda hub: hub.call(name, arguments, timeout=timeout, context=context)
        )

    def start(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        context: CallContext = NOBODY,
    ) -> SyncStartedCall:
        """See `Hub.start`."""
        started = self._thread.wait(lambda hub: hub.start(name, arguments, context=context))
        return SyncStartedCall(self._thread, started)

    @property
    def tools(self) -> SyncTools:
        """The tools of all servers, for models; see `Hub.tools`."""
        self._thread.running()
        return SyncTools(self._thread)

    def read(
        self, uri: str, *, server: str | None = None, context: CallContext = NOBODY
    ) -> types.ReadResourceResult:
        """See `Hub.read`."""
        return self._thread.wait(lambda hub: hub.read(uri, server=server, context=context))

    def prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        context: CallContext = NOBODY,
    ) -> types.GetPromptResult:
        """See `Hub.prompt`."""
        return self._thread.wait(lambda hub: hub.prompt(name, arguments, context=context))

    def complete(
        self, reference: str, argument: str, value: str, *, known: Mapping[str, str] | None = None
    ) -> types.CompleteResult:
        """See `Hub.complete`."""
        return self._thread.wait(lambda hub: hub.complete(reference, argument, value, known=known))

    def subscribe(self, uri: str, *, server: str | None = None) -> None:
        """See `Hub.subscribe`."""
        self._thread.wait(lambda hub: hub.subscribe(uri, server=server))

    def unsubscribe(self, uri: str, *, server: str | None = None) -> None:
        self._thread.wait(lambda hub: hub.unsubscribe(uri, server=server))

    def apply(self, settings: Settings) -> Plan:
        """See `Hub.apply`."""
        return self._thread.do(lambda hub: hub.apply(settings))

    def restart(self, server: str) -> None:
        """See `Hub.restart`."""
        self._thread.do(lambda hub: hub.restart(server))

    def result(self, result_id: str) -> KeptResult:
        """See `Hub.result`."""
        return self._thread.do(lambda hub: hub.result(result_id))

    def snapshot(self) -> Snapshot:
        """See `Hub.snapshot`."""
        return self._thread.do(lambda hub: hub.snapshot())

    def submit(self, verb: Callable[[Hub], Awaitable[_T]]) -> concurrent.futures.Future[_T]:
        """Run `verb(hub)` on the hub's loop; returns its future without waiting."""
        return self._thread.submit(verb)


class SyncStartedCall:
    """A call that runs by itself; see `StartedCall`."""

    def __init__(self, thread: _HubThread, started: StartedCall) -> None:
        self._thread = thread
        self._started = started

    @property
    def id(self) -> str:
        return self._started.id

    @property
    def status(self) -> TaskStatus:
        return self._started.status

    @property
    def message(self) -> str | None:
        return self._started.message

    def questions(self) -> Iterator[CallQuestion]:
        """What its server asks, each question once, until the call ends."""
        seen: set[str] = set()
        while True:
            question = self._thread.wait(lambda _: self._started.next_question(seen))
            if question is None:
                return
            yield question

    def answer(self, question: CallQuestion, result: BaseModel | Mapping[str, Any]) -> None:
        """Answer a question, or refuse it with an `ErrorData`."""
        self._thread.do(lambda _: self._started.answer(question, result))

    def result(self) -> ToolResult:
        """Its result, once it has ended."""
        return self._thread.wait(lambda _: self._started.result())

    def cancel(self) -> None:
        """Cancel it."""
        self._thread.wait(lambda _: self._started.cancel())


class SyncTools:
    """The tools of a hub, and their formats for models; the same as `ToolRegistry`, to wait for."""

    def __init__(self, thread: _HubThread, part: ToolRegistry | None = None) -> None:
        self._thread = thread
        self._part = part

    def _of(self, hub: Hub) -> ToolRegistry:
        return self._part or hub.tools

    def list(self) -> tuple[ToolInfo, ...]:
        """All current tools."""
        return self._thread.do(lambda hub: self._of(hub).list())

    def __iter__(self) -> Iterator[ToolInfo]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    def __contains__(self, name: object) -> bool:
        return self._thread.do(lambda hub: name in self._of(hub))

    def get(self, name: str) -> ToolInfo | None:
        """The tool of that name."""
        return self._thread.do(lambda hub: self._of(hub).get(name))

    def register(self, tool: _Registered) -> _Registered:
        """Add a tool, or a function as one; returns its argument."""
        return self._thread.do(lambda hub: self._of(hub).register(tool))

    def narrowed(self, by: ToolFilter | Callable[[ToolInfo], bool]) -> SyncTools:
        """The tools that a filter, such as an agent's, or a function accepts; follows changes."""
        return SyncTools(self._thread, self._thread.do(lambda hub: self._of(hub).narrowed(by)))

    def description(self) -> str:
        """One line per tool, for a system prompt."""
        return self._thread.do(lambda hub: self._of(hub).description())

    def tokens(self) -> TokenCost:
        """Estimated tokens of each tool and server in every request."""
        return self._thread.do(lambda hub: self._of(hub).tokens())

    def for_openai(self, **options: Unpack[OpenAIOptions]) -> SyncOffer:
        """See `ToolRegistry.for_openai`."""
        return self._offer(lambda tools: tools.for_openai(**options))

    def for_anthropic(self, **options: Unpack[OfferOptions]) -> SyncOffer:
        """See `ToolRegistry.for_anthropic`."""
        return self._offer(lambda tools: tools.for_anthropic(**options))

    def for_gemini(self, **options: Unpack[GeminiOptions]) -> SyncOffer:
        """See `ToolRegistry.for_gemini`."""
        return self._offer(lambda tools: tools.for_gemini(**options))

    def _offer(self, make: Callable[[ToolRegistry], Offer]) -> SyncOffer:
        return SyncOffer(self._thread.do(lambda hub: make(self._of(hub))), self._thread)

    def execute(
        self, name: str, arguments: Mapping[str, Any], context: CallContext = NOBODY
    ) -> ToolResult:
        """Run a tool; every failure becomes a result, even an unknown name."""
        return self._thread.wait(lambda hub: self._of(hub).execute(name, arguments, context))


class OfferOptions(TypedDict, total=False):
    """Options of `ToolRegistry.for_anthropic`, and of the others."""

    budget: int | None
    tool_budget: int


class OpenAIOptions(OfferOptions, total=False):
    """Options of `ToolRegistry.for_openai`."""

    strict: bool
    api: Literal["chat", "responses"]


class GeminiOptions(OfferOptions, total=False):
    """Options of `ToolRegistry.for_gemini`."""

    images: bool


class SyncOffer:
    """Tools in the format of one provider; the same as `Offer`, with an `execute` that waits."""

    def __init__(self, offer: Offer, thread: _HubThread) -> None:
        self._offer = offer
        self._thread = thread

    @property
    def tools(self) -> list[Any]:
        """Ready for the `tools` parameter of the provider's API."""
        return self._offer.tools

    @property
    def tokens(self) -> int:
        """Estimated tokens of `tools` in every request."""
        return self._offer.tokens

    def calls(self, answer: Any) -> tuple[ToolCall, ...]:
        """The calls in a model's answer."""
        return self._offer.calls(answer)

    def execute(self, call: ToolCall, context: CallContext = NOBODY) -> ToolResult:
        """Run a call; a failure becomes a result."""
        return self._thread.wait(lambda _: self._offer.execute(call, context))

    def messages(self, answers: Iterable[Answered]) -> list[Any]:
        """The messages to append after the model's message, for all its calls."""
        return self._offer.messages(answers)


class _HubThread:
    """Owns the thread, its loop, and the hub while that is open."""

    def __init__(self, settings: HubSource | None, handlers: Handlers) -> None:
        self._settings = settings
        self._handlers = handlers
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._opened: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leave: asyncio.Event | None = None
        self._hub: Hub | None = None

    def open(self) -> None:
        if self._thread is not None:
            raise MultitapError("this hub was opened before", hint="make a new SyncHub")
        self._process = os.getpid()
        # a daemon: a program that forgets to close can exit, and the warden ends its servers
        self._thread = threading.Thread(target=self._run, name="multitap", daemon=True)
        self._thread.start()
        self._opened.result()
        try:
            # here, not in the other thread: this one has the line of the program that opens it
            warn_of_untrusted(self.running().withheld)
        except BaseException:  # a program may turn warnings into errors
            self.close()
            raise

    def close(self) -> None:
        loop, leave, thread = self._loop, self._leave, self._thread
        # a forked process has no part in it: the loop that it would wake is its parent's
        if self._process != os.getpid():
            return
        if loop is not None and leave is not None and thread is not None and thread.is_alive():
            # an asyncio event may only be set in its own loop
            loop.call_soon_threadsafe(leave.set)
            thread.join(_JOIN)

    def submit(self, verb: Callable[[Hub], Awaitable[_T]]) -> concurrent.futures.Future[_T]:
        hub, loop = self.running(), self._loop
        # waiting here would block the only loop that could bring the answer
        if loop is None or threading.current_thread() is self._thread:
            raise MultitapError(
                "a handler must not wait for its own hub", hint="await the async Hub there"
            )
        return asyncio.run_coroutine_threadsafe(_within(hub, verb), loop)

    def running(self) -> Hub:
        refuse_fork(self._process)  # its thread was not forked: waiting for it would never end
        if self._hub is None:
            raise HubClosed(
                "the hub is not open", hint="use it inside its `with` block, or after `open()`"
            )
        return self._hub

    def do(self, verb: Callable[[Hub], _T]) -> _T:
        async def done(hub: Hub) -> _T:
            return verb(hub)

        return self.wait(done)

    def wait(self, verb: Callable[[Hub], Awaitable[_T]]) -> _T:
        future = self.submit(verb)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise HubClosed("the hub was closed during the call") from None
        except BaseException:
            future.cancel()  # Ctrl-C in the waiting thread reaches the server
            raise

    def _run(self) -> None:
        try:
            anyio.run(self._serve)
        except BaseException as exc:  # noqa: BLE001 - boundary: raised in the opening thread
            if not self._opened.done():
                self._opened.set_exception(exc)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._leave = asyncio.Event()
        async with open_hub(self._settings, handlers=self._handlers, warns=False) as hub:
            self._hub = hub
            # After `_hub` is set: the opening thread may call at once.
            self._opened.set_result(None)
            await self._leave.wait()
            # calls that come while servers are being stopped fail at once
            self._hub = None


def _within(hub: Hub, verb: Callable[[Hub], Awaitable[_T]]) -> Coroutine[Any, Any, _T]:
    async def run() -> _T:
        return await verb(hub)

    return run()
