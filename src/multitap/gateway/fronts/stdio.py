"""Serves one client over standard input and output, or over a connection that leads there."""

import asyncio
import logging
import os
import secrets
import stat
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Protocol, runtime_checkable

import anyio
import anyio.lowlevel
from anyio import to_thread
from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.errors import MultitapError, ungrouped
from multitap.gateway import client_errors
from multitap.gateway.client import (
    Client,
    ClientRequest,
    Outlet,
    declared_extensions,
    session_request,
    stateless_request,
)
from multitap.gateway.eras import admit_unheaded
from multitap.gateway.gateway import Gateway
from multitap.principal import local_principal
from multitap.tasks import Tasks, Work
from multitap.wire.jsonrpc import (
    CLIENT_CAPABILITIES_KEY,
    UNPARSABLE,
    ClientMessage,
    Result,
    RpcError,
    answer_pieces,
    parse_client_message,
    refusal,
)
from multitap.wire.lines import LineReader, OnLine, OnOversized, OversizedLine, PipeEnd
from multitap.wire.stdio import line_of

MOST = 1024
"""Requests of one client in progress at the same time; further ones are refused."""
_BEFORE_HANDSHAKE = frozenset({"initialize", "ping", "server/discover"})


class Duplex:
    """One client's messages, each answered on its own."""

    def __init__(self, gateway: Gateway, client: Client, outlet: Outlet, tasks: Tasks) -> None:
        self._gateway = gateway
        self._client = client
        self._outlet = outlet
        self._tasks = tasks
        self._shares = gateway.under_way

    def take(self, data: bytes) -> None:
        """Handle one message; never waits."""
        arrived = perf_counter()
        try:
            message = parse_client_message(data)
            if not data.isascii():
                data.decode()  # what stays undecoded is passed on: it has to be text
        except UNPARSABLE as exc:
            self._refuse(Raw(b""), client_errors.unreadable(data, exc))
            return
        if message.is_request:
            self._begin(message, arrived)
        elif message.method:
            self._gateway.on_notification(self._client, message.method, message.params)
        else:
            self._client.take_answer(message)

    def refuse(self, reason: str) -> None:
        """Send an error for a message that could not be read."""
        self._refuse(Raw(b""), RpcError(client_errors.INVALID_REQUEST, reason))

    def _begin(self, message: ClientMessage, arrived: float) -> None:
        key = bytes(message.id)
        if not message.is_sound:
            self._refuse(
                message.id, RpcError(client_errors.INVALID_REQUEST, "not a JSON-RPC 2.0 request")
            )
        elif key in self._client.scopes:
            reason = f"the id {key.decode()} is in use"
            self._refuse(message.id, RpcError(client_errors.INVALID_REQUEST, reason))
        elif len(self._client.scopes) >= MOST:
            reason = f"{MOST} requests are already in progress"
            self._refuse(
                message.id, RpcError(client_errors.OVERLOADED, reason, {"reason": "overloaded"})
            )
        elif not self._shares.take(self._client.holder):
            reason = self._shares.refusal(self._client.holder)
            self._refuse(
                message.id, RpcError(client_errors.OVERLOADED, reason, {"reason": "overloaded"})
            )
        else:
            self._work_on(message, key, arrived)

    def _work_on(self, message: ClientMessage, key: bytes, arrived: float) -> None:
        # known before it runs: it may end, and remove itself, right there
        work = self._client.scopes[key] = Work()
        self._tasks.begin(work, self._answer(message, key, arrived))

    async def _answer(self, message: ClientMessage, key: bytes, arrived: float) -> None:
        outcome: Result | Exception | None = None
        request: ClientRequest | None = None
        try:
            request = self._request(message)
            if message.method == "tools/call":
                outcome = await self._gateway.calls.answer(request)
            else:
                outcome = await self._gateway.answer(request, message)
        except Exception as exc:  # noqa: BLE001 - boundary: a failed request must not end the others
            outcome = exc
        finally:
            self._on_end(message, key, outcome)
            self._gateway.on_answered(request, arrived)
            outcome = None  # breaks the reference cycle of error and frame

    def _on_end(
        self, message: ClientMessage, key: bytes, outcome: Result | Exception | None
    ) -> None:
        """Send the response to a request; a cancelled one gets none."""
        # before the answer is sent: the client may use the id again as soon as it has it
        del self._client.scopes[key]
        self._shares.give(self._client.holder)
        if isinstance(outcome, Exception):
            self._refuse(message.id, client_errors.to_refusal(outcome, message.method))
        elif outcome is not None:
            self._outlet.send(b"".join(answer_pieces(message.id, outcome)))

    def _request(self, message: ClientMessage) -> ClientRequest:
        params = client_errors.read_params(message)
        is_stateless = admit_unheaded(message, params)
        client = self._client
        if not (is_stateless or client.shook_hands or message.method in _BEFORE_HANDSHAKE):
            raise RpcError(client_errors.INVALID_REQUEST, "initialize first")
        if not is_stateless:
            return session_request(client, message.id, self._outlet, params)
        # it may declare other extensions with each request
        declared = declared_extensions(params.meta[CLIENT_CAPABILITIES_KEY])
        if declared != client.audience.declared:
            client.audience = client.audience._replace(declared=declared)
        return stateless_request(client, message.id, self._outlet, params)

    def _refuse(self, request_id: Raw, error: RpcError) -> None:
        self._outlet.send(refusal(request_id, error))


logger = logging.getLogger(__name__)

MAX_LINE = 32 * 1024 * 1024
"""Bytes of one message; a longer one is dropped."""
BACKLOG = 256 * 1024 * 1024
"""Bytes that may wait for the client to read them; further messages are dropped."""
INSTEAD = "let a client start it (in a container with `docker run -i`), or use `--http PORT`"
"""The advice if no client can use the pipes."""
LAST_ANSWERS = 1.0
"""Seconds for requests in progress after the client has closed its end."""
_CHUNK = 256 * 1024
_FIRST_IDS = 2**40  # JSON's numbers are exact up to 2**53


@runtime_checkable
class _ClientWritable(Protocol):
    """The part of a transport that is used; those of uvloop are not `WriteTransport`s."""

    def write(self, data: bytes, /) -> None: ...
    def get_write_buffer_size(self) -> int: ...


class _ClientOutput(asyncio.Protocol):
    """Messages to the client, in order; an `Outlet`."""

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone = gone
        self._transport: _ClientWritable | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, _ClientWritable):
            self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._gone()

    def send(self, message: bytes) -> bool:
        transport = self._transport
        # callers are callbacks and cannot wait, so this bound is all that protects the memory
        if transport is None or transport.get_write_buffer_size() > BACKLOG:
            return False
        transport.write(line_of(message))
        return True

    async def flush(self) -> None:
        # polled: a transport tells when its buffer is low, not when it is empty
        while self._transport is not None and self._transport.get_write_buffer_size():
            await anyio.sleep(0.005)


class _Descriptor:
    """The same without a transport, for two kinds of output.

    Loops cannot wait for files and devices. And on a terminal or socket that is also the input, a
    transport for writing would consume what the client sends: it reads to notice the end.
    """

    def __init__(self, fd: int, gone: Callable[[], None]) -> None:
        self._fd = fd
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._unwritten = bytearray()
        self._blocked = False

    def send(self, message: bytes) -> bool:
        if len(self._unwritten) > BACKLOG:
            return False
        self._unwritten += line_of(message)
        # while blocked, the loop calls `_write`: writing here as well would be a wasted system call
        return self._blocked or self._write()

    def _write(self) -> bool:
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._fd, self._unwritten)]
        except BlockingIOError:
            self._blocked = True
            self._loop.add_writer(self._fd, self._write)
            return True
        except OSError as exc:
            self.close()
            logger.warning("standard output cannot be written: %s", exc.strerror)
            self._gone()
            return False
        self.close()
        return True

    async def flush(self) -> None:
        while self._blocked:
            await anyio.sleep(0.005)

    def close(self) -> None:
        if self._blocked:
            self._blocked = False
            self._loop.remove_writer(self._fd)


def _taking(duplex: Duplex) -> OnLine:
    """A handler for the client's messages, each of which counts as awaited."""

    def on_line(line: bytes) -> bool:
        if line.strip():
            duplex.take(line)
        return True

    return on_line


def _refusing(duplex: Duplex) -> OnOversized:
    """A handler that refuses messages over the limit."""

    def on_oversized(line: OversizedLine) -> None:
        if not line.tail:  # it is reported twice
            duplex.refuse(f"a message has at most {MAX_LINE} bytes")

    return on_oversized


class RelayedClient(LineReader):
    """A connection that leads to one client's pipes; an `Outlet`.

    Args:
        on_line: Called with each line, until the client is served.
        on_lost: Called when the connection is closed.
    """

    def __init__(self, on_line: Callable[[bytes], None], on_lost: Callable[[], None]) -> None:
        super().__init__(MAX_LINE, self._on_client_line, self._on_oversized, self._on_lost)
        self.on_line = on_line
        self._on_connection_lost = on_lost
        self._duplex: Duplex | None = None
        self.ended = asyncio.Event()
        """Set when the client sends nothing more."""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = transport  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue] - uvloop's is not a subclass

    def eof_received(self) -> bool:
        self.ended.set()
        return True  # it still reads its last answers

    def send(self, message: bytes) -> bool:
        transport = self.transport
        # see `_ClientOutput.send`
        if transport is None or transport.get_write_buffer_size() > BACKLOG:
            return False
        transport.write(line_of(message))
        return True

    async def flush(self) -> None:
        while self.transport is not None and self.transport.get_write_buffer_size():
            await anyio.sleep(0.005)

    def close(self) -> None:
        """Close it after what is written."""
        if self.transport is not None:
            self.transport.close()

    async def serve(self, gateway: Gateway, *, profile: str | None = None) -> None:
        """Answer the client until it leaves."""
        client = Client(
            self,
            principal=local_principal(),
            audience=Audience.of(profile),
            alone=True,
            first_id=1 + secrets.randbelow(_FIRST_IDS),
        )
        try:
            with ungrouped():
                async with Tasks() as tasks:
                    self._duplex = Duplex(gateway, client, self, tasks)
                    await self.ended.wait()
                    await _wind_up(client, self)
                    await gateway.on_left(client)
        finally:
            self._duplex = None
            self.close()

    def _on_client_line(self, line: bytes) -> bool:
        if self._duplex is None:
            self.on_line(line)
        elif line.strip():
            self._duplex.take(line)
        return True

    def _on_oversized(self, line: OversizedLine) -> None:
        if self._duplex is not None and not line.tail:
            self._duplex.refuse(f"a message has at most {MAX_LINE} bytes")

    def _on_lost(self) -> None:
        self.transport = None
        self.ended.set()
        self._on_connection_lost()


async def serve_stdio(gateway: Gateway, *, profile: str | None = None) -> None:
    """Answer the client on this process's pipes until it closes them.

    Anything else that this process prints goes to its standard error meanwhile.
    """
    source, target = _claim()
    blocking = [(fd, os.get_blocking(fd)) for fd in (source, target)]
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    direct = _Descriptor(target, ended.set)
    output: _ClientOutput | _Descriptor = direct
    transports: list[asyncio.BaseTransport] = []
    try:
        with ungrouped():
            async with Tasks() as tasks:
                if _is_waitable(target) and not _is_input_too(source, target):
                    # a copy, because a transport closes its descriptor, and ours is restored below
                    writer, output = await loop.connect_write_pipe(
                        lambda: _ClientOutput(ended.set), PipeEnd.copy(target)
                    )
                    transports.append(writer)
                elif _is_waitable(target):
                    os.set_blocking(target, False)
                client = Client(
                    output,
                    principal=local_principal(),
                    audience=Audience.of(profile),
                    alone=True,
                    only=True,
                )
                duplex = Duplex(gateway, client, output, tasks)
                received = LineReader(MAX_LINE, _taking(duplex), _refusing(duplex), ended.set)
                if _is_waitable(source):
                    reader, _ = await loop.connect_read_pipe(lambda: received, PipeEnd.copy(source))
                    transports.append(reader)
                else:
                    tasks.start_soon(_read_file, source, received)
                await ended.wait()
                await _wind_up(client, output)
                await gateway.on_left(client)
    finally:
        direct.close()
        for transport in transports:
            transport.close()
        for fd, was_blocking in blocking:
            os.set_blocking(fd, was_blocking)  # others may share it, such as a shell
            os.close(fd)


async def _wind_up(client: Client, output: "_ClientOutput | _Descriptor | RelayedClient") -> None:
    with anyio.move_on_after(LAST_ANSWERS):
        # requests before the end are answered: input may be a file or an `echo`
        while client.scopes:
            await anyio.sleep(0.005)
        await output.flush()


async def _read_file(fd: int, received: LineReader) -> None:
    try:
        while data := await to_thread.run_sync(os.read, fd, _CHUNK, abandon_on_cancel=True):
            received.data_received(data)
            # as a transport would do: nothing more is read before this is handled
            while received.holding:
                await anyio.lowlevel.checkpoint()
    except OSError as exc:
        raise MultitapError(
            f"standard input cannot be read: {(exc.strerror or str(exc)).lower()}", hint=INSTEAD
        ) from None
    received.connection_lost(None)


def _claim() -> tuple[int, int]:
    """Private copies of the pipes, so that no other output mixes with the messages."""
    sys.stdout.flush()
    source, target = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    # a library that prints does so on standard error, and not between two messages
    os.dup2(2, 1)
    os.close(nothing)
    return source, target


def _is_waitable(fd: int) -> bool:
    """Whether a loop can wait for a descriptor; uvloop aborts the process if it cannot."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)


def _is_input_too(source: int, target: int) -> bool:
    """Whether a read from the output could consume input: both are the same terminal or socket."""
    return os.isatty(target) or os.path.sameopenfile(source, target)
