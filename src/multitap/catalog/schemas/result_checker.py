"""Checks structured results against the schema that their tool declares."""

import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from multitap.catalog.schemas.argument_checker import Checker, Unchecked, compile_schema
from multitap.catalog.schemas.bounds import evaluations
from multitap.catalog.schemas.json_values import is_list, is_object

LARGEST = 1024 * 1024
"""Bytes of structured content up to which it is checked."""
MAX_DEPTH = 32
_MAX_WORK = 5_000_000  # estimated checks
_SLOW = 0.05  # seconds of CPU time; a tool that takes longer is no longer checked
_SMALL = 1024  # bytes up to which reading the clock would cost more than it saves
_TINY = 64  # bytes; shorter content cannot be nested deeply


class ResultChecker:
    """Finds mismatches at a bounded cost.

    Schema and result both come from the server, which may want to keep us busy: content that is
    large, deep or slow to check is not checked.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._checker = compile_schema(schema, linear=True)
        self._evaluations: dict[int, int] = {}

    def misfit(self, structured: Raw) -> str | None:
        """The first mismatch of structured content, in words; None if it matches."""
        checker = self._checker
        if isinstance(checker, Unchecked) or len(structured) > LARGEST:
            return None
        if len(structured) <= _SMALL:
            return self._find_problem(checker, structured)
        # CPU time of this thread: on a busy machine, waiting for a turn is not the schema's fault.
        started = time.thread_time()
        try:
            return self._find_problem(checker, structured)
        finally:
            if time.thread_time() - started > _SLOW:
                self._checker = Unchecked("checking results takes too long")

    def _find_problem(self, checker: Checker, structured: Raw) -> str | None:
        try:
            value = msgspec.json.decode(structured)
            if len(structured) > _TINY and not self._is_modest(value):
                return None
            return checker.misfit(value)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None  # invalid numbers or too deep: reading it reports that

    def _is_modest(self, value: Any) -> bool:
        depth, parts = _extent(value)
        if depth > MAX_DEPTH:
            return False
        step = (
            1 << depth.bit_length()
        )  # computing it for each depth would take longer than checking
        if step not in self._evaluations:
            self._evaluations[step] = evaluations(self._schema, step)
        return self._evaluations[step] * (1 + parts) <= _MAX_WORK


def _extent(value: Any) -> tuple[int, int]:
    """The depth of a value, and its number of parts."""
    depth = parts = 0
    level: list[Any] = [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        inner: list[Any] = []
        for one in level:
            members: Iterable[Any] = ()
            if is_object(one):
                members = one.values()
            elif is_list(one):
                members = one
            inner += [part for part in members if part.__class__ in _NESTED]
            parts += len(one) if one.__class__ in _NESTED else 0
        level = inner
    return depth, parts


_NESTED = frozenset({dict, list})
