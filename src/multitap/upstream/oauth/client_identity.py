"""Our client identity at an authorization server: configured, described or registered."""

from collections.abc import Collection, Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

import msgspec

from multitap.config import OAuth
from multitap.trust.secrets.token_store import ClientAuth, StoredLogin
from multitap.upstream.oauth.discovery import Discovery, same_issuer
from multitap.upstream.oauth.guarded_fetch import GuardedFetch
from multitap.upstream.oauth.issuer_metadata import IssuerMetadata
from multitap.upstream.oauth.oauth_errors import GrantRefused, LoginFailed, clean

_BASIC: ClientAuth = "client_secret_basic"
_POST: ClientAuth = "client_secret_post"


class ClientIdentity(msgspec.Struct, frozen=True):
    """Our client at one authorization server, and how it authenticates."""

    client_id: str
    auth: ClientAuth = "none"
    secret: str | None = None
    private_key: str | None = None
    registered: bool = False
    """Whether we registered it, and can do so again."""

    def __repr__(self) -> str:
        return f"<ClientIdentity {self.client_id}>"


def configured_client(known: OAuth, issuer: IssuerMetadata) -> ClientIdentity | None:
    """The client that the configuration names, or describes at an address."""
    if known.client_id is None:
        return None
    if is_document(known.client_id):
        if not issuer.client_id_metadata_document_supported:
            return None
        return ClientIdentity(known.client_id)
    if known.private_key:
        return ClientIdentity(known.client_id, "private_key_jwt", private_key=known.private_key)
    if known.client_secret:
        return ClientIdentity(known.client_id, _secret_auth(issuer), secret=known.client_secret)
    return ClientIdentity(known.client_id)


def remembered_client(
    login: StoredLogin | None, issuer: str, redirect: str
) -> ClientIdentity | None:
    """The client that an earlier login registered with the same issuer, to come back here."""
    if login is None or login.secrets is None or not login.registered:
        return None
    if not same_issuer(login.issuer, issuer) or login.redirect_uri != redirect:
        return None
    secret = login.secrets.client_secret
    return ClientIdentity(login.client_id, login.client_auth, secret, registered=True)


async def register(
    fetch: GuardedFetch, found: Discovery, redirect: str, scope: str | None
) -> ClientIdentity:
    """Register with the authorization server (RFC 7591).

    Raises:
        LoginFailed: It refuses.
    """
    issuer = found.issuer
    if issuer.registration_endpoint is None:
        raise LoginFailed(
            f"{clean(issuer.issuer)} only accepts registered clients; register one "
            f"with the redirect URI {redirect}, and set `oauth.client_id`"
        )
    request = {
        "client_name": "Multitap",
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": "native",
        "token_endpoint_auth_method": _choose_auth(issuer.token_endpoint_auth_methods_supported),
    }
    if scope:
        request["scope"] = scope
    reply = await fetch.post_json(issuer.registration_endpoint, request)
    said = reply.decode_json()
    if reply.status not in {HTTPStatus.OK, HTTPStatus.CREATED}:
        error = said.get("error") or f"registration failed with HTTP {reply.status}"
        raise GrantRefused(str(error), str(said.get("error_description") or ""))
    return _registered_client(said)


def _registered_client(said: Mapping[str, object]) -> ClientIdentity:
    client_id, secret = said.get("client_id"), said.get("client_secret")
    if not isinstance(client_id, str) or not client_id:
        raise LoginFailed("the answer to our registration has no client id")
    secret = secret if isinstance(secret, str) and secret else None
    # RFC 7591: without a method, the first of these is meant
    named = said.get("token_endpoint_auth_method") or (_BASIC if secret else "none")
    if named == "none":
        return ClientIdentity(client_id, registered=True)
    if named not in {_BASIC, _POST} or secret is None:
        raise LoginFailed(f"it registered us for {clean(named)}, which is not supported")
    return ClientIdentity(client_id, _POST if named == _POST else _BASIC, secret, registered=True)


def is_document(client_id: str) -> bool:
    """Whether a client id is the URL of a client metadata document."""
    url = urlsplit(client_id)
    return url.scheme == "https" and url.path.strip("/") != ""


def _secret_auth(issuer: IssuerMetadata) -> ClientAuth:
    """How to send a secret: in a header, unless only the form is supported."""
    methods = issuer.token_endpoint_auth_methods_supported or (_BASIC,)
    return _POST if _POST in methods and _BASIC not in methods else _BASIC


def _choose_auth(methods: Collection[str] | None) -> ClientAuth:
    """Choose a method; without a secret if possible, since a local program cannot keep one."""
    if methods is None or "none" in methods:
        return "none"
    return _POST if _POST in methods and _BASIC not in methods else _BASIC
