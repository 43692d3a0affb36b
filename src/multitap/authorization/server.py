"""What the SDK's OAuth handlers ask: about clients, codes and tokens."""

import logging
import re
import secrets
from collections.abc import Callable, Collection

import msgspec
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    IdentityAssertionParams,
    RefreshToken,
    TokenError,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyUrl, ConfigDict
from yarl import URL

from multitap.authorization.clients import Clients, SignInClient
from multitap.authorization.grants import (
    ACCESS_PREFIX,
    CODE_LIFE,
    AccessRequest,
    Code,
    Grants,
    Hop,
    RefreshClaim,
    SignIn,
    Stolen,
)
from multitap.authorization.id_jag import read_assertion
from multitap.config.access import SignInSettings
from multitap.identity.access_tokens import MissingScopes, TokenRefused, VerifiedToken, describe
from multitap.identity.sign_in import ProviderSignIn, ProviderTokens, SignedIn, SignInRefused

logger = logging.getLogger(__name__)

Person = tuple[str, str]
"""Issuer and subject."""
CONSENT = "/authorize/consent"
CALLBACK = "/authorize/callback"
_REQUEST = "request of a client"
_REQUEST_LIFE = 600.0  # seconds for a person to agree
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")  # a SHA-256 in base64
_LONGEST_STATE = 4096  # bytes: it is sealed into the page on which a person agrees
_SHORTEST = 60.0  # seconds that a token is valid, however short those of the provider are
_OURS = ConfigDict(arbitrary_types_allowed=True)


class _OwnCode(AuthorizationCode):
    model_config = _OURS
    sign_in_id: str
    sign_in: SignIn


class _OwnRefresh(RefreshToken):
    model_config = _OURS
    claim: RefreshClaim


class _OwnAccess(AccessToken):
    sign_in_id: str


class AuthorizationServer:
    """Lets clients act for people; an `OAuthAuthorizationServerProvider` of the SDK.

    Args:
        refusal: Why somebody may not use the gateway any more; None if they may.
    """

    def __init__(
        self,
        settings: SignInSettings,
        public_url: str,
        scopes: Collection[str],
        *,
        clients: Clients,
        grants: Grants,
        provider: ProviderSignIn,
        refusal: Callable[[VerifiedToken], str | None] = lambda _holder: None,
    ) -> None:
        self.settings = settings
        self.issuer = public_url.rstrip("/")
        self.scopes = tuple(dict.fromkeys(scopes))
        self.clients = clients
        self.grants = grants
        self.provider = provider
        self._refusal = refusal
        self.on_sign_in: Callable[[Person, ProviderTokens, float], None] | None = None
        """Called with the provider's tokens of each person who comes in, and until when."""
        self.on_end: Callable[[Person, ProviderTokens], None] | None = None
        """Called with those of a sign-in that has ended."""

    async def get_client(self, client_id: str) -> SignInClient | None:
        return await self.clients.find(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients.register(client_info)

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        """Where the browser goes next: to our own page, on which the person agrees."""
        if not _CHALLENGE.fullmatch(params.code_challenge):
            raise AuthorizeError("invalid_request", "code_challenge is not one of S256")
        if len(msgspec.json.encode(params.state)) > _LONGEST_STATE:
            raise AuthorizeError("invalid_request", "state is too long")
        resource = self.resource_of(params.resource)
        if resource is None:
            raise AuthorizeError("invalid_target", "this resource is not served here")
        request = AccessRequest(
            client_id=client.client_id,
            client=_short(client),
            redirect_uri=str(params.redirect_uri),
            is_explicit=params.redirect_uri_provided_explicitly,
            challenge=params.code_challenge,
            scopes=self.granted(params.scopes),
            resource=resource,
            state=params.state,
        )
        return f"{self.issuer}{CONSENT}?request={self.grants.seal(request, _REQUEST)}"

    def read_request(self, sealed: str) -> AccessRequest | None:
        """The request of a client, as `authorize` sealed it."""
        return self.grants.unseal(sealed, AccessRequest, _REQUEST, _REQUEST_LIFE)

    def resource_of(self, named: str | None) -> str | None:
        """The resource that a client means, in our spelling; None if it is not ours."""
        default = f"{self.issuer}/mcp"
        if named is None:
            return default
        try:
            url = URL(named)
            if url.query_string or url.raw_fragment or url.user is not None:
                return None
            uri = str(url.with_path(url.path, encoded=False)).rstrip("/")
        except ValueError:
            return None
        # some clients name the address that they were given, without `/mcp`
        if uri in {str(URL(self.issuer)).rstrip("/"), default}:
            return default
        rest = uri.removeprefix(f"{default}/")
        return uri if rest != uri and re.fullmatch(r"[\w.-]+", rest) else None

    def granted(self, scopes: Collection[str] | None) -> tuple[str, ...]:
        """The scopes that a token gets: those asked for that exist, and those it cannot lack."""
        required = self.provider.issuer.provider.scopes
        return tuple(
            scope
            for scope in self.scopes
            if scope in required or (scopes is not None and scope in scopes)
        )

    async def finish(self, hop: Hop, signed_in: SignedIn) -> str:
        """A code for the client on whose behalf a person signed in."""
        request, now = hop.request, self.grants.clock()
        sign_in = SignIn(
            provider=self.provider.issuer.name,
            issuer=self.provider.issuer.provider.issuer,
            subject=signed_in.subject,
            client_id=request.client_id,
            client=request.client,
            scopes=request.scopes,
            resource=request.resource,
            claims=signed_in.claims,
            signed_in=now,
            tokens=signed_in.tokens,
        )
        return await self.grants.issue_code(
            Code(
                sign_in=sign_in,
                id=secrets.token_urlsafe(18),
                challenge=request.challenge,
                redirect_uri=request.redirect_uri,
                is_explicit=request.is_explicit,
                expires=now + CODE_LIFE,
                client_id=request.client_id,
            )
        )

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> _OwnCode | None:
        try:
            code = await self.grants.take_code(authorization_code, client.client_id)
        except Stolen as exc:
            logger.warning("a code of %s was used twice: its sign-in has ended", _short(client))
            self._on_end(exc.sign_in)
            return None
        if code is None or code.sign_in is None:
            return None
        return _OwnCode(
            code=authorization_code,
            scopes=[*code.sign_in.scopes],
            expires_at=code.expires,
            client_id=code.client_id,
            code_challenge=code.challenge,
            redirect_uri=AnyUrl(code.redirect_uri),
            redirect_uri_provided_explicitly=code.is_explicit,
            resource=code.sign_in.resource,
            sign_in_id=code.id,
            sign_in=code.sign_in,
        )

    async def exchange_authorization_code(
        self,
        client: OAuthClientInformationFull,  # noqa: ARG002 - the SDK's protocol
        authorization_code: _OwnCode,
    ) -> OAuthToken:
        sign_in = authorization_code.sign_in
        # what the provider does not renew ends with its access token
        is_lasting = sign_in.tokens.refresh_token is not None
        life = self.settings.refresh_life if is_lasting else self.settings.token_life
        await self._begin(authorization_code.sign_in_id, sign_in, life)
        return self._tokens(authorization_code.sign_in_id, sign_in, sign_in.scopes)

    async def _begin(self, sign_in_id: str, sign_in: SignIn, life: float) -> None:
        # revoked or logged out while they were at the provider
        if (reason := self._refusal(self._holder(sign_in))) is not None:
            raise TokenError("invalid_grant", reason)
        if not await self.grants.begin(sign_in_id, sign_in, life):
            raise TokenError("invalid_grant", "this code was used twice")

    async def load_refresh_token(
        self,
        client: OAuthClientInformationFull,  # noqa: ARG002 - the SDK's protocol
        refresh_token: str,
    ) -> _OwnRefresh | None:
        claim = self.grants.read_refresh(refresh_token)
        sign_in = await self.grants.find(claim.id) if claim is not None else None
        if claim is None or sign_in is None:
            return None
        return _OwnRefresh(
            token=refresh_token,
            client_id=sign_in.client_id,
            scopes=[*sign_in.scopes],
            resource=sign_in.resource,
            claim=claim,
        )

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: _OwnRefresh, scopes: list[str]
    ) -> OAuthToken:
        claim = refresh_token.claim
        try:
            sign_in = await self.grants.claim_renewal(claim)
        except Stolen as exc:
            self._on_end(exc.sign_in)
            logger.warning(
                "a refresh token of %s was used twice: its sign-in has ended", _short(client)
            )
            raise TokenError("invalid_grant", "this refresh token was used before") from None
        if sign_in is None:
            raise TokenError("invalid_grant", "refresh token does not exist")
        if (reason := self._refusal(self._holder(sign_in))) is not None:
            await self._end(claim.id, sign_in)
            raise TokenError("invalid_grant", reason)
        renewed = await self._renew(claim.id, sign_in)
        return self._tokens(claim.id, renewed, scopes)

    async def _renew(self, sign_in_id: str, claimed: SignIn) -> SignIn:
        """Ask the provider again about a person; ends the sign-in if it says no."""
        latest = claimed
        try:
            tokens = await self.provider.renew(claimed.subject, claimed.tokens)
            latest = msgspec.structs.replace(claimed, tokens=tokens)
            signed_in = await self.provider.describe_again(claimed.subject, tokens, claimed.claims)
        except SignInRefused as exc:
            await self._end(sign_in_id, claimed)
            raise TokenError("invalid_grant", str(exc)) from None
        except BaseException:
            # nobody's fault: the client keeps its token and tries again; what the provider has
            # already given replaces what it took for it. Also at a shutdown: a task is cancelled
            # only once
            await self.grants.settle(sign_in_id, claimed, latest)
            raise
        renewed = msgspec.structs.replace(
            latest, claims=signed_in.claims, generation=claimed.generation + 1
        )
        if not await self.grants.settle(sign_in_id, claimed, renewed):
            raise TokenError("invalid_grant", "the sign-in has ended")
        return renewed

    async def _end(self, sign_in_id: str, sign_in: SignIn | None) -> None:
        await self.grants.revoke(sign_in_id)
        self._on_end(sign_in)

    def _on_end(self, sign_in: SignIn | None) -> None:
        if sign_in is not None and self.on_end is not None:
            self.on_end((sign_in.issuer, sign_in.subject), sign_in.tokens)

    async def load_access_token(self, token: str) -> _OwnAccess | None:
        claim = self.grants.read_access(token)
        sign_in = await self.grants.find(claim.id) if claim is not None else None
        if claim is None or sign_in is None:
            return None
        return _OwnAccess(
            token=token,
            client_id=sign_in.client_id,
            scopes=[*claim.scopes],
            expires_at=int(claim.expires),
            sign_in_id=claim.id,
        )

    async def revoke_token(self, token: _OwnAccess | _OwnRefresh) -> None:
        sign_in_id = token.sign_in_id if isinstance(token, _OwnAccess) else token.claim.id
        await self._end(sign_in_id, await self.grants.find(sign_in_id))

    async def exchange_identity_assertion(
        self, client: OAuthClientInformationFull, params: IdentityAssertionParams
    ) -> OAuthToken:
        """A token for the person whom the provider vouches for (ID-JAG)."""
        now = self.grants.clock()
        try:
            claims = await read_assertion(
                params.assertion, self.provider.issuer, self.issuer, client.client_id, now
            )
        except TokenRefused as exc:
            raise TokenError("invalid_grant", str(exc)) from None
        resource = self.resource_of(claims.resource or params.resource)
        requested = self.resource_of(params.resource) if params.resource else resource
        if resource is None or requested != resource:
            raise TokenError("invalid_target", "the assertion is not for this resource")
        # after the checks: a request that is refused does not use the assertion up
        if not await self.grants.take_once("jti", f"{claims.issuer} {claims.id}", claims.life(now)):
            raise TokenError("invalid_grant", "this assertion was used before")
        # never more than the provider vouches for, not even what every token needs
        allowed = self.granted(None) if claims.scopes is None else claims.scopes
        requested_scopes = params.scopes if params.scopes is not None else allowed
        sign_in = SignIn(
            provider=self.provider.issuer.name,
            issuer=claims.issuer,
            subject=claims.subject,
            client_id=client.client_id,
            client=_short(client),
            scopes=tuple(
                scope for scope in self.scopes if scope in allowed and scope in requested_scopes
            ),
            resource=resource,
            claims=claims.person,
            # of the assertion: a person who was logged out since then needs another one
            signed_in=claims.issued,
        )
        sign_in_id = secrets.token_urlsafe(18)
        await self._begin(sign_in_id, sign_in, self.settings.token_life)
        return self._tokens(sign_in_id, sign_in, sign_in.scopes)

    def owns(self, token: str) -> bool:
        """Whether a token looks like one of ours; see `OwnTokens`."""
        return token.startswith(ACCESS_PREFIX)

    async def verify(self, token: str, audiences: Collection[str]) -> VerifiedToken:
        """The holder of one of our access tokens.

        Raises:
            TokenRefused: It is not valid, or not for this resource.
        """
        claim = self.grants.read_access(token)
        sign_in = await self.grants.find(claim.id) if claim is not None else None
        if claim is None or sign_in is None:
            raise TokenRefused("the token is unknown, expired or revoked")
        if sign_in.resource not in audiences:
            raise TokenRefused("the token is for another audience")
        holder = self._holder(sign_in, claim.scopes, claim.expires)
        if (reason := self._refusal(holder)) is not None:
            raise TokenRefused(reason)
        provider = self.provider.issuer.provider
        if missing := [scope for scope in provider.scopes if scope not in claim.scopes]:
            raise MissingScopes(missing)
        is_person = not holder.is_machine and bool(sign_in.tokens.access_token)
        if self.on_sign_in is not None and is_person:
            self.on_sign_in((holder.issuer, holder.subject), sign_in.tokens, claim.expires)
        return holder

    def _holder(
        self, sign_in: SignIn, scopes: Collection[str] = (), expires: float = 0.0
    ) -> VerifiedToken:
        """A person who signed in, as if they had a token of the provider."""
        claims = {
            **sign_in.claims,
            "sub": sign_in.subject,
            "client_id": sign_in.client,
            "scope": " ".join(scopes),
            # of the sign-in: a person who was logged out since then has to sign in again
            "iat": sign_in.signed_in,
            "exp": expires,
        }
        # required scopes are the caller's business: a sign-in is also described without any
        provider = self.provider.issuer.provider
        return describe(claims, sign_in.provider, msgspec.structs.replace(provider, scopes=()))

    def _tokens(self, sign_in_id: str, sign_in: SignIn, scopes: Collection[str]) -> OAuthToken:
        life = self.settings.token_life
        ends = sign_in.tokens.expires_at
        if ends is not None:  # what we hold of the provider is to last as long as what we give
            life = max(_SHORTEST, min(life, ends - self.grants.clock()))
        is_lasting = sign_in.tokens.refresh_token is not None
        return OAuthToken(
            access_token=self.grants.access_token(sign_in_id, tuple(scopes), life),
            expires_in=int(life),
            scope=" ".join(scopes) or None,
            # without a way to ask the provider again, nobody would notice that a person has left
            refresh_token=self.grants.refresh_token(sign_in_id, sign_in.generation)
            if is_lasting
            else None,
        )


def _short(client: OAuthClientInformationFull) -> str:
    return client.short_id if isinstance(client, SignInClient) else client.client_id
