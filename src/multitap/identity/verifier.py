"""Decides about the tokens of identity providers, and remembers the decisions."""

import hashlib
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import Protocol

import msgspec

from multitap.config.access import AccessSettings
from multitap.config.documents import is_list, is_table
from multitap.errors import MultitapError
from multitap.identity.access_tokens import Jwt, TokenRefused, VerifiedToken, is_jwt, read_jwt
from multitap.identity.issuer import Issuer
from multitap.identity.people import (
    People,
    PersonRecord,
    Revocation,
    Revocations,
    concerns,
    described,
    in_force,
)
from multitap.identity.rights import Rights, rights_of
from multitap.limits import Rate, RateLimit
from multitap.principal import Person, Principal, external_principal

logger = logging.getLogger(__name__)

OWN_REMEMBERED = 2.0
"""Seconds for which a decision about a token of our own holds: looking it up is cheap, and a stolen
one is to be useless at once."""
REMEMBERED = 60.0
"""Seconds for which a decision holds: a token that its provider withdrew is refused by then."""
MOST_REMEMBERED = 10_000
"""Decisions that are kept; each is made again when it is needed."""
_REFUSED = 10.0  # seconds for which the provider is not asked about a refused opaque token again
_MOST_NAMES = 100_000  # a provider may give each token another session
_MOST_SHARING = 100  # clients of one session at a provider
_UNKNOWN = "the token is unknown, expired or revoked"
_LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
_LOGOUT_WINDOW = 300.0  # seconds: an older logout token is a copy


class OwnTokens(Protocol):
    """Verifies the tokens that we issued ourselves, for people of a provider."""

    def owns(self, token: str) -> bool:
        """Whether a token looks like one of ours."""
        ...

    async def verify(self, token: str, audiences: Collection[str]) -> VerifiedToken:
        """The holder of a token; raises `TokenRefused`."""
        ...


class NotAdmitted(Exception):
    """A valid token to which no rule applies."""


class TokenDecision(msgspec.Struct, frozen=True):
    """What a token gives its holder."""

    token: VerifiedToken
    rights: Rights
    principal: Principal
    rate: RateLimit | None
    digest: bytes
    until: float
    """When it has to be decided again, in seconds since the epoch."""


class Verifier:
    """Decides about tokens by the settings, the providers, and the decisions of people.

    Args:
        ages: Seconds since any moment, for the age of fetched keys.
    """

    def __init__(
        self,
        access: AccessSettings,
        people: People | None = None,
        *,
        clock: Callable[[], float] = time.time,
        ages: Callable[[], float] = time.monotonic,
    ) -> None:
        self.access = access
        self.people = people or People()
        self._clock = clock
        self.issuers = {
            provider.issuer: Issuer(name, provider, ages) for name, provider in access.oidc.items()
        }
        self._opaque = [issuer for issuer in self.issuers.values() if issuer.takes_opaque]
        self.public_url = ""
        """The URL of the gateway: values in `audiences` that are below it are for one resource."""
        self._remembered: dict[tuple[bytes, bytes], TokenDecision] = {}
        self._refused: dict[tuple[bytes, bytes], tuple[float, TokenRefused]] = {}
        """Opaque tokens that a resource does not accept, until when, and why."""
        self._rates: dict[str, tuple[str, RateLimit]] = {}
        self._sessions: dict[tuple[str, str], dict[str, Person | None]] = {}
        """Who has which session at a provider, for a logout that names only the session: the keys
        of principals, several clients may share one, with their people."""
        self._seen: dict[str, PersonRecord] = {}
        self._stamp: tuple[int, int, int] | None = (0, 0, 0)
        self.elsewhere: frozenset[Revocation] = frozenset()
        """The decisions of other replicas of a cluster."""
        self.revocations = Revocations()
        self._applied: frozenset[Revocation] = frozenset()
        self.earliest = math.inf
        """When the first of the decisions that were handed out since the last look ends."""
        self.on_token: Callable[[VerifiedToken, str], None] | None = None
        """Called with each token of a provider that is admitted, so that it can be exchanged."""
        self.on_revoked: Callable[[frozenset[Revocation]], None] | None = None
        """Called with new decisions, so that nothing is kept of those whom they concern."""
        self.own: OwnTokens | None = None
        """Our own authorization server, if there is one."""
        self.refresh()

    def take_over(self, before: "Verifier") -> None:
        """Go on with what is known under earlier settings, as far as these do not differ."""
        self.elsewhere = before.elsewhere
        # rates stay partly used, and a logout that names only a session still finds its people
        self._sessions, self._seen, self._rates = before._sessions, before._seen, before._rates  # noqa: SLF001 - of our own kind
        for url, issuer in before.issuers.items():
            # its keys: the provider may be away just now
            mine = self.issuers.get(url)
            if mine is not None and (mine.name, mine.provider) == (issuer.name, issuer.provider):
                self.issuers[url] = issuer
        self._opaque = [issuer for issuer in self.issuers.values() if issuer.takes_opaque]
        self.revocations = Revocations(self.revocations.entries | self.elsewhere)
        # what was decided since `before` looked is still to be applied: `refresh` returns it
        self._applied = before._applied  # noqa: SLF001 - as above

    def remembered(self, bearer: bytes, resource: bytes) -> TokenDecision | None:
        """The decision about a token at a resource, if there is a recent one."""
        decision = self._remembered.get((hashlib.sha256(bearer).digest(), resource))
        if decision is None or self._clock() >= decision.until:
            return None
        self.earliest = min(self.earliest, decision.until)
        return decision

    def has_ended(self) -> bool:
        """Whether a decision that was handed out has ended since the last look."""
        if self._clock() < self.earliest:
            return False
        # connections remember whom they admitted: the caller has to make them ask again
        self.earliest = math.inf
        return True

    def decide_now(
        self, bearer: bytes, resource: bytes, audiences: Collection[str]
    ) -> TokenDecision | None:
        """Decide without waiting for anybody; None if a provider has to be asked.

        Raises:
            TokenRefused: The token is not valid.
            NotAdmitted: No rule applies.
        """
        if (decision := self.remembered(bearer, resource)) is not None:
            return decision
        token = _text(bearer)
        if self.own is not None and self.own.owns(token):
            return None  # its record has to be read, from a file or the coordinator
        if not is_jwt(token):
            refused = self._refused.get((hashlib.sha256(bearer).digest(), resource))
            if refused is not None and refused[0] > self._clock():
                raise refused[1].with_traceback(None)  # or each time would add its frames to it
            if not self._opaque:
                raise TokenRefused(_UNKNOWN)
            return None
        jwt = read_jwt(token)
        issuer = self._issuer(jwt)
        accepted = self._accepted(issuer, audiences)
        verified = issuer.verify_now(token, jwt, accepted, self._clock())
        return None if verified is None else self._decide(bearer, resource, verified)

    async def decide(
        self, bearer: bytes, resource: bytes, audiences: Collection[str]
    ) -> TokenDecision:
        """Decide, and ask the token's provider if necessary.

        Raises:
            TokenRefused: The token is not valid.
            NotAdmitted: No rule applies.
            ProviderDown: Its provider cannot be asked.
        """
        if (decision := self.decide_now(bearer, resource, audiences)) is not None:
            return decision
        try:
            verified = await self.verify(_text(bearer), audiences)
        except TokenRefused as exc:
            self._refuse(bearer, resource, exc)
            raise
        return self._decide(bearer, resource, verified)

    async def verify(self, token: str, audiences: Collection[str]) -> VerifiedToken:
        """What its provider says about the holder of a token.

        Raises:
            TokenRefused: The token is not valid.
            ProviderDown: Its provider cannot be asked.
        """
        now = self._clock()
        if self.own is not None and self.own.owns(token):
            return await self.own.verify(token, audiences)
        if is_jwt(token):
            jwt = read_jwt(token)
            issuer = self._issuer(jwt)
            return await issuer.verify(token, jwt, self._accepted(issuer, audiences), now)
        if not self._opaque:
            raise TokenRefused(_UNKNOWN)
        issuer = self._opaque[0]  # the only one: such a token does not say whose it is
        return await issuer.introspect(token, self._accepted(issuer, audiences), now)

    def refresh(self) -> frozenset[Revocation] | None:
        """Apply new decisions; returns those that are new, or None."""
        stamp = self.people.stamp()
        if stamp != self._stamp:
            try:
                self.revocations = self.people.revocations()
                self._stamp = stamp
            except (MultitapError, OSError) as exc:  # the known ones stay in force
                logger.warning("keeping the previous revocations: %s", exc)
        everything = in_force(self.revocations.entries | self.elsewhere, self._clock())
        new = everything - self._applied
        if everything == self._applied:
            return None
        self._applied = everything
        self.revocations = Revocations(everything)
        self._remembered.clear()
        if self.on_revoked is not None:
            self.on_revoked(new)
        return new

    def concerns(self, entries: Iterable[Revocation], principal: Principal) -> bool:
        """Whether one of these decisions ends what a principal has open."""
        return any(concerns(entry, principal, self._sessions) for entry in entries)

    def people_of(self, entries: Iterable[Revocation]) -> set[Person]:
        """The people whom these decisions are about, also those who have nothing open here."""
        people = set[Person]()
        for entry in entries:
            if entry.kind in {"restored", "token"}:
                continue
            if entry.subject:
                people.add(Person(entry.issuer, entry.subject))
            elif entry.session:
                sessions = self._sessions.get((entry.issuer, entry.session), {})
                people.update(person for person in sessions.values() if person is not None)
        return people

    async def log_out(self, name: str, token: str) -> Revocation:
        """The decision that a provider's logout token asks for.

        Args:
            token: The logout token (OpenID Connect Back-Channel Logout).

        Raises:
            TokenRefused: It is not valid.
            ProviderDown: Its key cannot be fetched now.
        """
        issuer = next((it for it in self.issuers.values() if it.name == name), None)
        if issuer is None or issuer.provider.client_id is None:
            raise TokenRefused("there is no such provider, or it has no `client_id`")
        jwt = read_jwt(token)
        claims, provider, now = jwt.claims, issuer.provider, self._clock()
        named = claims.get("aud")
        audiences: list[object] = named if is_list(named) else [named]
        events = claims.get("events")
        # a logout token should have the type `logout+jwt`; older providers write `JWT`, or none
        if (
            str(jwt.header.get("typ", "logout+jwt")).lower() not in {"logout+jwt", "jwt"}
            or claims.get("iss") != provider.issuer
            or provider.client_id not in audiences
            or not is_table(events)
            or _LOGOUT_EVENT not in events
            or "nonce" in claims  # forbidden in one, so that no ID token can pass for it
        ):
            raise TokenRefused("this is not a logout token for us")
        issued, ends = claims.get("iat"), claims.get("exp", now + 1)
        if not isinstance(issued, int | float) or abs(now - issued) > _LOGOUT_WINDOW:
            raise TokenRefused("the logout token is too old")
        if not isinstance(ends, int | float) or now > ends + provider.leeway:
            raise TokenRefused("the logout token has expired")
        subject, session = claims.get("sub"), claims.get("sid")
        subject = subject if isinstance(subject, str) else ""
        session = session if isinstance(session, str) else ""
        if not subject and not session:
            raise TokenRefused("the logout token names nobody")
        # last: only what could be a logout token may cause a fetch of keys
        await issuer.check_signed(token, jwt)
        return Revocation(
            kind="logout",
            at=float(issued),
            issuer=provider.issuer,
            subject=subject,
            # with both, all of the person's sessions end: many access tokens do not name theirs
            session="" if subject else session,
        )

    async def renew_keys(self) -> None:
        """Fetch keys again that are no longer fresh, so that no request has to wait for it."""
        for issuer in self.issuers.values():
            if issuer.keys.is_stale and issuer.keys.fetches:
                try:
                    await issuer.keys.renew()
                except Exception as exc:  # noqa: BLE001 - boundary: the old keys stay in use
                    logger.debug("the keys of %s are not renewed: %s", issuer.name, exc)

    def take_seen(self) -> list[PersonRecord]:
        """The people who were here since the last time."""
        seen, self._seen = self._seen, {}
        return [*seen.values()]

    def _accepted(self, issuer: Issuer, audiences: Collection[str]) -> frozenset[str]:
        """The audiences of one provider's tokens: what another is told to issue does not count."""
        listed = issuer.provider.audiences
        # a token for one profile opens no other, whatever the provider is told to issue
        elsewhere = [text for text in listed if not text.startswith(f"{self.public_url}/")]
        return frozenset({*audiences, *(elsewhere if self.public_url else listed)})

    def _refuse(self, bearer: bytes, resource: bytes, exc: TokenRefused) -> None:
        """Remember that a provider refuses an opaque token, so that it is not asked each time."""
        token = _text(bearer)
        if is_jwt(token) or (self.own is not None and self.own.owns(token)):
            return
        if len(self._refused) >= MOST_REMEMBERED:
            self._refused.clear()
        key = (hashlib.sha256(bearer).digest(), resource)
        self._refused[key] = (self._clock() + _REFUSED, exc.with_traceback(None))

    def _issuer(self, jwt: Jwt) -> Issuer:
        name = jwt.claims.get("iss")
        issuer = self.issuers.get(name) if isinstance(name, str) else None
        if issuer is None:
            raise TokenRefused("the token is from an unknown issuer")
        return issuer

    @cached_property
    def rules_mark(self) -> str:
        """Differs after every change of the rules."""
        return hashlib.sha256(msgspec.json.encode(self.access.rules)).hexdigest()[:16]

    def rights(self, token: VerifiedToken, digest: str = "") -> Rights:
        """What the holder of a valid token may do now.

        Raises:
            TokenRefused: Nothing any more.
            NotAdmitted: No rule applies.
        """
        if (reason := self.revocations.refusal(token, digest)) is not None:
            raise TokenRefused(reason)
        rights = rights_of(self.access, token)
        if rights is None:
            raise NotAdmitted(_nobody(token))
        return rights

    def _decide(self, bearer: bytes, resource: bytes, token: VerifiedToken) -> TokenDecision:
        digest, now = hashlib.sha256(bearer).digest(), self._clock()
        rights = self.rights(token, digest.hex())
        principal = external_principal(
            token.issuer,
            token.subject,
            token.client,
            is_machine=token.is_machine,
            rules=rights.rules,
        )
        leeway = self.issuers[token.issuer].provider.leeway
        is_own = self.own is not None and self.own.owns(_text(bearer))
        life = OWN_REMEMBERED if is_own else REMEMBERED
        decision = TokenDecision(
            token,
            rights,
            principal,
            self._rate(principal.key, rights.rate),
            digest,
            min(token.expires + leeway, now + life),
        )
        self._remember(resource, decision)
        # a token of ours is nothing to the provider; `on_sign_in` passes on those behind it
        if self.on_token is not None and not is_own:
            self.on_token(token, _text(bearer))
        return decision

    def _remember(self, resource: bytes, decision: TokenDecision) -> None:
        token, principal = decision.token, decision.principal
        if len(self._remembered) >= MOST_REMEMBERED:
            now = self._clock()
            self._remembered = {
                key: recent for key, recent in self._remembered.items() if recent.until > now
            }
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
        self._remembered[decision.digest, resource] = decision
        self.earliest = min(self.earliest, decision.until)
        if token.session:
            if len(self._sessions) >= _MOST_NAMES:
                self._sessions.clear()
            sharing = self._sessions.setdefault((token.issuer, token.session), {})
            if len(sharing) < _MOST_SHARING:
                sharing[principal.key] = principal.person
        claims = {name for rule in self.access.rules for name in rule.claims}
        person = described(token, decision.rights.rules, claims)
        self._seen[principal.key] = person

    def _rate(self, key: str, rate: str | None) -> RateLimit | None:
        """The limit of a principal, which all its tokens share."""
        if rate is None:
            return None
        written, limit = self._rates.get(key, ("", None))
        if limit is None or written != rate:
            if len(self._rates) >= _MOST_NAMES:
                self._rates.clear()
            limit = RateLimit(Rate.parse(rate))
            self._rates[key] = (rate, limit)
        return limit


def _text(bearer: bytes) -> str:
    try:
        return bearer.decode("ascii")
    except UnicodeDecodeError:
        raise TokenRefused("this is not a token") from None


def _nobody(token: VerifiedToken) -> str:
    who = repr(token.subject or token.client)
    return (
        f"no access rule applies to {who} of {token.provider}: "
        "ask the administrator of this gateway; `multitap access explain` shows the rules"
    )
