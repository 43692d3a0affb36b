"""The web console over HTTP: access, and the response at each address."""

from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

import msgspec

from multitap.gateway.fronts.control_messages import ControlAnswer, GatewayAction, Quick
from multitap.gateway.fronts.control_service import ControlService
from multitap.http.server.access import Access, Admitted, Rejected
from multitap.http.server.http_request import JSON, HttpRequest, RequestHead, ToDo
from multitap.screens.page import plain_pages
from multitap.screens.page.console_keys import LIFE, ConsoleKeys, TooManyAttempts
from multitap.screens.page.markup import Markup
from multitap.screens.page.page_actions import PageActions, PageReply
from multitap.screens.page.page_feed import PageFeed
from multitap.screens.page.request_checks import FORM, cookies, foreign, safe, set_cookie
from multitap.tasks import in_task

MAX_BODY = 8 * 1024 * 1024
"""Bytes of a request body, which may have arguments; longer ones are refused by their head."""

_HTML = b"text/html; charset=utf-8"
_KINDS = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_LONGEST_FILTER = 1000  # characters; no person types more
_NONE = Admitted()
_encode = msgspec.json.Encoder().encode
_question = msgspec.json.Decoder(Quick).decode
_action = msgspec.json.Decoder(GatewayAction).decode
_reply = msgspec.json.Decoder(PageReply).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

Handler = Callable[[HttpRequest], ToDo]


class Console:
    """Shows one gateway to browsers; a `ConsoleApp`.

    It is for the person who runs the gateway: a browser with a key can do everything that the
    command line can.

    Args:
        control: Answers the requests.
        access: The gateway's own rules for hosts and users.
        keys: The one-time keys and tokens of browsers.
    """

    def __init__(self, control: ControlService, access: Access, keys: ConsoleKeys) -> None:
        self._control = control
        self._access = access
        self._keys = keys
        self._feed = PageFeed(control, control.gateway.tasks)
        self._actions = PageActions(control.gateway)
        self._files = _static_files()
        self._pages: Mapping[bytes, Handler] = {
            b"/console": self._place,
            b"/console/events": self._events,
            **{f"/console/{name}".encode(): self._place for name in plain_pages.PLACES},
        }
        self._wishes: Mapping[bytes, Handler] = {
            b"/console/api/ask": self._ask,
            b"/console/api/act": self._act,
            b"/console/api/reply": self._reply,
            b"/console/api/leave": self._leave,
        }

    def admit(self, head: RequestHead) -> Rejected | None:
        """Decide about a request, and who answers it."""
        path, method = head.path, head.method
        is_entering = path == b"/console/enter"
        if denied := self._access.without_origin(head.headers, head.peer):
            return denied
        if method not in {b"GET", b"POST"}:
            return Rejected(405, "", ((b"allow", b"GET, POST"),))
        if denied := foreign(method, head.headers, is_form=is_entering):
            return denied
        if head.length > MAX_BODY:
            return Rejected(413, f"a question has at most {MAX_BODY} bytes")
        head.keeps_body = method == b"POST"
        head.admitted = _NONE
        if is_entering:
            head.handler = self._enter
        # scripts and styles contain no user data, and the locked page needs them
        elif method == b"GET" and path in self._files:
            head.handler = self._file
        elif (known := self._known_key(head)) is None:
            head.handler = self._refuse_locked
        else:
            head.admitted = Admitted(known)
            head.holder = known
            routes = self._pages if method == b"GET" else self._wishes
            head.handler = routes.get(path, _missing)
        return None

    def handle(self, http_request: HttpRequest) -> ToDo:
        """Answer a request for which `admit` found no handler."""
        _missing(http_request)
        return None

    def end_streams(self) -> None:
        self._feed.close()

    def _known_key(self, head: RequestHead) -> str | None:
        found = (self._keys.is_admitted(one) for one in cookies(head.headers))
        return next((one for one in found if one is not None), None)

    def _refuse_locked(self, http_request: HttpRequest) -> None:
        head = http_request.head
        if head.method == b"GET" and head.path in self._pages and not head.path.endswith(b"events"):
            _show(http_request, plain_pages.locked_page(), 401)
        else:
            refused = ControlAnswer(error="the console is locked", kind="denied")
            _say(http_request, refused, 401)

    async def _enter(self, http_request: HttpRequest) -> None:
        await in_task(http_request)
        head = http_request.head
        if head.method == b"GET":
            given = head.query.get("key", [""])[0]
        elif head.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == FORM:
            given = parse_qs(http_request.body.decode("latin-1")).get("key", [""])[0]
        else:
            given = ""
        if not given:
            _show(http_request, plain_pages.locked_page(), 401)
            return
        # a person may paste the whole link
        key = given.strip().rpartition("key=")[2]
        try:
            token = await self._keys.exchange(key)
        except TooManyAttempts as exc:
            wait = (b"retry-after", b"%d" % (int(exc.wait) + 1))
            _show(http_request, plain_pages.locked_page(str(exc)), 429, wait)
            return
        if token is None:
            words = "This link was used already, or is too old."
            _show(http_request, plain_pages.locked_page(words), 401)
            return
        # TLS ends at the proxy; without one, `Secure` would make browsers drop the cookie
        is_secure = head.headers.get(b"x-forwarded-proto") == b"https"
        cookie = set_cookie(token, LIFE, is_secure=is_secure)
        _show(http_request, plain_pages.entered_page(), 200, cookie)

    async def _place(self, http_request: HttpRequest) -> None:
        await in_task(http_request)
        head = http_request.head
        place = head.path.rpartition(b"/")[2].decode()
        text = head.query.get("filter", [""])[0][:_LONGEST_FILTER]
        name = place if place in plain_pages.PLACES else "servers"
        _show(http_request, await plain_pages.place_page(self._control, name, text))

    def _file(self, http_request: HttpRequest) -> None:
        kind, data = self._files[http_request.head.path]
        http_request.respond(200, (data,), kind=kind, extra=safe())

    async def _events(self, http_request: HttpRequest) -> None:
        await in_task(http_request)
        # nothing is awaited between this check and the count in `pour`
        if self._feed.is_full:
            http_request.say(503, "too many pages are open", extra=safe((b"retry-after", b"5")))
            return
        http_request.stream(safe())
        await self._feed.pour(http_request.write)
        http_request.end()

    async def _ask(self, http_request: HttpRequest) -> None:
        await in_task(http_request)
        try:
            question = _question(http_request.body)
        except _UNREADABLE as exc:
            _say(http_request, ControlAnswer(error=f"unknown question: {exc}"), 400)
            return
        _say(http_request, await self._control.answer(question))

    async def _act(self, http_request: HttpRequest) -> None:
        await in_task(http_request)
        try:
            action = _action(http_request.body)
        except _UNREADABLE as exc:
            _say(http_request, ControlAnswer(error=f"unknown action: {exc}"), 400)
            return
        # nothing is awaited between this check and the entry in `run`
        if self._actions.is_full:
            words = "too many calls of pages are under way"
            _say(http_request, ControlAnswer(error=words, kind="unavailable"), 503)
            return
        http_request.stream(safe())
        await self._actions.run(http_request.head.admitted.principal, action, http_request.write)
        http_request.end()

    def _reply(self, http_request: HttpRequest) -> None:
        try:
            reply = _reply(http_request.body)
        except _UNREADABLE as exc:
            _say(http_request, ControlAnswer(error=f"unknown reply: {exc}"), 400)
            return
        is_taken = self._actions.reply(http_request.head.admitted.principal, reply)
        _say(http_request, is_taken)

    async def _leave(self, http_request: HttpRequest) -> None:
        await in_task(http_request)
        gone = set_cookie("", 0, is_secure=False)
        http_request.respond(200, (b"null",), kind=JSON, extra=safe(gone))
        # afterwards: revoking the token closes its connections
        await self._keys.leave(http_request.head.admitted.principal)


def _missing(http_request: HttpRequest) -> None:
    http_request.say(404, "there is no such page", extra=safe())


def _show(
    http_request: HttpRequest, page: Markup, status: int = 200, *extra: tuple[bytes, bytes]
) -> None:
    data = page.encode("utf-8", "replace")
    http_request.respond(status, (data,), kind=_HTML, extra=safe(*extra))


def _say(http_request: HttpRequest, answer: object, status: int = 200) -> None:
    http_request.respond(status, (_encode(answer),), kind=JSON, extra=safe())


def _static_files() -> dict[bytes, tuple[bytes, bytes]]:
    """Static files, by their address."""
    return {
        f"/console/static/{file.name}".encode(): (_KINDS[file.suffix], file.read_bytes())
        for file in sorted(plain_pages.STATIC.iterdir())
        if file.suffix in _KINDS
    }
