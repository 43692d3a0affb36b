"""A person's token, exchanged at the organisation's provider for one that a server accepts."""

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Literal, NamedTuple

import anyio
import msgspec
from yarl import URL

from multitap.config.models import HttpServer, OAuth, TokenExchange
from multitap.errors import RequestFailed
from multitap.http.client.messages import Headers, Response
from multitap.identity.access_tokens import ProviderDown, VerifiedToken
from multitap.identity.issuer import Issuer
from multitap.identity.people import Revocation
from multitap.identity.sign_in import ProviderTokens
from multitap.oauth.discovery import find_issuer
from multitap.oauth.endpoints import GuardedFetch
from multitap.oauth.errors import GrantRefused, LoginFailed
from multitap.oauth.grants import JWT_BEARER, TOKEN_EXCHANGE, Grant, TokenEndpoint, id_jag_form
from multitap.oauth.identity import configured_client
from multitap.wire.http_origin import Challenge

EARLY, SHORTEST = 60.0, 10.0
"""Seconds before its expiry from which on a token is not used, and for which it is in any case."""
_USUAL = 300.0  # seconds that a token is used whose expiry is not known
_MOST = 4  # tokens of one person at one server: each of their clients may have brought another
_MOST_PEOPLE = 10_000
_TYPE = "urn:ietf:params:oauth:token-type:"
_WITHDRAWN = frozenset({"invalid_grant", "invalid_token", "invalid_request"})
"""How providers refuse a subject token that is not valid any more (RFC 8693, 2.2.2)."""

Person = tuple[str, str]
"""Issuer and subject."""
SubjectKind = Literal["access_token", "id_token"]


class SubjectToken(NamedTuple):
    """What a person proved themselves with, in memory only."""

    token: str
    expires: float
    """Seconds since 1970."""

    def __repr__(self) -> str:
        return "<SubjectToken>"


class SubjectTokens:
    """The tokens that people came in with, so that the provider can exchange them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._tokens: dict[tuple[Person, SubjectKind], SubjectToken] = {}

    def note(self, person: Person, kind: SubjectKind, token: str, expires: float) -> None:
        """Remember a token, if it lasts longer than the one that is known."""
        latest = self._tokens.get((person, kind))
        if token and (
            latest is None or expires > latest.expires or latest.expires <= self._clock()
        ):
            self._tokens[person, kind] = SubjectToken(token, expires)
            if len(self._tokens) > _MOST_PEOPLE:
                del self._tokens[next(iter(self._tokens))]

    def __iter__(self) -> Iterator[tuple[tuple[Person, SubjectKind], SubjectToken]]:
        return iter([*self._tokens.items()])

    def find(self, person: Person, kind: SubjectKind) -> str | None:
        """A token that is valid now; None if the person has none."""
        latest = self._tokens.get((person, kind))
        return latest.token if latest is not None and latest.expires > self._clock() else None

    def forget(self, is_meant: Callable[[Person, str], bool]) -> None:
        """Forget tokens, by whose they are and what they are: they may no longer be used."""
        for key, latest in [*self._tokens.items()]:
            if is_meant(key[0], latest.token):
                del self._tokens[key]


class _Exchanged(NamedTuple):
    headers: Headers
    until: float


class ExchangedAccount:
    """One person's access to one server; see `Authorizer`.

    What it got is remembered by the token that it was exchanged for, and belongs to one server with
    one configuration: a changed one has another account.
    """

    def __init__(
        self,
        name: str,
        config: HttpServer,
        *,
        person: Person,
        subjects: SubjectTokens,
        issuer: Callable[[str], Issuer | None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.standing: Headers | None = None
        self._name = name
        self._config = config
        self._exchange = config.exchange or TokenExchange(provider="")
        self._person = person
        self._subjects = subjects
        self._issuer = issuer
        self._clock = clock
        self._exchanged: dict[bytes, _Exchanged] = {}
        self._turn = anyio.Lock()
        self.exchanges = 0
        """How often the provider was asked."""

    @property
    def ready(self) -> Headers | None:
        subject = self._subject
        return None if subject is None else self._remembered(subject)

    async def headers(self, method: str, url: URL) -> Headers:  # noqa: ARG002 - the protocol
        subject = self._subject
        if subject is None:
            raise RequestFailed(
                f"{self._name} is used with your own sign-in, which has ended: connect again",
                sent=False,
            )
        async with self._turn:  # calls at the same time share one exchange
            if (headers := self._remembered(subject)) is not None:
                return headers
            grant = await self._ask(subject)
            # a server may repeat it in an error, which clients and logs get to see
            self._config.redact.learn([grant.access_token])
            now = self._clock()
            until = (grant.expires_at or now + _USUAL) - EARLY
            headers = {"Authorization": f"Bearer {grant.access_token}"}
            if len(self._exchanged) >= _MOST:
                del self._exchanged[next(iter(self._exchanged))]
            # or the provider would be asked for each call if its tokens last only a minute
            self._exchanged[_digest(subject)] = _Exchanged(headers, max(until, now + SHORTEST))
            return headers

    async def answer(
        self,
        challenge: Challenge,
        method: str,
        url: URL,
        *,
        waits: bool,  # noqa: ARG002 - as above
    ) -> Headers:
        """Exchange again, once: the server may have forgotten the token."""
        subject = self._subject
        remembered = None if subject is None else self._remembered(subject)
        if subject is not None and remembered is not None:
            # another call has got a new one since this one was sent
            if remembered.get("Authorization") != challenge.authorization:
                return remembered
            self._exchanged.pop(_digest(subject), None)
            headers = await self.headers(method, url)
            if headers.get("Authorization") != challenge.authorization:
                return headers
        raise RequestFailed(
            f"{self._name} does not accept the token that {self._exchange.provider} gives for you",
            sent=True,
        )

    def forget(self) -> None:
        """Forget the tokens that it got."""
        self._exchanged.clear()

    def on_response(self, response: Response) -> None:
        """Nothing to learn from it."""

    @property
    def _subject(self) -> str | None:
        is_id = self._exchange.subject == "id_token"
        return self._subjects.find(self._person, "id_token" if is_id else "access_token")

    def _remembered(self, subject: str) -> Headers | None:
        exchanged = self._exchanged.get(_digest(subject))
        return exchanged.headers if exchanged and exchanged.until > self._clock() else None

    async def _ask(self, subject: str) -> Grant:
        name = self._exchange.provider
        if (issuer := self._issuer(name)) is None:
            raise RequestFailed(f"there is no identity provider named {name!r}", sent=False)
        if issuer.provider.issuer != self._person[0]:  # a token of one is not for another to see
            raise RequestFailed(
                f"{self._name} is used with a sign-in at {name}, and yours is at another provider",
                sent=False,
            )
        self.exchanges += 1
        try:
            return await _KINDS[self._exchange.kind](self._exchange, issuer, subject, self._config)
        except (LoginFailed, ProviderDown) as exc:
            if isinstance(exc, GrantRefused) and exc.error in _WITHDRAWN:
                # another of their sign-ins may be valid, and is noted with their next request
                self._subjects.forget(lambda _, token: token == subject)
            reason = self._config.redact(str(exc))
            raise RequestFailed(
                f"{name} gives no token for {self._name}: {reason}", sent=False
            ) from None


class Exchanges:
    """Everybody's access to servers that take exchanged tokens."""

    def __init__(self, issuer: Callable[[str], Issuer | None]) -> None:
        self.subjects = SubjectTokens()
        self._issuer = issuer
        self._accounts: dict[tuple[Person, str, bytes], ExchangedAccount] = {}

    def account(self, person: Person, server: str, config: HttpServer) -> ExchangedAccount:
        """One person's access to one server; with another configuration, it is another one."""
        issuer = self._issuer(config.exchange.provider) if config.exchange is not None else None
        # everything that decides which token there is, and for whom
        version = msgspec.json.encode(
            (config.url, config.exchange, config.oauth, issuer and issuer.provider), enc_hook=str
        )
        key = (person, server, _digest(version.decode()))
        if (account := self._accounts.get(key)) is None:
            if len(self._accounts) >= _MOST_PEOPLE:
                del self._accounts[next(iter(self._accounts))]
            account = self._accounts[key] = ExchangedAccount(
                server, config, person=person, subjects=self.subjects, issuer=self._issuer
            )
        return account

    def forget(self, person: Person) -> None:
        """Forget what a person came in with, and what it was exchanged for."""
        self._drop(lambda whose, _: whose == person)

    def apply(self, entries: Iterable[Revocation]) -> None:
        """Forget what people brought who were revoked or logged out since."""
        for entry in entries:
            if entry.kind != "restored":
                self._drop(partial(_concerns, entry))

    def end(self, person: Person, tokens: ProviderTokens) -> None:
        """Forget what belongs to a sign-in that has ended."""
        ended = {tokens.access_token, tokens.id_token}
        self._drop(lambda whose, token: whose == person and token in ended)

    def _drop(self, is_meant: Callable[[Person, str], bool]) -> None:
        people = {whose for (whose, _), held in self.subjects if is_meant(whose, held.token)}
        # what they brought may be gone already, and what it was exchanged for not yet
        people |= {whose for whose, _, _ in self._accounts if is_meant(whose, "")}
        self.subjects.forget(is_meant)
        for key in [key for key in self._accounts if key[0] in people]:
            # links may still hold it
            self._accounts.pop(key).forget()

    def note(self, token: VerifiedToken, bearer: str) -> None:
        """Remember what a person came in with."""
        if not token.is_machine:
            person = (token.issuer, token.subject)
            self.subjects.note(person, "access_token", bearer, token.expires)

    def note_sign_in(self, person: Person, tokens: ProviderTokens, signed_in_until: float) -> None:
        """Remember the provider's tokens of a person who came in with one of ours."""
        expires = tokens.expires_at or signed_in_until
        self.subjects.note(person, "access_token", tokens.access_token, expires)
        self.subjects.note(person, "id_token", tokens.id_token or "", expires)


async def _exchange_token(
    exchange: TokenExchange, issuer: Issuer, subject: str, config: HttpServer
) -> Grant:
    """RFC 8693."""
    del config
    form = {
        "grant_type": TOKEN_EXCHANGE,
        "subject_token": subject,
        "subject_token_type": _TYPE + exchange.subject,
        "requested_token_type": f"{_TYPE}access_token",
    }
    # never one that we make up: a provider answers `invalid_target`, or worse, issues a token
    target = {
        "audience": exchange.audience,
        "resource": exchange.resource,
        "scope": exchange.scope,
    }
    form |= {name: value for name, value in target.items() if value}
    endpoint, address = await issuer.token_endpoint()
    return await endpoint.grant(address, form)


async def _act_on_behalf(
    exchange: TokenExchange, issuer: Issuer, subject: str, config: HttpServer
) -> Grant:
    """Entra's on-behalf-of flow, which is not RFC 8693."""
    del config
    form = {
        "grant_type": JWT_BEARER,
        "assertion": subject,
        "requested_token_use": "on_behalf_of",
        "scope": exchange.scope or "",
    }
    endpoint, address = await issuer.token_endpoint()
    return await endpoint.grant(address, form)


async def _assert_identity(
    exchange: TokenExchange, issuer: Issuer, subject: str, config: HttpServer
) -> Grant:
    """Both legs of ID-JAG: an assertion of the provider, then a token of the server's issuer."""
    audience = exchange.audience or ""
    endpoint, address = await issuer.token_endpoint()
    form = id_jag_form(subject, audience, resource=exchange.resource, scope=exchange.scope)
    assertion = await endpoint.assertion(address, form)
    # from the configuration: a server could name any issuer, and get our assertion sent there
    there = GuardedFetch(audience)
    metadata = await find_issuer(there, audience)
    client = configured_client(config.oauth or OAuth(), metadata)
    if client is None:
        raise LoginFailed("`oauth.client_id` is needed: our client at the issuer of the server")
    form = {"grant_type": JWT_BEARER, "assertion": assertion}
    if exchange.scope:
        form["scope"] = exchange.scope
    return await TokenEndpoint(there, metadata.issuer, client).grant(metadata.token_endpoint, form)


_Ask = Callable[[TokenExchange, Issuer, str, HttpServer], Awaitable[Grant]]
_KINDS: Mapping[str, _Ask] = {
    "token-exchange": _exchange_token,
    "on-behalf-of": _act_on_behalf,
    "id-jag": _assert_identity,
}


def _concerns(entry: Revocation, person: Person, token: str) -> bool:
    """Whether a decision about people or tokens concerns what somebody brought."""
    if entry.kind == "token":
        return _digest(token).hex() == entry.digest
    # a logout may name only a session; a person who is still here brings their token again
    return entry.issuer == person[0] and entry.subject in {person[1], ""} and not entry.client


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
