"""Expressions that choose parts of a value, within bounds that hold for any expression.

JMESPath runs here. jq would hold the interpreter, give its environment away and read files, so each
of its programs has a process to itself, which can open nothing.
"""

import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeGuard

import msgspec
from jmespath.exceptions import JMESPathError, JMESPathTypeError, ParseError
from jmespath.functions import Functions
from jmespath.parser import ParsedResult, Parser
from jmespath.visitor import Options, TreeInterpreter

from multitap.errors import BadArguments, counted, quoted, shortened

JQ = "jq:"
"""How an expression of jq begins."""
LONGEST = 2000
"""Characters of an expression."""
_ROOM = 64 * 1024  # what a selection may have besides twice the size of its source
_SECONDS = 2.0  # CPU time of one selection
_CHECKED = 256  # steps between two looks at the clock
_SORTED = 50_000  # entries that are sorted at once: sorting cannot be interrupted
_WASTE = 64  # how much of that may be made in all
_SHOWN_KEYS = 12
_SHOWN_LEVELS = 2
_JQ_SECONDS = 2  # processor time of a program of jq
_JQ_WAIT = 20.0  # the same by the clock, with the start of its process on a busy machine
_JQ_ADDRESSES = 512 * 1024 * 1024  # bytes
_SORTING = frozenset({"sort", "sort_by", "min_by", "max_by"})


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
        self._parsed = _parse(expression) if self._program is None else None
        if self._program is not None:
            _check_jq(self._program)

    def __repr__(self) -> str:
        return f"<Selector {self.expression}>"

    def choose(self, value: Any, size: int) -> Any:
        """What the expression chooses from a decoded value that takes `size` bytes as JSON.

        Raises:
            SelectFailed: It does not work on this value, or takes too much time or memory.
        """
        if self._parsed is None:
            return _run_jq(self._program or "", value, 2 * size + _ROOM)
        try:
            return _BoundedInterpreter(2 * size + _ROOM).visit(self._parsed.parsed, value)
        except JMESPathTypeError as exc:  # its own message quotes the whole value
            expected = " or ".join(exc.expected_types)
            raise SelectFailed(
                f"`{exc.function_name}` takes {expected}, not {exc.actual_type}"
            ) from None
        except JMESPathError as exc:
            raise SelectFailed(shortened(str(exc), 200)) from None
        except RecursionError:
            raise SelectFailed("it is nested too deeply") from None
        # what Python refuses to compare or to convert, such as a number beyond every float
        except (TypeError, ValueError, ArithmeticError) as exc:
            raise SelectFailed(shortened(str(exc), 200)) from None


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


def _parse(expression: str) -> ParsedResult:
    if not 1 <= len(expression) <= LONGEST:
        raise BadArguments(
            f"an expression has 1 to {LONGEST:,} characters, not {len(expression):,}",
            path="/select",
        )
    try:
        # what `jmespath` warns of is an old spelling, which stays valid; a host may raise warnings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PendingDeprecationWarning)
            return Parser().parse(expression)
    except ParseError as exc:
        where = exc.lex_position + 1
        reason = f"not a JMESPath expression at character {where}: {quoted(expression)}"
    except (JMESPathError, RecursionError):
        reason = f"not a JMESPath expression: {quoted(expression)}"
    raise BadArguments(
        reason, path="/select", hint="an example: `items[].{id: id, title: title}`"
    ) from None


class _Functions(Functions):
    def call_function(self, function_name: str, resolved_args: Iterable[Any]) -> Any:
        arguments = [*resolved_args]
        if function_name in _SORTING and any(
            _is_list(value) and len(value) > _SORTED for value in arguments
        ):
            raise SelectFailed(f"`{function_name}` takes at most {_SORTED:,} entries")
        return super().call_function(function_name, arguments)


class _BoundedInterpreter(TreeInterpreter):
    """Stops when a selection takes too much.

    Expressions come from models. A few characters such as `[@, @] | [@, @] | …` double a value
    again and again, so each value is measured when it is made; then whatever is done with it
    (comparing, joining, encoding) takes bounded time too.
    """

    def __init__(self, room: int) -> None:
        super().__init__(Options(custom_functions=_Functions()))
        self._room = room
        self._steps = 0
        self._made = 0
        self._end = time.thread_time() + _SECONDS
        # by identity; the value is kept too, so that no other gets its identity
        self._sizes: dict[int, tuple[Any, int]] = {}

    def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        self._steps += 1
        if self._steps % _CHECKED == 0 and time.thread_time() > self._end:
            raise SelectFailed(f"it takes longer than {_SECONDS:g} seconds")
        value = super().visit(node, *args, **kwargs)
        if isinstance(value, str) or _is_list(value) or _is_object(value):
            if self._size(value) > self._room:
                raise SelectFailed("it makes more than it was given")
            # what is thrown away again takes time and memory as well
            self._made += len(value)
            if self._made > _WASTE * self._room:
                raise SelectFailed("it takes too many steps")
        return value

    def _size(self, value: Any) -> int:
        """Roughly the characters of a value as JSON, with each use of a shared part."""
        if isinstance(value, str):
            return len(value) + 2
        if not (_is_list(value) or _is_object(value)):
            return 1
        if (measured := self._sizes.get(id(value))) is not None:
            return measured[1]
        size = len(value) + 2
        if _is_object(value):
            size += sum(len(name) + 3 for name in value)
        for member in value.values() if _is_object(value) else value:
            size += self._size(member)
        self._sizes[id(value)] = (value, size)
        return size


def describe(value: Any, levels: int = _SHOWN_LEVELS) -> str:
    """The keys, types and lengths of a value, for somebody who has to choose from it."""
    if _is_list(value):
        first = f", the first {describe(value[0], levels)}" if value else ""
        return f"list of {len(value):,}{first}"
    if not _is_object(value):
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


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


if __name__ == "__main__":
    main()
