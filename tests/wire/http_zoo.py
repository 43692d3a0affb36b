"""Scripted web servers on plain sockets."""

import asyncio
import contextlib
import json
import ssl
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

Json = dict[str, Any]


@dataclass
class Request:
    """One request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float

    @property
    def message(self) -> Json:
        return json.loads(self.body)

    @property
    def rpc(self) -> str:
        """The JSON-RPC method, empty for an answer or no message."""
        return self.message.get("method", "") if self.body else ""


class Caller:
    """The client's connection, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        if self._writer.is_closing():
            raise ConnectionResetError
        self._writer.write(data)
        await self._writer.drain()
        await asyncio.sleep(0)  # drain alone lets nobody else run

    async def head(self, status: int = 200, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Whatever"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def respond(
        self,
        body: bytes | Json = b"",
        *,
        status: int = 200,
        content_type: str = "application/json",
        **headers: str,
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        length = {"content_length": str(len(data))}
        await self.head(status, content_type=content_type, **length, **headers)
        await self.send(data)

    async def accept(self) -> None:
        await self.head(202, content_length="0")

    async def begin_events(self, **headers: str) -> None:
        await self.head(
            200, content_type="text/event-stream", transfer_encoding="chunked", **headers
        )

    async def event(self, data: bytes | Json = b"", **fields: str) -> None:
        text = data if isinstance(data, bytes) else json.dumps(data).encode()
        head = "".join(f"{name}: {value}\n" for name, value in fields.items()).encode()
        await self.chunk(head + b"data: " + text + b"\n\n")

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end_events(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def hang_up(self) -> None:
        """Close politely, whatever was promised."""
        self._writer.close()

    async def reset(self) -> None:
        """Break the connection off."""
        self._writer.transport.abort()

    async def pour_into(self, writer: asyncio.StreamWriter) -> None:
        """Pass on what the client sends, until it has closed."""
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(65536):
                writer.write(data)
        writer.transport.abort()

    async def pour_from(self, reader: asyncio.StreamReader) -> None:
        """Pass on what the client is sent, until there is no more."""
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                self._writer.write(data)
        self._writer.transport.abort()

    async def gone(self) -> None:
        """Wait until the client has closed."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(65536):
                pass


Handler = Callable[[Request, Caller], Awaitable[None]]


@dataclass
class WebServer:
    url: str
    port: int
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    """Connections that are open now."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def of(self, method: str) -> list[Request]:
        """The requests with this HTTP or JSON-RPC method."""
        return [one for one in self.requests if method in (one.method, one.rpc)]

    async def until(self, true: Callable[[], object]) -> None:
        """Wait for something that a request or the end of a connection brings about."""
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(lambda: bool(true()))

    async def changed(self) -> None:
        async with self._changed:
            self._changed.notify_all()


@asynccontextmanager
async def serve(
    handler: Handler,
    *,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
) -> AsyncGenerator[WebServer]:
    """A server that reads whole requests and leaves the rest to `handler`."""
    tasks: set[asyncio.Task[Any]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        server.connections += 1
        server.open += 1
        caller = Caller(reader, writer)
        try:
            while (request := await read_request(reader)) is not None:
                server.requests.append(request)
                await server.changed()
                await handler(request, caller)
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            tasks.discard(task)
            server.open -= 1
            await server.changed()

    listener = await asyncio.start_server(connected, host, port, ssl=tls, limit=2**24)
    number = listener.sockets[0].getsockname()[1]
    scheme = "https" if tls else "http"
    server = WebServer(f"{scheme}://{host}:{number}/mcp", number)
    try:
        yield server
    finally:
        listener.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.wait_closed()


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip().split("\r\n")
    method, path, _ = first.split(" ")
    headers: dict[str, str] = {}
    for name, _, value in (line.partition(": ") for line in lines):
        before = headers.get(name.lower())
        headers[name.lower()] = value if before is None else f"{before}, {value}"
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method, path, headers, body, asyncio.get_running_loop().time())


@asynccontextmanager
async def tunnel(port: int, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[WebServer]:
    """A proxy: whatever it is asked for, it leads to `port`."""

    async def lead(request: Request, caller: Caller) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await caller.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(caller.pour_into(writer))
                tasks.create_task(caller.pour_from(reader))
        finally:
            writer.transport.abort()
        await caller.reset()

    async with serve(lead, tls=tls) as proxy:
        yield proxy


def self_signed(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS contexts for a server with a self-signed certificate, and for a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "zoo")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("far.invalid")]
            ),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    pem = folder / "zoo.pem"
    pem.write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        + certificate.public_bytes(Encoding.PEM)
    )
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=pem)


def result(request: Request, **value: Any) -> Json:
    return {"jsonrpc": "2.0", "id": request.message["id"], "result": value}


def error(code: int, message: str, request_id: Any = None) -> Json:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


async def polite(request: Request, caller: Caller) -> None:
    """Answers everything, with a session, and has no stream to listen to."""
    if request.method != "POST":
        await caller.head(405, content_length="0")
    elif "id" not in request.message or "method" not in request.message:
        await caller.accept()
    elif request.rpc == "initialize":
        await caller.respond(result(request), mcp_session_id="s-1")
    else:
        await caller.respond(result(request, echo=request.message.get("params", {})))


def creature(**handlers: Handler) -> Handler:
    """A polite server but for some methods: HTTP's (`GET`) or the tools' (`call`)."""

    async def handle(request: Request, caller: Caller) -> None:
        rpc = "call" if request.rpc == "tools/call" else request.rpc
        answer = "answer" if request.body and "method" not in request.message else ""
        for key in (answer, rpc.rpartition("/")[2], request.method):
            if key in handlers:
                await handlers[key](request, caller)
                return
        await polite(request, caller)

    return handle


async def gzip_bomb(request: Request, caller: Caller) -> None:
    """One byte becomes a thousand, without end."""
    packer = zlib.compressobj(wbits=31)
    await caller.head(
        200, content_type="application/json", content_encoding="gzip", transfer_encoding="chunked"
    )
    await caller.chunk(packer.compress(b" " * 2**20) + packer.flush(zlib.Z_FULL_FLUSH))
    block = packer.compress(b" " * 2**24) + packer.flush(zlib.Z_FULL_FLUSH)
    while True:  # after a full flush the same block fits any number of times
        await caller.chunk(block)


async def endless_body(request: Request, caller: Caller) -> None:
    await caller.head(200, content_type="application/json", transfer_encoding="chunked")
    while True:
        await caller.chunk(b" " * 65536)


async def endless_event(request: Request, caller: Caller) -> None:
    await caller.begin_events()
    await caller.chunk(b"data: ")
    while True:
        await caller.chunk(b" " * 65536)


async def flood(request: Request, caller: Caller) -> None:
    """Notifications without end, and no answer."""
    await caller.begin_events()
    note = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}\n\n' * 500
    while True:
        await caller.chunk(note)


async def silent(request: Request, caller: Caller) -> None:
    """Takes the request and never says a word."""
    await caller.gone()


async def half_an_answer(request: Request, caller: Caller) -> None:
    await caller.head(200, content_type="application/json", content_length="1000")
    await caller.send(b'{"jsonrpc":')
    await caller.hang_up()


async def half_a_stream(request: Request, caller: Caller) -> None:
    await caller.begin_events()
    await caller.event(b"{}")
    await caller.reset()


async def resetting(request: Request, caller: Caller) -> None:
    await caller.reset()


async def hanging_up(request: Request, caller: Caller) -> None:
    await caller.hang_up()


async def broken_chunk(request: Request, caller: Caller) -> None:
    await caller.head(200, content_type="application/json", transfer_encoding="chunked")
    await caller.chunk(b"{")
    await caller.send(b"zz\r\n")
    await caller.gone()


async def no_http(request: Request, caller: Caller) -> None:
    await caller.send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    await caller.hang_up()


async def stuck_error_page(request: Request, caller: Caller) -> None:
    await caller.head(500, content_type="text/plain", content_length="1000")
    await caller.send(b"out of order")
    await caller.gone()
