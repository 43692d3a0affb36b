"""How the gateway introduces itself to clients, in both eras."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.errors import MultitapError, quoted
from multitap.events import LinkState, Withheld
from multitap.gateway import client_errors
from multitap.gateway.client_message import EMPTY, Refused, Result
from multitap.gateway.client_request import ClientRequest
from multitap.gateway.view import View
from multitap.hub.hub import Hub
from multitap.tasks import in_task
from multitap.upstream.link import Link
from multitap.version import VERSION
from multitap.wire.jsonrpc import envelope, vocabulary

_CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}
_LATEST = vocabulary.HANDSHAKE_VERSIONS[-1]
_NAMED = 10
_HANDSHAKE = 64 * 1024
"""Bytes of a client's handshake, which are kept as long as the client is connected."""


class _Initialize(msgspec.Struct):
    protocolVersion: str = ""  # noqa: N815 - the wire's spelling
    capabilities: Raw = EMPTY
    clientInfo: dict[str, Any] = {}  # noqa: N815 - a struct copies its defaults


OURSELVES: Mapping[str, str] = {"name": "multitap", "title": "Multitap", "version": VERSION}


class Introduction:
    """Answers `initialize` and `server/discover`: identity, capabilities and instructions."""

    def __init__(self, hub: Hub, view: Callable[[Audience], View], info: Mapping[str, str]) -> None:
        self._hub = hub
        self._view = view
        self._info = info

    async def initialize(self, request: ClientRequest, params: Raw) -> Result:
        if len(params) > _HANDSHAKE:
            raise Refused(
                client_errors.INVALID_PARAMS, f"a handshake has at most {_HANDSHAKE} bytes"
            )
        asked = msgspec.json.decode(params, type=_Initialize)
        known = asked.protocolVersion in vocabulary.HANDSHAKE_VERSIONS
        version = asked.protocolVersion if known else _LATEST
        capabilities = asked.capabilities.copy()  # or it would keep the whole request
        client = request.client
        client.introduce(version, capabilities, asked.clientInfo)
        if client.elsewhere is not None:
            await in_task(request.light)
            try:
                await client.elsewhere.save()
            except MultitapError:
                client.version = ""  # or it would be unknown
                raise
        return envelope.encode({"protocolVersion": version, **self._describe(request)})

    async def discover(self, request: ClientRequest, _: Raw) -> Result:
        told = self._describe(request)
        info = told.pop("serverInfo")
        return envelope.encode(
            {
                "resultType": "complete",
                "ttlMs": 0,
                "cacheScope": "private",
                "supportedVersions": [*vocabulary.STATELESS_VERSIONS],
                **told,
                "_meta": {vocabulary.SERVER_INFO_KEY: info},
            }
        )

    def _describe(self, request: ClientRequest) -> dict[str, Any]:
        told: dict[str, Any] = {
            "capabilities": _CAPABILITIES,
            "serverInfo": self._info,
        }
        if instructions := self._instructions(request.client.audience):
            told["instructions"] = instructions
        return told

    def _instructions(self, audience: Audience) -> str:
        """The instructions of each server under its name, or why they are missing."""
        view = self._view(audience)
        told = [
            f"# {link.name}\n{words}"
            for link in self._hub.links.values()
            if view.has(link.name) and (words := _about(link, self._hub.catalog.mute))
        ]
        return "\n\n".join((*told, *_of_withheld(self._hub.withheld)))


def _about(link: Link, mute: Collection[str]) -> str | None:
    if link.session is not None:
        return None if link.name in mute else link.session.instructions
    if link.state is LinkState.NEEDS_AUTH and link.failure is not None and link.failure.hint:
        return f"This server waits for a login: {link.failure.hint}."
    return None


def _of_withheld(withheld: Collection[Withheld]) -> Iterator[str]:
    """A note on servers that are withheld, and what the user can do about it."""
    servers = [one for one in withheld if one.kind == "server" and not one.changed]
    if servers:
        names = ", ".join(quoted(one.name) for one in servers[:_NAMED])
        more = f" and {len(servers) - _NAMED} more" if len(servers) > _NAMED else ""
        yield (
            f"# multitap\nThe project's own servers {names}{more} are not available: nobody has "
            f"trusted them. The user can {servers[0].hint} in a terminal."
        )
