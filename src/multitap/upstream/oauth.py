"""Logging in to a server with OAuth: the SDK knows the flow, our connections carry it."""

from collections.abc import Iterator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from mcp.client.auth import (
    AuthorizationCodeResult,
    OAuthClientProvider,
    OAuthFlowError,
    OAuthRegistrationError,
    OAuthTokenError,
)
from mcp.client.auth.utils import is_valid_client_metadata_url
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl, ValidationError
from yarl import URL

from multitap.config import HttpServer, OAuth
from multitap.faults import AnswerInvalid, AuthRequired, RequestFailed
from multitap.http.client.headers import DEFAULTS, merged
from multitap.http.client.http_client import http_client
from multitap.http.client.response import Response
from multitap.upstream.handlers import Login, RequestOrigin
from multitap.wire.streamable.http_origin import Challenge

REDIRECT = "http://127.0.0.1:{port}/callback"
PORT = 8414

_PATIENCE = 30.0  # seconds for each answer of an authorization server
_LONGEST = 1024 * 1024  # bytes of one
_DESCRIPTIONS = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")
_TOLD = ("Content-Type", "Location", "WWW-Authenticate")


class Account:
    """What we are to one server: registered once, with tokens that are renewed when they must be.

    Args:
        name: The server's configured name.
        config: Where it is, and what is known of how to log in.
        login: Sends a person to the authorization server.
    """

    def __init__(self, name: str, config: HttpServer, login: Login) -> None:
        self._known = config.oauth or OAuth()
        self._url = config.url
        self._asked = RequestOrigin(name)
        self._login = login
        self._address = ""
        self._granted: Mapping[str, str] = {}
        self._redact = config.redact
        redirect = AnyUrl(
            self._known.redirect_uri or REDIRECT.format(port=self._known.callback_port or PORT)
        )
        self._provider = OAuthClientProvider(
            config.url,
            OAuthClientMetadata(client_name="multitap", redirect_uris=[redirect]),
            _Memory(_registration(self._known, redirect)),
            redirect_handler=self._leave,
            callback_handler=self._return,
            client_metadata_url=_published(self._known),
        )

    async def authorize(self, challenge: Challenge | None) -> Mapping[str, str]:
        """See `Authorize`: a challenge is met by logging in, once for all who meet it together."""
        state = self._provider.context
        if challenge is None and (state.current_tokens is None or state.is_token_valid()):
            return self._granted
        try:
            self._granted = await self._run(challenge)
            self._redact.learn(_confided(state.current_tokens, state.client_info))
        except (OAuthFlowError, OAuthRegistrationError, OAuthTokenError, ValidationError) as exc:
            first, _, _ = str(exc).partition("\n")  # what follows may quote an answer with tokens
            raise AuthRequired(f"cannot log in: {self._redact(first)}") from None
        except (RequestFailed, AnswerInvalid, OSError) as exc:
            words = f"cannot log in: {str(exc) or type(exc).__name__}"
            raise RequestFailed(words, sent=False) from None
        return self._granted

    async def _run(self, challenge: Challenge | None) -> Mapping[str, str]:
        """Follow the flow to where it would send the request; that is the wire's to do."""
        ours = httpx2.Request("POST", self._url)
        async with aclosing(self._provider.async_auth_flow(ours)) as flow:
            request = await anext(flow)
            while True:
                if request is not ours:
                    response = await self._fetch(request)
                elif challenge is None or _settled(challenge, ours):
                    return _headers(ours)
                else:
                    response = self._refusal(challenge, ours)
                    challenge = None
                request = await flow.asend(response)

    def _refusal(self, challenge: Challenge, request: httpx2.Request) -> httpx2.Response:
        words = challenge.words
        if challenge.status == HTTPStatus.UNAUTHORIZED and self._known.scope:
            # what is configured comes before what the server asks for
            words = f'Bearer scope="{self._known.scope}", {words.removeprefix("Bearer ")}'
        return httpx2.Response(
            challenge.status, headers={"WWW-Authenticate": words}, request=request
        )

    async def _fetch(self, request: httpx2.Request) -> httpx2.Response:
        url = URL(str(request.url), encoded=True)
        if self._known.metadata_url and url.path.startswith(_DESCRIPTIONS):
            url = URL(self._known.metadata_url)
        headers = merged(request.headers, {"Host": url.host_port_subcomponent or ""}, DEFAULTS)
        with anyio.fail_after(_PATIENCE):
            async with http_client(url) as client:
                head = client.head(request.method, url, headers)
                response = await client.send(head, request.read() or None)
                body = await _bounded(response, url)
        told = {key: value for key in _TOLD if (value := response.header(key)) is not None}
        return httpx2.Response(response.status, headers=told, content=body, request=request)

    async def _leave(self, address: str) -> None:
        self._address = address

    async def _return(self) -> AuthorizationCodeResult:
        came_back = await self._login(self._asked, self._address)
        said = {key: values[0] for key, values in parse_qs(urlsplit(came_back).query).items()}
        if "code" not in said:
            reason = said.get("error_description") or said.get("error") or "no code came back"
            raise OAuthFlowError(reason)
        return AuthorizationCodeResult(
            code=said["code"], state=said.get("state"), iss=said.get("iss")
        )


class _Memory:
    """The SDK's `TokenStorage`: keeps who we are.

    The flow holds its tokens itself, and asks for stored ones when those are of no use any more.
    """

    def __init__(self, client: OAuthClientInformationFull | None) -> None:
        self._client = client

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        pass

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


def _published(known: OAuth) -> str | None:
    """An id that is the address of our own description; used where the server takes such."""
    given = known.client_id
    return given if given is not None and is_valid_client_metadata_url(given) else None


def _registration(known: OAuth, redirect: AnyUrl) -> OAuthClientInformationFull | None:
    if known.client_id is None or _published(known):
        return None
    return OAuthClientInformationFull(
        client_id=known.client_id,
        client_secret=known.client_secret,
        redirect_uris=[redirect],
        token_endpoint_auth_method="client_secret_basic" if known.client_secret else "none",
    )


def _settled(challenge: Challenge, request: httpx2.Request) -> bool:
    """Whether somebody else has logged in since the refused request was sent."""
    return request.headers.get("Authorization") not in {None, challenge.authorization}


def _confided(
    tokens: OAuthToken | None, client: OAuthClientInformationFull | None
) -> Iterator[str]:
    """What an authorization server has entrusted us with."""
    if tokens is not None:
        yield tokens.access_token
        yield tokens.refresh_token or ""
    if client is not None:
        yield client.client_secret or ""


def _headers(request: httpx2.Request) -> Mapping[str, str]:
    granted = request.headers.get("Authorization")
    return {} if granted is None else {"Authorization": granted}


async def _bounded(response: Response, url: URL) -> bytes:
    body = b""
    while chunk := await response.chunk():
        body += chunk
        if len(body) > _LONGEST:
            raise OAuthFlowError(f"{url.host} answers with more than {_LONGEST:,} bytes")
    return body
