"""Browsers sign in with an organisation's identity provider, as any client of the gateway does.

The browser gets an access token for the gateway, which is verified like that of every client: the
person on a page is then the same as the person behind a call. Where the gateway issues the tokens
of clients itself, the provider need not know it as an API, and its ID token says who it is.
"""

import secrets
import time
from collections.abc import Mapping
from functools import partial

from multitap.errors import MultitapError
from multitap.gateway.fronts.browser_sessions import PendingSignIn, SignInProvider, Visitor
from multitap.gateway.fronts.resource_server import MCP, ResourceServer
from multitap.identity.access_tokens import ProviderDown, TokenRefused, VerifiedToken, describe
from multitap.identity.issuer import Issuer
from multitap.identity.sign_in import ProviderSignIn, SignInAttempt, SignInRefused, new_attempt
from multitap.identity.verifier import NotAdmitted
from multitap.principal import external_principal

_LIFE = 3600.0  # seconds; the session of a browser ends by then


class BrowserRefused(MultitapError):
    """A person may not come in; the message says why."""


def sign_in_providers(resources: ResourceServer) -> dict[str, SignInProvider]:
    """The providers at which the gateway has a client of its own, by name."""
    return {
        issuer.name: SignInProvider(
            issuer.name, partial(_begin, resources, issuer), partial(_finish, resources, issuer)
        )
        for issuer in resources.verifier.issuers.values()
        if issuer.provider.client_id is not None
    }


def _issues_itself(resources: ResourceServer, issuer: Issuer) -> bool:
    """Whether clients of a provider's people have tokens of the gateway."""
    settings = resources.verifier.access.sign_in
    return settings is not None and settings.provider == issuer.name


def _sign_in(resources: ResourceServer, issuer: Issuer) -> ProviderSignIn:
    settings = resources.verifier.access.sign_in
    if settings is not None and _issues_itself(resources, issuer):
        # not lasting: a browser's session ends by itself, and is never renewed
        return ProviderSignIn(issuer, settings.scopes, lasts=False)
    scopes = tuple(dict.fromkeys(("openid", *issuer.provider.scopes)))
    return ProviderSignIn(issuer, scopes, lasts=False, resource=resources.url_of(MCP))


async def _begin(
    resources: ResourceServer, issuer: Issuer, redirect: str
) -> tuple[str, PendingSignIn]:
    attempt, state = new_attempt(redirect), secrets.token_urlsafe(32)
    try:
        address = await _sign_in(resources, issuer).page(attempt, state)
    except (SignInRefused, ProviderDown) as exc:
        raise BrowserRefused(str(exc)) from None
    pending = PendingSignIn(
        state=state, provider=issuer.name, nonce=attempt.nonce, verifier=attempt.verifier
    )
    return address, pending


async def _finish(
    resources: ResourceServer,
    issuer: Issuer,
    redirect: str,
    pending: PendingSignIn,
    answer: Mapping[str, str],
) -> Visitor:
    attempt = SignInAttempt(pending.nonce, pending.verifier, redirect)
    sign_in = _sign_in(resources, issuer)
    try:
        if _issues_itself(resources, issuer):
            signed_in = await sign_in.finish(attempt, answer)
            token = _described(issuer, signed_in.subject, signed_in.claims)
        else:
            grant, claims = await sign_in.redeem(attempt, answer)
            decision = await resources.decide(grant.access_token.encode("latin-1", "replace"))
            token = decision.token
            # or somebody has put a token of another person into the answer
            if claims and claims["sub"] != token.subject:
                raise BrowserRefused("the tokens are of two people")
        rights = resources.verifier.rights(token)
    except (TokenRefused, NotAdmitted, ProviderDown, SignInRefused) as exc:
        raise BrowserRefused(str(exc)) from None
    if token.issuer != issuer.provider.issuer:
        raise BrowserRefused("the token is from another provider")
    return Visitor(
        external_principal(
            token.issuer,
            token.subject,
            token.client,
            is_machine=token.is_machine,
            rules=rights.rules,
        ),
        issued=token.issued,
        session=token.session,
        is_admin=rights.is_admin,
        rules_mark=resources.verifier.rules_mark,
    )


def _described(issuer: Issuer, subject: str, claims: Mapping[str, object]) -> VerifiedToken:
    """A person by their ID token, as a token of ours would describe them."""
    now, provider = time.time(), issuer.provider
    full = {
        **claims,
        "sub": subject,
        "client_id": provider.client_id,
        # an ID token has no scopes, and these are what every token needs
        "scope": " ".join(provider.scopes),
        "iat": now,
        "exp": now + _LIFE,
    }
    return describe(full, issuer.name, provider)
