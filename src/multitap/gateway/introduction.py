"""How the gateway introduces itself to clients, in both eras."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from multitap.catalog.audience import Audience
from multitap.errors import MultitapError
from multitap.events import LinkState, withheld_note
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
        if note := withheld_note(self._hub.withheld):
            told.append(f"# multitap\n{note}.")
        return "\n\n".join(told)


def _about(link: Link, mute: Collection[str]) -> str | None:
    if link.session is not None:
        return None if link.name in mute else link.session.instructions
    if link.state is LinkState.NEEDS_AUTH and link.failure is not None and link.failure.hint:
        return f"This server waits for a login: {link.failure.hint}."
    return None
