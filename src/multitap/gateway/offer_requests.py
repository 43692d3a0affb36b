"""Answers clients' requests for prompts, resources and completions."""

from typing import Any

import anyio
import msgspec
from msgspec import Raw

from multitap.gateway import client_errors
from multitap.gateway.client_lookup import ClientLookup
from multitap.gateway.client_message import EMPTY, UNPARSABLE, Refused, Result, parse_table, text_of
from multitap.gateway.client_request import ClientRequest
from multitap.gateway.eras.subscriptions import Subscriptions, parse_wanted
from multitap.gateway.jobs import Encoded, Job, JobRunner, extra_members
from multitap.hub.hub import Hub
from multitap.upstream.link import Link
from multitap.upstream.on_behalf_of import CallContext, slot_holder_of
from multitap.wire.jsonrpc.deadline import Deadline
from multitap.wire.jsonrpc.request import make_request

_APPS = "ui://"
"""The URI scheme of MCP app pages."""


class _Complete(msgspec.Struct):
    ref: dict[str, Any] = {}
    argument: Raw = EMPTY
    context: Raw | msgspec.UnsetType = msgspec.UNSET


class OfferRequests:
    """Answers requests for what servers offer besides tools, one method for each."""

    def __init__(
        self,
        hub: Hub,
        lookup: ClientLookup,
        jobs: JobRunner,
        subscriptions: Subscriptions,
    ) -> None:
        self._hub = hub
        self._lookup = lookup
        self._jobs = jobs
        self._subscriptions = subscriptions

    async def prompt(self, request: ClientRequest, _: Raw) -> Result:
        name, since = request.params.name, anyio.current_time()
        prompt = await self._lookup.find_prompt(request, name)
        params = {"name": prompt.raw_name, "arguments": request.params.arguments}
        return await self._request(request, prompt.link, "prompts/get", params, name, since)

    async def read(self, request: ClientRequest, _: Raw) -> Result:
        asked, since = request.params.uri, anyio.current_time()
        link, uri = await self._lookup.find_resource(request, asked)
        if asked.startswith(_APPS) and request.client.single:
            # its page may call tools of its own server by their bare names from now on
            request.client.apps.add(link.name)
        return await self._request(request, link, "resources/read", {"uri": uri}, uri, since)

    async def complete(self, request: ClientRequest, params: Raw) -> Result:
        asked = msgspec.json.decode(params, type=_Complete)
        ref, since = asked.ref, anyio.current_time()
        if ref.get("type") == "ref/prompt":
            prompt = await self._lookup.find_prompt(request, str(ref.get("name", "")))
            link, ref = prompt.link, {**ref, "name": prompt.raw_name}
        else:
            link, uri = await self._lookup.find_template(request, str(ref.get("uri", "")))
            ref = {**ref, "uri": uri}
        # the argument stays undecoded: only the server knows what it means
        told: dict[str, Any] = {"ref": ref, "argument": asked.argument}
        if asked.context is not msgspec.UNSET:
            told["context"] = asked.context
        return await self._request(request, link, "completion/complete", told, "", since)

    async def _request(  # noqa: PLR0917 - each of its few callers gives them all
        self,
        client_request: ClientRequest,
        link: Link,
        method: str,
        params: dict[str, Any],
        name: str,
        since: float | None,
    ) -> Result:
        """Send a read-only request to a server."""
        # a server with a session per client answers this client only on that one
        link = await self._jobs.session(client_request, link)
        defaults = self._hub.gateway_defaults

        def limit(context: CallContext, since: float) -> Deadline:
            return defaults.deadline(link.config, context=context, since=since)

        async def ask(found: Link, context: CallContext, deadline: Deadline) -> Encoded:
            request = make_request(
                method,
                params,
                deadline,
                call=context,
                slot_holder=slot_holder_of(context),
                on_progress=context.on_progress,
                repeatable=True,
            )
            request.meta, extra = extra_members(client_request, found)
            request.params = b"%b%b" % (request.params or b"", extra)
            return await found.request(request)

        return await self._jobs.run(
            client_request, Job(method, name, link, method, limit, ask), since
        )

    async def subscribe(self, request: ClientRequest, params: Raw) -> Result:
        uri = text_of(parse_table(params).get("uri")) or ""
        link, raw = await self._lookup.find_resource(request, uri)
        link = await self._jobs.session(request, link)
        await self._subscriptions.subscribe(request.client, uri, link, raw)
        return b"{}"

    async def unsubscribe(self, request: ClientRequest, params: Raw) -> Result:
        uri = text_of(parse_table(params).get("uri")) or ""
        await self._subscriptions.unsubscribe(request.client, uri)
        return b"{}"

    async def listen(self, request: ClientRequest, params: Raw) -> Result:
        if not request.modern:
            raise Refused(client_errors.NO_METHOD, "Method not found: subscriptions/listen")
        asked = parse_table(params).get("notifications", EMPTY)
        try:
            wanted = parse_wanted(asked)
        except UNPARSABLE:
            raise Refused(
                client_errors.INVALID_PARAMS, "the notifications cannot be read"
            ) from None
        # resources are looked up one by one: some may be unknown while the others are followed
        return await self._subscriptions.listen(
            request, wanted, lambda uri: self._follow(request, uri)
        )

    async def _follow(self, request: ClientRequest, uri: str) -> tuple[Link, str]:
        link, raw = self._lookup.resource(request, uri)
        return await self._jobs.session(request, link), raw
