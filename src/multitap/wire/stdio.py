"""A server as a child process: one JSON-RPC message per line on its pipes."""

import asyncio
import contextlib
import fcntl
import os
import shutil
import struct
import termios
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

import anyio
from msgspec import Raw
from msgspec.structs import replace

from multitap.config.models import StdioServer
from multitap.errors import AnswerInvalid, CannotStart, WireClosed, WireFault, ungrouped
from multitap.limits import FULL_READ, Pace
from multitap.sandbox.sandboxes import Launch, Sandboxes
from multitap.tasks import Tasks
from multitap.wire import jsonrpc
from multitap.wire.exchange import Exchange
from multitap.wire.jsonrpc import Params, RequestId, result_of
from multitap.wire.lines import LineReader, OversizedLine, PipeEnd
from multitap.wire.pending import PendingRequest
from multitap.wire.process import Child, Spawner, child_environment, stop
from multitap.wire.request import Request
from multitap.wire.stderr_log import StderrLog
from multitap.wire.wire import INBOUND_REQUESTS, Evidence

_COUNT = struct.Struct("i")


class ReadReceipt:
    """Counts the bytes written to a pipe, and asks the kernel how many are unread.

    Holds the pipe open: its reader sees no end of file before `close`.

    Args:
        fd: Our end of the pipe; must not block.
    """

    def __init__(self, fd: int) -> None:
        self._fd: int | None = os.dup(fd)
        self._written = 0
        self._answer = True
        self.is_open = True
        """Whether it still counts."""

    def write_first(self, data: bytes) -> bytes:
        """Write as much as fits, if nothing was written before; returns the rest.

        A transport does not say whether a write reached the pipe or came too late. The system call
        does.
        """
        if self._fd is None:
            return data
        accepted = 0
        if not self._written:
            try:
                accepted = os.write(self._fd, data)
            except OSError:  # the reader is gone; writing the rest will show that
                return data
        self._written += len(data)
        return data[accepted:]

    def is_read(self) -> bool:
        """Whether any byte was read; True if the kernel cannot tell."""
        if self._fd is None:
            return self._answer
        try:
            left = fcntl.ioctl(self._fd, termios.FIONREAD, bytes(_COUNT.size))
        except OSError:
            return True
        return bool(_COUNT.unpack(left)[0] < self._written)

    def close(self) -> None:
        """Close the pipe; `is_read` keeps its value."""
        if self._fd is not None:
            self._answer = self.is_read()
            os.close(self._fd)
            self._fd = None
            self.is_open = False


_PIPE_SIZE = 256 * 1024  # fewer wake-ups for large results than the kernel's 64 KiB
_JOINED = 64 * 1024  # bytes above which messages are written at once, not with others
_SEVERAL = 3  # pending requests above which it pays to wait for more
_LAST_WORDS = 0.1  # seconds to read the rest of a dead server's pipe
PATIENCE = (1.0, 2.0)
"""Seconds a server has to exit after its input is closed, and then after SIGTERM.

The first wait is only for programs that have spoken MCP: others may not watch their input.
"""

_INSTALL = {
    "npx": "install Node.js, which brings npx",
    "npm": "install Node.js, which brings npm",
    "node": "install Node.js",
    "uvx": "install uv, which brings uvx",
    "uv": "install uv",
    "bun": "install Bun",
    "bunx": "install Bun, which brings bunx",
    "deno": "install Deno",
    "docker": "install Docker and start it",
    "podman": "install Podman",
    "python": "use `python3`, or the full path of the interpreter",
}


class StdioWire:
    """See `Wire`; the pipes carry no headers."""

    kind = "stdio"

    def __init__(  # noqa: PLR0917 - its parts, made in one place
        self,
        exchange: Exchange,
        writer: "LineWriter",
        child: Child,
        stderr: StderrLog,
        receipt: ReadReceipt,
        launch: Launch,
    ) -> None:
        self._exchange = exchange
        self._launch = launch
        self._receipt = receipt
        self._writer = writer
        self._send = writer.send
        self._child = child
        self._stderr = stderr
        self.closed = exchange.closed
        self.has_spoken = False
        """Whether it has sent a valid MCP message."""
        self.attach = exchange.inbound_messages.attach
        self.serves_only = exchange.pending_requests.serve_only

    @property
    def fault(self) -> WireFault | None:
        return self._exchange.fault

    async def request(self, request: Request) -> Raw:
        exchange, pending = self._exchange, request.pending
        request.pending, is_sent = None, pending is not None
        if pending is None:
            pending = exchange.begin(request)
        try:
            if not is_sent:
                self._send(pending.message(), pending)
            if pending.answer is None and pending.fault is None:
                await pending.news()
            if (answer := pending.answer) is None:
                pending.raise_fault()
        except BaseException as exc:
            self._writer.withdraw(pending)
            exchange.fail(pending, exc, self._writer.call_off if request.cancellable else None)
            raise
        return result_of(answer)  # `pending` was removed when its answer arrived

    def begin(self, request: Request, on_news: Callable[[], None]) -> bool:
        """See `DirectWire`."""
        request.pending = pending = self._exchange.begin(request)
        pending.listen(on_news)
        self._send(pending.message(), pending)
        return True

    async def notify(
        self,
        method: str,
        params: Params | None,
        *,
        headers: Mapping[str, str] | None = None,  # noqa: ARG002 - pipes have none
    ) -> None:
        if not self.closed.is_set():
            self._send(jsonrpc.notification(method, params))

    def establish(self, protocol_version: str, *, stateless: bool) -> None:  # noqa: ARG002 - not needed here
        """Note that the server answers: it has read the handshake."""
        self.has_spoken = True
        self._launch.on_up()
        self._receipt.close()

    def is_stopped(self) -> bool:
        return self._child.stopped

    def evidence(self) -> Evidence:
        return replace(
            self._exchange.inbound_messages.evidence(),
            pid=self._child.pid,
            exit_code=self._child.exit_code,
            stderr=self._stderr.tail(),
            has_read=self._receipt.is_read(),
            level=self._launch.confinement.level,
            denied=tuple(self._launch.denied),
            needs_proc=self._launch.needs_proc,
        )


@asynccontextmanager
async def open_stdio(
    name: str,
    config: StdioServer,
    spawner: Spawner,
    *,
    log: Path | None = None,
    sandboxes: Sandboxes | None = None,
    env: Mapping[str, str] | None = None,
) -> AsyncGenerator[StdioWire]:
    """Start the program; leaving the block ends it and all its children.

    Args:
        name: The server's name, for log lines.
        config: Its configuration.
        spawner: Starts it.
        log: The file for its standard error.
        sandboxes: Confines it, if its configuration says so.
        env: The variables from which it inherits some; by default, those of this process.

    Raises:
        CannotStart: The program is missing or the system refuses.
    """
    env = child_environment(os.environ if env is None else env, config.env)
    program = locate(config.command, env, config.start_folder)
    launch = Launch(env, config.start_folder)
    if sandboxes is not None:
        launch = await sandboxes.launch(name, config, program, env)
    stderr = StderrLog(log, config.redact)
    with ungrouped(), contextlib.closing(stderr), launch, _Pipes() as pipes:
        child = await spawner.spawn(
            program,
            [config.command, *config.args],
            env=launch.env,
            cwd=launch.cwd,
            pipes=pipes.theirs,
            orders=launch.orders,
            on_report=launch.on_report,
        )
        async with Tasks() as tasks:
            writer = LineWriter()
            exchange = Exchange(writer.respond, tasks, name, config.limits.junk, config.redact)
            writer.serves(exchange)
            output = _Output(exchange, config.limits.message)
            wire = None
            try:
                receipt = await pipes.connect(
                    stdin=writer,
                    stdout=LineReader(
                        config.limits.message, exchange.feed, output.on_oversized, output.on_end
                    ),
                    stderr=_ErrorReader(stderr),
                )
                tasks.start_soon(_notice_exit, child, exchange)
                wire = StdioWire(exchange, writer, child, stderr, receipt, launch)
                launch.on_settled = partial(tasks.start_soon, child.settle)
                yield wire
            finally:
                ended_itself = exchange.closed.is_set()
                exchange.close(None)
                writer.clear()
                pipes.close_stdin()  # the others stay open for its last output
                grace, last = PATIENCE
                has_spoken = wire is not None and wire.has_spoken
                await stop(child, patience=(grace if has_spoken else 0.0, last))
                if ended_itself and not has_spoken:
                    launch.on_early_end()


def locate(command: str, env: Mapping[str, str], cwd: Path | None) -> str:
    """The program file that `command` means to a server with this environment.

    Raises:
        CannotStart: There is none.
    """
    if os.sep in command:
        path = Path(cwd or ".", Path(command).expanduser())
        if path.exists():
            return str(path)
        raise CannotStart(
            f"there is no program {str(path)!r}", hint="correct `command`", missing=True
        )
    program_file = shutil.which(command, path=env.get("PATH", os.defpath))
    if program_file is None:
        install = _INSTALL.get(command, "install it, or give its full path as `command`")
        raise CannotStart(f"the program {command!r} is not on the PATH", hint=install, missing=True)
    return program_file


async def _notice_exit(child: Child, exchange: Exchange) -> None:
    """Close the wire when the program exits, even if a grandchild still holds its pipe."""
    await child.exited.wait()
    with anyio.move_on_after(_LAST_WORDS):
        await exchange.closed.wait()
    exchange.close(WireClosed("the program exited", sent=True))


class _Pipes:
    """The three pipes between us and a child, closed whatever happens."""

    def __init__(self) -> None:
        self._writer: asyncio.WriteTransport | None = None
        self._readers: list[asyncio.ReadTransport] = []
        self._receipt: ReadReceipt | None = None

    def __enter__(self) -> Self:
        stdin, self._stdin = os.pipe()
        self._stdout, stdout = os.pipe()
        self._stderr, stderr = os.pipe()
        self.theirs = (stdin, stdout, stderr)
        self._open = {*self.theirs, self._stdin, self._stdout, self._stderr}
        with contextlib.suppress(OSError, AttributeError):  # a quota, or no Linux: only slower
            fcntl.fcntl(self._stdout, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for fd in self._open:
            os.close(fd)

    async def connect(
        self, *, stdin: "LineWriter", stdout: asyncio.Protocol, stderr: asyncio.Protocol
    ) -> ReadReceipt:
        loop = asyncio.get_running_loop()
        self._flush = stdin.flush
        for fd in self.theirs:
            self._open.remove(fd)
            os.close(fd)
        # before the transport gets the pipe, which it closes at once if it has no reader
        receipt = self._receipt = stdin.receipt = ReadReceipt(self._stdin)
        stdin.fd = self._stdin
        self._writer, _ = await loop.connect_write_pipe(lambda: stdin, self._end(self._stdin))
        # whatever the pipe does not take is held back by the writer, which can still drop it
        self._writer.set_write_buffer_limits(high=0)
        for fd, protocol in ((self._stdout, stdout), (self._stderr, stderr)):
            reader, _ = await loop.connect_read_pipe(lambda it=protocol: it, self._end(fd))  # type: ignore[misc]
            self._readers.append(reader)
        return receipt

    def _end(self, fd: int) -> PipeEnd:
        self._open.remove(fd)
        return PipeEnd(fd)

    def close_stdin(self) -> None:
        if self._writer is not None:
            self._flush()
            if self._receipt is not None:
                self._receipt.close()
            if self._writer.get_write_buffer_size():
                self._writer.abort()  # a server that does not read would block us
            else:
                self._writer.close()

    def close(self) -> None:
        self.close_stdin()
        if self._receipt is not None:
            self._receipt.close()
        for reader in self._readers:
            reader.close()


@runtime_checkable
class _Writable(Protocol):
    """The part of a transport that is used; those of uvloop are not `WriteTransport`s."""

    def write(self, data: bytes, /) -> None: ...


def line_of(message: bytes) -> bytes:
    """A message as one line.

    Line breaks in JSON occur only between tokens. If they were passed on, a caller's arguments
    could pose as messages of ours.
    """
    # not `in`, which first tries to read the break as a number, and fails: 2.5 % of a call
    if message.find(b"\n") >= 0 or message.find(b"\r") >= 0:
        message = message.replace(b"\r", b" ").replace(b"\n", b" ")
    return message + b"\n"


class LineWriter(asyncio.BaseProtocol):
    """Our end of the server's standard input.

    Messages to a server that does not read are held back. A request leaves with its caller: the
    server never sees what nobody waits for, and our memory is not its buffer.
    """

    def __init__(self) -> None:
        self._exchange: Exchange | None = None
        self._held: OrderedDict[PendingRequest, bytes] = OrderedDict()
        self._held_notes: deque[bytes] = deque()
        """Answers, notifications and cancellations, which go first."""
        self._full = False
        self.receipt: ReadReceipt | None = None
        self.fd: int | None = None
        """The pipe of the transport; None: what it does not take at once is not held back."""
        self._transport: _Writable | None = None
        self._lines: dict[object, bytes] = {}
        """Those of this turn, by their request; those of other messages by an object."""
        self._size = 0
        """The bytes of these lines."""
        self._pending: Mapping[RequestId, PendingRequest] = {}
        self._loop = asyncio.get_running_loop()

    def serves(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._pending = exchange.pending_requests.by_id

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, _Writable):
            self._transport = transport

    async def respond(self, message: bytes) -> None:
        """Answer a request of the server."""
        self.send(message)

    def send(self, message: bytes, pending_request: PendingRequest | None = None) -> None:
        """Send a message now, or as soon as the pipe accepts it.

        With several pending requests, messages of one turn are written together, because each
        write is a system call.
        """
        line = line_of(message)
        if self._full:
            if pending_request is not None:
                self._held[pending_request] = line
            elif len(self._held_notes) < INBOUND_REQUESTS:
                self._held_notes.append(line)
            return  # otherwise dropped: a server that asks and does not read gets no answer
        if pending_request is not None:
            pending_request.sent = True
        # a single call would only wait for a turn of the loop
        if len(self._pending) < _SEVERAL or len(message) > _JOINED:
            receipt = self.receipt
            if self._lines or (receipt is not None and receipt.is_open):
                self._lines[pending_request or object()] = line
                self.flush()
            elif self._transport is not None:
                self._transport.write(line)
            return
        self._lines[pending_request or object()] = line
        self._size += len(line)
        if self._size > _JOINED:
            self.flush()
        elif len(self._lines) == 1:
            self._loop.call_soon(self.flush)

    def call_off(self, message: bytes) -> None:
        """Send a cancellation; it is never dropped: the request was written, and may run."""
        if self._full:
            self._held_notes.append(line_of(message))
        else:
            self.send(message)

    def withdraw(self, pending_request: PendingRequest) -> None:
        """Drop a request that is not written yet."""
        # or it was to be written with others of this turn
        if (
            self._held.pop(pending_request, None) is None
            and self._lines.pop(pending_request, None) is not None
        ):
            pending_request.sent = False

    def flush(self) -> None:
        lines, self._lines, self._size = self._lines, {}, 0
        if not lines or self._transport is None:
            return
        data, receipt = b"".join(lines.values()), self.receipt
        if receipt is not None and receipt.is_open:
            data = receipt.write_first(data)
        elif self.fd is not None and len(lines) > 1 and not self._full:
            self._write_whole(lines, data, self.fd, self._transport)
            return
        if data:
            self._transport.write(data)

    def _write_whole(
        self, lines: Mapping[object, bytes], data: bytes, fd: int, transport: _Writable
    ) -> None:
        """Write the lines that the pipe takes, and hold back those of which it takes nothing.

        A transport would keep them all, out of reach of `withdraw`.
        """
        waiting = deque(lines.items())
        while waiting and not self._full:
            try:
                written = os.write(fd, data)
            except BlockingIOError:
                written = 0
            except OSError:  # the reader is gone; the transport has to find that out
                transport.write(data)
                return
            while waiting and len(waiting[0][1]) <= written:
                written -= len(waiting.popleft()[1])
            if waiting:
                # one that was begun has to be completed; and a transport waits only with something
                transport.write(waiting.popleft()[1][written:])
                data = b"".join(line for _, line in waiting)
        while waiting:
            key, line = waiting.pop()
            if isinstance(key, PendingRequest):
                key.sent = False
                self._held[key] = line
                self._held.move_to_end(key, last=False)
            else:
                self._held_notes.appendleft(line)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        while not self._full and (self._held_notes or self._held):
            while self._size <= _JOINED and (self._held_notes or self._held):
                if self._held_notes:
                    line = self._lines[object()] = self._held_notes.popleft()
                else:
                    pending_request, line = self._held.popitem(last=False)
                    self._lines[pending_request] = line
                    pending_request.sent = True
                self._size += len(line)
            self.flush()

    def clear(self) -> None:
        """Drop the messages that were held back."""
        self._held.clear()
        self._held_notes.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        if self._exchange is not None:
            self._exchange.close(WireClosed("the program closed its standard input", sent=True))


class _Output:
    """Handles the server's standard output."""

    def __init__(self, exchange: Exchange, limit: int) -> None:
        self._exchange = exchange
        self._limit = limit

    def on_oversized(self, line: OversizedLine) -> None:
        reason = f"the answer has over {self._limit:,} bytes, the limit `limits.message`"
        self._exchange.fail_damaged(line.head + line.tail, AnswerInvalid(reason, sent=True))

    def on_end(self) -> None:
        self._exchange.close(WireClosed("the program closed its standard output", sent=True))


class _ErrorReader(asyncio.Protocol):
    """Our end of the server's standard error."""

    def __init__(self, log: StderrLog) -> None:
        self._log = log
        self._pace = Pace(lambda: False)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pace.reads(transport)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._log.feed(data)
        if len(data) >= FULL_READ:
            self._pace.hold()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._pace.stop()
