"""A loopback HTTP proxy that lets each program reach its allowed hosts, and counts.

`CONNECT` opens a tunnel, a request for a whole `http://` address is passed on. A name is resolved
here, checked, and connected to by the address that was checked.
"""

import asyncio
import base64
import secrets
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn
from urllib.parse import unquote

import anyio
from yarl import URL

from multitap.http.addresses import HostRules, is_here
from multitap.http.client.route import proxy_for
from multitap.http.closed_ports import closed_ports
from multitap.sandbox.learning import Traffic
from multitap.tasks import Tasks

_LONGEST_HEAD = 32 * 1024  # bytes; a longer one is refused with 431
_PIECE = 64 * 1024
_PATIENCE = 30.0  # seconds for a request's head, and for a connection to its host
_PROXIED_PATIENCE = 5.0  # seconds to resolve a name: behind a proxy, no name may resolve
_LINGER = 60.0  # seconds a host may continue after the program has closed its end
_MOST_CONNECTIONS = 256  # connections per program: each needs two descriptors
# what is about one connection, and not about the request (RFC 9110)
_HOP = (b"connection", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"upgrade")


class ProxyAccess:
    """The rules of one program, and its traffic."""

    def __init__(self, name: str, hosts: Sequence[str], traffic: Traffic) -> None:
        self.name = name
        self.password = secrets.token_urlsafe(24)
        self.rules = HostRules(hosts)
        self.traffic = traffic
        self.everything = False
        """Whether every host is allowed, to learn which ones it uses."""
        self.connections = 0


class _Target(NamedTuple):
    host: str
    port: int
    head: bytes
    """The rewritten head of the request; empty for a tunnel."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class _Refused(Exception):
    """The proxy answers the request itself, with an error."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class ForwardProxy:
    """Forwards requests of admitted programs."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._accesses: dict[bytes, ProxyAccess] = {}
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        """Listen on a free loopback port."""
        self._server = await asyncio.start_server(
            self._on_connection, "127.0.0.1", 0, limit=_LONGEST_HEAD, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop listening; open connections end with their tasks."""
        if self._server is not None:
            self._server.close()

    def admit(self, access: ProxyAccess) -> str:
        """Admit a program; returns a proxy URL with its own credentials."""
        word = f"multitap:{access.password}"
        self._accesses[base64.b64encode(word.encode())] = access
        return f"http://{word}@127.0.0.1:{self.port}"

    def dismiss(self, access: ProxyAccess) -> None:
        """Refuse a program from now on."""
        self._accesses = {
            key: other for key, other in self._accesses.items() if other is not access
        }

    def _on_connection(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._tasks.start_soon(self._serve, reader, writer)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._forward(reader, writer)
        except _Refused as exc:
            with suppress(OSError):
                writer.write(_answer(exc.status, str(exc)))
                await writer.drain()
        finally:
            writer.close()

    async def _forward(self, reader: StreamReader, writer: StreamWriter) -> None:
        with anyio.fail_after(_PATIENCE):
            head = await _head(reader)
        lines = head.split(b"\r\n")
        access = self._find_access(lines)
        if access.connections >= _MOST_CONNECTIONS:
            raise _Refused("503 Service Unavailable", "too many connections at once")
        target = _target(lines)
        # nothing is awaited between the check above and this
        access.connections += 1
        try:
            there, back = await self._connect(access, target)
            try:
                access.traffic.on_opened(str(target))
                if target.head:
                    back.write(target.head)
                else:
                    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await _relay((reader, writer), (there, back), access, str(target))
            finally:
                back.close()
        finally:
            access.connections -= 1

    def _find_access(self, lines: Sequence[bytes]) -> ProxyAccess:
        for line in lines[1:]:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"proxy-authorization":
                scheme, _, word = value.strip().partition(b" ")
                access = self._accesses.get(word.strip())
                if scheme.lower() == b"basic" and access is not None:
                    return access
        raise _Refused("407 Proxy Authentication Required", "this proxy serves confined programs")

    async def _connect(
        self, access: ProxyAccess, target: _Target
    ) -> tuple[StreamReader, StreamWriter]:
        refusal = None if access.everything else access.rules.refusal(target.host, target.port)
        if refusal is not None:
            self._refuse(access, target, refusal)
        # resolved once, and connected to by address: a name that resolves differently the next time
        # cannot lead past the rules
        scheme = "http" if target.head else "https"
        proxy = proxy_for(URL.build(scheme=scheme, host=target.host))
        addresses = await _resolve(target, _PATIENCE if proxy is None else _PROXIED_PATIENCE)
        # whatever the rules say: through a gateway, a program could do everything that the user can
        if target.port in closed_ports() and any(map(is_here, addresses)):
            self._refuse(access, target, "it is a port of Multitap")
        allowed = [
            address
            for address in addresses
            if access.everything or access.rules.permits(target.host, address, target.port)
        ]
        # the proxy resolves the name itself, and may choose any of its addresses
        if addresses and (not allowed or (proxy is not None and len(allowed) < len(addresses))):
            refused = next(address for address in addresses if address not in allowed)
            self._refuse(access, target, f"it leads to {refused}, which no rule names")
        if proxy is not None:
            return await _through(proxy, target)
        if not addresses:
            raise _Refused("502 Bad Gateway", f"{target.host} does not resolve")
        for address in allowed:
            with suppress(OSError, TimeoutError), anyio.fail_after(_PATIENCE):
                return await asyncio.open_connection(address, target.port, limit=_PIECE)
        raise _Refused("502 Bad Gateway", f"{target} cannot be reached")

    def _refuse(self, access: ProxyAccess, target: _Target, reason: str) -> NoReturn:
        access.traffic.on_refused(str(target), reason)
        message = f"the sandbox of {access.name!r} does not allow {target}: {reason}"
        raise _Refused("403 Forbidden", message)


async def _head(reader: StreamReader) -> bytes:
    try:
        return (await reader.readuntil(b"\r\n\r\n"))[:-4]
    except asyncio.LimitOverrunError:
        raise _Refused("431 Request Header Fields Too Large", "the head is too long") from None


def _target(lines: Sequence[bytes]) -> _Target:
    method, _, rest = lines[0].partition(b" ")
    address, _, version = rest.rpartition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise _Refused("400 Bad Request", "not an HTTP/1.1 request")
    is_tunnel = method == b"CONNECT"
    try:
        text = address.decode("ascii")
        url = URL(f"https://{text}" if is_tunnel else text, encoded=True)
        host, port = url.host, url.explicit_port if is_tunnel else url.port
    except (ValueError, UnicodeError):
        host = port = url = None
    if url is None or not host or port is None or url.user is not None:
        raise _Refused("400 Bad Request", "the address is not one to be forwarded to")
    if is_tunnel:
        return _Target(host, port, b"")
    if url.scheme != "http":
        raise _Refused("400 Bad Request", "only `http://` addresses are forwarded")
    fields = [line for line in lines[1:] if line.partition(b":")[0].strip().lower() not in _HOP]
    # one request for each connection: the next one may be for another host
    head = (method + b" " + url.raw_path_qs.encode() + b" HTTP/1.1", *fields, b"Connection: close")
    return _Target(host, port, b"\r\n".join(head) + b"\r\n\r\n")


async def _resolve(target: _Target, patience: float) -> list[str]:
    """The addresses of a host; empty if it does not resolve here."""
    try:
        loop = asyncio.get_running_loop()
        with anyio.fail_after(patience):
            addresses = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [*dict.fromkeys(str(address[4][0]) for address in addresses)]


async def _through(proxy: str, target: _Target) -> tuple[StreamReader, StreamWriter]:
    """Open a tunnel through the machine's own web proxy."""
    url = URL(proxy)
    secure = url.scheme == "https" or None
    there, back = await asyncio.open_connection(
        url.host, url.port, limit=_PIECE, ssl=secure, server_hostname=url.host if secure else None
    )
    head = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if url.user is not None:
        word = f"{unquote(url.user)}:{unquote(url.password or '')}"
        head.append(f"Proxy-Authorization: Basic {base64.b64encode(word.encode()).decode()}")
    try:
        back.write("\r\n".join((*head, "", "")).encode())
        with anyio.fail_after(_PATIENCE):
            status = await _head(there)
    except BaseException:
        back.close()
        raise
    if not status.partition(b" ")[2].startswith(b"2"):
        back.close()
        raise _Refused("502 Bad Gateway", "the proxy of this machine refuses the connection")
    return there, back


Stream = tuple[StreamReader, StreamWriter]


async def _relay(program: Stream, host: Stream, access: ProxyAccess, name: str) -> None:
    """Relay both directions until both have ended, or one breaks."""
    traffic = access.traffic

    async def send() -> None:
        await _copy(program[0], host[1], lambda size: traffic.on_sent(name, size))
        await anyio.sleep(_LINGER)
        tasks.cancel_scope.cancel()

    async def receive() -> None:
        await _copy(host[0], program[1], lambda size: traffic.on_received(name, size))
        tasks.cancel_scope.cancel()  # the other side is gone

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        tasks.start_soon(receive)


async def _copy(source: StreamReader, sink: StreamWriter, count: Callable[[int], None]) -> None:
    with suppress(OSError):
        while data := await source.read(_PIECE):
            count(len(data))
            sink.write(data)
            await sink.drain()
        # one direction may end long before the other, and the peer has to see that
        if sink.can_write_eof():
            sink.write_eof()


def _answer(status: str, reason: str) -> bytes:
    body = f"{reason}\n".encode()
    challenge = 'Proxy-Authenticate: Basic realm="multitap"\r\n' if status.startswith("407") else ""
    head = (
        f"HTTP/1.1 {status}\r\n{challenge}Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
