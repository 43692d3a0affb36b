"""Reads and writes what outlives the process, off the event loop."""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar, TypeVarTuple, Unpack

import anyio
import msgspec

from multitap.config.models import Audit, LogLevel
from multitap.config.search import state_directory
from multitap.errors import counted, quoted, ungrouped
from multitap.events import Outcome
from multitap.store import stored_catalogs
from multitap.store.archive import Archive
from multitap.store.asking_servers import Asking
from multitap.store.audit_records import AuditRecord
from multitap.store.call_records import CallQuery, CallRecord, Page
from multitap.store.chosen_names import Choices, Pair
from multitap.store.exchanges import Exchange
from multitap.store.log_records import HappeningQuery, Happenings, LogRecord
from multitap.store.record_filter import EVERYTHING, RecordFilter
from multitap.store.start_outcomes import Outcomes
from multitap.store.stored_catalogs import CatalogKey, StoredCatalog
from multitap.store.troubles import Clock, Troubles

# seconds, entries: a transaction costs more than the rows in it
FLUSH_INTERVAL = 0.5
FLUSH_COUNT = 2048
# entries that are kept while the disk does not take any
MAX_BUFFERED = 10_000
PATIENCE = 10.0
"""Seconds; SQLite itself waits two for another process to finish writing."""

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


@asynccontextmanager
async def open_store(
    state_dir: Path | None = None, *, clock: Clock = time.monotonic
) -> AsyncGenerator["Store"]:
    """An open store; what was logged is written at the latest when the block is left.

    Args:
        state_dir: Where its file is; the user's state directory if not given.
        clock: By which warnings fade.
    """
    thread = _Thread()
    try:
        troubles = Troubles(clock)
        archive = await thread.run(Archive, state_directory(state_dir), troubles)
        store = Store(thread, archive, troubles)
        try:
            with ungrouped():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(store.run)
                    yield store
                    tasks.cancel_scope.cancel()
        finally:
            await store.close()
    finally:
        await thread.end()


class _Thread:
    """One thread that does one thing after the other."""

    def __init__(self) -> None:
        # one: SQLite lets one write at a time, and the order is ours without a lock
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="multitap-store")

    async def run(self, work: Callable[[Unpack[_Ts]], _T], *args: *_Ts) -> _T:
        """Do it to its end even if the caller is cancelled, so that nothing is done by half.

        Raises:
            TimeoutError: The file system hangs.
        """
        future = asyncio.get_running_loop().run_in_executor(self._executor, work, *args)
        with anyio.move_on_after(PATIENCE, shield=True):
            await asyncio.wait([future])
        if not future.done():
            # network folders may hang for good; the hub goes on without them
            raise TimeoutError("the state directory does not answer")
        return future.result()

    async def end(self) -> None:
        """Leave no thread behind, unless it hangs."""
        try:
            await self.run(_nothing)
        except TimeoutError:
            self._executor.shutdown(wait=False, cancel_futures=True)
        else:
            self._executor.shutdown()


def _nothing() -> None:
    pass


class _Backlog(Generic[_T]):
    """What waits to be written; where there is too much of it, the oldest is dropped.

    Args:
        pending: Set when there is anything.
        full: Set when there is so much that it should be written now.
    """

    def __init__(self, pending: asyncio.Event, full: asyncio.Event) -> None:
        self.dropped = 0
        self._pending = pending
        self._full = full
        self._records: deque[_T] = deque()

    def add(self, record: _T) -> None:
        records = self._records
        # every call comes by here: one look, and nothing is awaited
        if not records:
            self._pending.set()
        elif len(records) >= FLUSH_COUNT:
            self._full.set()
            if len(records) == MAX_BUFFERED:
                records.popleft()
                self.dropped += 1
        records.append(record)

    def take(self) -> deque[_T]:
        records, self._records = self._records, deque()
        return records

    def put_back(self, records: deque[_T]) -> None:
        records.extend(self._records)
        while len(records) > MAX_BUFFERED:
            records.popleft()
            self.dropped += 1
        self._records = records


class Store:
    """What outlives the process; made by `open_store`.

    Writing never waits and never fails: what cannot be written is tried again, and in the end
    dropped, with a warning.
    """

    def __init__(self, thread: _Thread, archive: Archive, troubles: Troubles) -> None:
        self._thread = thread
        self._archive = archive
        self._troubles = troubles
        self._pending = asyncio.Event()
        self._full = asyncio.Event()
        self._calls = _Backlog[CallRecord](self._pending, self._full)
        self._log = _Backlog[LogRecord](self._pending, self._full)
        self.log_call = self._calls.add
        """Notes a call; it is written within a second."""
        self.log = self._log.add
        """Notes what else happened; it is written within a second."""
        self._audit = _Backlog[AuditRecord](self._pending, self._full)
        self.audit = self._audit.add
        """Notes who did what, for the audit log; it is written within a second."""
        self.audit_kept = Audit().keep
        """How many entries of the audit log are kept."""
        self._offers: dict[CatalogKey, StoredCatalog] = {}
        self._outcomes: Outcomes = {}
        self._asking: Asking = set()
        self._choices: Choices = {}
        self._chosen_for: Collection[str] = ()
        self.on_disagreement: Callable[[], None] | None = None
        """Called when another process was first to choose a name; `load_choices` tells which."""
        self._noted = 0
        """Of how many lost entries the troubles say so."""

    @property
    def path(self) -> Path | None:
        """The file; None where there is none and everything is forgotten at the end."""
        return self._archive.path

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is wrong with the file, or was in the last minutes, if anything."""
        return self._troubles.reasons()

    @property
    def dropped(self) -> int:
        """How many entries were lost, because they came faster than they could be written."""
        return self._calls.dropped + self._log.dropped + self._audit.dropped

    @property
    def is_audit_delayed(self) -> bool:
        """Whether the audit log cannot be written right now."""
        return self._troubles.is_present("audit")

    def save_catalog(self, server: str, fingerprint: str, catalog: StoredCatalog) -> None:
        """Remember what a server offers; it is written within a second."""
        self._offers[server, fingerprint] = catalog
        self._pending.set()

    def load_catalogs(self) -> dict[CatalogKey, StoredCatalog]:
        """What each server last offered, as of when the store was opened."""
        found: dict[CatalogKey, StoredCatalog] = {}
        for key, (saved_at, body) in self._archive.saved.items():
            try:
                catalog = stored_catalogs.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError) as exc:
                self._troubles.happened(
                    f"the stored catalog of {quoted(key[0])} cannot be read: {exc}"
                )
            else:
                found[key] = msgspec.structs.replace(catalog, saved_at=saved_at)
        return found

    def save_outcome(self, server: str, fingerprint: str, *, is_up: bool) -> None:
        """Remember how a server's last start ended; it is written within a second."""
        self._outcomes[server, fingerprint] = is_up
        self._pending.set()

    def load_outcomes(self) -> Outcomes:
        """How each server's last start ended, as of when the store was opened."""
        return dict(self._archive.outcomes)

    def save_asking(self, server: str, fingerprint: str) -> None:
        """Remember that a server asks without saying for which call; written within a second."""
        self._asking.add((server, fingerprint))
        self._pending.set()

    def load_asking(self) -> Asking:
        """Which servers ask without saying for which call, as of when the store was opened."""
        return set(self._archive.asking)

    def save_choices(
        self, choices: Mapping[str, Mapping[Pair, str]], servers: Collection[str]
    ) -> None:
        """Remember names that were given; they are written within a second.

        Args:
            choices: The name by server and the server's own name, for each kind of thing.
            servers: Those that are configured; the names of others may be taken over.
        """
        for kind, chosen in choices.items():
            self._choices.setdefault(kind, {}).update(chosen)
        self._chosen_for = servers
        self._pending.set()

    def load_choices(self) -> Choices:
        """The names that were given, as of when the store was opened or last wrote some."""
        return {kind: dict(chosen) for kind, chosen in self._archive.choices.items()}

    async def calls(
        self,
        *,
        server: str | None = None,
        tool: str | None = None,
        since: float | None = None,
        until: float | None = None,
        outcomes: Collection[Outcome] | None = None,
        text: str | None = None,
        filter: RecordFilter = EVERYTHING,  # noqa: A002 - what the person calls it
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Past calls that fit every condition given, newest first.

        Args:
            server: By its configured name.
            tool: By the server's own name.
            since: Seconds since the epoch, included.
            until: Seconds since the epoch, excluded.
            outcomes: How they ended.
            text: Part of the error, the tool's or the server's name, in any case.
            filter: What a person typed.
            limit: At most this many, and never more than 1000.
            cursor: From the page before.

        Raises:
            BadArguments: The cursor is none of ours.
        """
        query = CallQuery(
            server=server,
            tool=tool,
            since=since,
            until=until,
            outcomes=outcomes,
            text=text,
            filter=filter,
            limit=limit,
            cursor=cursor,
        )
        # without it the latest calls would be missing
        await self.flush()
        return await self._thread.run(self._archive.read_calls, query)

    async def logs(
        self,
        *,
        level: LogLevel = "debug",
        since: float | None = None,
        until: float | None = None,
        server: str | None = None,
        text: str | None = None,
        filter: RecordFilter = EVERYTHING,  # noqa: A002 - what the person calls it
        limit: int = 100,
        cursor: str | None = None,
    ) -> Happenings:
        """All that happened, calls included, that fits every condition given, newest first.

        Args:
            level: And worse; a call that went well is `info`, one without an answer `error`.
            since: Seconds since the epoch, included.
            until: Seconds since the epoch, excluded.
            server: By its configured name.
            text: Part of the words or of the server's name, in any case.
            filter: What a person typed.
            limit: At most this many, and never more than 1000.
            cursor: From the page before.

        Raises:
            BadArguments: The cursor is none of ours.
        """
        query = HappeningQuery(
            level=level,
            since=since,
            until=until,
            server=server,
            text=text,
            filter=filter,
            limit=limit,
            cursor=cursor,
        )
        await self.flush()
        return await self._thread.run(self._archive.read_logs, query)

    async def exchange(self, exchange_id: str) -> Exchange | None:
        """What a recorded call sent and received; None where that is not kept any more."""
        await self.flush()
        return await self._thread.run(self._archive.read_exchange, exchange_id)

    async def run(self) -> None:
        """Write what is logged, some at a time, until cancelled."""
        while True:
            await self._pending.wait()
            with anyio.move_on_after(FLUSH_INTERVAL):
                await self._full.wait()
            await self.flush()

    async def flush(self) -> None:
        """Write what is waiting to be written."""
        self._note_losses()
        # all of it before the first wait: what comes meanwhile is for the next time
        calls, log, audit = self._calls.take(), self._log.take(), self._audit.take()
        offers, self._offers = self._offers, {}
        outcomes, self._outcomes = self._outcomes, {}
        asking, self._asking = self._asking, set()
        self._pending.clear()
        self._full.clear()
        if calls and not await self._written("calls", self._archive.write_calls, calls):
            self._calls.put_back(calls)
            self._pending.set()
        if audit and not await self._written("audit", self._write_audit, audit):
            self._audit.put_back(audit)
            self._pending.set()
        if log and not await self._written("log", self._archive.write_logs, log):
            self._log.put_back(log)
            self._pending.set()
        if offers and not await self._written("catalogs", self._archive.write_catalogs, offers):
            # what came meanwhile is newer, and wins
            self._offers = offers | self._offers
            self._pending.set()
        if outcomes and not await self._written("outcomes", self._archive.write_outcomes, outcomes):
            self._outcomes = outcomes | self._outcomes
            self._pending.set()
        if asking and not await self._written("asking", self._archive.write_asking, asking):
            self._asking |= asking
            self._pending.set()
        await self._flush_choices()

    def _write_audit(self, records: Collection[AuditRecord]) -> None:
        self._archive.write_audit(records, self.audit_kept)

    def _note_losses(self) -> None:
        if (dropped := self.dropped) > self._noted:
            self._noted = dropped
            words = (
                f"{counted(dropped, 'log record')} lost: they came faster than they were written"
            )
            self._troubles.happened(words, kind="lost entries")

    async def _flush_choices(self) -> None:
        choices, self._choices = self._choices, {}
        if not choices:
            return
        agreed = True

        def write(chosen: Choices) -> None:
            nonlocal agreed
            agreed = self._archive.write_choices(chosen, self._chosen_for)

        if not await self._written("choices", write, choices):
            self._choices = {
                kind: choices.get(kind, {}) | self._choices.get(kind, {})
                for kind in choices.keys() | self._choices.keys()
            }
            self._pending.set()
        elif not agreed and self.on_disagreement is not None:
            self.on_disagreement()

    async def close(self) -> None:
        """Write the rest and close the file; `open_store` does it when its block is left."""
        await self.flush()
        with suppress(TimeoutError):
            await self._thread.run(self._archive.close)

    async def _written(self, kind: str, write: Callable[[_T], None], what: _T) -> bool:
        """Whether there is nothing to try again."""
        try:
            await self._thread.run(write, what)
        # busy, full or read-only: that may pass
        except sqlite3.OperationalError as exc:
            self._troubles.begin(kind, f"writing is delayed: {exc}")
            return False
        # the rest would fail again, and hold up what comes after it
        except (sqlite3.Error, TimeoutError, ValueError, TypeError, OverflowError) as exc:
            self._troubles.happened(f"some records were not written: {exc}")
        self._troubles.end(kind)
        return True
