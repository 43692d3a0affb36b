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
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from multitap.cli.exits import Exit
from multitap.cli.gateways.cluster_serving import fingerprint
from multitap.config import Settings
from multitap.errors import ConfigError, MultitapError
from multitap.http.server.http_server import bind
from multitap.later import Later
from multitap.own_program import own_program

if TYPE_CHECKING:
    from multitap.cluster import local_coordinator, replica, socket_coordinator
else:
    local_coordinator = Later("multitap.cluster.local_coordinator")
    replica = Later("multitap.cluster.replica")
    socket_coordinator = Later("multitap.cluster.socket_coordinator")

logger = logging.getLogger(__name__)

VARIABLE = "MULTITAP_WORKER"
_AGAIN = 0.5  # seconds before a worker that died is restarted: one that dies at once must not spin
_GRACE = 5.0  # seconds for workers to stop; less than `stopping.LONGEST`, which ends us as well


class Worker(msgspec.Struct, frozen=True):
    """What a worker learns from its parent."""

    number: int
    listener: int
    """The descriptor of the socket that it accepts clients on."""
    folder: str
    """Where the sockets of this gateway's processes are."""
    key: str

    @property
    def is_first(self) -> bool:
        """Whether it speaks for all of them."""
        return self.number == 0

    def listening_socket(self) -> socket.socket:
        """The socket that the parent has bound; it stays bound while a worker is replaced."""
        found = socket.socket(fileno=self.listener)
        found.setblocking(False)
        return found


def this_worker(environ: MutableMapping[str, str]) -> Worker | None:
    """What this process was started for; taken out, so that servers do not inherit it."""
    # it has the key of the cluster in it
    told = environ.pop(VARIABLE, None)
    return None if told is None else msgspec.json.decode(told, type=Worker)


@asynccontextmanager
async def open_worker(worker: Worker, settings: Settings) -> AsyncGenerator["replica.Replica"]:
    """Take part in the cluster of all workers.

    Raises:
        MultitapError: The parent is gone.
    """
    folder = Path(worker.folder)
    options = replica.ReplicaOptions(
        fingerprint=fingerprint(settings),
        listen=f"unix:{folder}/worker-{worker.number}-{os.getpid()}",
        key=bytes.fromhex(worker.key),
        allow_drift=True,  # they read the same files, one a moment before the other
        # the coordinator lives in the parent, so it cannot have lost a lease of an earlier worker
        is_fresh=True,
        id=f"worker-{worker.number}-{os.getpid()}",
    )
    async with (
        socket_coordinator.open_socket(folder / "coordinator") as coordinator,
        replica.open_replica(coordinator, options) as joined,
    ):
        joined.apply(settings.servers)
        yield joined


async def wait_for_parent(joined: "replica.Replica") -> None:
    """Wait until the parent has ended, and raise.

    Raises:
        MultitapError: It has.
    """
    while joined.coordinator.health.is_up:
        await joined.coordinator.health_changed.wait()
    raise MultitapError("the parent of this worker has ended")


async def run_workers(count: int, address: tuple[str, int]) -> int:
    """Run workers until this process is stopped; the exit code of one that cannot start.

    Args:
        count: How many.
        address: Where clients connect.
    """
    with tempfile.TemporaryDirectory(prefix="multitap-workers-") as folder:
        path = Path(folder)
        # in the parent, which does nothing else: leases and sessions outlive each worker
        coordinator = local_coordinator.LocalCoordinator()
        with contextlib.ExitStack() as stack:
            # bound before any worker starts, so that clients can wait for one that is not ready yet
            listeners = [
                stack.enter_context(contextlib.closing(one)) for one in _listeners(count, address)
            ]
            async with socket_coordinator.serve_coordinator(path / "coordinator", coordinator):
                key = secrets.token_hex(32)
                workers = _WorkerProcesses(
                    [Worker(n, one.fileno(), folder, key) for n, one in enumerate(listeners)]
                )
                return await workers.run()


def _listeners(count: int, address: tuple[str, int]) -> list[socket.socket]:
    """One for each worker, so that the system spreads the clients over them.

    They belong to the parent: clients of a worker that died wait until the next one accepts them.
    """
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError("this system cannot spread clients over several workers")
    host, port = address
    first = bind(host, port, shared=True)
    # the first may have asked for any port; the others have to share the one it got
    port = first.getsockname()[1]
    return [first, *(bind(host, port, shared=True) for _ in range(count - 1))]


class _WorkerProcesses:
    """The processes of all workers."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._refused: int | None = None

    async def run(self) -> int:
        try:
            async with anyio.create_task_group() as tasks:
                for worker in self._workers:
                    tasks.start_soon(self._keep, worker, tasks.cancel_scope)
        finally:
            # we are usually here because we were cancelled, and processes must not be left behind
            with anyio.CancelScope(shield=True):
                await self._stop()
        return Exit.DONE if self._refused is None else self._refused

    async def _keep(self, worker: Worker, scope: anyio.CancelScope) -> None:
        while True:
            # kept after it died, too: `_stop` ignores the dead, and knows all that may live
            process = self._running[worker.number] = await self._start(worker)
            code = await process.wait()
            if code == Exit.CONFIG:  # the others would say the same
                self._refused = code
                scope.cancel()
                return
            logger.warning("worker %d ended (%d) and is started again", worker.number, code)
            await anyio.sleep(_AGAIN)

    async def _start(self, worker: Worker) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *own_program(),
            *sys.argv[1:],
            pass_fds=(worker.listener,),
            env={**os.environ, VARIABLE: msgspec.json.encode(worker).decode()},
        )

    async def _stop(self) -> None:
        for process in self._running.values():
            # all are told before any is waited for: they stop side by side
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        with anyio.move_on_after(_GRACE):
            for process in self._running.values():
                await process.wait()
        for process in self._running.values():
            # its servers have a warden, which ends them
            if process.returncode is None:
                process.kill()
