"""Receives the browser's redirect after a login: one answer, on loopback."""

import asyncio
import contextlib
import html
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import anyio
from anyio.lowlevel import checkpoint

from multitap.http.closed_ports import close_port
from multitap.http.loopback import is_loopback
from multitap.http.server.peer_user import Peer, PeerUsers
from multitap.trust.single_use import Issued
from multitap.upstream.oauth.account import LOGIN_TIMEOUT
from multitap.upstream.oauth.oauth_errors import LoginFailed, clean

_LONGEST = 16 * 1024  # bytes of a request's head
_FIELDS = 64  # of a query
_PATIENCE = 5.0  # seconds to send it
_STRANGERS = 16  # connections at the same time
_HEADERS = (
    "Content-Type: text/html; charset=utf-8",
    # injected content must not run or load anything
    "Content-Security-Policy: default-src 'none'",
    "X-Content-Type-Options: nosniff",
    "Referrer-Policy: no-referrer",
    "Cache-Control: no-store",
    "Connection: close",
)


class _BrowserReply(NamedTuple):
    """The response to a browser."""

    status: HTTPStatus
    words: str
    location: str | None = None


_STRANGER = _BrowserReply(HTTPStatus.FORBIDDEN, "This is for another user of this machine.")


class LoopbackCallback:
    """Waits for the redirect of one browser.

    Args:
        server: The server's name, for the page.
        redirect: The address it is sent back to; with port 0, on any free port.
    """

    def __init__(self, server: str, redirect: str) -> None:
        self.address = redirect
        self._server = server
        self._listener: asyncio.Server | None = None
        self._resources = contextlib.ExitStack()
        self._users: PeerUsers | None = None
        """Tells our own user from others; None where the kernel cannot."""
        self._links = Issued(1)
        """The path that leads to the login page."""
        self._page = ""
        self._states = Issued(1)
        self._came_back: str | None = None
        self._answered = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    async def listen(self) -> None:
        """Start to listen.

        Raises:
            LoginFailed: Nothing can listen at that address.
        """
        place = urlsplit(self.address)
        host = place.hostname or ""
        if place.scheme != "http" or not is_loopback(host):
            raise LoginFailed(f"{self.address} is not on this machine: use `--no-browser`")
        hosts = ["127.0.0.1", "::1"] if host == "localhost" else [host]
        try:
            self._listener = await self._bind(hosts, place.port or 0)
            for plug in self._listener.sockets:
                self._resources.enter_context(close_port(plug.getsockname()[1]))
            users = self._resources.enter_context(PeerUsers())
            self._users = users if users.can_tell(hosts[0]) else None
            await self._listener.start_serving()
        except OSError as exc:
            self._close()
            words = f"cannot listen on port {place.port} of {host}: {exc.strerror}"
            raise LoginFailed(words) from None
        if not place.port:
            number = self._listener.sockets[0].getsockname()[1]
            self.address = f"http://{host}:{number}{place.path}"

    def forward_to(self, page: str) -> str:
        """An address that leads our own user to a page, once.

        All users of the machine see the arguments of a program that opens a browser, and the
        address of a login page has its `state`.
        """
        path = f"/{secrets.token_urlsafe(16)}"
        self._links.issue(path, life=LOGIN_TIMEOUT)
        self._page = page
        return f"http://{urlsplit(self.address).netloc}{path}"

    async def wait(self, page: str) -> str:
        """Wait for the redirect after a login page; later redirects are refused.

        Args:
            page: The URL of the login page; its `state` identifies the redirect.
        """
        if self._listener is None:
            await self.listen()  # called again: the first answer was not usable
        self._answered.clear()
        if state := parse_qs(urlsplit(page).query).get("state"):
            self._states.issue(state[0], life=LOGIN_TIMEOUT)
        try:
            await self._answered.wait()
        finally:
            self._states.forget()
            self._close()
        return self._came_back or ""

    async def aclose(self) -> None:
        """Close all connections."""
        self._close()
        with anyio.move_on_after(_PATIENCE, shield=True):
            while self._writers:
                for writer in self._writers:
                    writer.transport.abort()
                await checkpoint()

    async def _bind(self, hosts: list[str], port: int) -> asyncio.Server:
        start = partial(
            asyncio.start_server, self._serve, port=port, limit=_LONGEST, start_serving=False
        )
        try:
            return await start(host=hosts)
        except OSError:
            if len(hosts) == 1:
                raise
        # a machine may have no IPv6
        return await start(host=hosts[0])

    def _close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._users = None
        self._resources.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        is_answer = False
        try:
            if len(self._writers) <= _STRANGERS:
                with anyio.move_on_after(_PATIENCE), contextlib.suppress(OSError, EOFError):
                    peer = Peer()
                    peer.open(writer.transport, "")
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                    reply = _STRANGER if self._is_stranger(peer) else self._judge(head)
                    is_answer = reply.status is HTTPStatus.OK
                    writer.write(_response(reply))
                    await writer.drain()
        except asyncio.LimitOverrunError:
            pass  # too long for a browser
        finally:
            writer.close()
            with anyio.move_on_after(_PATIENCE), contextlib.suppress(OSError):
                await writer.wait_closed()
            self._writers.discard(writer)
            # last: the browser must have its page before the server is closed
            if is_answer:
                self._answered.set()

    def _is_stranger(self, peer: Peer) -> bool:
        return self._users is not None and peer.is_own(self._users) is not True

    def _judge(self, head: str) -> _BrowserReply:
        """The response to a browser; the right redirect is accepted once."""
        nothing = _BrowserReply(HTTPStatus.NOT_FOUND, "There is nothing here.")
        mine = urlsplit(self.address)
        first, *lines = head.split("\r\n")
        method, _, target = first.rpartition(" ")[0].partition(" ")
        host = next((line[5:].strip() for line in lines if line.lower().startswith("host:")), "")
        path, _, query = target.partition("?")
        if (method, host) == ("GET", mine.netloc) and self._links.take(path):
            words = "The login page is elsewhere."
            return _BrowserReply(HTTPStatus.SEE_OTHER, words, self._page)
        if (method, host, path) != ("GET", mine.netloc, mine.path or "/"):
            return nothing
        try:
            said = parse_qs(query, max_num_fields=_FIELDS)
        except ValueError:
            return nothing
        state = said.get("state", [""])[0]
        # any web page can send requests here: only the redirect with our `state` counts
        if not self._states.take(state):
            words = "This is not the answer to a login that was asked for."
            return _BrowserReply(HTTPStatus.BAD_REQUEST, words)
        self._came_back = f"{self.address}?{query}"
        if "error" in said:
            reason = said.get("error_description", said["error"])[0]
            words = f"The login to {self._server} failed: {clean(reason)}"
            return _BrowserReply(HTTPStatus.OK, words)
        words = f"Multitap has the answer for {self._server}. Close this page."
        return _BrowserReply(HTTPStatus.OK, words)


@asynccontextmanager
async def open_callback(
    server: str,
    *,
    port: int | None = None,
    redirect: str | None = None,
    usual: str | None = None,
) -> AsyncGenerator[LoopbackCallback]:
    """A listener for the browser's redirect; leaving the block closes it.

    Args:
        server: The server's name.
        port: The port; by default, any free one.
        redirect: The whole address, where the client is registered with it.
        usual: The address of an earlier login, used again if it is free: else we would have to
            register again.

    Raises:
        LoginFailed: Nothing can listen there.
    """
    anywhere = f"http://127.0.0.1:{port or 0}/callback"
    is_free = port is None and redirect is None
    callback = LoopbackCallback(server, redirect or (is_free and usual) or anywhere)
    try:
        await callback.listen()
    except LoginFailed:
        if not (is_free and usual):
            raise
        callback = LoopbackCallback(server, anywhere)
        await callback.listen()
    try:
        yield callback
    finally:
        await callback.aclose()


def _response(reply: _BrowserReply) -> bytes:
    page = f"<!doctype html><title>Multitap</title><p>{html.escape(reply.words)}</p>".encode()
    lines = [f"HTTP/1.1 {reply.status.value} {reply.status.phrase}", *_HEADERS]
    if reply.location is not None:
        lines.append(f"Location: {reply.location}")
    lines += [f"Content-Length: {len(page)}", "", ""]
    return "\r\n".join(lines).encode() + page
