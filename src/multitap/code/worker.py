"""The process that runs scripts, one after the other; started by `pool`.

The engine is a program of its own (`monty`), without files, network and environment. It is driven
from here and not from the gateway, because its client library is native code: what crashes ends
one script. The library's synchronous pool is used, because its asynchronous one may abort the
process that leaves it.
"""

import datetime as dt
import os
import resource
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeGuard

import msgspec
import pydantic_monty as monty

from multitap.code.messages import (
    HEAD,
    LARGEST,
    CallAnswer,
    CallAnswers,
    Dump,
    Order,
    Peek,
    Report,
    Run,
    ScriptCall,
    ScriptCalls,
    ScriptDone,
    ScriptFailed,
    ScriptLimits,
    State,
    frame,
    parse_order,
)
from multitap.code.source import PRELUDE, read_script

_ATTEMPTS = 8  # fields that a look ahead may find missing
_DEEPEST = 100  # levels of a result
_SUSPENSIONS = 4  # a call, its name, and the wait for it; for each call that is allowed
_ADDRESSES = 512 * 1024**2  # bytes for this process, and for the engine
_SPARE = 2  # seconds of CPU time for taking values out of the engine, besides the script's own
_Snapshot = (
    monty.FunctionSnapshot | monty.NameLookupSnapshot | monty.FutureSnapshot | monty.MontyComplete
)


class _Suspended(msgspec.Struct, frozen=True):
    """A script that waits, for another process."""

    dump: bytes
    code: str
    lazy: list[tuple[int, int]]
    pending: list[ScriptCall]
    printed: str
    made: int


_parse_suspended = msgspec.msgpack.Decoder(_Suspended).decode


class _Gone(Exception):
    """The gateway has ended this process."""


class _TooLarge(ValueError):
    """A value that a script may not send."""


class _Pipe:
    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink

    def receive(self) -> Order:
        head = self._source.read(HEAD.size)
        if len(head) < HEAD.size:
            raise _Gone
        (size,) = HEAD.unpack(head)
        if size > LARGEST:
            raise _Gone
        return parse_order(self._source.read(size))

    def send(self, report: Report) -> None:
        self._sink.write(frame(report))
        self._sink.flush()


class _Script:
    """One script, from its start or from where it waited."""

    def __init__(self, pipe: _Pipe, pool: monty.Monty, order: Run) -> None:
        self._pipe, self._pool, self._order = pipe, pool, order
        self._names = frozenset(order.names)
        self._printed = monty.CollectString(order.limits.output)
        self._before = ""
        self._made = 0
        self._pending: dict[int, ScriptCall] = {}
        self._code = ""
        self._lazy: frozenset[tuple[int, int]] = frozenset()

    @property
    def printed(self) -> str:
        return self._before + self._printed.output

    def run(self) -> Report | None:
        """How it ended; None if it waits for somebody, in another process."""
        try:
            with self._pool.checkout(limits=_limits(self._order.limits), script_name="") as session:
                return self._drive(self._begin(session))
        except monty.MontyCrashedError as exc:
            reason = "it took too long" if exc.timed_out else "it took too much, and was ended"
            return ScriptFailed(self.printed, reason)
        except monty.MontySyntaxError as exc:
            return ScriptFailed(self.printed, exc.display("type-msg"), _line(exc.traceback()))
        except monty.MontyRuntimeError as exc:
            return ScriptFailed(self.printed, exc.display("type-msg"), _line(exc.traceback()))
        except monty.MontyError as exc:
            return ScriptFailed(self.printed, str(exc))
        except (
            ValueError,
            RecursionError,
            MemoryError,
        ) as exc:  # such as a number of 10,000 digits
            return ScriptFailed(self.printed, f"a value cannot be sent: {exc}")

    def _begin(self, session: monty.MontySession) -> _Snapshot:
        order = self._order
        if order.state:
            waited = _parse_suspended(order.state)
            self._code, self._lazy = waited.code, frozenset(waited.lazy)
            self._pending = {call.id: call for call in waited.pending}
            self._before, self._made = waited.printed, waited.made
            return session.load_snapshot(waited.dump, print_callback=self._printed)
        self._code, self._lazy = read_script(order.code, order.servers)
        session.feed_run(PRELUDE)
        return session.feed_start(self._code, print_callback=self._printed)

    def _drive(self, snapshot: _Snapshot) -> Report | None:
        while True:
            match snapshot:
                case monty.MontyComplete():
                    return ScriptDone(self.printed, self._encode(_plain(snapshot.output)))
                case monty.NameLookupSnapshot():
                    snapshot = self._look_up(snapshot)
                case monty.FutureSnapshot():
                    calls = [self._pending[number] for number in snapshot.pending_call_ids]
                    answers = self._ask(calls, snapshot)
                    if answers is None:
                        return None
                    snapshot = snapshot.resume(
                        {answer.id: _value(answer, self._pending[answer.id]) for answer in answers}
                    )
                case monty.FunctionSnapshot():
                    if (following := self._call(snapshot)) is None:
                        return None
                    snapshot = following

    def _look_up(self, snapshot: monty.NameLookupSnapshot) -> _Snapshot:
        name = snapshot.variable_name
        if name not in self._names or snapshot.object_id is not None:
            return snapshot.resume()

        def function() -> NoReturn:
            raise AssertionError(name)  # the engine announces calls, and makes none

        function.__name__ = name
        return snapshot.resume(value=function)

    def _call(self, snapshot: monty.FunctionSnapshot) -> _Snapshot | None:
        if snapshot.is_os_function:
            return snapshot.resume_not_handled()
        call = self._described(snapshot)
        if call is None:
            name = str(snapshot.function_name)
            reason = f"name {name!r} is not defined; `search_tools` finds tools"
            return snapshot.resume({"exc_type": "NameError", "message": reason})
        self._made += 1
        if self._made > self._order.limits.calls:
            reason = f"a script may make {self._order.limits.calls} calls"
            return snapshot.resume({"exc_type": "RuntimeError", "message": reason})
        place = snapshot.position.start, snapshot.position.end
        # the script awaits it somewhere, so that several calls can be under way at once
        if place in self._lazy or snapshot.allow_eager_await:
            self._pending[call.id] = call
            return snapshot.resume({"future": ...})
        answers = self._ask([call], snapshot)
        return None if answers is None else snapshot.resume(_value(answers[0], call))

    def _described(self, snapshot: monty.FunctionSnapshot) -> ScriptCall | None:
        name = str(snapshot.function_name)
        if name not in self._names:
            return None
        line = self._code.encode()[: snapshot.position.start].count(b"\n") + 1
        arguments = _arguments(snapshot.args, snapshot.kwargs)
        return ScriptCall(snapshot.call_id, name, self._encode(arguments), line)

    def _encode(self, value: Any) -> bytes:
        data = msgspec.json.encode(value)
        if len(data) > self._order.limits.sent:
            raise _TooLarge(
                f"it has {len(data):,} bytes, and {self._order.limits.sent:,} are allowed"
            )
        return data

    def _ask(
        self, calls: list[ScriptCall], snapshot: monty.FunctionSnapshot | monty.FutureSnapshot
    ) -> list[CallAnswer] | None:
        """The answers to some calls; None if the script goes on elsewhere."""
        self._pipe.send(ScriptCalls(calls))
        while True:
            match self._pipe.receive():
                case CallAnswers(answers):
                    return answers
                case Peek(sample, most):
                    self._pipe.send(
                        ScriptCalls(self._peek(snapshot.dump(), calls[0], sample, most))
                    )
                case Dump():
                    state = _Suspended(
                        snapshot.dump(),
                        self._code,
                        [*self._lazy],
                        [*self._pending.values()],
                        self.printed,
                        # they are announced, and counted, once more
                        self._made - (1 if isinstance(snapshot, monty.FunctionSnapshot) else 0),
                    )
                    self._pipe.send(State(msgspec.msgpack.encode(state)))
                    return None
                case Run():
                    raise _Gone

    def _peek(self, dump: bytes, call: ScriptCall, sample: bytes, most: int) -> list[ScriptCall]:
        """The calls of the same tool that would follow, in a copy of the script that calls nothing.

        Whatever else the copy does ends it: its results would be inventions.
        """
        value: Any = msgspec.json.decode(sample)
        calls: list[ScriptCall] = []
        for _ in range(_ATTEMPTS):
            calls.clear()
            try:
                self._run_ahead(dump, call, value, most, calls)
                break
            except monty.MontyRuntimeError as exc:
                # the script reads a field that the tool's schema does not tell
                if (name := _missing_key(exc.exception())) is None or not _is_object(value):
                    break
                value = {**value, name: ""}
            except monty.MontyError:
                break
        return calls

    def _run_ahead(
        self, dump: bytes, call: ScriptCall, value: Any, most: int, calls: list[ScriptCall]
    ) -> None:
        printed = monty.CollectString(self._order.limits.output)
        with self._pool.checkout(limits=_limits(self._order.limits)) as session:
            snapshot: _Snapshot = session.load_snapshot(dump, print_callback=printed)
            while len(calls) < most:
                match snapshot:
                    case monty.FutureSnapshot():
                        numbers = snapshot.pending_call_ids
                        snapshot = snapshot.resume({n: {"return_value": value} for n in numbers})
                    case monty.FunctionSnapshot() if snapshot.function_name == call.name:
                        following = self._described(snapshot)
                        if following is not None and following.id != call.id:
                            calls.append(following)
                        place = snapshot.position.start, snapshot.position.end
                        is_awaited = place in self._lazy or snapshot.allow_eager_await
                        snapshot = snapshot.resume(
                            {"future": ...} if is_awaited else {"return_value": value}
                        )
                    case _:
                        return


def _bound_processor_time(limits: ScriptLimits) -> None:
    """Let the system end this process if a script takes far more than it may.

    The engine bounds what a script does, but not what becomes of its values outside: a list that
    contains one list ten times, which contains one list ten times, is small only there.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + limits.seconds) + _SPARE
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _limits(limits: ScriptLimits) -> monty.ResourceLimits:
    return {
        "max_feed_duration_secs": limits.seconds,
        "max_memory": limits.memory,
        "max_recursion_depth": limits.depth,
        "max_suspensions": _SUSPENSIONS * limits.calls,
        "max_total_sleep_secs": limits.sleep,
    }


def _arguments(values: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """Keywords, or one dict; anything else is left to the gateway, which knows the parameters."""
    if not values:
        return _plain(keywords)
    if len(values) == 1 and not keywords and _is_object(values[0]):
        return _plain(values[0])
    return {"*": _plain(values), **_plain(keywords)}


def _value(answer: CallAnswer, call: ScriptCall) -> Any:
    """An answer for the engine: what the tool returned, or an exception that names it."""
    if answer.error:
        return {"exc_type": "RuntimeError", "message": f"{call.name}: {answer.error}"}
    return {"return_value": _content(answer.result)}


class _Block(msgspec.Struct):
    type: str = ""
    text: str = ""


class _Result(msgspec.Struct):
    content: list[_Block] = []
    structured: Any = msgspec.field(default=None, name="structuredContent")


_parse_result = msgspec.json.Decoder(_Result).decode


def _content(raw: bytes) -> Any:
    """What a script gets of a result: structured content, else its text as JSON, else its text."""
    result = _parse_result(raw)
    match result.structured:
        case None:
            texts = [block.text for block in result.content if block.type == "text"]
            values = [_as_json(text) for text in texts]
            return values[0] if len(values) == 1 else values or None
        case {"result": value, **others} if not others and not isinstance(value, dict):
            return value  # servers wrap what is not an object
        case value:
            return value


def _as_json(text: str) -> Any:
    if text.lstrip()[:1] not in {"{", "["}:
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _plain(value: Any, depth: int = 0) -> Any:  # noqa: PLR0911 - one for each kind of value
    """A value of the engine as JSON; what JSON does not have becomes a list or a text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if depth > _DEEPEST:
        return "…"
    if _is_object(value):
        return {str(name): _plain(member, depth + 1) for name, member in value.items()}
    if _is_series(value):
        return [_plain(member, depth + 1) for member in value]
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, monty.MontyClassProxy):
        return _plain(value.attributes, depth + 1)
    return str(value)


def _is_object(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _is_series(value: Any) -> TypeGuard[Iterable[Any]]:
    return isinstance(value, list | tuple | set | frozenset)


def _missing_key(exc: BaseException) -> str | None:
    key = exc.args[0] if isinstance(exc, KeyError) and exc.args else None
    return key if isinstance(key, str) else None


def _line(frames: list[monty.Frame]) -> int:
    return frames[-1].line if frames else 0


def main() -> None:
    """Run scripts until the gateway closes the pipe."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # whatever a library writes must not get between the messages
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    pipe = _Pipe(source, sink)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    # from the package alone: a variable or `PATH` could name another program
    binary = Path(sysconfig.get_path("scripts"), "monty")
    # a fresh process for each script: none finds anything of another
    with monty.Monty(
        binary_path=binary, min_processes=1, max_processes=2, max_checkouts_per_worker=1
    ) as pool:
        while True:
            try:
                order = pipe.receive()
                if not isinstance(order, Run):
                    continue
                _bound_processor_time(order.limits)
                if (report := _Script(pipe, pool, order).run()) is not None:
                    pipe.send(report)
            except (_Gone, BrokenPipeError):
                return


if __name__ == "__main__":
    main()
