"""Resolves the names that a client uses, within what it may see."""

from collections.abc import Callable
from typing import TypeVar

from multitap.catalog.audience import Audience
from multitap.catalog.catalog import Prompt, Tool
from multitap.errors import LONGEST_QUOTE, UnknownName, quoted, shortened
from multitap.events import withheld_note
from multitap.gateway import client_errors
from multitap.gateway.client_message import Refused
from multitap.gateway.client_request import ClientRequest
from multitap.gateway.view import View
from multitap.hub.hub import Hub
from multitap.hub.router import hidden_from_client, look_up, unknown
from multitap.upstream.link import Link

_Found = TypeVar("_Found")


class ClientLookup:
    """Finds what clients name, and waits for servers that still start."""

    def __init__(self, hub: Hub, view: Callable[[Audience], View]) -> None:
        self._hub = hub
        self._view = view

    async def find_tool(self, request: ClientRequest, name: str) -> Tool:
        """The tool with this name; waits for starting servers that may have it.

        Raises:
            UnknownName: There is none.
            NotAllowed: A filter hides it.
            Unavailable: The server that may have it failed, or is not up in time.
        """
        audience, apps = request.client.audience, request.client.apps

        def find() -> Tool | None:
            view = self._view(audience)
            return view.tools.get(name) or look_up(
                view.catalog, name, shows=view.shows, prefers=lambda tool: tool.server in apps
            )

        with self._hub.lookup.noting_refusal(name, request.context()):
            tool = await self._wait_for(request, find, name)
            view = self._view(audience)
            if tool is None:
                raise unknown(view.tools, name, withheld_note(self._hub.withheld))
            if not view.shows(tool):
                raise hidden_from_client(name)
        return tool

    async def find_prompt(self, request: ClientRequest, name: str) -> Prompt:
        """The prompt with this name; waits for starting servers that may have it.

        Raises:
            UnknownName: There is none.
            Unavailable: The server that may have it failed, or is not up in time.
        """
        audience = request.client.audience
        prompt = await self._wait_for(request, lambda: self._view(audience).prompts.get(name), name)
        if prompt is None:
            hint = withheld_note(self._hub.withheld) or None
            raise UnknownName(f"no prompt named {quoted(name)}", hint=hint)
        return prompt

    async def find_resource(self, request: ClientRequest, uri: str) -> tuple[Link, str]:
        """The server of a resource and its URI there; waits for starting servers that may have it.

        Raises:
            Refused: There is none.
            Unavailable: The server that may have it failed, or is not up in time.
        """
        audience = request.client.audience
        await self._wait_for(request, lambda: self._view(audience).resource(uri), None)
        return self.resource(request, uri)

    async def find_template(self, request: ClientRequest, uri: str) -> tuple[Link, str]:
        """The server of a resource template and its URI there; waits like `find_resource`.

        Raises:
            UnknownName: There is none.
            Unavailable: The server that may have it failed, or is not up in time.
        """
        audience = request.client.audience
        template = await self._wait_for(request, lambda: self._view(audience).template(uri), None)
        if template is None:
            raise UnknownName(f"no resource template {quoted(uri)}")
        return template

    def resource(self, request: ClientRequest, uri: str) -> tuple[Link, str]:
        """The server that has a resource now, and its URI there.

        Raises:
            Refused: There is none.
        """
        found = self._view(request.client.audience).resource(uri)
        if found is None:
            code = client_errors.INVALID_PARAMS if request.modern else client_errors.NO_RESOURCE
            raise Refused(
                code, f"Resource not found: {shortened(uri, LONGEST_QUOTE)}", {"uri": uri}
            )
        return found

    async def _wait_for(
        self, request: ClientRequest, find: Callable[[], _Found | None], name: str | None
    ) -> _Found | None:
        """What `find` returns once the servers that may have the name are up."""
        return await self._hub.lookup.wait_for(
            find,
            name,
            defaults=self._hub.gateway_defaults,
            has=lambda server: self._view(request.client.audience).has(server),
        )
