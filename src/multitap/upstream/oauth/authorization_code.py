"""The authorization code grant: a person's consent (RFC 6749, 7636, 9207)."""

import base64
import hashlib
import secrets
from urllib.parse import parse_qs, quote, urlsplit

from multitap.http.browser_address import is_safe
from multitap.trust.single_use import Issued
from multitap.upstream.oauth.account import LOGIN_TIMEOUT
from multitap.upstream.oauth.address_rules import AddressRules
from multitap.upstream.oauth.client_identity import ClientIdentity
from multitap.upstream.oauth.discovery import Discovery
from multitap.upstream.oauth.oauth_errors import GrantRefused, LoginFailed, clean

_LONGEST = 16 * 1024  # characters of a redirect


class AuthorizationRequest:
    """One authorization request to a person, answered once.

    Args:
        found: The authorization server.
        client: Our client identity.
        redirect: The redirect URI.
        scope: The requested scope.
        rules: Which addresses they may be sent to.

    Raises:
        LoginFailed: They would not be safe there.
    """

    def __init__(
        self,
        found: Discovery,
        client: ClientIdentity,
        redirect: str,
        scope: str | None,
        rules: AddressRules,
    ) -> None:
        issuer = found.issuer
        methods = issuer.code_challenge_methods_supported or ()
        # without PKCE, a stolen code is as good as a token; MCP requires clients to refuse
        if found.is_described and "S256" not in methods:
            raise LoginFailed(f"{clean(issuer.issuer)} does not offer PKCE with S256")
        if issuer.authorization_endpoint is None:
            raise LoginFailed(f"{clean(issuer.issuer)} has no page to log in")
        self._page = rules.check(issuer.authorization_endpoint)
        self._found = found
        self._client = client
        self._redirect = redirect
        self._scope = scope
        self._verifier = secrets.token_urlsafe(64)
        self._state = secrets.token_urlsafe(32)
        self._states = Issued(1)
        self._states.issue(self._state, issuer.issuer, redirect, life=LOGIN_TIMEOUT)

    @property
    def address(self) -> str:
        """The URL to send the person to.

        Raises:
            LoginFailed: A browser may open another host than it seems to name.
        """
        digest = hashlib.sha256(self._verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": self._client.client_id,
            "redirect_uri": self._redirect,
            "state": self._state,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
            "resource": self._found.resource,
        }
        if self._scope:
            asked["scope"] = self._scope
            if "offline_access" in self._scope.split():
                asked["prompt"] = "consent"  # OpenID Connect gives no refresh token without
        # characters that a shell interprets, which a scope may have, are encoded as well
        page = quote(str(self._page.update_query(asked)), safe="%~:/?&=+,;@#[]")
        if not is_safe(page):
            raise LoginFailed(f"the login page {clean(self._page)!r} is not a plain web address")
        return page

    def form(self, came_back: str) -> dict[str, str]:
        """The grant in the URL that the person was redirected to.

        Raises:
            LoginFailed: It does not belong to this request, or was used before.
            GrantRefused: The person or the authorization server refused.
        """
        said = {
            name: values[0]
            for name, values in parse_qs(urlsplit(came_back[:_LONGEST]).query).items()
        }
        issuer = self._found.issuer.issuer
        # all of this before anything else is believed, an error included
        is_ours = self._states.take(said.get("state", ""), issuer, self._redirect)
        self._states.forget()  # one answer counts, right or wrong
        if not is_ours:
            raise LoginFailed("the redirect does not belong to this login (wrong `state`)")
        self._check_issuer(said.get("iss"))
        if "error" in said:
            raise GrantRefused(said["error"], said.get("error_description", ""))
        if not said.get("code"):
            raise LoginFailed("the redirect carries no code")
        return {
            "grant_type": "authorization_code",
            "code": said["code"],
            "redirect_uri": self._redirect,
            "code_verifier": self._verifier,
            "resource": self._found.resource,
        }

    def _check_issuer(self, named: str | None) -> None:
        """Check that the answer comes from the authorization server that was asked."""
        issuer = self._found.issuer
        if named is None:
            if issuer.authorization_response_iss_parameter_supported:
                raise LoginFailed("the redirect does not name the authorization server (`iss`)")
        elif named != issuer.issuer:
            raise LoginFailed("the redirect is from another authorization server (`iss`)")
