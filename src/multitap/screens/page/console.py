"""The web console over HTTP: access, and the response at each address."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from multitap.config.provenance import STANDINGS
from multitap.control.messages import MAX_BODY, ControlFailure
from multitap.control.server import ControlApi, Handler
from multitap.control.service import ControlService
from multitap.errors import MultitapError
from multitap.gateway.fronts.access import Access
from multitap.gateway.fronts.accounts import AccountPages
from multitap.gateway.fronts.tokens import Admitted
from multitap.http.server.pages import cookies, is_form
from multitap.http.server.request import JSON, HttpRequest, Rejected, RequestHead, ToDo
from multitap.principal import token_principal
from multitap.screens.page import pages
from multitap.screens.page.access import (
    COOKIE,
    LIFE,
    PAGES,
    ConsoleKeys,
    TooManyAttempts,
    console_cookie,
    foreign,
)
from multitap.screens.page.page_feed import PageFeed

LARGEST = 16 * 1024 * 1024
"""Bytes of a result that is sent to a page; a browser would stall with more."""
API = b"/console/api/"

_KINDS = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_NONE = Admitted()
_ADDING = frozenset({"find_servers", "review_server", "add_server", "enable_reviewed"})


class Console:
    """Shows one gateway to browsers; a `ConsoleApp`.

    It is for the people who run the gateway: a browser with a key, or of a person whom an access
    rule makes an admin, can do everything that the command line can.
    """

    accounts: AccountPages | None = None
    """Where people sign in: those whom a rule lets run the gateway need no key."""

    def __init__(self, control: ControlService, access: Access, keys: ConsoleKeys) -> None:
        self._control = control
        self._access = access
        self._keys = keys
        self._feed = PageFeed(control, control.gateway.tasks)
        self._api = ControlApi(
            lambda: control, "console", largest=LARGEST, headers=PAGES.headers(), check=self._check
        )
        self._files = _static_files()
        self._pages: Mapping[bytes, Handler] = {
            b"/console": self._place,
            b"/console/events": self._events,
            **{f"/console/{name}".encode(): self._place for name in pages.PLACES},
        }

    def admit(self, head: RequestHead) -> Rejected | None:
        """Decide about a request, and who answers it."""
        path, method = head.path, head.method
        is_entering = path == b"/console/enter"
        admin = None if self.accounts is None else self.accounts.admin_of(head)
        denied = self._access.without_origin(head.headers, head.peer)
        is_open = method == b"GET" and (path in self._files or self._signs_in(path))
        # a person is proven by their provider, so the proxy between us may be of any user
        if denied and (not (admin or is_open) or self._access.check_host(head.headers)):
            return denied
        if method not in {b"GET", b"POST"}:
            return Rejected(405, "", ((b"allow", b"GET, POST"),))
        if outside := foreign(method, head.headers, is_form=is_entering):
            return outside
        if head.length > MAX_BODY:
            return Rejected(413, f"a question has at most {MAX_BODY} bytes")
        head.keeps_body = method == b"POST"
        head.admitted = _NONE
        if is_entering:
            head.handler = self._enter
        # scripts and styles contain no user data, and the locked page needs them
        elif method == b"GET" and path in self._files:
            head.handler = self._file
        elif admin is not None:
            principal = admin.visitor.principal
            self._let_in(head, Admitted(principal, is_admin=True, expires=admin.ends))
            head.edition = None  # whether they still are one is asked each time
        elif denied is None and (token_id := self._token_of(head)) is not None:
            self._let_in(head, Admitted(token_principal(token_id)))
        else:
            head.handler = self._refuse_locked
        return None

    def _let_in(self, head: RequestHead, admitted: Admitted) -> None:
        path = head.path
        head.admitted, head.holder = admitted, admitted.principal.key
        is_page = head.method == b"GET"
        head.handler = (self._pages.get(path) if is_page else self._method(path)) or _missing

    def _signs_in(self, path: bytes) -> bool:
        """Whether a locked page offers to sign in, also to browsers behind a proxy."""
        return self._is_page(path) and bool(self._sign_in_pages(path))

    def _is_page(self, path: bytes) -> bool:
        return path in self._pages and not path.endswith(b"events")

    def _sign_in_pages(self, path: bytes) -> Sequence[tuple[str, str]]:
        return () if self.accounts is None else self.accounts.sign_in_pages(path.decode())

    def _method(self, path: bytes) -> Handler | None:
        name = path.removeprefix(API).decode("latin-1")
        return self._leave if name == "leave" else self._api.handler(name)

    def _check(self, http_request: HttpRequest, name: str, arguments: Mapping[str, Any]) -> None:
        """Refuse people who may not add servers, and to enable what a stranger describes.

        `enable_reviewed` enables that, with a new key.
        """
        settings = self._control.gateway.hub.settings
        is_admin = http_request.head.admitted.is_admin
        if name in _ADDING and is_admin and not settings.console.add:
            raise MultitapError(
                "people who sign in may not add servers here",
                hint="its administrator allows it with `console.add = true`,"
                " or adds them with `multitap console` or `multitap add`",
            )
        if name == "switch" and arguments["on"]:
            server = settings.servers.get(arguments["server"])
            if server is not None and not STANDINGS[server.provenance].is_own:
                raise MultitapError(
                    f"{arguments['server']} is described by others: see first what it would do",
                    hint="the page shows it after Enable; in a terminal, use `multitap enable`",
                )

    def handle(self, http_request: HttpRequest) -> ToDo:
        """Answer a request for which `admit` found no handler."""
        _missing(http_request)
        return None

    def end_streams(self) -> None:
        self._feed.close()

    @property
    def is_watched(self) -> bool:
        """Whether a page is open."""
        return self._feed.is_watched

    def _token_of(self, head: RequestHead) -> str | None:
        token_ids = map(
            self._keys.is_admitted,
            (value.encode("latin-1") for value in cookies(head.headers, COOKIE)),
        )
        return next((token_id for token_id in token_ids if token_id is not None), None)

    def _refuse_locked(self, http_request: HttpRequest) -> None:
        head = http_request.head
        if head.method == b"GET" and self._is_page(head.path):
            page = pages.locked_page(providers=self._sign_in_pages(head.path))
            PAGES.show(http_request, page, 401)
        else:
            self._api.refuse(
                http_request, ControlFailure("the console is locked", kind="denied"), 401
            )

    async def _enter(self, http_request: HttpRequest) -> None:
        head = http_request.head
        if head.method == b"GET":
            text = head.query.get("key", [""])[0]
        elif is_form(head):
            # any bytes can be decoded so, and a wrong key is refused anyway
            text = parse_qs(http_request.body.decode("latin-1")).get("key", [""])[0]
        else:
            text = ""
        if not text:
            PAGES.show(http_request, pages.locked_page(), 401)
            return
        try:
            token = await self._keys.exchange(text)
        except TooManyAttempts as exc:
            wait = (b"retry-after", b"%d" % (int(exc.wait) + 1))
            PAGES.show(http_request, pages.locked_page(str(exc)), 429, wait)
            return
        if token is None:
            reason = "This link was used already, or is too old."
            PAGES.show(http_request, pages.locked_page(reason), 401)
            return
        # TLS ends here or at a proxy; without it, `Secure` would make browsers drop the cookie
        is_forwarded = head.headers.get(b"x-forwarded-proto") == b"https"
        is_secure = head.peer.is_secure or is_forwarded
        cookie = console_cookie(token, LIFE, is_secure=is_secure)
        PAGES.show(http_request, pages.entered_page(), 200, cookie)

    async def _place(self, http_request: HttpRequest) -> None:
        place = http_request.head.path.rpartition(b"/")[2].decode()
        name = place if place in pages.PLACES else "servers"
        PAGES.show(http_request, await pages.place_page(self._control, name))

    def _file(self, http_request: HttpRequest) -> None:
        kind, data = self._files[http_request.head.path]
        http_request.respond(200, (data,), kind=kind, extra=PAGES.headers())

    async def _events(self, http_request: HttpRequest) -> None:
        # nothing is awaited between this check and the count in `pour`
        if self._feed.is_full:
            http_request.say(
                503, "too many pages are open", extra=PAGES.headers((b"retry-after", b"5"))
            )
            return
        http_request.stream(PAGES.headers())
        await self._feed.pour(http_request.write)
        http_request.end()

    async def _leave(self, http_request: HttpRequest) -> None:
        admitted = http_request.head.admitted
        if admitted.is_admin and self.accounts is not None:
            gone = self.accounts.sessions.end()
        else:
            gone = console_cookie("", 0, is_secure=False)
        http_request.respond(200, (b"null",), kind=JSON, extra=PAGES.headers(gone))
        if not admitted.is_admin:
            # afterwards: revoking the token closes its connections
            await self._keys.leave(admitted.principal.key)


def _missing(http_request: HttpRequest) -> None:
    http_request.say(404, "there is no such page", extra=PAGES.headers())


def _static_files() -> dict[bytes, tuple[bytes, bytes]]:
    """Static files, by their address."""
    return {
        f"/console/static/{file.name}".encode(): (_KINDS[file.suffix], file.read_bytes())
        for file in sorted(pages.STATIC.iterdir())
        if file.suffix in _KINDS
    }
