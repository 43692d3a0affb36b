"""Where people sign in with a browser, and connect their own accounts at servers.

A browser is somebody only by its session: a sealed cookie that names the person who signed in here.
Links, forms and redirects are compared with that person, so that a link that was forwarded, edited
or replayed connects nothing for anybody else.
"""

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, quote, urlsplit

import anyio
import anyio.to_thread
import msgspec

from multitap.catalog.audience import Audience
from multitap.config import HttpServer, ServerConfig
from multitap.config.access import ToolGrant
from multitap.errors import MultitapError
from multitap.gateway.fronts import account_pages as pages
from multitap.gateway.fronts.account_logins import NOT_BEGUN, AccountLogins
from multitap.gateway.fronts.account_pages import AccountRow
from multitap.gateway.fronts.browser_sessions import (
    BrowserSession,
    BrowserSessions,
    SignInProvider,
    Visitor,
)
from multitap.gateway.gateway import Gateway
from multitap.http.server.pages import HtmlPages, is_form
from multitap.http.server.request import HttpRequest, Rejected, RequestHead, ToDo
from multitap.hub.people import Members
from multitap.limits import Rate, RateLimit
from multitap.principal import Person, Principal
from multitap.trust.personal_vault import keys_of

if TYPE_CHECKING:
    from multitap.gateway.fronts.http import HttpFront

ATTEMPTS = "10/min"
"""Wrong tokens; they cannot be guessed, but there is no reason to allow attempts."""
_LARGEST = 64 * 1024  # bytes of a form
_PAGE_TIMEOUT = 30.0  # seconds until an authorization server has described itself
_LONGEST_KEY = 16 * 1024
_PAGES = HtmlPages("style-src 'self'")
_OWN_PATH = re.compile(
    r"/(?:accounts|console)(?:/[\w/-]{0,100})?(?:\?for=[\w%-]{0,2000})?", re.ASCII
)
_OWN_SITES = frozenset({b"", b"none", b"same-origin"})

Admit = Callable[[bytes], Principal | None]
"""Whose token it is; None if it is nobody's."""


class AccountPages:
    """Answers requests below `/accounts`.

    Args:
        base: The URL of the gateway as people see it, without `/mcp`.
        admit: Whose token a person typed.
    """

    def __init__(
        self,
        gateway: Gateway,
        base: str,
        admit: Admit,
        *,
        is_valid: Callable[[Visitor], bool] = lambda _: True,
        providers: Callable[[], Mapping[str, SignInProvider]] = dict,
        shows: Callable[[Visitor, str], bool] = lambda _visitor, _server: True,
    ) -> None:
        self._gateway = gateway
        self.base = base.rstrip("/")
        gateway.connections.links.base = self.base
        self._admit = admit
        self.sessions = BrowserSessions(
            gateway.connections.links.page_key,
            is_secure=self.base.startswith("https://"),
            is_valid=is_valid,
        )
        self._providers = providers
        self._shows = shows
        self._logins = AccountLogins(gateway)
        self._wrong = RateLimit(Rate.parse(ATTEMPTS))
        self._handlers: Mapping[tuple[bytes, bytes], Callable[[HttpRequest], ToDo]] = {
            (b"GET", b"/accounts"): self._overview,
            (b"GET", b"/accounts/style.css"): self._style,
            (b"GET", b"/accounts/connect"): self._open_link,
            (b"GET", b"/accounts/callback"): self._finish_login,
            (b"GET", b"/accounts/sign-in"): self._begin_sign_in,
            (b"GET", b"/accounts/signed-in"): self._finish_sign_in,
            (b"POST", b"/accounts/sign-in"): self._sign_in,
            (b"POST", b"/accounts/sign-out"): self._sign_out,
            (b"POST", b"/accounts/connect"): self._connect,
            (b"POST", b"/accounts/keys"): self._store_keys,
            (b"POST", b"/accounts/disconnect"): self._disconnect,
        }

    def admit(self, head: RequestHead) -> Rejected | None:
        """Decide about a request by its head, and who answers it."""
        handler = self._handlers.get((head.method, head.path))
        if handler is None:
            return Rejected(404, "there is no such page", _PAGES.safe)
        if head.length > _LARGEST:
            return Rejected(413, f"a form has at most {_LARGEST} bytes", _PAGES.safe)
        if head.method == b"POST" and not self._is_own(head.headers):
            return Rejected(403, "pages of other sites may not use this form", _PAGES.safe)
        head.keeps_body = head.method == b"POST"
        head.handler = handler
        head.edition = None  # sessions begin and end: nothing is remembered
        return None

    def _is_own(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a form can only have been sent by one of our pages."""
        site = headers.get(b"sec-fetch-site", b"").lower()
        origin = headers.get(b"origin", b"").lower()
        place = urlsplit(self.base)
        own = f"{place.scheme}://{place.netloc}".lower().encode()
        # without a referrer, browsers name no origin for a form, but they say that it is ours
        return site in _OWN_SITES and (origin == own or site == b"same-origin")

    def sign_in_pages(self, then: str) -> Sequence[tuple[str, str]]:
        """Where people sign in to see a page: the names of providers, and addresses."""
        return [
            (provider.label, f"/accounts/sign-in?with={quote(name)}&then={quote(then, safe='')}")
            for name, provider in self._providers().items()
        ]

    def admin_of(self, head: RequestHead) -> BrowserSession | None:
        """The session of a request whose person may run the gateway."""
        session = self.sessions.find(head)
        return session if session is not None and session.visitor.is_admin else None

    @property
    def _people(self) -> Members:
        people = self._gateway.hub.people
        if people is None:
            raise MultitapError("people have no accounts here")
        return people

    def _ask_to_sign_in(
        self, http_request: HttpRequest, then: str, reason: str = "", status: int = 401
    ) -> None:
        # there is no session yet that a form could be bound to; `_is_own` guards this one
        page = pages.sign_in("", then, self.sign_in_pages(then), reason)
        _PAGES.show(http_request, page, status)

    async def _sign_in(self, http_request: HttpRequest) -> None:
        form = _form_of(http_request)
        then = _own_path(form.get("then", ""))
        principal = self._admit(form.get("token", "").strip().encode("latin-1", "replace"))
        cookie = None if principal is None else self.sessions.begin(Visitor(principal))
        if cookie is not None:
            _PAGES.redirect(http_request, then, cookie)
        # only wrong ones are counted: guesses keep nobody with a token out
        elif wait := self._wrong.take(time.monotonic()):
            self._ask_to_sign_in(http_request, then, f"Too many attempts: wait {wait:.0f} s", 429)
        else:
            self._ask_to_sign_in(http_request, then, "This token is unknown, expired or revoked.")

    async def _begin_sign_in(self, http_request: HttpRequest) -> None:
        query = http_request.head.query
        name, then = query.get("with", [""])[0], _own_path(query.get("then", [""])[0])
        provider = self._providers().get(name)
        if provider is None:
            self._ask_to_sign_in(http_request, then)
            return
        try:
            with anyio.fail_after(_PAGE_TIMEOUT):
                address, pending = await provider.begin(self._signed_in)
        except (MultitapError, TimeoutError) as exc:
            self._ask_to_sign_in(http_request, then, f"{provider.label}: {exc}", 502)
            return
        # the same browser has to come back: a session that somebody else began is not taken over
        mine = self.sessions.begin_sign_in(msgspec.structs.replace(pending, then=then))
        _PAGES.show(http_request, pages.forward(address, provider.label), 200, mine)

    @property
    def _signed_in(self) -> str:
        return f"{self.base}/accounts/signed-in"

    async def _finish_sign_in(self, http_request: HttpRequest) -> None:
        head = http_request.head
        answer = {name: values[0] for name, values in head.query.items()}
        pending = self.sessions.find_sign_in(head, answer.get("state", ""))
        provider = None if pending is None else self._providers().get(pending.provider)
        if pending is None or provider is None:
            self._ask_to_sign_in(http_request, "/accounts", "This sign-in was not begun here.", 400)
            return
        then = _own_path(pending.then)
        try:
            with anyio.fail_after(_PAGE_TIMEOUT):
                visitor = await provider.finish(self._signed_in, pending, answer)
        except (MultitapError, TimeoutError) as exc:
            self._ask_to_sign_in(http_request, then, f"{provider.label}: {exc}", 403)
            return
        cookie = self.sessions.begin(visitor)
        if cookie is None:
            self._ask_to_sign_in(http_request, then, "Only people have accounts here.", 403)
        else:
            _PAGES.redirect(http_request, then, cookie, self.sessions.end_sign_in(pending))

    async def _sign_out(self, http_request: HttpRequest) -> None:
        if self._is_guarded(http_request, _form_of(http_request)):
            _PAGES.redirect(http_request, "/accounts", self.sessions.end())

    def _is_guarded(
        self, http_request: HttpRequest, form: Mapping[str, str]
    ) -> BrowserSession | None:
        """The session of a form that one of our pages made for it; else answers the request."""
        session = self.sessions.find(http_request.head)
        if session is None:
            self._ask_to_sign_in(http_request, "/accounts")
        elif not secrets.compare_digest(form.get("csrf", "").encode(), session.csrf.encode()):
            _PAGES.show(http_request, pages.message("Not done", "This form is out of date."), 403)
            return None
        return session

    async def _overview(self, http_request: HttpRequest) -> None:
        session = self.sessions.find(http_request.head)
        if session is None:
            self._ask_to_sign_in(http_request, "/accounts", status=200)
            return
        rows = [
            await self._row(session.person, server, config.description or "")
            for server, config in self._servers(session).items()
        ]
        page = pages.overview(
            session.csrf, str(session.person), rows, is_admin=session.visitor.is_admin
        )
        _PAGES.show(http_request, page)

    def _servers(self, session: BrowserSession) -> Mapping[str, ServerConfig]:
        """The servers at which a person may have an account: those that they may see."""
        return {
            server: config
            for server, config in self._people.servers.items()
            if self._shows(session.visitor, server)
        }

    async def _row(self, person: Person, server: str, description: str) -> AccountRow:
        stored = await self._people.of(person).account(server)
        link = self._people.link(person, server)
        if stored is None:
            return AccountRow(server, description, is_connected=False, state="not connected")
        place = f"at {urlsplit(stored.issuer).hostname}" if stored.issuer else "with your key"
        failure = None if link is None or link.session is not None else link.failure
        state = f"connected {place}" if failure is None else f"does not work: {failure.message}"
        return AccountRow(server, description, is_connected=True, state=state)

    async def _open_link(self, http_request: HttpRequest) -> None:
        """The page behind a link: nothing happens before its own person has agreed."""
        ticket = http_request.head.query.get("for", [""])[0]
        target = self._gateway.connections.links.read(ticket)
        if target is None:
            text = "This link is too old, or was changed. Call the tool again to get a new one."
            _PAGES.show(http_request, pages.message("Not connected", text), 410)
            return
        session = self.sessions.find(http_request.head)
        if session is None:
            path = f"/accounts/connect?for={quote(ticket, safe='')}"
            self._ask_to_sign_in(http_request, path, status=200)
            return
        person, server = target
        if person != session.person:
            await self._refuse_other(http_request, session.person, server)
            return
        config = self._servers(session).get(server)
        if config is None:
            _PAGES.show(http_request, pages.no_server(), 404)
        elif names := keys_of(config):
            _PAGES.show(http_request, pages.keys(session.csrf, server, str(person), names))
        else:
            place = urlsplit(config.url).hostname if isinstance(config, HttpServer) else server
            page = pages.consent(session.csrf, server, str(person), place or server, ticket)
            _PAGES.show(http_request, page)

    async def _refuse_other(self, http_request: HttpRequest, person: Person, server: str) -> None:
        reason = "the link was for somebody else"
        note = partial(self._people.vault.note, "account.refused", person, server, reason)
        await anyio.to_thread.run_sync(partial(note, allow=False))
        text = "This link was made for somebody else. Nothing was connected."
        more = "If somebody sent it to you, tell the person who runs this gateway."
        _PAGES.show(http_request, pages.message("Not for you", text, more), 403)

    async def _connect(self, http_request: HttpRequest) -> None:
        form = _form_of(http_request)
        if (session := self._is_guarded(http_request, form)) is None:
            return
        server, person = form.get("server", ""), session.person
        # a form that came from a link is for the person and server of that link
        if ticket := form.get("for"):
            target = self._gateway.connections.links.read(ticket)
            if target != (person, server):
                await self._refuse_other(http_request, person, server)
                return
        config = self._servers(session).get(server)
        if config is None:
            _PAGES.show(http_request, pages.no_server(), 404)
        elif names := keys_of(config):
            _PAGES.show(http_request, pages.keys(session.csrf, server, str(person), names))
        elif not isinstance(config, HttpServer):
            _PAGES.show(http_request, pages.message(server, "This server needs no account."))
        else:
            await self._begin_login(http_request, person, server)

    async def _begin_login(self, http_request: HttpRequest, person: Person, server: str) -> None:
        login = await self._logins.begin(person, server, f"{self.base}/accounts/callback")
        if isinstance(login, str):
            _PAGES.show(http_request, pages.message("Not connected", login), 502)
            return
        place = urlsplit(login.page).hostname or server
        # the browser may come back to another replica
        mine = self.sessions.begin_login(login.state, login.replica)
        _PAGES.show(http_request, pages.forward(login.page, place), 200, mine)

    async def _finish_login(self, http_request: HttpRequest) -> None:
        """The redirect from an authorization server: it counts only in the browser that left."""
        head = http_request.head
        state = head.query.get("state", [""])[0]
        session = self.sessions.find(head)
        if session is None:
            _PAGES.show(http_request, pages.message("Not connected", NOT_BEGUN), 400)
            return
        address = f"{self.base}{head.url.decode('latin-1')}"
        replica = self.sessions.find_login(head, state)
        outcome = await self._logins.finish(state, address, session.person, replica)
        if outcome.is_foreign:
            await self._refuse_other(http_request, session.person, outcome.server)
        elif outcome.reason is None:
            text = f"Your account is connected with {outcome.server}. You can close this page."
            _PAGES.show(http_request, pages.message("Connected", text))
        else:
            _PAGES.show(http_request, pages.message("Not connected", outcome.reason), 400)

    async def _store_keys(self, http_request: HttpRequest) -> None:
        form = _form_of(http_request)
        if (session := self._is_guarded(http_request, form)) is None:
            return
        server = form.get("server", "")
        config = self._servers(session).get(server)
        names: Sequence[str] = () if config is None else keys_of(config)
        values = {name: form.get(f"key-{name}", "").strip() for name in names}
        if not values or not all(0 < len(value) <= _LONGEST_KEY for value in values.values()):
            page = pages.keys(session.csrf, server, str(session.person), names, "A key is missing.")
            _PAGES.show(http_request, page, 400)
            return
        await self._people.of(session.person).connect_keys(server, values)
        text = f"Your key is stored for {server}. You can close this page."
        _PAGES.show(http_request, pages.message("Connected", text))

    async def _disconnect(self, http_request: HttpRequest) -> None:
        form = _form_of(http_request)
        if (session := self._is_guarded(http_request, form)) is None:
            return
        server = form.get("server", "")
        if server in self._people.servers:
            await self._people.of(session.person).disconnect(server)
        _PAGES.redirect(http_request, "/accounts")

    async def _style(self, http_request: HttpRequest) -> None:
        headers = _PAGES.headers()
        http_request.respond(200, (pages.STYLE,), kind=b"text/css; charset=utf-8", extra=headers)


def open_accounts(front: "HttpFront", base: str) -> None:
    """Let people sign in and connect their accounts; `base` is the gateway's URL to them."""
    access, resources = front.access, front.resource_server

    def find(secret: bytes) -> Principal | None:
        admitted = access.find_token(secret)
        return None if admitted is None else admitted.principal

    # `resources.verifier` is read each time: changed settings replace it
    def is_valid(visitor: Visitor) -> bool:
        principal = visitor.principal
        if resources is None or principal.issuer not in resources.verifier.issuers:
            return access.is_active(principal.key)
        revocations, issuer = resources.verifier.revocations, principal.issuer
        return (
            visitor.rules_mark == resources.verifier.rules_mark
            and not revocations.is_blocked(issuer, principal.subject, principal.client)
            and not revocations.has_logged_out(
                issuer, principal.subject, visitor.session, visitor.issued
            )
        )

    def providers() -> Mapping[str, SignInProvider]:
        if resources is None:
            return {}
        from multitap.gateway.fronts.provider_sign_in import sign_in_providers  # noqa: PLC0415 - few have providers

        return sign_in_providers(resources)

    def shows(visitor: Visitor, server: str) -> bool:
        principal, profiles = visitor.principal, front.gateway.hub.settings.profiles
        if resources is None or principal.issuer not in resources.verifier.issuers:
            return access.audience_of(principal.key).limits(profiles).has(server)
        # the session names the rules that applied; if one of them changes, it is not valid any more
        rules = [rule for rule in resources.verifier.access.rules if rule.name in principal.rules]
        grants = tuple(ToolGrant(rule.profile, rule.granted) for rule in rules if rule.granted)
        deny = tuple(glob for rule in rules for glob in rule.deny)
        return Audience.of(grants=grants, deny=deny).limits(profiles).has(server)

    front.accounts = AccountPages(
        front.gateway, base, find, is_valid=is_valid, providers=providers, shows=shows
    )


def _form_of(http_request: HttpRequest) -> dict[str, str]:
    if not is_form(http_request.head):
        return {}
    try:
        values = parse_qs(http_request.body.decode("utf-8", "replace"), max_num_fields=64)
    except ValueError:
        return {}
    return {name: texts[0] for name, texts in values.items()}


def _own_path(path: str) -> str:
    """A path of ours to go on to; anything else is the overview, not a stranger's page."""
    # it becomes a header: with a line break in it, a link could set a cookie
    return path if _OWN_PATH.fullmatch(path) else "/accounts"
