"""One turn of an agent: ask the model, run its tools, repeat until it has answered."""

import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import anyio

from multitap.agent.approval import Approve, harmless, unwrap_search
from multitap.agent.conversation import Conversation, ToolAnswer, ToolAnswers
from multitap.agent.models.language_model import (
    Model,
    ModelRequest,
    Reply,
    StopReason,
    TextDelta,
    Usage,
)
from multitap.agent.steps import Asked, Ending, Finished, Step, ToolCalled, ToolFinished
from multitap.errors import ungrouped
from multitap.results import ToolResult
from multitap.tools.providers import Offer, ToolCall
from multitap.tools.registry import ToolRegistry
from multitap.tools.tool import ToolContext, text_result

Tell = Callable[[Step], Awaitable[None]]
"""Receives each step; returns once a reader has taken it."""

_ENDINGS = {
    StopReason.LENGTH: Ending.LENGTH,
    StopReason.REFUSED: Ending.REFUSED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
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


@dataclass
class AgentRound:
    """One turn; `history` can be continued however it ends."""

    model: Model
    registry: ToolRegistry
    history: Conversation
    system: str | None
    context: ToolContext
    rules: Rules
    tell: Tell
    _usage: Usage = field(default=Usage(), init=False)
    _steps: int = field(default=0, init=False)
    _text: str = field(default="", init=False)
    _asking: anyio.Lock = field(default_factory=anyio.Lock, init=False)
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
        wanted = unwrap_search(call)
        tool = self.registry.get(wanted.name)
        # an unknown tool needs no approval: running it only returns an error to the model
        if self.rules.approve is None or tool is None or harmless(wanted):
            return None
        async with self._asking:
            await self.tell(Asked(wanted))
            verdict = await self.rules.approve(wanted, tool)
        if verdict.allowed:
            return None
        reason = f": {verdict.words}" if verdict.words else ""
        return text_result(f"this was not allowed{reason}", is_error=True)
