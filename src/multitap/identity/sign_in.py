"""The sign-in of a person at the organisation's provider (OpenID Connect)."""

import hmac
import secrets
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import msgspec

from multitap.config.documents import is_list
from multitap.errors import RequestFailed
from multitap.identity.access_tokens import ProviderDown, TokenRefused, check_times, read_jwt
from multitap.identity.issuer import Issuer
from multitap.oauth.discovery import IssuerMetadata
from multitap.oauth.endpoints import GuardedFetch
from multitap.oauth.errors import GrantRefused, LoginFailed, clean
from multitap.oauth.grants import Grant, challenge_of

# bytes of what a provider says about a person: it is part of the record that each request reads
_LARGEST = 64 * 1024
PROTOCOL_CLAIMS = frozenset(
    {"iss", "aud", "exp", "iat", "nbf", "nonce", "at_hash", "c_hash", "s_hash", "jti", "azp",
     "auth_time", "typ", "scope", "scp", "client_id", "token_use", "cnf"}
)  # fmt: skip
"""Claims that are about a token, not about a person."""
_SESSION = ("sid",)
_LASTING = "offline_access"
_PASSING = frozenset({"server_error", "temporarily_unavailable"})
_ABOUT_PEOPLE = frozenset(
    {"invalid_grant", "access_denied", "login_required", "interaction_required",
     "consent_required", "account_selection_required"}
)  # fmt: skip
"""Errors of a token endpoint that concern the person; all others are nobody's fault, or ours."""
_NOTHING: Mapping[str, object] = {}


class ProviderTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of the person at the provider, which no client sees."""

    access_token: str = ""
    refresh_token: str | None = None
    id_token: str | None = None
    expires_at: float | None = None

    def __repr__(self) -> str:
        return "<ProviderTokens>"


class SignInAttempt(msgspec.Struct, frozen=True):
    """What has to be remembered while a person is at the provider."""

    nonce: str
    verifier: str
    redirect: str
    """Where the provider sends the person back to."""

    def __repr__(self) -> str:
        return "<SignInAttempt>"


def new_attempt(redirect: str) -> SignInAttempt:
    """A new attempt to sign in."""
    return SignInAttempt(secrets.token_urlsafe(32), secrets.token_urlsafe(64), redirect)


class SignInRefused(Exception):
    """The provider, or what it says, does not let this person in; the message says why."""


class ProviderAnswered(SignInRefused):
    """The provider itself sent the person back without a code.

    Args:
        error: The error for the client: whether it is worth another try.
    """

    def __init__(self, message: str, error: str) -> None:
        super().__init__(message)
        self.error = error


class SignedIn(msgspec.Struct, frozen=True):
    """A person as the provider describes them."""

    subject: str
    claims: Mapping[str, Any]
    tokens: ProviderTokens


class ProviderSignIn:
    """Sends people to one provider, and reads what comes back.

    Args:
        lasts: Whether it is asked again later, without the person: `offline_access` is added where
            the provider offers it.
        resource: What the access token is to be for; by default, what the provider likes.

    Raises:
        SignInRefused: From every method: the person is not let in.
        ProviderDown: The provider does not answer.
    """

    def __init__(
        self,
        issuer: Issuer,
        scopes: Sequence[str] = ("openid", "profile", "email"),
        *,
        lasts: bool = True,
        resource: str | None = None,
    ) -> None:
        self.issuer = issuer
        self._scopes = scopes
        self._lasts = lasts
        self._resource = resource
        self._fetch = GuardedFetch(issuer.provider.issuer)

    async def page(self, attempt: SignInAttempt, state: str) -> str:
        """The page on which a person signs in."""
        metadata = await self.issuer.discover()
        if metadata.authorization_endpoint is None:
            raise ProviderDown(f"{self.issuer.name} has no page to sign in")
        scopes = [*self._scopes]
        query = {
            "response_type": "code",
            "client_id": self.issuer.provider.client_id or "",
            "redirect_uri": attempt.redirect,
            "state": state,
            "nonce": attempt.nonce,
            "code_challenge": challenge_of(attempt.verifier),
            "code_challenge_method": "S256",
        }
        if self._resource is not None:
            query["resource"] = self._resource
        is_offered = _LASTING in (metadata.scopes_supported or ())
        if self._lasts and is_offered and _LASTING not in scopes:
            scopes.append(_LASTING)
        if _LASTING in scopes:
            query["prompt"] = "consent"  # OpenID Connect gives no refresh token without
        # people enter passwords there, so the address has to pass the same rules as what we fetch
        address = self._fetch.rules.check(metadata.authorization_endpoint)
        mark = "&" if address.query_string else "?"
        return f"{address}{mark}{urlencode({**query, 'scope': ' '.join(scopes)})}"

    async def finish(self, attempt: SignInAttempt, answer: Mapping[str, str]) -> SignedIn:
        """Who has signed in, from what the browser brings back."""
        metadata = await self.issuer.discover()
        grant, claims = await self.redeem(attempt, answer)
        if not claims:
            raise SignInRefused(f"{self.issuer.name} does not say who signed in")
        return await self._describe(metadata, _tokens_of(grant), claims, str(claims["sub"]))

    async def redeem(
        self, attempt: SignInAttempt, answer: Mapping[str, str]
    ) -> tuple[Grant, Mapping[str, Any]]:
        """The tokens for what the browser brings back, and the claims of the ID token, if any."""
        metadata = await self.issuer.discover()
        _check_sender(metadata, answer.get("iss"))
        if "error" in answer:
            reason = answer.get("error_description") or answer["error"]
            is_passing = answer["error"] in _PASSING
            raise ProviderAnswered(
                f"{self.issuer.name} refuses: {clean(reason)}",
                answer["error"] if is_passing else "access_denied",
            )
        if not answer.get("code"):
            raise SignInRefused(f"{self.issuer.name} sent no code")
        form = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": attempt.redirect,
            "code_verifier": attempt.verifier,
        }
        if self._resource is not None:
            form["resource"] = self._resource
        grant = await self._grant(form)
        claims: Mapping[str, Any] = {}
        if grant.id_token is not None:
            claims = await self._read_id_token(grant.id_token, attempt.nonce)
        return grant, claims

    async def renew(self, subject: str, tokens: ProviderTokens) -> ProviderTokens:
        """New tokens of a person who signed in before; the old ones may not work any more."""
        if tokens.refresh_token is None:
            raise SignInRefused(f"{self.issuer.name} cannot be asked again without the person")
        form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token}
        grant = await self._grant(form)
        if grant.id_token is not None:
            claims = await self._read_id_token(grant.id_token, None)
            if claims["sub"] != subject:
                raise SignInRefused(f"{self.issuer.name} answers about somebody else")
        return msgspec.structs.replace(
            _tokens_of(grant),
            # a provider that does not rotate its tokens sends no new one
            refresh_token=grant.refresh_token or tokens.refresh_token,
        )

    async def describe_again(
        self, subject: str, tokens: ProviderTokens, before: Mapping[str, Any]
    ) -> SignedIn:
        """A person who signed in before, as the provider describes them with renewed tokens.

        Only what it says now counts: a person who left a group is no longer in it. What it said
        `before` is used if it can say nothing any more.
        """
        metadata = await self.issuer.discover()
        if tokens.id_token is not None:
            # its signature was checked in `renew`
            claims: Mapping[str, Any] = read_jwt(tokens.id_token).claims
        elif metadata.userinfo_endpoint is None:
            claims = before
        else:  # the session is in ID tokens only
            claims = {name: before[name] for name in _SESSION if name in before}
        return await self._describe(metadata, tokens, claims, subject)

    async def _grant(self, form: Mapping[str, str]) -> Grant:
        endpoint, address = await self.issuer.token_endpoint()
        try:
            return await endpoint.grant(address, form)
        except GrantRefused as exc:
            if exc.error in _ABOUT_PEOPLE:
                raise SignInRefused(f"{self.issuer.name} refuses: {exc}") from None
            # our configuration, or a bad moment: nobody loses a sign-in for that
            raise ProviderDown(f"{self.issuer.name} gives no tokens now: {exc}") from None
        except (LoginFailed, RequestFailed) as exc:
            raise ProviderDown(f"{self.issuer.name} does not answer: {exc}") from None

    async def _read_id_token(self, token: str, nonce: str | None) -> Mapping[str, Any]:
        try:
            jwt = read_jwt(token)
            await self.issuer.check_signed(token, jwt)
            check_times(jwt.claims)
        except TokenRefused as exc:
            raise SignInRefused(f"the ID token of {self.issuer.name}: {exc}") from None
        claims, provider = jwt.claims, self.issuer.provider
        audience = claims.get("aud")
        audiences = audience if is_list(audience) else [audience]
        # with several audiences, `azp` says whose it is (OpenID Connect Core, 3.1.3.7)
        is_ours = provider.client_id in audiences and (
            len(audiences) == 1 or claims.get("azp") == provider.client_id
        )
        now = time.time()
        if claims.get("iss") != provider.issuer or not is_ours:
            raise SignInRefused(f"the ID token of {self.issuer.name} is for somebody else")
        if "exp" not in claims or now > claims["exp"] + provider.leeway:
            raise SignInRefused(f"the ID token of {self.issuer.name} has expired")
        sent = claims.get("nonce")
        # or a token of another sign-in could be slipped in
        if nonce is not None and not hmac.compare_digest(str(sent).encode(), nonce.encode()):
            raise SignInRefused(f"the ID token of {self.issuer.name} is of another sign-in")
        if not isinstance(claims.get("sub"), str) or not claims["sub"]:
            raise SignInRefused(f"the ID token of {self.issuer.name} names nobody")
        return claims

    async def _describe(
        self,
        metadata: IssuerMetadata,
        tokens: ProviderTokens,
        claims: Mapping[str, Any],
        subject: str,
    ) -> SignedIn:
        # many providers put groups only there, and asking shows that the person still exists
        more = await self._user_info(metadata, tokens.access_token, subject)
        person = {
            # the ID token is signed, so its word counts more
            name: value
            for name, value in {**more, **claims}.items()
            if name not in PROTOCOL_CLAIMS
        }
        if len(msgspec.json.encode(person)) > _LARGEST:
            raise SignInRefused(f"{self.issuer.name} says more about the person than fits")
        return SignedIn(subject, person, tokens)

    async def _user_info(
        self, metadata: IssuerMetadata, token: str, subject: str
    ) -> Mapping[str, Any]:
        if metadata.userinfo_endpoint is None:
            return {}
        try:
            reply = await self._fetch.describe(
                metadata.userinfo_endpoint, {"Authorization": f"Bearer {token}"}
            )
        except (LoginFailed, RequestFailed) as exc:
            raise ProviderDown(f"{self.issuer.name} does not answer: {exc}") from None
        if reply.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise SignInRefused(f"{self.issuer.name} no longer knows the person")
        claims = reply.decode_json() if reply.status == HTTPStatus.OK else _NOTHING
        if not claims:  # an error, or a signed answer, which nobody asked for
            raise ProviderDown(f"{self.issuer.name} says nothing about the person")
        # a swapped access token would describe another person (OpenID Connect Core, 5.3.2)
        if claims.get("sub") != subject:
            raise SignInRefused(f"{self.issuer.name} answers about somebody else")
        return claims


def _tokens_of(grant: Grant) -> ProviderTokens:
    return ProviderTokens(
        access_token=grant.access_token,
        refresh_token=grant.refresh_token,
        id_token=grant.id_token,
        expires_at=grant.expires_at,
    )


def _check_sender(metadata: IssuerMetadata, named: str | None) -> None:
    """Check that an answer comes from the provider that was asked (RFC 9207, mix-up)."""
    if named is None and metadata.authorization_response_iss_parameter_supported:
        raise SignInRefused("the answer does not say which provider it is from")
    if named is not None and named != metadata.issuer:
        raise SignInRefused("the answer is from another provider")
