"""How much each principal may use in an hour and in a day: calls, and bytes of results."""

import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec
from anyio import to_thread

from multitap.config.models import Quota
from multitap.errors import CoordinatorDown
from multitap.gateway import client_errors
from multitap.wire.jsonrpc import RpcError

if TYPE_CHECKING:
    from multitap.cluster.coordinator import Coordinator

logger = logging.getLogger(__name__)

SAVE = 10.0
"""Seconds between two times that the counts are written; a crash forgets that much at most."""
FILE = "quotas.json"
_PERIODS = {"hour": 3600, "day": 86_400}
_MOST = 100_000
"""Principals and periods that are counted at a time; more cannot have valid credentials."""
_LARGEST = 64 * 1024 * 1024  # bytes of the file, several times what we write for `_MOST`


class _Limit(msgspec.Struct, frozen=True):
    kind: str
    period: str
    most: int


class Quotas:
    """Counts what principals use, and refuses what exceeds their quota.

    Hours and days are those of the clock (UTC), so that all replicas agree about them.

    Args:
        quota: How much each principal may use.
        path: The file that keeps the counts of a single gateway over restarts.
        shared: Counts for all replicas of a cluster; None for a single gateway.
        clock: The time, in seconds since the epoch.
    """

    def __init__(
        self,
        quota: Quota,
        path: Path,
        shared: "Coordinator | None" = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        pairs = (
            _Limit("calls", "hour", quota.calls_per_hour or 0),
            _Limit("calls", "day", quota.calls_per_day or 0),
            _Limit("bytes", "hour", quota.bytes_per_hour or 0),
            _Limit("bytes", "day", quota.bytes_per_day or 0),
        )
        self._limits = tuple(limit for limit in pairs if limit.most)
        self._path = path
        self._shared = shared
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._is_saved = True
        if shared is None:
            self._counts = _read(path)

    @property
    def is_limited(self) -> bool:
        """Whether there is any quota."""
        return bool(self._limits)

    async def admit(self, principal: str) -> None:
        """Count one more call.

        Raises:
            RpcError: The principal has used up its quota; says when there is more.
            CoordinatorDown: The cluster's counts cannot be reached: a quota that does not hold
                without them would not be one.
        """
        now = self._clock()
        for limit in self._limits:
            count = partial(self._add, principal, limit, now, int(limit.kind == "calls"))
            used = await (count() if self._shared is None else self._shared.until_back(count))
            # bytes are known only afterwards: the result that exceeds them is the last one
            if used > limit.most or (limit.kind == "bytes" and used >= limit.most):
                raise _exhausted(limit, now)

    async def on_result(self, principal: str, size: int) -> None:
        """Count the bytes of a result."""
        now = self._clock()
        for limit in self._limits:
            if limit.kind == "bytes":
                # the call was made: its result must not get lost because it is not counted
                with suppress(CoordinatorDown):
                    await self._add(principal, limit, now, size)

    async def run(self) -> None:
        """Save the counts until cancelled."""
        try:
            while True:
                await anyio.sleep(SAVE)
                await self._save()
        finally:
            # always ended by cancellation, which must not lose the last ones
            with anyio.CancelScope(shield=True), anyio.move_on_after(2):
                await self._save()

    async def _add(self, principal: str, limit: _Limit, now: float, amount: int) -> int:
        seconds = _PERIODS[limit.period]
        key = f"quota:{limit.kind}:{limit.period}:{int(now // seconds)}:{principal}"
        if self._shared is not None:
            return await self._shared.limits.count(key, amount, ttl=float(seconds))
        used = self._counts[key] = self._counts.get(key, 0) + amount
        self._is_saved = False
        return used

    async def _save(self) -> None:
        if self._is_saved or self._shared is not None:
            return
        # first: what is counted while it is written has to be written next time
        self._is_saved = True
        self._forget_past()
        data = msgspec.json.encode(self._counts)
        try:
            await to_thread.run_sync(_write, self._path, data)
        except OSError as exc:
            logger.warning("the quotas cannot be saved: %s", exc.strerror)

    def _forget_past(self) -> None:
        now = self._clock()
        current = {f"{period}:{int(now // seconds)}" for period, seconds in _PERIODS.items()}
        keys = [key for key in self._counts if ":".join(key.split(":")[2:4]) in current]
        self._counts = {key: self._counts[key] for key in keys[-_MOST:]}


def _exhausted(limit: _Limit, now: float) -> RpcError:
    seconds = _PERIODS[limit.period]
    wait = math.ceil(seconds - now % seconds)
    unit = "calls" if limit.kind == "calls" else "bytes of results"
    return RpcError(
        client_errors.OVERLOADED,
        f"the quota of {limit.most:,} {unit} per {limit.period} is used up: wait {wait} s",
        {"reason": "quota", "retryAfter": wait},
    )


def _read(path: Path) -> dict[str, int]:
    try:
        if path.stat().st_size > _LARGEST:
            return {}
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as exc:
        logger.warning("%s cannot be read, so quotas start again: %s", path, exc)
        return {}


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # replaced, not written in place: a crash leaves the old counts or the new ones
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_bytes(data)
    part.chmod(0o600)
    part.replace(path)
