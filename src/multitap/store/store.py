"""The store: persistent data, read and written off the event loop."""

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, TypeVarTuple, Unpack

import anyio
import msgspec

from multitap.config.models import Audit, LogLevel
from multitap.config.sources import state_directory
from multitap.errors import MultitapError, counted, quoted, ungrouped
from multitap.events import Outcome
from multitap.store import tables
from multitap.store.audit_log import AuditBatch, AuditRecord, bodies_of
from multitap.store.database import Archive, Clock, Troubles
from multitap.store.queries import (
    EVERYTHING,
    ActivityQuery,
    CallHistory,
    CallQuery,
    Page,
    RecordFilter,
)
from multitap.store.tables import (
    Activity,
    Asking,
    CallRecord,
    CatalogKey,
    Choices,
    LogRecord,
    Outcomes,
    Pair,
    RecordedExchange,
    StoredCatalog,
)
from multitap.store.task_records import TaskRecord
from multitap.tasks import keep_going

FLUSH_INTERVAL = 0.5
"""Seconds between two transactions, which cost more than their rows."""
FLUSH_COUNT = 2048
"""Records that are written in one transaction."""
MAX_BUFFERED = 10_000
"""Records that are kept while they cannot be written."""
PATIENCE = 10.0
"""Seconds for one piece of work of the thread; SQLite itself waits two for other processes."""

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_Closable = TypeVar("_Closable", bound="Closable")
Write = Callable[[str, Callable[[Any], None], Any], Awaitable[bool]]
"""Writes something of a kind in the store's thread; False if it has to be tried again."""


@asynccontextmanager
async def open_store(
    state_dir: Path | None = None, *, clock: Clock = time.monotonic
) -> AsyncGenerator["Store"]:
    """An open store; logged records are written at the latest when the block is left.

    Its file is in the user's state directory unless `state_dir` names another folder; `clock` is
    the one by which warnings expire.
    """
    thread = StoreThread()
    try:
        troubles = Troubles(clock)
        archive = await thread.open(Archive, state_directory(state_dir), troubles)
        store = Store(thread, archive, troubles)
        try:
            with ungrouped():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(keep_going, store.run)
                    yield store
                    # the writer ends before the rest is written
                    tasks.cancel_scope.cancel()
        finally:
            # shielded: whoever is cancelled has logged before, and each write has an end
            with anyio.CancelScope(shield=True):
                await store.flush()
    finally:
        await thread.end()


class Closable(Protocol):
    """What the store's thread opens, and closes at its end."""

    def close(self) -> None: ...


class AuditRelay(Protocol):
    """Sends entries of the audit log to the replica that writes it."""

    @property
    def is_delayed(self) -> bool:
        """Whether entries cannot be sent at the moment."""
        ...

    async def send(self) -> None:
        """Send all waiting entries; those that cannot be sent are sent later."""
        ...


class Store:
    """Persistent data; made by `open_store`.

    Writing never waits and never fails: records that cannot be written are tried again, and
    finally dropped with a warning.
    """

    def __init__(self, thread: "StoreThread", archive: Archive, troubles: Troubles) -> None:
        self._thread = thread
        self._archive = archive
        self._troubles = troubles
        self._pending = asyncio.Event()
        self._full = asyncio.Event()
        self.call_backlog = RecordBacklog[CallRecord](self._pending, self._full)
        self._log = RecordBacklog[LogRecord](self._pending, self._full)
        self.log_call = self.call_backlog.add
        """Records a call; it is written within a second."""
        self.log = self._log.add
        """Records another event; it is written within a second."""
        self.audit_backlog = RecordBacklog[AuditRecord | CallRecord](self._pending, self._full)
        self.audit = self.audit_backlog.add
        """Adds an entry to the audit log; it is written within a second."""
        self.audit_kept = Audit().keep
        """How many entries of the audit log are kept."""
        self._flush_lock = anyio.Lock()
        self._audit_lock = anyio.Lock()
        self._audit_failures = 0
        self.audit_relay: AuditRelay | None = None
        """Takes the entries in a cluster, where one replica writes those of all."""
        self.servers = ServerNotes(archive, troubles, self._pending)
        """Knowledge about servers from earlier runs."""
        self.tasks = StoredTasks(thread.run, archive)
        """Records of tasks, which are written at once."""
        self._noted = 0
        """How many lost entries are already reported."""

    @property
    def path(self) -> Path | None:
        """The file; None if the store is only in memory."""
        return self._archive.path

    @property
    def warnings(self) -> tuple[str, ...]:
        """Current and recent problems of the store."""
        return self._troubles.reasons()

    @property
    def dropped(self) -> int:
        """How many records were lost because they could not be written fast enough."""
        return self.call_backlog.dropped + self._log.dropped + self.audit_backlog.dropped

    @property
    def is_audit_delayed(self) -> bool:
        """Whether the audit log cannot be written right now."""
        # what a relay has taken is safe, and another replica writes it if our disk is full
        if (relay := self.audit_relay) is not None:
            return relay.is_delayed
        return self._troubles.is_present("audit")

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
    ) -> Page[CallRecord]:
        """Past calls that match all conditions, newest first.

        Args:
            server: By its configured name.
            tool: By the server's own name.
            since: Seconds since the epoch, included.
            until: Seconds since the epoch, excluded.
            outcomes: The outcomes.
            text: A part of the error, or of the tool's or server's name, in any case.
            filter: A parsed filter.
            limit: The size of the page, at most 1000.
            cursor: The cursor of the previous page.

        Raises:
            BadArguments: The cursor is not one of ours.
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
        # or the latest calls would be missing
        await self.flush()
        return await self._thread.run(self._archive.read, query)

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
    ) -> Page[Activity]:
        """Events, calls included, that match all conditions, newest first.

        Args:
            level: The lowest level; a successful call is `info`, one without an answer `error`.
            since: Seconds since the epoch, included.
            until: Seconds since the epoch, excluded.
            server: By its configured name.
            text: A part of the message or of the server's name, in any case.
            filter: A parsed filter.
            limit: The size of the page, at most 1000.
            cursor: The cursor of the previous page.

        Raises:
            BadArguments: The cursor is not one of ours.
        """
        query = ActivityQuery(
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
        return await self._thread.run(self._archive.read, query)

    async def history(self, span: float) -> CallHistory:
        """Calls, errors and times of the last `span` seconds, tool by tool, in steps."""
        await self.flush()
        return await self._thread.run(self._archive.read_history, span)

    async def exchange(self, exchange_id: str) -> RecordedExchange | None:
        """The arguments and result of a recorded call; None if they are no longer kept."""
        await self.flush()
        return await self._thread.run(self._archive.read_exchange, exchange_id)

    async def run(self) -> None:
        """Write logged records in batches, until cancelled."""
        while True:
            await self._pending.wait()
            # Late enough to fill a transaction; sooner if there is enough for one.
            with anyio.move_on_after(FLUSH_INTERVAL):
                await self._full.wait()
            await self.flush()

    async def flush(self) -> None:
        """Write all waiting records, and those that are being written."""
        # what another flush has taken is not written yet, and whoever reads next would miss it
        async with self._flush_lock:
            await self._flush()

    async def _flush(self) -> None:
        self._note_losses()
        # taken before the first wait: later records are written next time
        calls, log = self.call_backlog.take(), self._log.take()
        self._pending.clear()
        self._full.clear()
        if calls and not await self._written("calls", self._archive.write_calls, calls):
            self.call_backlog.put_back(calls)
        await self.write_audit()
        if log and not await self._written("log", self._archive.write_logs, log):
            self._log.put_back(log)
        await self.servers.flush(self._written)

    async def write_audit(self) -> bool:
        """Write the waiting entries of the audit log; returns whether they are safe now."""
        if self.audit_relay is not None:
            await self.audit_relay.send()
            return not self.audit_relay.is_delayed
        failures = self._audit_failures
        # one transaction for all who wait: it costs more than its rows, and those who get the lock
        # later find their entries written
        async with self._audit_lock:
            if failures != self._audit_failures:
                return False
            entries = self.audit_backlog.take()
            if not entries:
                return True
            try:
                await self._thread.run(self._write_audit, entries)
            except (sqlite3.OperationalError, TimeoutError) as exc:
                self._audit_failures += 1
                self._troubles.begin("audit", f"writing is delayed: {exc}")
                # not after a timeout: the thread has them, and writes them when the disk answers
                if not isinstance(exc, TimeoutError):
                    self.audit_backlog.put_back(entries)
                return False
            self._troubles.end("audit")
            return True

    async def wait_pending(self) -> None:
        """Wait until there is something to write; it may already be written by then."""
        await self._pending.wait()

    def leave_audit(self) -> None:
        """Leave the entries of all replicas to another one, which may have a disk that works."""
        self._troubles.end("audit")

    def take_audit_bodies(self) -> list[str]:
        """Take the waiting entries of the audit log, for a relay to send."""
        return bodies_of(self.audit_backlog.take(), self._archive.author)

    async def write_audit_batches(self, batches: Sequence[AuditBatch]) -> bool:
        """Write entries of all replicas, each batch once; returns whether they are written."""
        # written once however often they are tried, so also again after a timeout
        delays = (sqlite3.OperationalError, TimeoutError)
        return await self._written("audit", self._write_batches, batches, delays=delays)

    def _write_batches(self, batches: Sequence[AuditBatch]) -> None:
        self._archive.write_audit((), self.audit_kept, batches)

    def _write_audit(self, records: Collection[AuditRecord | CallRecord]) -> None:
        self._archive.write_audit(records, self.audit_kept)

    def _note_losses(self) -> None:
        if (dropped := self.dropped) > self._noted:
            self._noted = dropped
            loss = counted(dropped, "log record")
            text = f"{loss} lost: they came faster than they were written"
            self._troubles.note(text, kind="lost entries")

    async def _written(
        self,
        kind: str,
        write: Callable[[_T], None],
        what: _T,
        *,
        delays: tuple[type[Exception], ...] = (sqlite3.OperationalError,),
    ) -> bool:
        """Run a write; returns False if it has to be tried again."""
        try:
            await self._thread.run(write, what)
        # busy, full or read-only, which may be temporary
        except delays as exc:
            self._troubles.begin(kind, f"writing is delayed: {exc}")
            return False
        # the same records would fail again, and block later ones
        except (sqlite3.Error, TimeoutError, ValueError, TypeError, OverflowError) as exc:
            self._troubles.note(f"some records were not written: {exc}")
        self._troubles.end(kind)
        return True


class ServerNotes:
    """Catalogs, outcomes of starts, habits and chosen names.

    Saving never waits: everything is written within a second. `pending` is set when there is
    something to write.
    """

    def __init__(self, archive: Archive, troubles: Troubles, pending: asyncio.Event) -> None:
        self._archive = archive
        self._troubles = troubles
        self._pending = pending
        self._offers: dict[CatalogKey, StoredCatalog] = {}
        self._outcomes: Outcomes = {}
        self._asking: Asking = set()
        self._choices: Choices = {}
        self._configured: Collection[str] = ()
        self.on_disagreement: Callable[[], None] | None = None
        """Called when another process chose a name first; `load_choices` returns it."""

    def save_catalog(self, server: str, fingerprint: str, catalog: StoredCatalog) -> None:
        """Remember what a server offers; it is written within a second."""
        self._offers[server, fingerprint] = catalog
        self._pending.set()

    def load_catalog(self, server: str, fingerprint: str | None = None) -> StoredCatalog | None:
        """What a server last offered, as of when the store was opened.

        Without a fingerprint, its configuration may have been any.
        """
        saved = [
            catalog
            for key, catalog in self._archive.saved.items()
            if key[0] == server and fingerprint in {None, key[1]}
        ]
        if not saved:
            return None
        saved_at, body = max(saved)
        try:
            catalog = tables.decode_catalog(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            self._troubles.note(f"the stored catalog of {quoted(server)} cannot be read: {exc}")
            return None
        return msgspec.structs.replace(catalog, saved_at=saved_at)

    def save_outcome(self, server: str, fingerprint: str, *, is_up: bool) -> None:
        """Remember how a server's last start ended; it is written within a second."""
        self._outcomes[server, fingerprint] = is_up
        self._pending.set()

    def load_outcomes(self) -> Outcomes:
        """How each server's last start ended, as of when the store was opened."""
        return dict(self._archive.outcomes)

    def save_asking(self, server: str, fingerprint: str) -> None:
        """Remember that a server asks without naming the call; written within a second."""
        self._asking.add((server, fingerprint))
        self._pending.set()

    def load_asking(self) -> Asking:
        """The servers that ask without naming the call, as of when the store was opened."""
        return set(self._archive.asking)

    def save_choices(
        self, choices: Mapping[str, Mapping[Pair, str]], servers: Collection[str]
    ) -> None:
        """Remember chosen names; names of servers that are not among `servers` may be reused."""
        for kind, names in choices.items():
            self._choices.setdefault(kind, {}).update(names)
        self._configured = servers
        self._pending.set()

    def load_choices(self) -> Choices:
        """The chosen names, as of when the store was opened or last wrote some."""
        return {kind: dict(names) for kind, names in self._archive.choices.items()}

    async def flush(self, write: Write) -> None:
        """Write all waiting notes; those that cannot be written wait for the next time."""
        # taken before the first wait: later notes are written next time
        offers, self._offers = self._offers, {}
        outcomes, self._outcomes = self._outcomes, {}
        asking, self._asking = self._asking, set()
        if offers and not await write("catalogs", self._archive.write_catalogs, offers):
            # notes that were added meanwhile are newer, and win
            self._offers = offers | self._offers
            self._pending.set()
        if outcomes and not await write("outcomes", self._archive.write_outcomes, outcomes):
            self._outcomes = outcomes | self._outcomes
            self._pending.set()
        if asking and not await write("asking", self._archive.write_asking, asking):
            self._asking |= asking
            self._pending.set()
        await self._flush_choices(write)

    async def _flush_choices(self, write: Write) -> None:
        choices, self._choices = self._choices, {}
        if not choices:
            return
        agreed = True

        def write_choices(names: Choices) -> None:
            nonlocal agreed
            agreed = self._archive.write_choices(names, self._configured)

        if not await write("choices", write_choices, choices):
            self._choices = {
                kind: choices.get(kind, {}) | self._choices.get(kind, {})
                for kind in choices.keys() | self._choices.keys()
            }
            self._pending.set()
        # Two gateways share the store: both use the name that was written first, or clients
        # of one would call tools that the other names differently.
        elif not agreed and self.on_disagreement is not None:
            self.on_disagreement()


class StoredTasks:
    """Records in the database of this machine.

    Args:
        run: Runs a piece of work in the store's thread.
        archive: The database.
    """

    def __init__(self, run: Callable[..., Awaitable[Any]], archive: Archive) -> None:
        self._run = run
        self._archive = archive

    async def save(self, record: TaskRecord) -> None:
        await self._try(self._archive.write_task, record)

    async def load(self, task_id: str) -> TaskRecord | None:
        record: TaskRecord | None = await self._try(self._archive.read_task, task_id)
        return None if record is None or record.until < time.time() else record

    async def recent(self) -> list[TaskRecord]:
        return await self._try(self._archive.read_tasks)

    async def _try(self, work: Callable[..., _T], *args: Any) -> _T:
        try:
            result: _T = await self._run(work, *args)
        except (sqlite3.Error, TimeoutError) as exc:
            raise MultitapError(
                f"tasks cannot be stored: {exc}", hint="`multitap status` says more"
            ) from None
        return result


class RecordBacklog(Generic[_T]):
    """Records that wait to be written; beyond the limit, the oldest are dropped.

    `pending` is set when there are records, `full` when enough of them wait to be written at once.
    """

    def __init__(self, pending: asyncio.Event, full: asyncio.Event) -> None:
        self.dropped = 0
        self._pending = pending
        self._full = full
        self.records: deque[_T] = deque()
        """Always the same object: frequent writers append to it, and seldom call `wake_writer`."""

    def add(self, record: _T) -> None:
        self.records.append(record)
        self.wake_writer()

    def wake_writer(self) -> None:
        """Have the added records written soon.

        To be called after the first record, and again from `FLUSH_COUNT` on.
        """
        self._pending.set()
        if len(self.records) >= FLUSH_COUNT:
            self._full.set()
            self._trim()

    def take(self) -> deque[_T]:
        # a copy, and the deque emptied in place: callers keep references to it
        records = self.records.copy()
        self.records.clear()
        return records

    def put_back(self, records: deque[_T]) -> None:
        self.records.extendleft(reversed(records))
        self._trim()
        self._pending.set()

    def _trim(self) -> None:
        # The oldest: recent records are more likely to be needed.
        while len(self.records) > MAX_BUFFERED:
            self.records.popleft()
            self.dropped += 1


class StoreThread:
    """One thread that runs one piece of work after the other, and closes what it has opened."""

    def __init__(self) -> None:
        # one: SQLite allows one writer at a time, and the order is kept without a lock
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="multitap-store")
        self._opened = ExitStack()

    async def open(self, opener: Callable[[Unpack[_Ts]], _Closable], *args: *_Ts) -> _Closable:
        """Run `opener`; `end` closes what it returns, even if the caller is cancelled meanwhile.

        Raises:
            TimeoutError: The file system hangs.
        """

        # noted in the thread itself: a cancelled caller never sees what was opened for it
        def open_it() -> _Closable:
            return self._opened.enter_context(closing(opener(*args)))

        return await self.run(open_it)

    async def run(self, work: Callable[[Unpack[_Ts]], _T], *args: *_Ts) -> _T:
        """Run `work` to its end, even if the caller is cancelled, so that nothing is half done.

        Raises:
            TimeoutError: The file system hangs.
        """
        future = asyncio.get_running_loop().run_in_executor(self._executor, work, *args)
        # Shielded: a thread cannot be cancelled, and a caller that left early would never learn
        # whether its records were written.
        with anyio.move_on_after(PATIENCE, shield=True):
            await asyncio.wait([future])
        if not future.done():
            # network folders may hang forever; the hub continues without them
            raise TimeoutError("the state directory does not answer")
        return future.result()

    async def end(self) -> None:
        """Close everything and end the thread, unless it hangs."""
        hangs = is_closed = False
        try:
            await self.run(self._opened.close)
            is_closed = True
        except TimeoutError:
            hangs = True
        finally:
            # a task that is cancelled once more leaves now; the thread closes everything and ends
            self._executor.shutdown(wait=is_closed, cancel_futures=hangs)
