"""Matches answers to questions on one duplex stream."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import UNSET, Raw

from multitap.wire import envelope
from multitap.wire.envelope import Message, RequestId
from multitap.wire.framer import Oversized
from multitap.wire.wire import (
    INBOUND_REQUESTS,
    AnswerInvalid,
    AnswerTimeout,
    Inbound,
    OnProgress,
    Params,
    RpcError,
    WireClosed,
    WireFault,
)

logger = logging.getLogger(__name__)

_BUSY = -32000
_INTERNAL_ERROR = -32603
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ID_BITS = 31  # some servers keep ids in 32 bits


class _Progress(msgspec.Struct):
    progressToken: int | str  # noqa: N815 - the wire's spelling
    progress: float
    total: float | None = None
    message: str | None = None


class _Cancelled(msgspec.Struct):
    requestId: int | str  # noqa: N815 - the wire's spelling


_parse_progress = msgspec.json.Decoder(_Progress, strict=False).decode
_parse_cancelled = msgspec.json.Decoder(_Cancelled).decode


class Question:
    """A request that waits for its answer, with the deadline it has."""

    __slots__ = (
        "_deadline", "_hard", "_held", "_loop", "_timer", "answer", "call", "id", "method", "on_progress",
        "sent", "timeout",
    )  # fmt: skip

    def __init__(
        self,
        request_id: RequestId,
        method: str,
        *,
        timeout: float | None,
        hard_timeout: float | None,
        on_progress: OnProgress | None,
        call: object | None,
    ) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self.id = request_id
        self.method = method
        self.answer: asyncio.Future[Message] = loop.create_future()
        self.timeout = timeout
        self.on_progress = on_progress
        self.call = call
        self.sent = False
        now = loop.time()
        self._hard = now + hard_timeout if hard_timeout is not None else None
        self._held = 0
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            self._deadline = self._bounded(now + timeout)
            self._timer = loop.call_at(self._deadline, self._expire)

    def progressed(self, report: _Progress) -> None:
        """The server is alive and at it: the time starts anew, up to the hard limit."""
        if self.timeout is not None:
            self._deadline = self._bounded(self._loop.time() + self.timeout)
        if self.on_progress is not None:
            try:
                self.on_progress(report.progress, report.total, report.message)
            except Exception:
                logger.exception("a progress callback raised")

    def hold(self, *, held: bool) -> None:
        """Stop the clock while the server waits for an answer of ours, perhaps of a person's."""
        self._held += 1 if held else -1
        if self.timeout is not None:
            self._deadline = self._bounded(self._loop.time() + self.timeout)

    def fail(self, fault: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(fault)

    def settle(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _bounded(self, deadline: float) -> float:
        return deadline if self._hard is None else min(deadline, self._hard)

    def _expire(self) -> None:
        now = self._loop.time()
        spent = self._hard is not None and now >= self._hard
        if self._held and not spent:
            self._deadline = self._bounded(now + (self.timeout or 0.0))
        if now < self._deadline:  # it was moved
            self._timer = self._loop.call_at(self._deadline, self._expire)
            return
        limit = self.timeout or 0.0
        words = f"no answer to {self.method!r} within {limit:g} s"
        if spent:
            words = f"{self.method!r} made progress but no end within its hard limit"
        self.fail(AnswerTimeout(words, sent=self.sent))


class Exchange:
    """The questions under way on one stream, and the server's own.

    Args:
        write: Puts one encoded message on the stream without blocking.
        tasks: Where the server's requests are answered; owned by the wire.
        origin: What the stream belongs to, for log lines.
    """

    def __init__(self, write: Callable[[bytes], None], tasks: TaskGroup, origin: str) -> None:
        self.closed = asyncio.Event()
        self.fault: WireFault | None = None
        self.noise = 0
        self.noise_sample = ""
        self._write = write
        self._tasks = tasks
        self._origin = origin
        self._inbound: Inbound | None = None
        self._questions: dict[RequestId, Question] = {}
        self._held: deque[tuple[bytes, Question | None]] = deque()
        self._full = False
        self._answering: dict[RequestId, anyio.CancelScope] = {}
        self._random = random.Random()  # noqa: S311 - unguessable enough to reject forged answers
        self._warned_at = 0.0

    def attach(self, inbound: Inbound) -> None:
        self._inbound = inbound

    async def request(
        self,
        method: str,
        params: Params | None,
        *,
        timeout: float | None,  # noqa: ASYNC109 - see Wire.request
        hard_timeout: float | None = None,
        on_progress: OnProgress | None = None,
        call: object | None = None,
        cancellable: bool = True,
    ) -> Raw:
        """See `Wire.request`."""
        if self.closed.is_set():
            raise self._gone(sent=False)
        request_id = self._random.getrandbits(_ID_BITS)
        while request_id in self._questions:
            request_id = self._random.getrandbits(_ID_BITS)
        if on_progress is not None:
            params = envelope.with_progress_token(params, request_id)
        line = envelope.request(request_id, method, params)
        question = Question(
            request_id,
            method,
            timeout=timeout,
            hard_timeout=hard_timeout,
            on_progress=on_progress,
            call=call,
        )
        self._questions[request_id] = question
        try:
            self._send(line, question)
            return envelope.outcome(await question.answer)
        except (asyncio.CancelledError, AnswerTimeout) as exc:
            if question.sent and cancellable:
                reason = "timed out" if isinstance(exc, AnswerTimeout) else "no longer wanted"
                self.notify(
                    "notifications/cancelled", {"requestId": request_id, "reason": reason}
                )
            raise
        finally:
            question.settle()
            del self._questions[request_id]

    def notify(self, method: str, params: Params | None) -> None:
        if not self.closed.is_set():
            self._send(envelope.notification(method, params), None)

    def full(self) -> None:
        """The stream takes no more for now: messages are held back."""
        self._full = True

    def writable(self) -> None:
        """The stream takes messages again."""
        self._full = False
        while self._held and not self._full:
            line, question = self._held.popleft()
            if question is None or not question.answer.done():
                self._put(line, question)

    def feed(self, line: bytes | Oversized) -> None:
        """Take one line of the stream."""
        if isinstance(line, Oversized):
            self._damaged(
                line.head + line.tail,
                f"the answer has {line.size:,} bytes, more than the limit `limits.message`",
            )
            return
        if not line or line.isspace():
            return
        line = line.removeprefix(_BYTE_ORDER_MARK)
        try:
            message = envelope.parse(line)
            if not line.isascii():
                line.decode()
        except envelope.UNPARSABLE as exc:
            self._damaged(line, f"the answer is no JSON-RPC message ({exc})")
            return
        if message.method is not UNSET:
            self._said(message, message.method)
        elif message.id is UNSET:
            self._noise(line)
        elif message.id is None:
            self._unaddressed(message, line)
        else:
            self._answered(message, message.id, line)

    def close(self, fault: WireFault | None) -> None:
        """No more messages: whoever waits is told."""
        if self.closed.is_set():
            return
        self.fault = fault
        self.closed.set()
        self._held.clear()
        for question in self._questions.values():
            question.fail(self._gone(sent=question.sent))

    def _gone(self, *, sent: bool) -> WireClosed:
        words = str(self.fault) if self.fault else "the connection is closed"
        return WireClosed(words, sent=sent)

    def _send(self, line: bytes, question: Question | None) -> None:
        if self._full:
            self._held.append((line, question))
        else:
            self._put(line, question)

    def _put(self, line: bytes, question: Question | None) -> None:
        if question is not None:
            question.sent = True
        self._write(line)

    def _answered(self, message: Message, request_id: RequestId, line: bytes) -> None:
        question = self._questions.get(request_id)
        if question is not None:
            if not question.answer.done():
                question.answer.set_result(message)
            return
        twin = self._twin(request_id)
        if twin is not None:
            twin.fail(AnswerInvalid("the answer carries the id as another type", sent=True))
        self._noise(line)  # late, twice, or never asked

    def _twin(self, request_id: RequestId) -> Question | None:
        if isinstance(request_id, int):
            return None
        return self._questions.get(int(request_id)) if request_id.isdecimal() else None

    def _unaddressed(self, message: Message, line: bytes) -> None:
        only = self._only_question()
        if only is not None and len(message.error):
            only.answer.set_result(message)
        self._noise(line)

    def _damaged(self, text: bytes, words: str) -> None:
        hit = envelope.recover_ids(text, self._questions)
        if not hit and b'"jsonrpc"' in text and (only := self._only_question()):
            hit = {only.id}
        for request_id in hit:
            self._questions[request_id].fail(AnswerInvalid(words, sent=True))
        self._noise(text)

    def _only_question(self) -> Question | None:
        """The one call under way; a stream of changes, which has no limit, is none."""
        waiting = [
            one
            for one in self._questions.values()
            if one.timeout is not None and not one.answer.done()
        ]
        return waiting[0] if len(waiting) == 1 else None

    def _said(self, message: Message, method: str) -> None:
        if message.id is UNSET or message.id is None:
            self._notified(method, message.params)
        elif len(self._answering) >= INBOUND_REQUESTS or message.id in self._answering:
            busy = RpcError(_BUSY, "too many requests at once")
            self._respond(envelope.refusal(message.id, busy))
        else:
            scope = self._answering[message.id] = anyio.CancelScope()
            self._tasks.start_soon(self._answer, message.id, method, message.params, scope)

    def _notified(self, method: str, params: Raw) -> None:
        try:
            if method == "notifications/progress":
                report = _parse_progress(params)
                question = self._questions.get(report.progressToken)
                if question is not None and question.on_progress is not None:
                    question.progressed(report)
                return
            if method == "notifications/cancelled":
                scope = self._answering.get(_parse_cancelled(params).requestId)
                if scope is not None:
                    scope.cancel()
                return
        except envelope.UNPARSABLE:
            self._noise(bytes(params))
            return
        if self._inbound is not None:
            self._inbound.notification(method, params)

    async def _answer(
        self, request_id: RequestId, method: str, params: Raw, scope: anyio.CancelScope
    ) -> None:
        asked_by = [one for one in self._questions.values() if one.call is not None]
        call = asked_by[0].call if len(asked_by) == 1 else None
        for question in asked_by:
            question.hold(held=True)
        with scope:
            try:
                result = await self._reply(method, params, call)
                self._respond(envelope.answer(request_id, result))
            except RpcError as exc:
                self._respond(envelope.refusal(request_id, exc))
            except Exception:
                logger.exception("%s: answering %r failed", self._origin, method)
                self._respond(
                    envelope.refusal(request_id, RpcError(_INTERNAL_ERROR, "internal error"))
                )
        self._answering.pop(request_id, None)
        for question in asked_by:
            question.hold(held=False)

    async def _reply(self, method: str, params: Raw, call: object | None) -> Any:
        if self._inbound is None:
            raise RpcError(_BUSY, "not ready")
        return await self._inbound.request(method, params, call)

    def _respond(self, line: bytes) -> None:
        # a server that asks and does not read gets no more of our memory
        if not self.closed.is_set() and len(self._held) < INBOUND_REQUESTS:
            self._send(line, None)

    def _noise(self, line: bytes) -> None:
        self.noise += 1
        self.noise_sample = envelope.excerpt(line)
        now = time.monotonic()
        if now - self._warned_at >= 1:
            self._warned_at = now
            logger.warning("%s: not a message we wait for: %s", self._origin, self.noise_sample)
