"""Our login at one server: the headers that authorize requests, renewed in time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from yarl import URL

from multitap.config.models import HttpServer, OAuth
from multitap.errors import AuthRequired, MultitapError, RequestFailed, WireFault
from multitap.http.client.messages import Headers, Response
from multitap.http.client.route import same_origin
from multitap.oauth.discovery import parameters, same_issuer
from multitap.oauth.endpoints import GRANT_TIMEOUT
from multitap.oauth.errors import GrantRefused, LoginFailed, clean
from multitap.oauth.storage import Login, LoginStorage
from multitap.redaction import Redactor
from multitap.tasks import Tasks
from multitap.trust.stored_logins import StoredLogin, TokenStoreError
from multitap.wire.http_origin import Challenge

if TYPE_CHECKING:
    from multitap.oauth.flow import LoginFlow
    from multitap.oauth.identity import ProofKey

logger = logging.getLogger(__name__)

REDIRECT = "http://127.0.0.1:{port}/callback"
PORT = 8414
"""The default port of the redirect URI for logins that a host's handler performs."""
LOGIN_TIMEOUT = 600.0
"""Seconds that a person has to log in."""

_FINISH = 10.0  # seconds for a renewal in progress at the end
_EARLY, _EARLY_PART = 30.0, 0.1
"""Seconds before its expiry that a token is renewed, at most this part of its lifetime."""
_NONE: Headers = {}

Work = Callable[..., Coroutine[Any, Any, None]]
Agree = Callable[[StoredLogin, StoredLogin | None], Awaitable[None]]
"""Raises `LoginFailed` unless a person lets credentials be sent to a new place; with it comes the
place that they were sent to before, if any."""


class Credentials:
    """One login in use, replaced by the next one; `redact` learns what must not be repeated."""

    def __init__(self, redact: Redactor) -> None:
        self.login: StoredLogin | None = None
        self.proof_key: ProofKey | None = None
        self.renew_at: float | None = None
        """When to renew the token, by the system's clock; None if its expiry is unknown."""
        self._redact = redact
        self._nonce: str | None = None
        self._headers: Headers | None = _NONE
        """The headers for all requests; None if each needs a proof of its own."""

    @property
    def token(self) -> str | None:
        return token_of(self.login)

    @property
    def refresh_token(self) -> str | None:
        secrets = self.login.secrets if self.login else None
        return secrets.refresh_token if secrets else None

    @property
    def shared_headers(self) -> Headers | None:
        """The headers for any request; None if each needs a proof of its own."""
        return self._headers

    @property
    def is_due(self) -> bool:
        return self.renew_at is not None and time.time() >= self.renew_at

    @property
    def is_expired(self) -> bool:
        secrets = self.login.secrets if self.login else None
        return secrets is None or time.time() >= (secrets.expires_at or 0.0)

    def use(self, login: StoredLogin | None) -> None:
        """Use a login from now on; None if there is none."""
        self.login = login
        self._headers, self.proof_key, self.renew_at = _NONE, None, None
        if login is None or (secrets := login.secrets) is None:
            return
        self._redact.learn(_secrets_of(login))
        if secrets.proof_key is not None:
            # few tokens are bound to a key, and cryptography is slow to import
            from multitap.oauth.identity import ProofKey  # noqa: PLC0415

            self.proof_key, self._headers = ProofKey(secrets.proof_key), None
        else:
            self._headers = {"Authorization": f"Bearer {secrets.access_token}"}
        if secrets.expires_at is not None:
            left = max(secrets.expires_at - time.time(), 0.0)
            self.renew_at = secrets.expires_at - min(_EARLY, left * _EARLY_PART)

    def headers_for(self, method: str, url: URL) -> Headers:
        """The headers for one request."""
        if self._headers is not None or self.proof_key is None:
            return self._headers or _NONE
        token = self.token or ""
        proof = self.proof_key.proof(method, url, nonce=self._nonce, token=token)
        return {"Authorization": f"DPoP {token}", "DPoP": proof}

    def note_nonce(self, nonce: str | None) -> bool:
        """Use a nonce in the next proof; returns whether proofs are in use."""
        if self.proof_key is None or not nonce:
            return False
        self._nonce = nonce
        return True

    def is_newer(self, challenge: Challenge) -> bool:
        """Whether the current token is newer than the refused one."""
        refused = (challenge.authorization or "").partition(" ")[2]
        return self.token not in {None, refused}


def token_of(login: StoredLogin | None) -> str | None:
    """The access token of a login, if it has one."""
    return login.secrets.access_token if login and login.secrets else None


def _secrets_of(login: StoredLogin) -> Iterator[str]:
    """The secrets of a login."""
    if (secrets := login.secrets) is not None:
        yield secrets.access_token
        yield secrets.refresh_token or ""
        yield secrets.client_secret or ""


class CredentialPlace:
    """The issuer and token endpoint that get a program's secret, key or statement.

    The server names the issuer, and a compromised server may name another one. So the first issuer
    is stored like a login, and only a person can change it, unless the configuration has one.
    """

    def __init__(self, name: str, config: HttpServer, storage: LoginStorage) -> None:
        self.first: StoredLogin | None = None
        """The stored place, as of the last `reload`."""
        self._name = name
        self._config = config
        self._stored_as = config.login_name(name)
        self._storage = storage
        self._is_configured = (config.oauth or OAuth()).issuer is not None

    async def reload(self) -> bool:
        """Read the store again; returns whether the place has changed.

        Raises:
            TokenStoreError: The store cannot be used.
        """
        if self._is_configured:
            return False  # a person's word; and its own metadata name its token endpoint
        before = self.first
        self.first = await self._storage.find(self._stored_as, self._config.url, before)
        return self.first != before

    async def check(self, place: StoredLogin) -> None:
        """Check a place before it gets anything; the first one is stored.

        Raises:
            AuthRequired: It is another one.
            TokenStoreError: The first one cannot be stored.
        """
        if self._is_configured:
            return
        if self.first is None:
            async with self._storage.renewing(self._stored_as, self._config.url):
                await self.reload()  # another process may have been first
                if self.first is None:
                    # before it gets anything: else each attempt could name another place
                    self.first = await self._storage.add(place)
        if not same_place(self.first, place):
            change = describe_change(self.first, place)
            message = self._config.redact(f"cannot log in: {change}")
            await self._storage.note_failure(self._stored_as, message)
            hint = f"if that is right, run `multitap login {self._name}`"
            raise AuthRequired(message, hint=hint)

    async def ask_about(self, agree: Agree, place: StoredLogin) -> None:
        """Let a person decide about a new place, and store it.

        Raises:
            LoginFailed: They do not agree.
            TokenStoreError: It cannot be stored.
        """
        if self.first is None or not same_place(self.first, place):
            await agree(place, self.first)
            self.first = await self._storage.add(place)


def same_place(stored: StoredLogin, other: StoredLogin) -> bool:
    """Whether what is secret goes to the same issuer, and to a token endpoint of one origin."""
    if not same_issuer(stored.issuer, other.issuer):
        return False
    return same_origin(URL(stored.token_endpoint), URL(other.token_endpoint))


def describe_change(stored: StoredLogin, other: StoredLogin) -> str:
    """What is new about where a login is asked for."""
    if not same_issuer(stored.issuer, other.issuer):
        return (
            f"it wants a login at {clean(other.issuer)}, and its credentials were given for "
            f"{clean(stored.issuer)}"
        )
    return (
        f"{clean(stored.issuer)} wants credentials sent to {clean(other.token_endpoint)}, and they "
        f"were given for {clean(stored.token_endpoint)}"
    )


class SharedWork:
    """Renewals and logins in progress, by kind, which callers share.

    `tasks` runs them, even if all waiting callers are cancelled.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._under_way: dict[str, asyncio.Future[WireFault | None]] = {}

    async def wait(self, kind: str, work: Work, *args: object) -> None:
        """Start the work, or join it, and wait for its end.

        Raises:
            WireFault: It failed.
        """
        # shielded: a cancelled caller must not cancel the others
        fault = await asyncio.shield(self.begin(kind, work, *args))
        if fault is not None:
            # several callers raise the same object: it would collect the tracebacks of all
            raise fault.with_traceback(None)

    def begin(self, kind: str, work: Work, *args: object) -> asyncio.Future[WireFault | None]:
        """Start the work, unless it is running; returns a future with its error or None."""
        under_way = self._under_way.get(kind)
        if under_way is None:
            under_way = asyncio.get_running_loop().create_future()
            self._under_way[kind] = under_way
            self._tasks.start_soon(self._finish, kind, under_way, work, args)
        return under_way

    async def _finish(
        self,
        kind: str,
        under_way: asyncio.Future[WireFault | None],
        work: Work,
        args: tuple[object, ...],
    ) -> None:
        fault: WireFault | None = RequestFailed("the login was cancelled", sent=False)
        try:
            fault = await _outcome(work(*args))
        finally:
            del self._under_way[kind]
            if not under_way.done():
                under_way.set_result(fault)


async def _outcome(work: Coroutine[Any, Any, None]) -> WireFault | None:
    """The outcome of the work, as an error that can be raised more than once."""
    try:
        await work
    except WireFault as exc:
        return exc
    except OSError as exc:
        return RequestFailed(f"cannot log in: {exc.strerror or exc}", sent=False)
    except MultitapError as exc:
        return AuthRequired(str(exc), hint=exc.hint)
    except Exception as exc:
        logger.exception("a login failed")
        return AuthRequired(f"cannot log in: {type(exc).__name__}")
    return None


class Account:
    """See `Authorizer`; outlives a wire, so that a login stays when the server comes back.

    `tasks` runs renewals and logins, which may outlive their callers. `login` sends a person to the
    authorization server; None if there is none. `on_change` is called when a login without a
    waiting caller succeeded or failed.
    """

    def __init__(
        self,
        name: str,
        config: HttpServer,
        *,
        storage: LoginStorage,
        tasks: Tasks,
        login: Login | None = None,
        on_change: Callable[[Account], None] = lambda _: None,
    ) -> None:
        self.name = name
        self._stored_as = config.login_name(name)
        self.config = config
        self.settings = config.oauth or OAuth()
        self.is_machine = self.settings.grant != "authorization_code"
        """Whether a program logs in by itself, and nobody is asked to."""
        self.challenge = ""
        """The last `WWW-Authenticate` header of the server."""
        self._storage = storage
        self._work = SharedWork(tasks)
        self._login = login
        self._on_change = on_change
        self._now = Credentials(config.redact)
        self._is_loaded = False
        self.standing: Headers | None = None
        self._dead: str | None = None
        """A refused refresh token, which is not tried again."""
        self._refusal: str | None = None
        """Why the last login failed; nobody is asked again until `forgive`."""
        self._requested_scope: str | None = None
        """The last requested scope."""
        self.refreshes: Counter[str] = Counter()
        """How often the login was renewed without a person: `ok` and `failed`."""
        self._place = CredentialPlace(name, config, storage)

    @property
    def is_logged_in(self) -> bool:
        return self._now.token is not None

    @property
    def changed_at(self) -> float:
        """When the login was granted or renewed, by the system's clock; 0 without one."""
        return 0.0 if self._now.login is None else self._now.login.changed_at

    @property
    def ready(self) -> Headers | None:
        """The headers of the next request, if they are known without waiting."""
        return None if not self._is_loaded or self._is_due() else self._now.shared_headers

    async def headers(self, method: str, url: URL) -> Headers:
        """The headers that authorize a request.

        Raises:
            WireFault: They cannot be obtained now.
        """
        if not self._is_loaded:
            await self._load()
        if self._is_due():
            try:
                await self._work.wait("renew", self._renew, self._now.token)
            except WireFault:
                if self._now.is_expired:
                    raise
        return self._now.headers_for(method, url)

    async def answer(self, challenge: Challenge, method: str, url: URL, *, waits: bool) -> Headers:
        """The headers that authorize a refused request, which may wait for a person (`waits`).

        Raises:
            AuthRequired: Somebody has to log in.
            RequestFailed: An authorization server cannot be reached now.
        """
        self.challenge = challenge.header
        if self._now.note_nonce(challenge.nonce) and challenge.wants_nonce:
            return self._now.headers_for(method, url)
        if not self._now.is_newer(challenge):
            await self._load()  # another process may have logged in
        if not self._now.is_newer(challenge):
            await self._meet(challenge, waits=waits)
        return self._now.headers_for(method, url)

    def on_response(self, response: Response) -> None:
        """Remember the nonce of a response for the next proof."""
        self._now.note_nonce(response.header("DPoP-Nonce"))

    async def reload(self) -> bool:
        """Read the store again; returns whether the login has changed."""
        if self.is_machine:
            return await self._place.reload()
        before = self._now.login
        await self._load()
        if self._now.login != before:
            self._refusal = None
        return self._now.token != token_of(before)

    def forgive(self) -> None:
        """Allow a person to be asked again."""
        self._refusal = None

    async def log_in(
        self, login: Login, redirect: str, challenge: str | None, scope: str | None = None
    ) -> StoredLogin:
        """Let a person log in, and keep the result.

        Raises:
            LoginFailed: The login failed; an earlier one is kept.
            RequestFailed: A server cannot be reached now.
        """
        if not self._is_loaded:
            await self._load()
        self._requested_scope = scope
        try:
            granted = await self._flow(self._now.login).by_person(
                partial(login, self.name),
                server=self._stored_as,
                redirect=redirect,
                challenge=challenge,
                scope=scope,
            )
        except (LoginFailed, MultitapError) as exc:
            await self._storage.note_failure(self._stored_as, self.config.redact(str(exc)))
            raise
        stored = await self._storage.add(granted)
        self._use(stored)
        self._refusal = None
        self._on_change(self)
        return stored

    async def log_in_alone(self, challenge: str | None, agree: Agree) -> StoredLogin:
        """Log in without a person, who only agrees to where.

        Raises:
            LoginFailed: The login failed, or the person does not agree.
            RequestFailed: A server cannot be reached now.
        """
        await self._place.reload()
        check = partial(self._place.ask_about, agree)
        login = await self._flow(self._place.first).by_machine(self._stored_as, challenge, check)
        self._use(login)
        return login

    async def _meet(self, challenge: Challenge, *, waits: bool) -> None:
        if self.is_machine:
            await self._work.wait("grant", self._grant, challenge.header)
            return
        if challenge.status == HTTPStatus.UNAUTHORIZED and self._can_renew():
            await self._work.wait("renew", self._renew, self._now.token)
            return
        scope = _scope_to_request(self.settings, challenge, self._now.login)
        needs_more = challenge.status == HTTPStatus.FORBIDDEN
        if self._login is None or self._refusal is not None:
            raise self._needs_login(challenge, scope if needs_more else None)
        if needs_more and scope == self._requested_scope:
            raise AuthRequired(
                "it wants rights that a login does not give", challenge=challenge.header
            )
        login = (self._send_person, self._login, challenge.header, scope)
        if not waits:
            self._work.begin("login", *login)
            raise AuthRequired("waiting for a login", hint=_hint(self.name))
        await self._work.wait("login", *login)

    async def _send_person(self, login: Login, challenge: str, scope: str | None) -> None:
        redirect = self.settings.redirect_uri or REDIRECT.format(
            port=self.settings.callback_port or PORT
        )
        try:
            with anyio.fail_after(LOGIN_TIMEOUT):
                await self.log_in(login, redirect, challenge, scope)
        except TimeoutError:
            self._refusal = f"nobody logged in within {LOGIN_TIMEOUT / 60:g} minutes"
        except (LoginFailed, MultitapError) as exc:
            self._refusal = f"cannot log in: {self.config.redact(str(exc))}"
        except Exception as exc:  # noqa: BLE001 - boundary: the host's own code
            self._refusal = f"cannot log in: {type(exc).__name__}"
        if self._refusal is not None:
            self._on_change(self)
            raise AuthRequired(self._refusal, hint=_hint(self.name))

    async def _renew(self, before: str | None) -> None:
        """Renew the tokens, unless they are no longer those with the access token `before`.

        One of all processes does it, the others use its result.
        """
        with anyio.CancelScope() as scope:
            async with self._storage.renewing(self._stored_as, self.config.url) as permit:
                # checked again: it may have been renewed while we waited
                await self._load()
                if self._now.token != before or not self._can_renew():
                    return
                # this process may have been suspended: another replica may have renewed it
                if not permit.is_valid:
                    raise RequestFailed("another replica may renew the login now", sent=False)
                # from here on the old token is used up: the new one must be stored
                scope.shield = True
                with anyio.move_on_after(GRANT_TIMEOUT + _FINISH, shield=True):
                    await self._renew_alone(self._now.login)

    async def _renew_alone(self, login: StoredLogin | None) -> None:
        if login is None or login.secrets is None:
            return
        try:
            with self._counting():
                renewed = await self._flow(login).renew(login, self._now.proof_key)
        except GrantRefused as exc:
            self._dead = login.secrets.refresh_token
            if exc.error == "invalid_client" and login.registered:
                # the authorization server forgot us: the next login registers again
                forgotten = msgspec.structs.replace(login, registered=False)
                await self._storage.save(forgotten)
            message = f"the login has ended ({self.config.redact(str(exc))})"
            raise AuthRequired(message, hint=_hint(self.name)) from None
        except LoginFailed as exc:
            raise AuthRequired(self.config.redact(str(exc)), hint=_hint(self.name)) from None
        self._use(await self._storage.save(renewed))

    async def _grant(self, challenge: str) -> None:
        """Log in without a person; of the result, only the place is stored."""
        try:
            await self._place.reload()
            flow = self._flow(self._place.first)
            with self._counting():
                login = await flow.by_machine(self._stored_as, challenge, self._place.check)
            self._use(login)
        except LoginFailed as exc:
            message = f"cannot log in: {self.config.redact(str(exc))}"
            raise AuthRequired(message, hint="correct `oauth` in its configuration") from None
        except TokenStoreError as exc:
            hint = "set `oauth.issuer`, the authorization server that may get its credentials"
            raise AuthRequired(f"cannot log in: {exc}", hint=exc.hint or hint) from None

    @contextmanager
    def _counting(self) -> Generator[None]:
        outcome = "failed"
        try:
            yield
            outcome = "ok"
        finally:
            self.refreshes[outcome] += 1

    def _flow(self, before: StoredLogin | None) -> LoginFlow:
        # most servers need no login, and cryptography is slow to import
        from multitap.oauth.flow import LoginFlow  # noqa: PLC0415

        return LoginFlow(self.config, self.settings, before)

    async def _load(self) -> None:
        if self.is_machine:  # its tokens are in memory only
            if not self._is_loaded:
                self._use(None)
            return
        try:
            login = await self._storage.find(self._stored_as, self.config.url, self._now.login)
        except MultitapError as exc:
            raise AuthRequired(str(exc), hint=exc.hint) from None
        current = self._now.login
        # read before another caller renewed it: its refresh token is used up
        if login is not None and current is not None and login.changed_at < current.changed_at:
            return
        if not self._is_loaded or login != current:
            self._use(login)

    def _use(self, login: StoredLogin | None) -> None:
        self._is_loaded = True
        self._now.use(login)
        lasts = self._now.renew_at is None
        self.standing = self._now.shared_headers if lasts else None

    def _is_due(self) -> bool:
        return self._now.is_due and self._can_renew()

    def _can_renew(self) -> bool:
        return not self.is_machine and self._now.refresh_token not in {None, self._dead}

    def _needs_login(self, challenge: Challenge, scope: str | None) -> AuthRequired:
        message = self._refusal or ("it wants more rights" if scope else "it wants a login")
        hint = _hint(self.name, scope)
        if not parameters(challenge.header).get("resource_metadata"):
            hint += ", or set its credentials in `headers`"
        return AuthRequired(message, challenge=challenge.header, hint=hint)


def _scope_to_request(
    settings: OAuth, challenge: Challenge, login: StoredLogin | None
) -> str | None:
    """The scope to ask for: the configured one, or what is needed besides what was granted."""
    needed = parameters(challenge.header).get("scope")
    # 403 asks for more rights than we have (step-up); any other refusal for a login as such
    if challenge.status != HTTPStatus.FORBIDDEN:
        return settings.scope or needed
    granted = (login.scope if login else "") or settings.scope or ""
    return " ".join(dict.fromkeys([*granted.split(), *(needed or "").split()])) or None


def _hint(server: str, scope: str | None = None) -> str:
    more = f' --scope "{scope}"' if scope else ""
    return f"run `multitap login {server}{more}`"
