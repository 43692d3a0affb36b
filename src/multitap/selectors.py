"""Expressions that choose parts of a value, within bounds that hold for any expression.

JMESPath runs here (`bounded_jmespath`). jq would hold the interpreter, give its environment away
and read files, so each of its programs has a process to itself, which can open nothing.
"""

import resource
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeGuard

import msgspec

from multitap.errors import BadArguments, counted, shortened

JQ = "jq:"
"""How an expression of jq begins."""
LONGEST = 2000
"""Characters of an expression."""
_ROOM = 64 * 1024  # what a selection may have besides twice the size of its source
_SHOWN_KEYS = 12
_SHOWN_LEVELS = 2
_JQ_SECONDS = 2  # processor time of a program of jq
_JQ_WAIT = 20.0  # the same by the clock, with the start of its process on a busy machine
_JQ_ADDRESSES = 512 * 1024 * 1024  # bytes


class SelectFailed(Exception):
    """An expression that does not work on this result; the message says why."""


class Selector:
    """One checked expression.

    Args:
        expression: In JMESPath, such as `items[].{id: id, title: title}`; or `jq:` and a program
            of jq, which is only read where it runs.

    Raises:
        BadArguments: It is none, or jq is not installed.
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._program = expression.removeprefix(JQ) if expression.startswith(JQ) else None
        if self._program is not None:
            _check_jq(self._program)
            return
        from multitap.bounded_jmespath import parse  # noqa: PLC0415 - few calls select

        self._parsed = parse(expression)

    def __repr__(self) -> str:
        return f"<Selector {self.expression}>"

    def choose(self, value: Any, size: int) -> Any:
        """What the expression chooses from a decoded value that takes `size` bytes as JSON.

        Raises:
            SelectFailed: It does not work on this value, or takes too much time or memory.
        """
        room = 2 * size + _ROOM
        if self._program is not None:
            return _run_jq(self._program, value, room)
        from multitap.bounded_jmespath import evaluate  # noqa: PLC0415 - few calls select

        return evaluate(self._parsed, value, room)


class _JqOrder(msgspec.Struct, frozen=True):
    program: str
    text: str
    room: int


class _JqOutcome(msgspec.Struct, frozen=True):
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""


def _check_jq(program: str) -> None:
    if not 1 <= len(program) <= LONGEST:
        raise BadArguments(
            f"a program of jq has 1 to {LONGEST:,} characters, not {len(program):,}",
            path="/select",
        )
    if find_spec("jq") is None:
        from multitap.installation import extra_hint  # noqa: PLC0415 - reads metadata, for this hint

        raise BadArguments("jq is not installed", path="/select", hint=extra_hint("jq"))


def _run_jq(program: str, value: Any, room: int) -> Any:
    order = _JqOrder(program, msgspec.json.encode(value).decode(), room)
    try:
        process = subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-I", "-m", __name__],
            input=msgspec.msgpack.encode(order),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
            cwd="/",
            env={},
            start_new_session=True,
            timeout=_JQ_WAIT,
        )
        outcome = msgspec.json.decode(process.stdout, type=_JqOutcome)
    except (subprocess.TimeoutExpired, msgspec.DecodeError):
        raise SelectFailed("it takes too much time or memory") from None
    if outcome.error:
        raise SelectFailed(outcome.error)
    return msgspec.json.decode(outcome.result)


def main() -> None:
    """Run one program of jq, from the standard input to the standard output."""
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_JqOrder)
    jq = import_module("jq")
    for limit, most in (
        (resource.RLIMIT_CPU, _JQ_SECONDS),
        (resource.RLIMIT_AS, _JQ_ADDRESSES),
        (resource.RLIMIT_CORE, 0),
        # `import "config" as $c {search: "/home/ada/.docker"}` is a program of jq
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    sys.stdout.buffer.write(msgspec.json.encode(_evaluate(jq, order)))


def _evaluate(jq: Any, order: _JqOrder) -> _JqOutcome:
    values: list[bytes] = []
    size = 0
    try:
        for value in jq.compile(order.program).input_text(order.text):
            values.append(msgspec.json.encode(value))
            size += len(values[-1])
            if size > order.room:
                return _JqOutcome(error="it makes more than it was given")
    except (ValueError, RecursionError, MemoryError) as exc:
        first, *_ = str(exc).splitlines() or ["it takes too much memory"]
        return _JqOutcome(error=shortened(first, 200))
    # most programs make one value; several are a list
    result = values[0] if len(values) == 1 else b"[" + b",".join(values) + b"]"
    return _JqOutcome(msgspec.Raw(result if values else b"null"))


def describe(value: Any, levels: int = _SHOWN_LEVELS) -> str:
    """The keys, types and lengths of a value, for somebody who has to choose from it."""
    if is_list(value):
        first = f", the first {describe(value[0], levels)}" if value else ""
        return f"list of {len(value):,}{first}"
    if not is_object(value):
        return _type_of(value)
    if not levels:
        return f"{{{counted(len(value), 'key')}}}"
    names = list(value)
    members = [
        f"{shortened(name, 60)}: {describe(value[name], levels - 1)}"
        for name in names[:_SHOWN_KEYS]
    ]
    if len(names) > _SHOWN_KEYS:
        members.append(f"… {len(names) - _SHOWN_KEYS:,} more")
    return f"{{{', '.join(members)}}}"


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


if __name__ == "__main__":
    main()
