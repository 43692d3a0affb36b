"""Receives the browser's redirect after a login: one answer, on loopback."""

import asyncio
import secrets
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

from multitap.errors import ConfigError
from multitap.http.addresses import is_loopback
from multitap.http.closed_ports import close_port
from multitap.http.server.connections import HttpLimits
from multitap.http.server.pages import HtmlPages, document
from multitap.http.server.peer import PeerUsers
from multitap.http.server.request import HttpRequest, Rejected, RequestHead
from multitap.http.server.server import bind, open_http_server, start_listening
from multitap.markup import element
from multitap.oauth.account import LOGIN_TIMEOUT
from multitap.oauth.errors import LoginFailed, clean
from multitap.tasks import InOwnTask
from multitap.trust.single_use import Issued

_FIELDS = 64  # of a query
# any program of this machine can connect: one browser needs little
_LIMITS = HttpLimits(
    connections=16, head=16 * 1024, body=0, request_timeout=5.0, linger=5.0, drain=1.0
)
_PAGES = HtmlPages()


class Callback:
    """Waits for the redirect of one browser; see `HttpApp`.

    With port 0, `redirect` is on any free port.
    """

    def __init__(self, server: str, redirect: str) -> None:
        self.address = redirect
        self._server = server
        self._listening: AsyncExitStack | None = None
        self._users: PeerUsers | None = None
        """Tells our own user from others; None where the kernel cannot."""
        self._links = Issued(1)
        """The path that leads to the login page."""
        self._page = ""
        self._states = Issued(1)
        self._redirected = ""
        self._is_redirected = asyncio.Event()

    async def listen(self) -> None:
        """Start to listen.

        Raises:
            LoginFailed: Nothing can listen at that address.
        """
        place = urlsplit(self.address)
        host = place.hostname or ""
        if place.scheme != "http" or not is_loopback(host):
            raise LoginFailed(f"{self.address} is not on this machine: use `--no-browser`")
        async with AsyncExitStack() as stack:
            users = stack.enter_context(PeerUsers())
            try:
                listeners = _bind(host, place.port or 0)
                for listener in listeners:
                    stack.enter_context(closing(listener))
                    # before it listens: confined servers could be faster
                    stack.enter_context(close_port(listener.getsockname()[1]))
                    start_listening(listener)
            except ConfigError as exc:
                raise LoginFailed(str(exc)) from None
            self._users = users if users.can_tell(listeners[0].getsockname()[0]) else None
            for listener in listeners:
                # in a task of its own: it is closed where its answer is waited for
                await stack.enter_async_context(
                    InOwnTask(open_http_server(self, listener, _LIMITS))
                )
            self._listening = stack.pop_all()
        if not place.port:
            port = listeners[0].getsockname()[1]
            self.address = f"http://{host}:{port}{place.path}"

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
        """Wait for the redirect after a login page, whose `state` identifies it.

        Later redirects are refused.
        """
        if self._listening is None:
            await self.listen()  # called again: the first answer was not usable
        self._is_redirected.clear()
        if state := parse_qs(urlsplit(page).query).get("state"):
            self._states.issue(state[0], life=LOGIN_TIMEOUT)
        try:
            await self._is_redirected.wait()
        finally:
            self._states.forget()
            await self.aclose()
        return self._redirected

    async def aclose(self) -> None:
        """Stop listening, and close all connections."""
        listening, self._listening = self._listening, None
        if listening is not None:
            await listening.aclose()

    def admit(self, head: RequestHead) -> Rejected | None:
        if self._users is not None and head.peer.is_own(self._users) is not True:
            return Rejected(HTTPStatus.FORBIDDEN, "This is for another user of this machine.")
        return None

    def handle(self, http_request: HttpRequest) -> None:
        """Answer a browser; the right redirect is accepted once."""
        http_request.keep_alive = False
        head, own = http_request.head, urlsplit(self.address)
        target, host = head.url.decode("latin-1"), head.headers.get(b"host", b"").decode("latin-1")
        path, _, query = target.partition("?")
        # by its host, too: a web page may let a name of its own lead here (DNS rebinding)
        if head.method != b"GET" or host != own.netloc:
            _show(http_request, HTTPStatus.NOT_FOUND, "There is nothing here.")
        elif self._links.take(path):
            _show(http_request, HTTPStatus.SEE_OTHER, "The login page is elsewhere.", self._page)
        elif path != (own.path or "/"):
            _show(http_request, HTTPStatus.NOT_FOUND, "There is nothing here.")
        else:
            self._on_redirect(http_request, query)

    def _on_redirect(self, http_request: HttpRequest, query: str) -> None:
        try:
            values = parse_qs(query, max_num_fields=_FIELDS)
        except ValueError:
            _show(http_request, HTTPStatus.NOT_FOUND, "There is nothing here.")
            return
        # any web page can send requests here: only the redirect with our `state` counts
        if not self._states.take(values.get("state", [""])[0]):
            refusal = "This is not the answer to a login that was asked for."
            _show(http_request, HTTPStatus.BAD_REQUEST, refusal)
            return
        self._redirected = f"{self.address}?{query}"
        message = f"You are logged in to {self._server}. You can close this page."
        if "error" in values:
            reason = values.get("error_description", values["error"])[0]
            message = f"The login to {self._server} failed: {clean(reason)}"
        _show(http_request, HTTPStatus.OK, message)
        # last: the browser must have its page before the server is closed
        self._is_redirected.set()


@asynccontextmanager
async def open_callback(
    server: str,
    *,
    port: int | None = None,
    redirect: str | None = None,
    usual: str | None = None,
) -> AsyncGenerator[Callback]:
    """Listen for the browser's redirect.

    `redirect` is the whole address, where the client is registered with it; without it and a port,
    any port is taken. `usual` is the address of an earlier login, used again if it is free: else we
    would have to register again.

    Raises:
        LoginFailed: Nothing can listen there.
    """
    anywhere = f"http://127.0.0.1:{port or 0}/callback"
    is_free = port is None and redirect is None
    callback = Callback(server, redirect or (is_free and usual) or anywhere)
    try:
        await callback.listen()
    except LoginFailed:
        if not (is_free and usual):
            raise
        callback = Callback(server, anywhere)
        await callback.listen()
    try:
        yield callback
    finally:
        await callback.aclose()


def _bind(host: str, port: int) -> list[socket.socket]:
    if host != "localhost":
        return [bind(host, port)]
    # browsers take either family for this name
    listener = bind("127.0.0.1", port)
    try:
        return [listener, bind("::1", listener.getsockname()[1])]
    except (ConfigError, OSError):  # a machine may have no IPv6
        return [listener]


def _show(
    http_request: HttpRequest, status: HTTPStatus, message: str, location: str | None = None
) -> None:
    page = document("Login", element("p", message))
    extra = () if location is None else ((b"location", location.encode()),)
    _PAGES.show(http_request, page, status, *extra)
