"""HTTP clients without a session."""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.catalog.catalog import Catalog
from multitap.config import Profile
from multitap.gateway.client import Client, log_level
from multitap.gateway.client_message import EMPTY, ClientMessage, Params
from multitap.gateway.eras.stateless_admission import admit, admit_arguments
from multitap.gateway.gateway import Gateway
from multitap.http.server.http_request import RequestHead
from multitap.wire.jsonrpc.vocabulary import (
    CLIENT_CAPABILITIES_KEY,
    CLIENT_INFO_KEY,
    LOG_LEVEL_KEY,
    VERSION_HEADER,
)

_ADDRESSES = 1024
"""Clients that are remembered; beyond that, those without a token are forgotten. They lose nothing:
the next request creates them again."""
VERSION_FIELD = VERSION_HEADER.encode()
"""The header with the protocol version of a request."""


class _NoOutlet:
    """The outlet of stateless clients, which can only be reached during their own requests."""

    def send(self, message: bytes) -> bool:  # noqa: ARG002 - an `Outlet`
        return False


class KnownCall(NamedTuple):
    """The last call with the same head: an equal one comes from the same client.

    Valid as long as catalog and profiles are the same.
    """

    name: str
    meta: Mapping[str, Raw]
    client: Client
    catalog: Catalog
    profiles: Mapping[str, Profile]
    capabilities: Raw
    log_level: str | None
    caller: str
    """The client's label for people."""


class StatelessClients:
    """Owns the stateless clients, one for each principal, address and audience."""

    def __init__(self, gateway: Gateway, chosen: Callable[[RequestHead], Audience]) -> None:
        self._gateway = gateway
        self._chosen = chosen
        self._clients: dict[tuple[str, str, Audience], Client] = {}

    def admit(self, head: RequestHead, message: ClientMessage, params: Params) -> Client:
        """The client of a request without a session, after a check against its head.

        Raises:
            Refused: Head and body do not agree, or there is no such profile.
        """
        admit(message, params, head.pairs, head.headers)
        client = self._client(head)
        if message.method == "tools/call":
            hub, view = self._gateway.hub, self._gateway.view(client.audience)
            if view.wants_headers(params.name):
                admit_arguments(view.tools[params.name], params, head.pairs)
            elif VERSION_FIELD in head.headers:  # otherwise the body decides the era
                meta = {key: value.copy() for key, value in params.meta.items()}
                level, info = (meta.get(key) for key in (LOG_LEVEL_KEY, CLIENT_INFO_KEY))
                head.memory = KnownCall(
                    params.name,
                    meta,
                    client,
                    view.catalog,
                    hub.settings.profiles,
                    meta.get(CLIENT_CAPABILITIES_KEY, EMPTY),
                    None if level is None else log_level(level),
                    client.caller if info is None else client.caller_of(info),
                )
        return client

    def drop(self, principals: Collection[str]) -> list[Client]:
        """Forget the clients of some principals, and return them."""
        dropped = [one for known, one in self._clients.items() if known[0] in principals]
        self._clients = {
            known: one for known, one in self._clients.items() if known[0] not in principals
        }
        return dropped

    def _client(self, head: RequestHead) -> Client:
        return self.of(head.admitted.principal, head.holder, self._chosen(head))

    def of(self, principal: str, holder: str, audience: Audience) -> Client:
        """The client of a principal, address and audience."""
        key = (principal, holder, audience)
        if (client := self._clients.get(key)) is None:
            if len(self._clients) >= _ADDRESSES:
                self._clients = {known: one for known, one in self._clients.items() if known[0]}
            client = Client(_NoOutlet(), principal=key[0], holder=key[1], audience=key[2])
            self._clients[key] = client
        return client
