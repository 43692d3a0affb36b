"""The failures of one server, counted once for all replicas."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from multitap.cluster.coordinator import Coordinator
from multitap.errors import CoordinatorDown
from multitap.events import Failure, FailureCode, Phase
from multitap.upstream.backoff import LONGEST_PAUSE, WINDOW, Paused, RestartHistory, Restarts

LOOK = 1.0
"""Seconds between two checks of another replica's attempt."""
_KEPT = LONGEST_PAUSE + 2 * WINDOW  # seconds; older failures count for nothing
_APPROACHES = 2  # approaches of one attempt, each with the whole time to connect
_MARGIN = 5.0  # seconds that an attempt may take longer than its limit
_TRIES = 5  # attempts of a change that races with others; by then they know as much as we do


class BreakerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The shared record; times are those of the coordinator's clock."""

    number: int = 0
    """Its version; a claim to try the server is void once the number has changed."""
    history: RestartHistory = RestartHistory()
    due: float | None = None
    """When the server may be tried again; None: at any time, because it was last seen up."""
    code: FailureCode = FailureCode.UNREACHABLE
    phase: Phase = Phase.CALL
    message: str = ""
    hint: str | None = None
    at: float = 0.0
    """When it failed."""
    trying: str = ""
    """The replica that tries the server for all of them."""
    until: float = 0.0
    """When that attempt must have ended."""

    def failure(self) -> Failure:
        return Failure(self.code, self.phase, self.message, hint=self.hint, at=self.at)


_encode = msgspec.json.Encoder().encode
_parse = msgspec.json.Decoder(BreakerRecord).decode


class SharedBreaker:
    """See `Breaker`; without a coordinator each replica counts for itself.

    Args:
        is_alive: Asks the coordinator whether a replica is alive: our own list is up to a second
            old, and lacks new replicas.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        server: str,
        *,
        replica: str,
        timeout: float,
        is_alive: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._coordinator = coordinator
        self._records = coordinator.records
        self._key = f"breaker/{server}"
        self._replica = replica
        self._timeout = timeout
        self._is_alive = is_alive
        self._number: int | None = None
        """The number of the record when the attempt began, or of our claim; None: no record."""
        self._is_claimed = False
        """Whether the others wait for our attempt."""

    async def admit(self, restarts: Restarts, *, is_first: bool, is_ordered: bool) -> None:
        # at once: an attempt must not wait for a coordinator that does not answer
        if self._coordinator.health.is_up:
            with suppress(CoordinatorDown):
                if is_ordered:
                    restarts.forget()
                    await self._records.delete(self._key)
                    return
                for left in reversed(range(_TRIES)):
                    overtaken = await self._try_to_admit(restarts, is_first=is_first)
                    if overtaken is None:
                        return
                    if not left:
                        raise Paused(overtaken.failure(), LOOK)

    async def came_up(self) -> None:
        if self._number is not None:
            self._is_claimed = False
            await self._change(lambda record, _: _free(record, due=None))

    async def on_lost(self, history: RestartHistory, pause: float, failure: Failure) -> float:
        began, self._is_claimed = self._number or 0, False
        clock = asyncio.get_running_loop().time

        def count(record: BreakerRecord, now: float) -> BreakerRecord | None:
            if pause > 0 and record.due is not None and record.number > began:
                return None  # the same failure, already counted by another replica
            return BreakerRecord(
                number=record.number + 1,
                history=history.shift(now - clock()),
                # a server that was up is tried again by every replica that lost it, once
                due=now + pause if pause > 0 else None,
                code=failure.code,
                phase=failure.phase,
                message=failure.message,
                hint=failure.hint,
                at=failure.at,
            )

        outcome = await self._change(count)
        if outcome is None or outcome[0].due is None:
            return pause
        return max(outcome[0].due - outcome[1], 0.0)

    async def give_up(self) -> None:
        if self._is_claimed:
            self._is_claimed = False
            await self._change(
                lambda record, _: (
                    _free(record, due=record.due) if record.number == self._number else None
                )
            )

    async def _try_to_admit(self, restarts: Restarts, *, is_first: bool) -> BreakerRecord | None:
        """None if the attempt may begin; else the record, which another replica has just changed.

        Raises:
            Paused: It may not begin.
        """
        stored = await self._records.read(self._key)
        record = _parse_record(stored)
        if record is None:
            restarts.forget()
            return None
        now = await self._coordinator.time()
        restarts.history = record.history.shift(asyncio.get_running_loop().time() - now)
        self._number = record.number
        if record.due is None or is_first:
            return None
        if record.due > now:
            raise Paused(record.failure(), record.due - now)
        other = record.trying not in {"", self._replica}
        if other and record.until > now and await self._is_alive(record.trying):
            raise Paused(record.failure(), LOOK)
        claim = msgspec.structs.replace(
            record,
            number=record.number + 1,
            trying=self._replica,
            until=now + _APPROACHES * self._timeout + _MARGIN,
        )
        if not await self._records.swap(self._key, stored, _encode(claim), ttl=_KEPT):
            return record
        self._number, self._is_claimed = claim.number, True
        return None

    async def _change(
        self, change: Callable[[BreakerRecord, float], BreakerRecord | None]
    ) -> tuple[BreakerRecord, float] | None:
        """The record after a change, and the time; None if the coordinator is down."""
        if not self._coordinator.health.is_up:
            return None
        with suppress(CoordinatorDown):
            for _ in range(_TRIES):
                stored = await self._records.read(self._key)
                now = await self._coordinator.time()
                record = _parse_record(stored) or BreakerRecord()
                changed = change(record, now)
                if changed is None:
                    return record, now
                if await self._records.swap(self._key, stored, _encode(changed), ttl=_KEPT):
                    return changed, now
        return None


def _free(record: BreakerRecord, *, due: float | None) -> BreakerRecord:
    return msgspec.structs.replace(record, number=record.number + 1, due=due, trying="", until=0.0)


def _parse_record(stored: bytes | None) -> BreakerRecord | None:
    try:
        return None if stored is None else _parse(stored)
    except msgspec.MsgspecError:
        return None  # written by another version
