"""The only way to contact an authorization server: with address rules and limits."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlencode

import anyio
import msgspec
from yarl import URL

from multitap.faults import RequestFailed
from multitap.http.client.headers import DEFAULTS, Headers, merge
from multitap.http.client.http_client import HttpClient
from multitap.http.client.origins import join_url, proxy_for, same_origin, show_url
from multitap.http.client.response import Response
from multitap.upstream.oauth.address_rules import AddressRules
from multitap.upstream.oauth.oauth_errors import LoginFailed

LONGEST = 256 * 1024
"""Bytes of one answer."""
METADATA_TIMEOUT, GRANT_TIMEOUT = 5.0, 20.0
"""Seconds for metadata, and for a grant."""

_REDIRECTS = 3
_REDIRECT = frozenset({301, 302, 303, 307, 308})
_TOLD = ("DPoP-Nonce",)
_NONE: Headers = {}
_FORM, _JSON = "application/x-www-form-urlencoded", "application/json"


class FetchedReply(NamedTuple):
    """A complete HTTP response."""

    status: int
    headers: Headers
    body: bytes

    def decode_json(self) -> Mapping[str, object]:
        """The JSON object in the body; empty if there is none."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, object])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return {}


class GuardedFetch:
    """Asks the addresses that a server names.

    Raises:
        LoginFailed: From every method: the address is not allowed, or its answer too large.
        RequestFailed: It cannot be reached now.
    """

    def __init__(self, server: str) -> None:
        self.rules = AddressRules(URL(server))

    async def describe(self, address: str, headers: Headers) -> FetchedReply:
        """Fetch metadata; redirects are followed within the origin."""
        url = self.rules.check(address)
        with _patience(url, METADATA_TIMEOUT):
            for _ in range(_REDIRECTS + 1):
                reply, location = await self._ask("GET", url, headers, None)
                if location is None:
                    return reply
                target = join_url(url, location)
                if target is None or not same_origin(url, target):
                    raise LoginFailed(f"{show_url(url)} redirects to another origin")
                url = target
        raise LoginFailed(f"{show_url(url)} redirects in a loop")

    async def post_form(
        self, address: str, form: Mapping[str, str], headers: Headers = _NONE
    ) -> FetchedReply:
        """Post a form, which may contain secrets; redirects are not followed."""
        return await self._post(address, urlencode(form).encode(), _FORM, headers)

    async def post_json(self, address: str, message: Mapping[str, object]) -> FetchedReply:
        return await self._post(address, msgspec.json.encode(message), _JSON, {})

    async def _post(self, address: str, body: bytes, kind: str, headers: Headers) -> FetchedReply:
        url = self.rules.check(address)
        headers = merge({"Content-Type": kind}, headers)
        with _patience(url, GRANT_TIMEOUT):
            reply, location = await self._ask("POST", url, headers, body)
        if location is not None:
            raise LoginFailed(f"{show_url(url)} redirects, which would lose what was sent")
        return reply

    async def _ask(
        self, method: str, url: URL, headers: Headers, body: bytes | None
    ) -> tuple[FetchedReply, str | None]:
        headers = merge(DEFAULTS, {"Accept": _JSON}, headers)
        if proxy_for(url) is not None:
            await self.rules.check_proxied(url)
        async with HttpClient(show_url(url), resolve=self.rules.resolve) as client:
            response = await client.send(client.head(method, url, headers), body)
            location = response.header("Location") if response.status in _REDIRECT else None
            content = await _read_bounded(response, url) if location is None else b""
        told = {name: value for name in _TOLD if (value := response.header(name)) is not None}
        return FetchedReply(response.status, told, content), location


@contextmanager
def _patience(url: URL, seconds: float) -> Generator[None]:
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError:
        words = f"{show_url(url)} did not answer within {seconds:g} s"
        raise RequestFailed(words, sent=False) from None


async def _read_bounded(response: Response, url: URL) -> bytes:
    body = b""
    while chunk := await response.chunk():
        body += chunk
        if len(body) > LONGEST:
            response.close()
            raise LoginFailed(f"{show_url(url)} answers with more than {LONGEST:,} bytes")
    return body
