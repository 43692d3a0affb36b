"""JMESPath within bounds that hold for any expression and any value."""

import time
import warnings
from collections.abc import Iterable
from typing import Any

from jmespath.exceptions import JMESPathError, JMESPathTypeError, ParseError
from jmespath.functions import Functions
from jmespath.parser import ParsedResult, Parser
from jmespath.visitor import Options, TreeInterpreter

from multitap.errors import BadArguments, quoted, shortened
from multitap.selectors import LONGEST, SelectFailed, is_list, is_object

_SECONDS = 2.0  # CPU time of one selection
_CHECKED = 256  # steps between two looks at the clock
_SORTED = 50_000  # entries that are sorted at once: sorting cannot be interrupted
_WASTE = 64  # how much of its room a selection may make in all
_SORTING = frozenset({"sort", "sort_by", "min_by", "max_by"})


def parse(expression: str) -> ParsedResult:
    """Check an expression.

    Raises:
        BadArguments: It is none.
    """
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


def evaluate(parsed: ParsedResult, value: Any, room: int) -> Any:
    """What an expression chooses from a decoded value, in `room` characters of JSON.

    Raises:
        SelectFailed: It does not work on this value, or takes too much time or memory.
    """
    try:
        return _BoundedInterpreter(room).visit(parsed.parsed, value)
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


class _Functions(Functions):
    def call_function(self, function_name: str, resolved_args: Iterable[Any]) -> Any:
        arguments = [*resolved_args]
        if function_name in _SORTING and any(
            is_list(value) and len(value) > _SORTED for value in arguments
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
        if isinstance(value, str) or is_list(value) or is_object(value):
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
        if not (is_list(value) or is_object(value)):
            return 1
        if (measured := self._sizes.get(id(value))) is not None:
            return measured[1]
        size = len(value) + 2
        if is_object(value):
            size += sum(len(name) + 3 for name in value)
        for member in value.values() if is_object(value) else value:
            size += self._size(member)
        self._sizes[id(value)] = (value, size)
        return size
