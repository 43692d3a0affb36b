"""Browsers sign in with an organisation's identity provider, as any client of the gateway does.

The browser gets an access token for the gateway, which is verified like that of every client: the
person on a page is then the same as the person behind a call.
"""

from functools import partial

from multitap.config.access import OidcIssuer
from multitap.errors import MultitapError
from multitap.gateway.fronts.accounts import PendingSignIn, SignInProvider
from multitap.gateway.fronts.resource_server import MCP, ResourceServer
from multitap.identity.access_tokens import ProviderDown, TokenRefused
from multitap.identity.verifier import NotAdmitted
from multitap.principal import Principal


class BrowserRefused(MultitapError):
    """A person may not come in; the message says why."""


def sign_in_providers(resources: ResourceServer) -> dict[str, SignInProvider]:
    """The providers at which the gateway has a client of its own, by name."""
    return {
        name: SignInProvider(name, partial(_begin, resources, provider))
        for name, provider in resources.verifier.access.oidc.items()
        if provider.client_id is not None
    }


async def _begin(resources: ResourceServer, provider: OidcIssuer, redirect: str) -> PendingSignIn:
    # few gateways have people who sign in, and cryptography is slow to import
    from multitap.config import OAuth  # noqa: PLC0415
    from multitap.oauth.discovery import Discovery, find_issuer  # noqa: PLC0415
    from multitap.oauth.endpoints import GuardedFetch  # noqa: PLC0415
    from multitap.oauth.grants import AuthorizationRequest, TokenEndpoint  # noqa: PLC0415
    from multitap.oauth.identity import configured_client  # noqa: PLC0415

    fetch = GuardedFetch(provider.issuer)
    issuer = await find_issuer(fetch, provider.issuer)
    settings = OAuth(client_id=provider.client_id, client_secret=provider.client_secret)
    client = configured_client(settings, issuer)
    if client is None:
        raise BrowserRefused("the gateway has no client there")
    scope = " ".join(dict.fromkeys(("openid", *provider.scopes)))
    discovery = Discovery(
        resource=resources.url_of(MCP),
        issuer=issuer,
        is_described=True,
        scope=scope,
        takes_proofs=False,
    )
    request = AuthorizationRequest(discovery, client, redirect, scope, fetch.rules)

    async def finish(redirected: str) -> Principal:
        form = request.form(redirected)
        endpoint = TokenEndpoint(fetch, issuer.issuer, client)
        grant = await endpoint.grant(issuer.token_endpoint, form)
        token = grant.access_token.encode("latin-1", "replace")
        try:
            decision = await resources.verifier.decide(token, MCP, resources.audiences(MCP))
        except (TokenRefused, NotAdmitted, ProviderDown) as exc:
            raise BrowserRefused(str(exc)) from None
        if decision.principal.issuer != provider.issuer:
            raise BrowserRefused("the token is from another provider")
        return decision.principal

    return PendingSignIn(request.address, finish)
