"""Search mode for clients: three tools instead of all schemas."""

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from anyio import to_thread
from msgspec import Raw

from multitap.catalog.audience import EVERYBODY, Audience
from multitap.errors import BadArguments, ConfigError, UnknownName
from multitap.events import withheld_note
from multitap.gateway.client import ClientRequest
from multitap.gateway.eras import to_stateless
from multitap.gateway.own_tools import check_arguments
from multitap.gateway.view import View
from multitap.hub.hub import Hub
from multitap.selectors import Selector
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import EMPTY, Result

if TYPE_CHECKING:
    # only search needs the stemmer and the index
    from multitap.tools import tool as tools
    from multitap.tools.search import embedding as sentences
    from multitap.tools.search import finder as tool_finder

logger = logging.getLogger(__name__)

_NULL = b"null"
_MOST_FINDERS = 64  # audiences whose index is kept


class _Call(msgspec.Struct):
    name: str
    arguments: Raw = EMPTY
    select: str | None = None


_parse_call = msgspec.json.Decoder(_Call).decode


class ToolSearch:
    """Finds and describes tools for clients, among those that they may see.

    Args:
        hub: Has the tools.
        view: Returns what clients of an audience see.
        ready: Waits until servers have had time to come up.
    """

    def __init__(
        self,
        hub: Hub,
        view: Callable[[Audience], View],
        ready: Callable[[], Awaitable[object]],
    ) -> None:
        self._hub = hub
        self._view = view
        self.ready = ready
        """Waits until servers have had time to come up."""
        self._finders: dict[Audience, tool_finder.ToolFinder] = {}
        self._turn = anyio.Lock()
        self._embedding: sentences.Embedding | None = None
        self._has_unread = anyio.Event()

    async def learn(self, model: Path) -> None:
        """Read what tools mean with a model of sentences, apart from all searches.

        Until it has read them, and if it cannot, tools are found by their words alone.
        """
        from multitap.tools.search import embedding as sentences  # noqa: PLC0415 - see above

        await self.ready()
        embedding = sentences.Embedding(model)
        try:
            await to_thread.run_sync(embedding.load)
            async with self._turn:
                self._embedding = embedding
                self._finders.clear()
                await to_thread.run_sync(self._finder(EVERYBODY).learn)
            while True:
                while embedding.has_unread:
                    await to_thread.run_sync(embedding.read_next)
                self._has_unread = anyio.Event()
                await self._has_unread.wait()
        except ConfigError as exc:
            hint = f"; {exc.hint}" if exc.hint else ""
            logger.warning("%s%s; tools are found by their words alone", exc, hint)

    def has(self, name: str) -> bool:
        """Whether a name is one of the three search tools."""
        from multitap.tools.search import finder as tool_finder  # noqa: PLC0415 - a stemmer

        return name in tool_finder.DEFINITIONS

    async def answer(self, request: ClientRequest) -> Result:
        """The result of `search_tools` or `describe_tool`."""
        from multitap.tools.search import finder as tool_finder  # noqa: PLC0415 - a stemmer

        await self.ready()
        name = request.params.name
        try:
            arguments = self._check(name, request.params.arguments)
            finder = self._finder(request.client.audience)
            work = finder.search if name == tool_finder.SEARCH else finder.describe
            text = await self._look(work, arguments)
        except (BadArguments, UnknownName) as exc:
            return refusal(request, exc)
        return text_answer(request, text)

    def inner(self, request: ClientRequest) -> tuple[ClientRequest, Selector | None] | None:
        """The call that `call_tool` asks for, as a request of its client, and what it selects.

        None if it is another tool.

        Raises:
            BadArguments: It does not say which, or its selector is none.
        """
        from multitap.tools.search import finder as tool_finder  # noqa: PLC0415 - a stemmer

        params = request.params
        if params.name != tool_finder.CALL:
            return None
        self._check(params.name, params.arguments)
        call = _parse_call(params.arguments)
        arguments = EMPTY if bytes(call.arguments) == _NULL else call.arguments
        inner = msgspec.structs.replace(
            request,
            params=msgspec.structs.replace(params, name=call.name, arguments=arguments),
        )
        # checked before the call is made: afterwards it would be too late to refuse
        return inner, None if call.select is None else Selector(call.select)

    async def unknown(self, request: ClientRequest, exc: UnknownName) -> Result:
        """The result for an unknown tool name: suggestions of similar tools."""
        finder = self._finder(request.client.audience)
        advice = await self._look(finder.advice, request.params.name)
        return text_answer(request, f"{exc}; {advice}", is_error=True)

    async def _look(self, work: Callable[[Any], str], what: object) -> str:
        """Search in a thread, one at a time: building an index of many tools takes a while."""
        async with self._turn:
            found = await to_thread.run_sync(work, what)
        if self._embedding is not None and self._embedding.has_unread:
            self._has_unread.set()
        return found

    def _finder(self, audience: Audience) -> "tool_finder.ToolFinder":
        """The search index of an audience; unchanged tools are not indexed again."""
        from multitap.tools import tool as tools  # noqa: PLC0415 - see above
        from multitap.tools.search import finder as tool_finder  # noqa: PLC0415 - a stemmer

        if len(self._finders) >= _MOST_FINDERS:  # tokens come and go
            self._finders.clear()
        if (finder := self._finders.get(audience)) is None:
            finder = self._finders[audience] = tool_finder.ToolFinder(
                lambda: [
                    tools.HubTool(entry, self._hub)
                    for entry in self._view(audience).tools.values()
                    if entry.is_for_model
                ],
                lambda name: self._find_tool(audience, name),
                lambda: withheld_note(self._hub.withheld),
                self._embedding,
            )
        return finder

    def _find_tool(self, audience: Audience, name: str) -> "tools.HubTool | None":
        from multitap.tools import tool as tools  # noqa: PLC0415 - see above

        entry = self._view(audience).tools.get(name)
        if entry is None or not entry.is_for_model:
            return None
        return tools.HubTool(entry, self._hub)

    def _check(self, name: str, raw: Raw) -> Mapping[str, Any]:
        from multitap.tools.search import finder as tool_finder  # noqa: PLC0415 - a stemmer

        return check_arguments({"inputSchema": tool_finder.DEFINITIONS[name].schema}, raw)


def text_answer(request: ClientRequest, text: str, *, is_error: bool = False) -> Result:
    """A text as the result of one of our own tools."""
    result = jsonrpc.encode({"content": [{"type": "text", "text": text}], "isError": is_error})
    return to_stateless(result) if request.is_stateless else result


def refusal(request: ClientRequest, exc: BadArguments | UnknownName) -> Result:
    """An error as the result of one of our own tools, with what to do."""
    return text_answer(request, f"{exc}; {exc.hint}" if exc.hint else str(exc), is_error=True)
