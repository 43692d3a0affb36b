"""Results that may be given again: of tools that the operator named and that only read."""

import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec
from msgspec import Raw

from multitap.hub.routes import Route
from multitap.results.result import UNREADABLE
from multitap.trust.single_use import bind
from multitap.upstream.questions import CallContext

MOST, MOST_BYTES = 1024, 32 * 1024 * 1024
"""Results that are kept; beyond that, the oldest are dropped."""
LARGEST = 1024 * 1024
"""Bytes of one result."""


class _Outcome(msgspec.Struct):
    is_error: bool = msgspec.field(default=False, name="isError")
    kind: str = msgspec.field(default="complete", name="resultType")


_parse_outcome = msgspec.json.Decoder(_Outcome).decode


class CachedResults:
    """The last results, each for one caller, one tool and the same arguments.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._results: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._size = 0

    def clear(self) -> None:
        """Forget all results, as the servers may be others."""
        self._results.clear()
        self._size = 0

    def find(self, key: bytes) -> Raw | None:
        """A result that is not too old."""
        entry = self._results.get(key)
        if entry is None or entry[0] < self._clock():
            return None
        return Raw(entry[1])

    def keep(self, key: bytes, seconds: float, raw: Raw) -> None:
        """Keep a result, unless it failed, is a question or a task, or is too large."""
        if len(raw) > LARGEST:
            return
        try:
            outcome = _parse_outcome(raw)
        except UNREADABLE:
            return
        if outcome.is_error or outcome.kind != "complete":
            return
        self._drop(key)
        self._results[key] = self._clock() + seconds, bytes(raw)
        self._size += len(raw)
        while len(self._results) > MOST or self._size > MOST_BYTES:
            self._drop(next(iter(self._results)))

    def _drop(self, key: bytes) -> None:
        if (old := self._results.pop(key, None)) is not None:
            self._size -= len(old[1])


def cache_key(route: Route, arguments: bytes | Raw, context: CallContext) -> bytes | None:
    """What a result is kept for; None if the arguments cannot be compared."""
    client = context.client
    # people without credentials are told apart by their addresses
    holder = "host" if client is None else f"client {client.holder}"
    try:
        # however they are written: models order members as they like
        plain = msgspec.json.encode(msgspec.json.decode(arguments), order="deterministic")
    except UNREADABLE:
        return None
    # a result has the form of the era of the session that it came over
    era = route.link.era
    return bind(
        holder,
        context.agent_id or "",
        route.tool.server,
        route.tool.raw_name,
        "" if era is None else era.value,
        plain,
    )
