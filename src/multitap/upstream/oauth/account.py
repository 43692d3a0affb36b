"""Our login at one server: the headers that authorize requests, renewed in time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import anyio
import msgspec
from yarl import URL

from multitap.config import HttpServer, OAuth
from multitap.errors import MultitapError
from multitap.faults import AuthRequired, RequestFailed, WireFault
from multitap.http.client.headers import Headers
from multitap.http.client.response import Response
from multitap.later import Later
from multitap.tasks import Tasks
from multitap.trust.secrets.token_store import StoredLogin, TokenStoreError
from multitap.upstream.handlers import Login, RequestOrigin
from multitap.upstream.oauth.challenge_words import parameters
from multitap.upstream.oauth.credential_place import Agree, CredentialPlace
from multitap.upstream.oauth.credentials import Credentials, token_of
from multitap.upstream.oauth.login_storage import LoginStorage
from multitap.upstream.oauth.oauth_errors import GrantRefused, LoginFailed
from multitap.upstream.oauth.shared_work import SharedWork
from multitap.wire.streamable.http_origin import Challenge

if TYPE_CHECKING:
    from multitap.upstream.oauth import login_flow
else:
    # imported for a login: most servers need none, and cryptography is slow to import
    login_flow = Later("multitap.upstream.oauth.login_flow")

REDIRECT = "http://127.0.0.1:{port}/callback"
PORT = 8414
"""The default port of the redirect URI for logins that a host's handler performs."""
LOGIN_TIMEOUT = 600.0
"""Seconds that a person has to log in."""

_FINISH = 10.0  # seconds for a renewal in progress at the end


class Account:
    """See `Authorizer`; outlives a wire, so that a login stays when the server comes back.

    Args:
        name: The server's configured name.
        config: Its URL and OAuth settings.
        storage: Stores logins.
        tasks: Runs renewals and logins, which may outlive their callers.
        login: Sends a person to the authorization server; None if there is none.
        on_change: Called when a login without a waiting caller succeeded or failed.
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
        self.known = config.oauth or OAuth()
        self.is_machine = self.known.grant != "authorization_code"
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
        self._asked: str | None = None
        """The last requested scope."""
        self._place = CredentialPlace(name, config, storage)

    @property
    def is_logged_in(self) -> bool:
        return self._now.token is not None

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
                await self._work.wait("renew", self._renew)
            except WireFault:
                if self._now.is_expired:
                    raise
        return self._now.headers_for(method, url)

    async def answer(self, challenge: Challenge, method: str, url: URL, *, waits: bool) -> Headers:
        """The headers that authorize a refused request.

        Args:
            challenge: How.
            method: The request's method.
            url: Its URL.
            waits: Whether it may wait for a person.

        Raises:
            AuthRequired: Somebody has to log in.
            RequestFailed: An authorization server cannot be reached now.
        """
        self.challenge = challenge.words
        if self._now.note_nonce(challenge.nonce) and challenge.wants_nonce:
            return self._now.headers_for(method, url)
        if not self._now.is_newer(challenge):
            await self._load()  # another process may have logged in
        if not self._now.is_newer(challenge):
            await self._meet(challenge, waits=waits)
        return self._now.headers_for(method, url)

    def heard(self, response: Response) -> None:
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
        flow = login_flow.LoginFlow(self.config, self.known, self._now.login)
        self._asked = scope
        try:
            kept = await flow.by_person(
                lambda address: login(RequestOrigin(self.name), address),
                server=self._stored_as,
                redirect=redirect,
                challenge=challenge,
                scope=scope,
            )
        except (LoginFailed, MultitapError) as exc:
            words = self.config.redact(str(exc))
            await self._storage.note_failure(self._stored_as, words)
            raise
        kept = await self._storage.add(kept)
        self._use(kept)
        self._refusal = None
        self._on_change(self)
        return kept

    async def log_in_alone(self, challenge: str | None, agree: Agree) -> StoredLogin:
        """Log in without a person, who only agrees to where.

        Raises:
            LoginFailed: The login failed, or the person does not agree.
            RequestFailed: A server cannot be reached now.
        """
        await self._place.reload()
        flow = login_flow.LoginFlow(self.config, self.known, self._place.first)
        check = partial(self._place.ask_about, agree)
        login = await flow.by_machine(self._stored_as, challenge, check)
        self._use(login)
        return login

    async def _meet(self, challenge: Challenge, *, waits: bool) -> None:
        if self.is_machine:
            await self._work.wait("grant", self._grant, challenge.words)
            return
        if challenge.status == HTTPStatus.UNAUTHORIZED and self._can_renew():
            await self._work.wait("renew", self._renew)
            return
        scope = login_flow.wanted_scope(self.known, challenge, self._now.login)
        needs_more = challenge.status == HTTPStatus.FORBIDDEN
        if self._login is None or self._refusal is not None:
            raise self._needs_login(challenge, scope if needs_more else None)
        if needs_more and scope == self._asked:
            raise AuthRequired(
                "it wants rights that a login does not give", challenge=challenge.words
            )
        login = (self._send_person, self._login, challenge.words, scope)
        if not waits:
            self._work.begin("login", *login)
            raise AuthRequired("waiting for a login", hint=_hint(self.name))
        await self._work.wait("login", *login)

    async def _send_person(self, login: Login, challenge: str, scope: str | None) -> None:
        redirect = self.known.redirect_uri or REDIRECT.format(port=self.known.callback_port or PORT)
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

    async def _renew(self) -> None:
        """Renew the tokens; one of all processes does it, the others use its result."""
        before = self._now.token
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
                with anyio.move_on_after(login_flow.RENEWAL_TIMEOUT + _FINISH, shield=True):
                    await self._renew_alone(self._now.login)

    async def _renew_alone(self, kept: StoredLogin | None) -> None:
        if kept is None or kept.secrets is None:
            return
        try:
            flow = login_flow.LoginFlow(self.config, self.known, kept)
            renewed = await flow.renew(kept, self._now.proof_key)
        except GrantRefused as exc:
            self._dead = kept.secrets.refresh_token
            if exc.error == "invalid_client" and kept.registered:
                # the authorization server forgot us: the next login registers again
                forgotten = msgspec.structs.replace(kept, registered=False)
                await self._storage.save(forgotten)
            words = f"the login has ended ({self.config.redact(str(exc))})"
            raise AuthRequired(words, hint=_hint(self.name)) from None
        except LoginFailed as exc:
            raise AuthRequired(self.config.redact(str(exc)), hint=_hint(self.name)) from None
        self._use(await self._storage.save(renewed))

    async def _grant(self, challenge: str) -> None:
        """Log in without a person; of the result, only the place is stored."""
        try:
            await self._place.reload()
            flow = login_flow.LoginFlow(self.config, self.known, self._place.first)
            self._use(await flow.by_machine(self._stored_as, challenge, self._place.check))
        except LoginFailed as exc:
            words = f"cannot log in: {self.config.redact(str(exc))}"
            raise AuthRequired(words, hint="correct `oauth` in its configuration") from None
        except TokenStoreError as exc:
            hint = "set `oauth.issuer`, the authorization server that may get its credentials"
            raise AuthRequired(f"cannot log in: {exc}", hint=exc.hint or hint) from None

    async def _load(self) -> None:
        if self.is_machine:  # its tokens are in memory only
            if not self._is_loaded:
                self._use(None)
            return
        try:
            kept = await self._storage.find(self._stored_as, self.config.url, self._now.login)
        except MultitapError as exc:
            raise AuthRequired(str(exc), hint=exc.hint) from None
        if not self._is_loaded or kept != self._now.login:
            self._use(kept)

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
        words = self._refusal or ("it wants more rights" if scope else "it wants a login")
        hint = _hint(self.name, scope)
        if not parameters(challenge.words).get("resource_metadata"):
            hint += ", or set its credentials in `headers`"
        return AuthRequired(words, challenge=challenge.words, hint=hint)


def _hint(server: str, scope: str | None = None) -> str:
    more = f' --scope "{scope}"' if scope else ""
    return f"run `multitap login {server}{more}`"
