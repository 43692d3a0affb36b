"""Server processes: started and ended through one warden per hub, their variables and CPU time."""

import asyncio
import errno
import logging
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from multitap.errors import CannotStart
from multitap.wire.warden import LENGTH

if TYPE_CHECKING:
    from multitap.sandbox.confinement import SandboxOrders

logger = logging.getLogger(__name__)

_WARDEN = (
    *(sys.executable, "-I", "-S"),
    # Imported, not run as a script: Python keeps only what it imports compiled. A stand-in for our
    # package, whose own `__init__` would import more than the warden needs.
    "-c",
    (
        "import sys; ours = type(sys)('multitap'); ours.__path__ = [sys.argv[1]]; "
        "sys.modules['multitap'] = ours; __import__(sys.argv[2], fromlist=['main']).main()"
    ),
    *(str(Path(__file__).parent.parent), "multitap.wire.warden"),
)
_PATIENCE = 5.0
_START = 30.0
"""Seconds for a program, and a warden before the first one, to start: on a busy machine both wait
long for a processor, and callers have limits of their own."""


_HEAD = 256  # bytes of a program, where its interpreter or its kind is
_BUILT = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
"""How programs begin that were compiled, for Linux, Windows and macOS."""

OnReport = Callable[[str, Any], None]
"""Takes `refused` with an address, `denied` with a path that it must not change, `crowded` with the
number of processes that it may have, or `used` with whether a path is changed, and the path."""


def _ignore(_kind: str, _value: Any) -> None:
    """Ignore a report."""


class Child:
    """One started program: its id, and whether and how it ended."""

    def __init__(self, spawner: "Spawner", number: int, on_report: OnReport = _ignore) -> None:
        self.pid = 0
        self._on_report = on_report
        self.exit_code: int | None = None
        self.exited = asyncio.Event()
        self._spawner = spawner
        self._number = number
        self._failed = False
        self._started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._swept: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def stopped(self) -> bool:
        """Whether it is stopped by a signal, which no pipe shows."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_bytes()
        except OSError:
            return False
        return stat.rpartition(b") ")[2][:1] == b"T"

    @property
    def done(self) -> bool:
        """Whether its end is known."""
        return self._failed or (self._swept.done() and self.exited.is_set())

    async def signal(self, number: int) -> None:
        """Send a signal to its whole group, unless it has already ended."""
        if not self.exited.is_set():
            await self._spawner.order("signal", self._number, int(number))

    async def settle(self) -> None:
        """Stop reporting changes that are denied to it: it is up."""
        await self._spawner.order("settle", self._number)

    async def sweep(self) -> None:
        """Kill everything that is left of it: group, session, daemonised grandchildren."""
        await self._spawner.order("sweep", self._number)
        with anyio.move_on_after(_PATIENCE):
            await asyncio.shield(self._swept)

    def on_told(self, kind: str, value: Any) -> None:
        if kind == "spawned":
            self.pid = value
            _settle(self._started, value)
        elif kind == "failed":
            self._failed = True
            _settle(self._started, OSError(value[0], value[1]))
        elif kind == "exited":
            self.exit_code = value
            self.exited.set()
        elif kind in {"crowded", "denied", "refused", "used"}:
            self._on_report(kind, value)
        elif kind == "swept":
            _settle(self._swept, value)

    def on_warden_lost(self) -> None:
        """Mark it as ended: the warden is gone, and all its processes with it."""
        _settle(self._started, OSError(errno.ECHILD, "warden"))
        _settle(self._swept, 0)
        self.exited.set()

    async def wait_started(self) -> None:
        await asyncio.shield(self._started)


def _settle(future: "asyncio.Future[int]", value: int | OSError) -> None:
    if future.done():
        return
    if isinstance(value, OSError):
        future.set_exception(value)
        future.exception()  # retrieved, since there may be no waiter
    else:
        future.set_result(value)


class Spawner:
    """Starts programs for one hub; the warden starts with the first of them."""

    def __init__(self) -> None:
        self._numbers = 0
        self._children: dict[int, Child] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._buffer = bytearray()
        self._sending = asyncio.Lock()

    async def spawn(
        self,
        program: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None,
        pipes: Sequence[int],
        orders: "SandboxOrders | None" = None,
        on_report: OnReport = _ignore,
    ) -> Child:
        """Start `program` with `pipes` as its standard input, output and error.

        Args:
            program: The file.
            argv: Its arguments, beginning with its name.
            env: All its variables.
            cwd: Its working directory; None: ours.
            pipes: Its standard input, output and error.
            orders: How it is confined; None: not at all.
            on_report: Called with reports about a confined program.

        Raises:
            CannotStart: The system refuses.
        """
        self._numbers += 1
        number = self._numbers
        child = self._children[number] = Child(self, number, on_report)
        started = False
        try:
            await self.order(
                *("spawn", number, program, list(argv), dict(env), cwd and str(cwd), orders),
                fds=pipes,
            )
            with anyio.fail_after(_START):
                await child.wait_started()
            started = True
        except OSError as exc:  # a `TimeoutError` too
            raise _cannot_start(exc, program, cwd) from None
        finally:
            if not started and number in self._children:
                with anyio.CancelScope(shield=True):  # it may still start, and must be ended then
                    await self.order("sweep", number)
        return child

    def prepare(self) -> None:
        """Start the warden now, so that it is up when the first program is started."""
        if self._control is None:
            with suppress(OSError):  # the spawner reports why
                self._start()

    async def order(self, kind: str, number: int, *rest: Any, fds: Sequence[int] = ()) -> None:
        message = marshal.dumps((kind, number, *rest))
        async with self._sending:
            if self._control is None and kind != "spawn":
                return  # the warden is gone, and what it started with it
            control = self._control or self._start()
            try:
                # shielded: after half a message, the warden would misread the next one
                with anyio.fail_after(_PATIENCE, shield=True):
                    await _send(control, message, fds)
            except OSError:  # a `TimeoutError` too
                self._lose()
                if kind == "spawn":
                    raise

    def _start(self) -> socket.socket:
        if self._process is not None:
            self._process.kill()  # its socket is closed: it is ending anyway
            self._process.wait()
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, our own interpreter
                [*_WARDEN, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        self._control = ours
        self._buffer.clear()
        asyncio.get_running_loop().add_reader(ours, self._readable)
        return ours

    def _readable(self) -> None:
        if self._control is None:
            return
        try:
            data = self._control.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            logger.warning("the warden exited; its servers are restarted")
            self._lose()
            return
        self._buffer += data
        while len(self._buffer) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            kind, number, value = marshal.loads(self._buffer[LENGTH.size : end])  # noqa: S302 - from our own warden
            del self._buffer[:end]
            if child := self._children.get(number):
                child.on_told(kind, value)
                if child.done:
                    del self._children[number]

    def _lose(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None
        for child in tuple(self._children.values()):
            child.on_warden_lost()
        self._children.clear()

    async def close(self) -> None:
        """End every process and the warden itself."""
        process = self._process
        self._lose()
        if process is None:
            return
        with anyio.move_on_after(_PATIENCE, shield=True):
            while process.poll() is None:
                await anyio.sleep(0.002)
            return
        process.kill()
        process.wait()


async def _send(control: socket.socket, message: bytes, fds: Sequence[int]) -> None:
    while True:
        try:
            socket.send_fds(control, [LENGTH.pack(len(message))], list(fds))
        except BlockingIOError:
            await anyio.sleep(0.002)  # the warden is busy starting another one
        else:
            break
    await asyncio.get_running_loop().sock_sendall(control, message)


def _cannot_start(exc: OSError, program: str, cwd: Path | None) -> CannotStart:
    if isinstance(exc, TimeoutError) or exc.errno == errno.ECHILD:
        return CannotStart(
            f"starting {program!r} took too long", hint="the machine may be overloaded; try again"
        )
    reason = os.strerror(exc.errno or 0).lower()
    if exc.args[1] == "cwd":
        return CannotStart(
            f"its working directory {str(cwd)!r} cannot be entered: {reason}",
            hint="correct `cwd` in its configuration",
            missing=True,
        )
    if exc.args[1] == "sandbox":
        return CannotStart(
            f"the kernel refuses to confine it: {reason}",
            hint='`multitap doctor` says what it can do; `sandbox = "off"` starts it without',
            missing=True,
        )
    head = _head(program) if exc.errno in {errno.ENOEXEC, errno.ENOENT} else b""
    if head.startswith(b"#!"):
        interpreter = head[2:].partition(b"\n")[0].strip(b" ").partition(b" ")[0].decode("latin-1")
        return CannotStart(
            f"{program!r} cannot be started: there is no {interpreter!r}, which its first line "
            "names",
            hint="it was written on Windows: save it with Unix line endings"
            if interpreter.endswith("\r")
            else "install that interpreter, or correct the line",
            missing=True,
        )
    if exc.errno == errno.ENOEXEC or head:
        return CannotStart(
            f"{program!r} is not a program this system can run",
            hint="it was built for another system or processor: install the one for this machine"
            if head.startswith(_BUILT)
            else "a script needs a first line such as `#!/usr/bin/env python3`, or its interpreter "
            "as the command",
            missing=True,
        )
    permanent = exc.errno in {errno.EACCES, errno.ENOENT, errno.EPERM, errno.E2BIG}
    return CannotStart(
        f"{program!r} cannot be started: {reason}",
        hint="check that the file exists and is executable"
        if permanent
        else "the system is short of processes or memory; it will be tried again",
        missing=permanent,
    )


def _head(program: str) -> bytes:
    """The beginning of a file; empty if it cannot be read."""
    try:
        with Path(program).open("rb") as file:
            return file.read(_HEAD)
    except OSError:
        return b""


@asynccontextmanager
async def open_spawner() -> AsyncGenerator[Spawner]:
    """A spawner; leaving the block ends every process it started."""
    spawner = Spawner()
    try:
        yield spawner
    finally:
        await spawner.close()


async def stop(child: Child, *, patience: tuple[float, float]) -> None:
    """End a child whose standard input is closed: wait, SIGTERM, wait, SIGKILL, and sweep.

    Args:
        child: The child.
        patience: Seconds to wait before SIGTERM, and then before SIGKILL.
    """
    with anyio.CancelScope(shield=True):
        for wait, number in zip(patience, (signal.SIGTERM, signal.SIGKILL), strict=True):
            if child.stopped:
                continue  # it cannot react; the sweep kills it
            with anyio.move_on_after(wait):
                await child.exited.wait()
            await child.signal(number)
        await child.sweep()
        with anyio.move_on_after(_PATIENCE):
            await child.exited.wait()


NAMES = frozenset(
    {
        # the SDK's six
        *("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"),
        # language, time and places
        *("LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP"),
        # proxies
        *("ALL_PROXY", "FTP_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"),
        # certificates: without them npx and uvx fail behind a company's TLS
        *("AWS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NIX_SSL_CERT_FILE"),
        *("NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_DIR", "SSL_CERT_FILE"),
        # where packages come from
        *("BUN_CONFIG_REGISTRY", "PIP_CONFIG_FILE", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"),
        *("PIP_INDEX_URL", "PIP_TRUSTED_HOST", "UV_CACHE_DIR", "UV_DEFAULT_INDEX"),
        *("UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_INDEX", "UV_INDEX_URL", "UV_NATIVE_TLS"),
        *("UV_OFFLINE", "UV_PYTHON_INSTALL_MIRROR", "UV_SYSTEM_CERTS", "UV_TOOL_DIR"),
        "YARN_REGISTRY",
        # where language managers put their programs
        *("ASDF_DATA_DIR", "MISE_DATA_DIR", "NVM_DIR", "PYENV_ROOT", "VOLTA_HOME"),
        # Windows programs do not start without these
        *("APPDATA", "COMSPEC", "LOCALAPPDATA", "PATHEXT", "PROGRAMDATA", "PROGRAMFILES"),
        *("SYSTEMDRIVE", "SYSTEMROOT", "USERPROFILE", "WINDIR"),
    }
)

PREFIXES = ("LC_", "XDG_", "NPM_CONFIG_")

_SECRET = ("TOKEN", "PASSWORD", "SECRET", "AUTH")


def child_environment(ours: Mapping[str, str], named: Mapping[str, str]) -> dict[str, str]:
    """A server's environment: the short list from `ours`, and all that its configuration names."""
    inherited = {name: value for name, value in ours.items() if _inherited(name.upper())}
    return {**inherited, **named}


def _inherited(name: str) -> bool:
    if name in NAMES:
        return True
    # npm keeps registry passwords in variables of the same prefix
    return name.startswith(PREFIXES) and not any(word in name for word in _SECRET)


_STATE, _TIMES, _THREADS = (
    0,
    slice(11, 15),
    17,
)  # of /proc/PID/stat, counted after the program's name
_LONGEST = 64 * 1024  # bytes of a file
_MOST = 64  # processes that are counted; a launcher has a handful


class CpuUsage(msgspec.Struct, frozen=True):
    seconds: float
    """CPU time used so far, that of ended and awaited children included."""
    runnable: bool
    """Whether one of its processes runs or waits for a CPU at this moment."""
    waiting: bool
    """Whether one of them waits for a disk."""


def cpu_usage(pid: int) -> CpuUsage | None:
    """The CPU usage of a process and its descendants; None if it has ended, or not on Linux."""
    ticks, is_running = 0, False
    states: set[bytes] = set()
    family = [pid]
    for member in family:  # grows while it is walked
        fields = _stat(member)
        if not fields:
            continue
        is_running = True
        ticks += sum(map(int, fields[_TIMES]))
        states.add(fields[_STATE])
        if len(family) < _MOST:
            family += _children(member, threads=int(fields[_THREADS]))
    if not is_running:
        return None
    return CpuUsage(ticks / os.sysconf("SC_CLK_TCK"), b"R" in states, b"D" in states)


def _stat(pid: int) -> list[bytes]:
    try:
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return []
    return [] if fields[_STATE] == b"Z" else fields


def _children(pid: int, *, threads: int) -> list[int]:
    """The child processes of all its threads; empty if the kernel has no such list."""
    children: list[int] = []
    with suppress(OSError):
        tasks = f"/proc/{pid}/task"
        for task in os.listdir(tasks) if threads > 1 else (pid,):  # noqa: PTH208 - see `_read`
            children += map(int, _read(f"{tasks}/{task}/children").split())
    return children


def _read(path: str) -> bytes:
    """Read a short file; without pathlib, which is slow, since hundreds are read per second."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, _LONGEST)
    finally:
        os.close(file)
