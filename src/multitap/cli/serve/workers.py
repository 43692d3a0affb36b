"""`multitap serve --workers N`: one gateway in several processes, so that it uses all cores."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Generator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from multitap.cli.terminal import Exit
from multitap.cluster.serving import fingerprint
from multitap.config import Settings
from multitap.errors import ConfigError, CoordinatorDown, MultitapError
from multitap.http.closed_ports import close_port, reserve_port
from multitap.http.server.server import bind, start_listening
from multitap.tasks import Tasks
from multitap.version import own_program

if TYPE_CHECKING:
    from multitap.cluster import local_coordinator, replica

logger = logging.getLogger(__name__)

VARIABLE = "MULTITAP_WORKER"
_AGAIN = 0.5  # seconds before a worker that died is restarted: one that dies at once must not spin
_HEARSAY = (
    0.1  # seconds; Ctrl-C reaches us and the parent at the same time, and the parent then tells us
)
_LAST_ANSWERS = 2.5  # seconds for all workers; each gives its clients two
_STOPPING, _DONE = "stopping", "stopped"
_KEPT = 60.0  # seconds, longer than any stop
_SILENCE = 30  # looks, one a second, without a sign of life: a worker that hangs keeps its servers
_GRACE = 5.0  # seconds for workers to stop; less than `signals.LONGEST`, which ends us as well


class Worker(msgspec.Struct, frozen=True):
    """What a worker learns from its parent."""

    number: int
    count: int
    """The number of workers."""
    listener: int
    """The descriptor of the socket that it accepts clients on."""
    folder: str
    """The folder of the sockets of this gateway's processes."""
    key: str

    @property
    def is_first(self) -> bool:
        """Whether it answers commands for all workers."""
        return self.number == 0

    @contextmanager
    def open_listener(self) -> Generator[socket.socket]:
        """The socket that the parent bound, which stays bound while a worker is replaced."""
        with socket.socket(fileno=self.listener) as listener:
            listener.setblocking(False)
            # a record of its own: when all stop, the parent closes the port before we do
            with close_port(listener.getsockname()[1]):
                yield listener


def this_worker(environ: MutableMapping[str, str]) -> Worker | None:
    """This worker's task, removed from the environment so that servers do not inherit it."""
    # it contains the cluster's key
    encoded = environ.pop(VARIABLE, None)
    return None if encoded is None else msgspec.json.decode(encoded, type=Worker)


@asynccontextmanager
async def open_worker(worker: Worker, settings: Settings) -> AsyncGenerator["replica.Replica"]:
    """Take part in the cluster of all workers.

    Raises:
        MultitapError: The parent has ended.
    """
    from multitap.cluster import replica, socket_coordinator  # noqa: PLC0415 - with workers only

    folder, key = Path(worker.folder), bytes.fromhex(worker.key)
    options = replica.ReplicaOptions(
        fingerprint=fingerprint(settings),
        listen=f"unix:{folder}/worker-{worker.number}-{os.getpid()}",
        key=key,
        allow_drift=True,  # they read the same files, but not at the same moment
        # the coordinator lives in the parent, so it cannot have lost a lease of an earlier worker
        is_fresh=True,
        id=_replica_id(worker, os.getpid()),
    )
    async with (
        socket_coordinator.open_socket(folder / "coordinator", key) as coordinator,
        replica.open_replica(coordinator, options) as joined,
    ):
        joined.apply(settings.servers)
        yield joined


def _replica_id(worker: Worker, pid: int) -> str:
    return f"worker-{worker.number}-{pid}"


async def wait_for_parent(joined: "replica.Replica") -> None:
    """Wait until the parent has ended, and raise.

    Raises:
        MultitapError: It has.
    """
    while joined.coordinator.health.is_up:
        await joined.coordinator.health_changed.wait()
    raise MultitapError("the parent of this worker has ended")


async def is_gateway_stopping(joined: "replica.Replica") -> bool:
    """Whether all workers stop, so that no worker can take over."""
    is_stopping = False
    # usually already cancelled
    with (
        anyio.CancelScope(shield=True),
        contextlib.suppress(CoordinatorDown),
        anyio.move_on_after(_HEARSAY),
    ):
        while not (is_stopping := await joined.coordinator.records.read(_STOPPING) is not None):
            await anyio.sleep(_HEARSAY / 10)
    return is_stopping


async def stop_together(joined: "replica.Replica") -> None:
    """Answer the other workers' clients before the servers of this worker end."""
    coordinator = joined.coordinator
    # usually already cancelled
    with anyio.CancelScope(shield=True), contextlib.suppress(CoordinatorDown):
        stored = await coordinator.records.read(_STOPPING)
        if stored is None:
            return
        joined.is_over = True
        done = await coordinator.limits.count(_DONE, ttl=_KEPT)
        with anyio.move_on_after(_LAST_ANSWERS):
            while done < int(stored):
                await anyio.sleep(_HEARSAY / 10)
                done = await coordinator.limits.count(_DONE, 0, ttl=_KEPT)
        await joined.drain(0)


async def run_workers(count: int, address: tuple[str, int], drain: float = 0.0) -> int:
    """Run workers until this process is stopped; returns the exit code of one that cannot start.

    `drain` is how many seconds more than usual their calls have to finish.
    """
    from multitap.cluster import local_coordinator, socket_coordinator  # noqa: PLC0415 - see above

    with tempfile.TemporaryDirectory(prefix="multitap-workers-") as folder:
        path = Path(folder)
        # in the parent, which does nothing else: leases and sessions outlive each worker
        coordinator = local_coordinator.LocalCoordinator()
        with contextlib.ExitStack() as stack:
            # bound before any worker starts, so that clients can wait for one that is not ready yet
            listeners = stack.enter_context(_open_listeners(count, address))
            key = secrets.token_bytes(32)
            async with socket_coordinator.serve_coordinator(path / "coordinator", coordinator, key):
                processes = _WorkerProcesses(
                    [
                        Worker(n, count, listener.fileno(), folder, key.hex())
                        for n, listener in enumerate(listeners)
                    ],
                    coordinator,
                )
                try:
                    return await processes.run()
                finally:
                    # with ours, the port closes as soon as the workers leave it: late clients are
                    # refused instead of waiting in vain
                    stack.close()
                    # usually already cancelled here, but processes must not be left behind
                    with anyio.CancelScope(shield=True):
                        await processes.stop(_GRACE + drain)


@contextmanager
def _open_listeners(count: int, address: tuple[str, int]) -> Generator[list[socket.socket]]:
    """One listening socket per worker, so that the system distributes the clients.

    They belong to the parent: clients of a worker that died wait until the next one accepts them.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError("this system cannot spread clients over several workers")
    host, port = address
    if port:
        reserve_port(port)
    with contextlib.ExitStack() as stack:
        # alone at first: otherwise another gateway, or any program of ours, could have the port too
        first = stack.enter_context(bind(host, port))
        first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # the first may use any free port; the others must share it
        port = first.getsockname()[1]
        stack.enter_context(close_port(port))
        others = [stack.enter_context(bind(host, port, shared=True)) for _ in range(count - 1)]
        for listener in (first, *others):
            start_listening(listener)
        yield [first, *others]


class _WorkerProcesses:
    """The processes of all workers."""

    def __init__(
        self, workers: list[Worker], coordinator: "local_coordinator.LocalCoordinator"
    ) -> None:
        self._workers = workers
        self._records = coordinator.records
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._refused: int | None = None

    async def run(self) -> int:
        async with anyio.create_task_group() as tasks:
            for worker in self._workers:
                tasks.start_soon(self._keep, worker, tasks.cancel_scope)
        return Exit.DONE if self._refused is None else self._refused

    async def _keep(self, worker: Worker, scope: anyio.CancelScope) -> None:
        while True:
            # kept after it died: `stop` skips dead ones, and must know all that may be alive
            process = self._running[worker.number] = await self._start(worker)
            async with Tasks() as watching:
                watching.start_soon(self._end_if_silent, worker, process)
                code = await process.wait()
            if code == Exit.CONFIG:  # the others would fail in the same way
                self._refused = code
                scope.cancel()
                return
            logger.warning("worker %d ended (%d) and is started again", worker.number, code)
            await anyio.sleep(_AGAIN)

    async def _end_if_silent(self, worker: Worker, process: asyncio.subprocess.Process) -> None:
        """Kill a worker that hangs: only then can another one run its servers."""
        from multitap.cluster.membership import is_member  # noqa: PLC0415 - with workers only

        replica, has_joined, silent = _replica_id(worker, process.pid), False, 0
        # looks are counted, not seconds: whatever starves a worker starves us, too
        while silent < _SILENCE:
            await anyio.sleep(1)
            is_alive = await is_member(self._records, replica)
            has_joined |= is_alive
            silent = silent + 1 if has_joined and not is_alive else 0
        logger.error("worker %d hangs and is ended", worker.number)
        process.kill()

    async def _start(self, worker: Worker) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *own_program(),
            *sys.argv[1:],
            pass_fds=(worker.listener,),
            env={**os.environ, VARIABLE: msgspec.json.encode(worker).decode()},
        )

    async def stop(self, grace: float) -> None:
        """End all workers; those that take longer than `grace` seconds are killed."""
        await self._records.write(_STOPPING, b"%d" % len(self._workers))
        for process in self._running.values():
            # all are signalled before waiting: they stop side by side
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(grace):
            for process in self._running.values():
                await process.wait()
        for process in self._running.values():
            # its servers have a warden, which ends them
            if process.returncode is None:
                process.kill()
