"""Server cards and their catalog: what programs that look for MCP servers find here (SEP-2127)."""

import ipaddress
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from multitap.catalog.audience import Audience
from multitap.gateway.fronts.tokens import Admitted
from multitap.gateway.gateway import OURSELVES, Gateway
from multitap.http.server.request import HttpRequest, Rejected, RequestHead
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import RpcError

CARD_PATH = b"/mcp/server-card"
# the second is where the proposal moves to: programs look for either
CATALOG_PATHS = (b"/.well-known/mcp/catalog.json", b"/.well-known/ai-catalog.json")
CARD_TYPE = b"application/mcp-server-card+json"
_BRIEF = [(b"cache-control", b"private, max-age=60")]
"""Profiles come and go, and readers may see different ones."""


class ServerCards:
    """The cards of the gateway and its profiles, for those who may use it.

    A card is a hint where to connect, never a promise: tools are not in it, and clients learn all
    else from the server itself.

    Args:
        decide: Who reads: documents below `/.well-known/` are for everybody.
    """

    def __init__(
        self,
        gateway: Gateway,
        choose_audience: Callable[[RequestHead], Audience],
        decide: Callable[[RequestHead], Admitted | Rejected],
    ) -> None:
        self._decide = decide
        self._gateway = gateway
        self._choose_audience = choose_audience

    def card(self, http_request: HttpRequest) -> None:
        """The card of the gateway, or of the profile that the URL names."""
        if self._audience(http_request) is None:
            return
        named = http_request.head.query.get("profile", [])
        body = jsonrpc.encode(make_card(_base(http_request), named[0] if named else None))
        http_request.respond(200, (body,), kind=CARD_TYPE, extra=_BRIEF)

    def catalog(self, http_request: HttpRequest) -> None:
        """The cards that the reader may follow; strangers learn of the gateway and no more."""
        admitted = self._decide(http_request.head)
        # a reader that is limited to profiles does not learn of others
        is_limited = isinstance(admitted, Rejected) or admitted.profile is not None
        profiles = () if is_limited else sorted(self._gateway.hub.settings.profiles)
        base = _base(http_request)
        entries = [_entry(base, None), *(_entry(base, name) for name in profiles)]
        # `draft`, as the proposal itself writes it
        body = jsonrpc.encode({"specVersion": "draft", "entries": entries})
        http_request.respond(200, (body,), extra=_BRIEF)

    def _audience(self, http_request: HttpRequest) -> Audience | None:
        try:
            return self._choose_audience(http_request.head)
        except RpcError as exc:
            http_request.say(404, str(exc))
            return None


def make_card(base: str, profile: str | None) -> Mapping[str, Any]:
    """The card of a gateway at an address."""
    return {
        "name": f"{_reversed(base)}/{_word(profile)}",
        "title": OURSELVES["title"] if profile is None else f"{OURSELVES['title']}: {profile}",
        "description": "MCP servers behind one gateway",
        "version": OURSELVES["version"],
        "remotes": [{"type": "streamable-http", "url": _endpoint(base, profile)}],
    }


def _entry(base: str, profile: str | None) -> Mapping[str, Any]:
    return {
        "identifier": f"urn:air:{_domain(base)}:{_word(profile)}",
        "displayName": make_card(base, profile)["title"],
        "type": CARD_TYPE.decode(),
        "url": _with_profile(f"{base}{CARD_PATH.decode()}", profile),
    }


def _base(http_request: HttpRequest) -> str:
    """The address of the gateway as the reader knows it: Host was checked on admission."""
    head = http_request.head
    host = head.headers.get(b"host", b"localhost").decode("latin-1")
    return f"{'https' if head.peer.is_secure else 'http'}://{host}"


def _domain(base: str) -> str:
    host = base.partition("://")[2]
    return host.rpartition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]


def _reversed(base: str) -> str:
    """A domain in the order of names such as `com.example`; numbers have no such order."""
    domain = _domain(base)
    try:
        ipaddress.ip_address(domain.strip("[]"))
    except ValueError:
        return ".".join(reversed(domain.lower().split(".")))
    return "localhost"


def _word(profile: str | None) -> str:
    return (
        OURSELVES["name"] if profile is None else f"{OURSELVES['name']}-{quote(profile, safe='')}"
    )


def _endpoint(base: str, profile: str | None) -> str:
    return f"{base}/mcp" if profile is None else f"{base}/mcp/{quote(profile, safe='')}"


def _with_profile(url: str, profile: str | None) -> str:
    return url if profile is None else f"{url}?profile={quote(profile, safe='')}"
