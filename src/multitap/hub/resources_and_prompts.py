"""Resources, prompts, completions and subscriptions of a hub."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from msgspec import Raw

from multitap.catalog.catalog import Catalog
from multitap.errors import LONGEST_QUOTE, BadAnswer, UnknownName, quoted, shortened
from multitap.hub.lookup import Lookup
from multitap.hub.router import LIBRARY
from multitap.later import Later
from multitap.upstream.link import Link
from multitap.upstream.on_behalf_of import NOBODY, CallContext
from multitap.wire.jsonrpc.request import make_request

if TYPE_CHECKING:
    import mcp_types as types
    import pydantic
else:
    types = Later("mcp_types")
    pydantic = Later("pydantic")

_Model = TypeVar("_Model", bound="pydantic.BaseModel")


class ResourcesAndPrompts(ABC):
    """The methods of a hub for resources and prompts."""

    catalog: Catalog
    lookup: Lookup

    @abstractmethod
    def check_open(self) -> None:
        """Check that the hub is open.

        Raises:
            HubClosed: It is.
        """

    async def read(
        self, uri: str, *, server: str | None = None, context: CallContext = NOBODY
    ) -> types.ReadResourceResult:
        """Read a resource from the server that has it.

        Args:
            uri: The resource's address.
            server: The server, if several have the same address.
            context: The caller and its limits.

        Raises:
            UnknownName: No server has it.
            UpstreamError: The server could not answer.
        """
        self.check_open()
        since = anyio.current_time()
        resource = await self.lookup.find_resource(uri, server, context)
        params = {"uri": resource.uri}
        result = await _ask(resource.link, "resources/read", params, context, since)
        return _to_model(types.ReadResourceResult, result, resource.server)

    async def prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        context: CallContext = NOBODY,
    ) -> types.GetPromptResult:
        """Fill in a prompt by its catalog name.

        Raises:
            UnknownName: There is no such prompt.
            UpstreamError: The server could not answer.
        """
        self.check_open()
        since = anyio.current_time()
        prompt = await self.lookup.find_prompt(name, context=context)
        params = {"name": prompt.raw_name, "arguments": arguments or {}}
        result = await _ask(prompt.link, "prompts/get", params, context, since)
        return _to_model(types.GetPromptResult, result, prompt.server)

    async def complete(
        self,
        reference: str,
        argument: str,
        value: str,
        *,
        known: Mapping[str, str] | None = None,
    ) -> types.CompleteResult:
        """Get suggestions for an argument of a prompt or a resource template.

        Args:
            reference: The prompt's catalog name, or the template.
            argument: The argument's name.
            value: What has been typed so far.
            known: Arguments that are already filled in.

        Raises:
            UnknownName: There is no such prompt or template.
            UpstreamError: The server could not answer.
        """
        self.check_open()
        since = anyio.current_time()
        target = await self.lookup.wait_for(
            lambda: self._completable(reference),
            None if "://" in reference else reference,
            defaults=LIBRARY,
        )
        if target is None:
            raise UnknownName(f"no prompt or resource template named {quoted(reference)}")
        link, ref = target
        params: dict[str, Any] = {"ref": ref, "argument": {"name": argument, "value": value}}
        if known:
            params["context"] = {"arguments": known}
        result = await _ask(link, "completion/complete", params, NOBODY, since)
        return _to_model(types.CompleteResult, result, link.name)

    def _completable(self, reference: str) -> tuple[Link, dict[str, str]] | None:
        """The prompt or resource template that is meant, and its server; None if there is none."""
        if prompt := self.catalog.prompts.get(reference):
            return prompt.link, {"type": "ref/prompt", "name": prompt.raw_name}
        for template in self.catalog.templates:
            if template.address == reference:
                return template.link, {"type": "ref/resource", "uri": template.uri}
        return None

    async def subscribe(self, uri: str, *, server: str | None = None) -> None:
        """Publish a `ResourceUpdated` event whenever the resource changes, also after restarts."""
        self.check_open()
        if server is None:
            await self.lookup.find_resource(uri, None, NOBODY)
        link, raw = self.lookup.owner(uri, server)
        await link.notifications.subscribe(raw)

    async def unsubscribe(self, uri: str, *, server: str | None = None) -> None:
        self.check_open()
        link, raw = self.lookup.owner(uri, server)
        await link.notifications.unsubscribe(raw)


async def _ask(
    link: Link, method: str, params: Mapping[str, Any], context: CallContext, since: float
) -> Raw:
    """Send a read-only request to a server.

    Args:
        link: The link to the server.
        method: The method.
        params: Its parameters.
        context: The caller and its limits.
        since: When its time began, by the loop's clock.
    """
    deadline = LIBRARY.deadline(link.config, context=context, since=since)
    # Repeatable: these requests change nothing, so a lost one is sent again.
    request = make_request(method, params, deadline, call=context, repeatable=True)
    request.on_progress = context.on_progress
    return await link.request(request)


def _to_model(model: type[_Model], result: Any, server: str) -> _Model:
    try:
        return model.model_validate_json(bytes(result))
    except pydantic.ValidationError as exc:
        raise BadAnswer(server, f"its answer lacks what MCP requires: {_mistakes(exc)}") from None


# Not quoted, since an answer may contain secrets.
def _mistakes(exc: pydantic.ValidationError) -> str:
    """The validation errors of an answer, without quoting it."""
    first = exc.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{shortened(where, LONGEST_QUOTE)}: {first['msg']}"
