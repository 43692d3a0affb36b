"""An agent: a model that uses tools until it has answered."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

import anyio
import msgspec
from anyio import to_thread
from anyio.streams.memory import MemoryObjectReceiveStream

from multitap.agent import skills
from multitap.agent.conversation import (
    Conversation,
    Message,
    ToolAnswer,
    ToolAnswers,
    prompt_messages,
    resource_message,
    user,
)
from multitap.agent.models import (
    Model,
    ModelRequest,
    Reply,
    StopReason,
    TextDelta,
    Usage,
    open_model,
)
from multitap.catalog.schemas.schema import is_object
from multitap.config import Agent, ModelConfig, Scope, Settings
from multitap.errors import ConfigError, MultitapError, UnknownName, ungrouped
from multitap.results import ToolResult
from multitap.tools.providers import Offer, ToolCall
from multitap.tools.registry import SEARCH_TOOLS, ToolRegistry
from multitap.tools.tool import HubTool, ToolContext, ToolInfo, text_result

if TYPE_CHECKING:
    import mcp_types as types


class Verdict(msgspec.Struct, frozen=True):
    """Whether a call is allowed; if not, with a reason for the model."""

    allowed: bool
    reason: str = ""


ALLOW = Verdict(allowed=True)


def deny(reason: str = "") -> Verdict:
    """A refusal; the reason tells the model why, or what to do instead."""
    return Verdict(allowed=False, reason=reason)


Approve = Callable[[ToolCall, ToolInfo], Awaitable[Verdict]]
"""Asked before a tool is used."""


def unwrap_search(call: ToolCall) -> ToolCall:
    """The tool that a call really uses: the one behind `call_tool`."""
    # in a loop: the person who approves must see what runs, however deep it is wrapped
    while call.name == "call_tool" and isinstance(name := call.arguments.get("name"), str):
        inner = call.arguments.get("arguments")
        call = msgspec.structs.replace(call, name=name, arguments=inner if is_object(inner) else {})
    return call


def harmless(call: ToolCall) -> bool:
    """Whether a call only searches the tools."""
    return call.name in SEARCH_TOOLS


def unless_read_only(approve: Approve) -> Approve:
    """Ask only about tools that are not annotated as read-only."""

    async def ask_unless_read_only(call: ToolCall, tool: ToolInfo) -> Verdict:
        return ALLOW if read_only(tool) else await approve(call, tool)

    return ask_unless_read_only


def read_only(tool: ToolInfo) -> bool:
    """Whether the tool is annotated as read-only."""
    return isinstance(tool, HubTool) and tool.tool.annotations.get("readOnlyHint") is True


class Asked(msgspec.Struct, frozen=True):
    """A person is asked whether this call may be made."""

    call: ToolCall


class ToolCalled(msgspec.Struct, frozen=True):
    call: ToolCall


class ToolFinished(msgspec.Struct, frozen=True):
    """A tool call has ended, or was refused."""

    call: ToolCall
    result: ToolResult
    seconds: float = 0.0


class Ending(StrEnum):
    """Why an agent stopped."""

    DONE = "done"
    LENGTH = "length"
    """The model's answer reached its token limit."""
    REFUSED = "refused"
    """The model refused."""
    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"


class Finished(msgspec.Struct, frozen=True):
    """The last step of a turn."""

    reason: Ending
    usage: Usage
    """Tokens of all steps together."""
    text: str
    """The model's last text."""
    steps: int
    """Requests to the model."""


Step = TextDelta | Asked | ToolCalled | ToolFinished | Finished

Tell = Callable[[Step], Awaitable[None]]
"""Receives each step; returns once a reader has taken it."""

_ENDINGS = {
    StopReason.LENGTH: Ending.LENGTH,
    StopReason.REFUSED: Ending.REFUSED,
}


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How far a turn may go."""

    max_steps: int = 20
    """How often the model may be asked."""
    max_tokens: int | None = None
    """Tokens of all requests and answers together; no further request is made beyond it."""
    tool_budget: int | None = None
    """Tokens for tool definitions; above it, the model gets search tools instead."""
    parallel: int = 8
    """Tools that may run at the same time."""
    approve: Approve | None = None
    """Asked before a tool is used; by default, everything is allowed."""


class AgentRound(msgspec.Struct, kw_only=True, eq=False):
    """One turn; `history` can be continued however it ends."""

    model: Model
    registry: ToolRegistry
    history: Conversation
    system: str | None
    context: ToolContext
    rules: Rules
    tell: Tell
    _usage: Usage = Usage()
    _steps: int = 0
    _text: str = ""
    _asking: anyio.Lock = msgspec.field(default_factory=anyio.Lock)
    """Held while a person is asked: one question at a time."""

    async def run(self) -> None:
        """Continue until the model needs no more tools, or a limit is reached.

        Raises:
            ModelError: The model gave no answer; the steps so far are in the history.
        """
        # checked before each request: a limit never cuts off an answer that is already paid for
        while (ending := self._limit()) is None:
            # again in each step: servers come and go while a turn runs
            offer = self.model.offer(self.registry, budget=self.rules.tool_budget)
            reply = await self._reply(offer)
            self._steps += 1
            self._usage += reply.usage
            self._text = reply.text
            if not reply.calls:
                self.history.add(reply.message)
                ending = _ENDINGS.get(reply.stop, Ending.DONE)
                break
            await self._use(reply)
        await self.tell(Finished(ending, self._usage, self._text, self._steps))

    def _limit(self) -> Ending | None:
        if self._steps >= self.rules.max_steps:
            return Ending.MAX_STEPS
        if self.rules.max_tokens is not None and self._usage.total >= self.rules.max_tokens:
            return Ending.MAX_TOKENS
        return None

    async def _reply(self, offer: Offer) -> Reply:
        request = ModelRequest(messages=self.history.messages, system=self.system, offer=offer)
        async with aclosing(self.model.stream(request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, TextDelta):
                    await self.tell(piece)
                else:
                    return piece
        raise AssertionError("a stream ends with the reply, or raises")

    async def _use(self, reply: Reply) -> None:
        """Run all calls side by side; the history says which were cancelled."""
        results: dict[str, ToolResult] = {}
        limiter = anyio.CapacityLimiter(self.rules.parallel)

        async def use(call: ToolCall) -> None:
            async with limiter:
                refusal = call.problem or await self._refusal(call)
                # not earlier: the time that a person takes to decide does not count
                started = time.perf_counter()
                result = refusal if refusal is not None else await self._result(call)
                results[call.id] = result
                await self.tell(
                    ToolFinished(unwrap_search(call), result, time.perf_counter() - started)
                )

        try:
            with ungrouped():
                async with anyio.create_task_group() as tasks:
                    for call in reply.calls:
                        tasks.start_soon(use, call)
        finally:
            answers = tuple(ToolAnswer.of(*pair) for pair in results.items())
            # In `finally`, and together: providers refuse a conversation in which a call has no
            # answer.
            self.history.add(reply.message, ToolAnswers(answers))

    async def _result(self, call: ToolCall) -> ToolResult:
        await self.tell(ToolCalled(unwrap_search(call)))
        return await self.registry.execute(call.name, call.arguments, self.context)

    async def _refusal(self, call: ToolCall) -> ToolResult | None:
        inner = unwrap_search(call)
        tool = self.registry.get(inner.name)
        # an unknown tool needs no approval: running it only returns an error to the model
        if self.rules.approve is None or tool is None or harmless(inner):
            return None
        async with self._asking:
            await self.tell(Asked(inner))
            verdict = await self.rules.approve(inner, tool)
        if verdict.allowed:
            return None
        reason = f": {verdict.reason}" if verdict.reason else ""
        return text_result(f"this was not allowed{reason}", is_error=True)


class Servers(Protocol):
    """MCP servers that an engine connects and closes; their tools are in its registry."""

    async def initialize(self, registry: ToolRegistry) -> None: ...
    async def shutdown(self) -> None: ...


@dataclass
class Engine:
    """An agent: a model that answers with the help of tools.

    Used as an `async with` block, it keeps its model open and at the end closes it and the servers
    that `initialize_mcp` connected; otherwise every turn opens the model again. Several turns may
    run side by side, each with its own history.
    """

    registry: ToolRegistry = field(default_factory=ToolRegistry)
    """The agent's tools, read again for every request to the model."""
    _: KW_ONLY
    model: Model | ModelConfig | None = None
    """By default, the agent's model, or that of the settings."""
    settings: Settings = field(default_factory=Settings, repr=False)
    """Where agents, prompts and the model are looked up."""
    agent: str | None = None
    """The agent whose filter, prompt, model and step limit apply."""
    instructions: str | None = None
    """The system prompt; by default, the agent's."""
    max_steps: int | None = None
    """Requests to the model per turn; by default, the agent's limit, or 20."""
    max_tokens: int | None = None
    """Tokens of a whole turn, as the provider counts; no step is taken beyond it."""
    tool_budget: int | None = None
    """Tokens for tool definitions; above it, the model gets search tools instead."""
    approve: Approve | None = None
    """Asked before a tool is used; by default, everything is allowed."""
    parallel: int = 8
    """Tools that may run at the same time."""
    history: Conversation = field(default_factory=Conversation)
    """The default history of turns."""
    servers: Servers | None = field(default=None, repr=False)
    """What `initialize_mcp` connects."""
    _open: Model | None = field(default=None, init=False, repr=False)
    _block: AsyncExitStack = field(default_factory=AsyncExitStack, init=False, repr=False)

    async def initialize_mcp(self) -> None:
        """Connect the servers, and add their tools."""
        if self.servers is not None:
            await self.servers.initialize(self.registry)

    async def shutdown_mcp(self) -> None:
        """Close the servers, and remove their tools."""
        if self.servers is not None:
            await self.servers.shutdown()

    @property
    def chosen_model(self) -> Model | ModelConfig | None:
        """The model that answers; None if none is configured."""
        return self._open or self._configured_model()

    def attach(self, resource: "types.ReadResourceResult", name: str = "resource") -> None:
        """Add the content of a resource to the context, from the next turn on.

        Args:
            resource: As `hub.read` returns it.
            name: The name that the model sees.
        """
        self.history.add(resource_message(name, resource))

    def use(self, prompt: "types.GetPromptResult") -> None:
        """Continue the conversation with a filled-in prompt, as `hub.prompt` returns it."""
        self.history.add(*prompt_messages(prompt))

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as block:
            # entered first, so left last: the model is closed before the servers
            block.push_async_callback(self.shutdown_mcp)
            if (model := self._configured_model()) is not None:
                self._open = await block.enter_async_context(_open_if_configured(model))
            self._block = block.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # before closing, so that no new turn begins with a model that is going away
        self._open = None
        await self._block.__aexit__(exc_type, exc, traceback)

    @asynccontextmanager
    async def run(
        self, prompt: str | Sequence[Message] | None = None, *, history: Conversation | None = None
    ) -> AsyncGenerator[AsyncIterator[Step]]:
        """Run one turn; yields its steps, the last of which is `Finished`.

        Leaving the block early, or cancelling it, cancels the model and the tools. The history
        stays usable: it has everything that was done, and an answer to every call.

        Args:
            prompt: What to say to the model; without it, the history is continued.
            history: The conversation to extend; by default, the engine's.

        Raises:
            ModelError: The model gave no answer.
            MultitapError: There is no model, no such agent, or nothing to answer.
        """
        history = self.history if history is None else history
        # No buffer: the turn waits for its reader, and never runs ahead of it.
        send, receive = anyio.create_memory_object_stream[Step | MultitapError]()
        with ungrouped(), send, receive:
            async with self._ready() as model, anyio.create_task_group() as tasks:
                turn = await self._turn(model, history, send.send)
                history.add(*_messages(prompt))
                # providers refuse a conversation that ends with the model's own message
                if not history.awaits_answer:
                    raise MultitapError("there is nothing to answer", hint="pass a prompt")

                async def work() -> None:
                    with send:
                        try:
                            await turn.run()
                        except MultitapError as exc:
                            await send.send(exc)  # raised where the steps are read

                tasks.start_soon(work)
                yield _Steps(receive)
                # the reader may leave early; the turn must not go on spending tokens unseen
                tasks.cancel_scope.cancel()

    async def chat(self, prompt: str, *, history: Conversation | None = None) -> str:
        """Run one turn, and return the model's final answer; see `run`."""
        text = ""
        async with self.run(prompt, history=history) as steps:
            async for step in steps:
                if isinstance(step, Finished):
                    text = step.text
        return text

    @asynccontextmanager
    async def _ready(self) -> AsyncGenerator[Model]:
        if (model := self.chosen_model) is None:
            raise ConfigError("no model is configured", hint="set `model` in the configuration")
        async with _open_if_configured(model) as opened:
            yield opened

    def _configured_model(self) -> Model | ModelConfig | None:
        return self.model or self._agent.model or self.settings.model

    @property
    def _agent(self) -> Agent:
        if self.agent is None:
            return Agent()
        try:
            return self.settings.agents[self.agent]
        except KeyError:
            names = ", ".join(self.settings.agents) or "none"
            raise UnknownName(
                f"no agent named {self.agent!r}", hint=f"known agents: {names}"
            ) from None

    async def _turn(self, model: Model, history: Conversation, tell: Tell) -> AgentRound:
        agent = self._agent
        rules = Rules(
            max_steps=self.max_steps or agent.max_steps,
            max_tokens=self.max_tokens,
            tool_budget=self.tool_budget,
            parallel=self.parallel,
            approve=self.approve,
        )
        registry = self.registry if self.agent is None else self.registry.narrowed(agent)
        context = ToolContext(agent_id=self.agent)
        # It may read files.
        system = await to_thread.run_sync(self._system, agent)
        return AgentRound(
            model=model,
            registry=registry,
            history=history,
            system=system,
            context=context,
            rules=rules,
            tell=tell,
        )

    def _system(self, agent: Agent) -> str | None:
        if self.instructions is not None or agent.prompt is None:
            return self.instructions
        try:
            prompt = self.settings.prompts[agent.prompt]
        except KeyError:
            raise ConfigError(
                f"agent {self.agent!r} has no prompt: there is none named {agent.prompt!r}",
                hint="add it to `prompts` in the configuration",
            ) from None
        return skills.prompt_text(prompt, Scope.of_process())


class _Steps:
    """The steps of a turn, and the error that ended it early."""

    def __init__(self, stream: MemoryObjectReceiveStream[Step | MultitapError]) -> None:
        self._stream = stream

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Step:
        step = await anext(self._stream)
        if isinstance(step, MultitapError):
            raise step
        return step


@asynccontextmanager
async def _open_if_configured(model: Model | ModelConfig) -> AsyncGenerator[Model]:
    if isinstance(model, ModelConfig):
        async with open_model(model) as opened:
            yield opened
    else:
        yield model


def _messages(prompt: str | Sequence[Message] | None) -> Sequence[Message]:
    if prompt is None:
        return ()
    return (user(prompt),) if isinstance(prompt, str) else prompt
