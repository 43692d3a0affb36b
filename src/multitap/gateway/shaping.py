"""Results for models: shaped, cut to a budget, with the rest kept for later."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import msgspec
from anyio import CapacityLimiter, to_thread

from multitap.catalog.audience import Audience
from multitap.catalog.catalog import Tool
from multitap.errors import BadArguments, UnknownName, quoted
from multitap.gateway.client import ClientRequest, OnOtherReplica
from multitap.gateway.eras import to_stateless
from multitap.gateway.own_tools import CALL_TOOL, READ_RESULT, check_arguments, reading_tool
from multitap.gateway.tool_search import refusal
from multitap.gateway.view import View
from multitap.results.aside import AT_A_TIME, fit
from multitap.results.cutting import NOT_KEPT, Handle
from multitap.results.result import ToolResult
from multitap.results.select import add_block
from multitap.selectors import Selector
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import Result

AGE = 900.0
"""Seconds for which a cut result is kept: a model comes back soon, or not at all."""
MOST_EACH, MOST_BYTES_EACH = 32, 16 * 1024 * 1024
"""Results that are kept for one principal; beyond that, the oldest is dropped."""
MOST_BYTES = 128 * 1024 * 1024
"""The same for all principals together."""
RESULTS = "multitap://results/"
"""How the addresses of kept results begin."""
_LINKS_SINCE = "2025-06-18"  # older clients do not know resource links, and may fail on one
_RANDOM = 9  # bytes of a handle


class _StoredResult(msgspec.Struct, frozen=True):
    """A whole result, and the tools that it came from."""

    raw: bytes
    tools: tuple[Tool, ...]
    until: float


_NONE: Mapping[str, _StoredResult] = {}


class ResultShaper:
    """Shapes results by what a client asks for and what its profile allows.

    Args:
        view: Returns what clients of an audience see.
        on_shaped: Called with the tool and its text's bytes before and after.
        replica: The name of this replica, in a cluster.
        clock: A monotonic clock, in seconds.
    """

    def __init__(
        self,
        view: Callable[[Audience], View],
        on_shaped: Callable[[Tool, int, int], None],
        *,
        replica: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view
        self._on_shaped = on_shaped
        self._replica = replica
        self._clock = clock
        self._stored: dict[str, OrderedDict[str, _StoredResult]] = {}
        self._limiter = CapacityLimiter(AT_A_TIME)

    async def shape(
        self,
        request: ClientRequest,
        tools: Sequence[Tool],
        result: Result,
        selector: Selector | None = None,
    ) -> Result:
        """A result with what the selector chooses, within the budget of the profile.

        Args:
            request: The client's request.
            tools: Where the result comes from: it is kept for those who may see all of them.
            result: The whole result, in the client's era.
            selector: What to choose of it.
        """
        raw = b"".join(result) if isinstance(result, tuple) else bytes(result)
        room = self._view(request.client.audience).result_room
        is_kept = bool(tools) and len(raw) <= MOST_BYTES_EACH
        handle = self._handle(request) if is_kept else NOT_KEPT
        shaped = await fit(raw, selector, room, handle, self._limiter)
        if len(tools) == 1:
            self._on_shaped(tools[0], shaped.before, shaped.after)
        if shaped.whole is None or not handle.id:
            return shaped.shown
        self._keep(
            request.holder, handle.id, _StoredResult(shaped.whole, (*tools,), self._clock() + AGE)
        )
        if not request.is_stateless and request.client.version < _LINKS_SINCE:
            return shaped.shown
        link = {
            "type": "resource_link",
            "uri": f"{RESULTS}{handle.id}",
            "name": handle.id,
            "title": f"The whole result of {tools[0].name}",
            "size": len(shaped.whole),
        }
        return add_block(shaped.shown, link)

    async def answer(self, request: ClientRequest) -> Result:
        """The result of `read_result`.

        Raises:
            OnOtherReplica: The result is kept at another replica.
        """
        try:
            arguments = check_arguments(reading_tool(), request.params.arguments)
            selector = Selector(arguments["select"]) if "select" in arguments else None
            stored = self._find(request, arguments["result"])
        except (BadArguments, UnknownName) as exc:
            return refusal(request, exc)
        room = self._view(request.client.audience).result_room
        start, handle = arguments.get("from", 0), self._handle(request, arguments["result"])
        shaped = await fit(stored.raw, selector, room, handle, self._limiter, start)
        return shaped.shown

    async def read(self, request: ClientRequest, uri: str) -> Result | None:
        """The whole text of a kept result as a resource; None if the address is not one of ours.

        Raises:
            UnknownName: It is no longer kept.
            OnOtherReplica: The result is kept at another replica.
        """
        if not uri.startswith(RESULTS):
            return None
        stored = self._find(request, uri.removeprefix(RESULTS))
        text = await to_thread.run_sync(lambda: ToolResult(stored.raw).text)
        result = jsonrpc.encode({"contents": [{"uri": uri, "mimeType": _mime(text), "text": text}]})
        return to_stateless(result, is_cached=True) if request.is_stateless else result

    def _find(self, request: ClientRequest, handle: str) -> _StoredResult:
        replica, _, _ = handle.rpartition(".")
        if replica != self._replica and replica and self._replica:
            raise OnOtherReplica(replica)
        stored = self._stored.get(request.holder, _NONE).get(handle)
        view = self._view(request.client.audience)
        # a client that may no longer see a tool must not read its results
        if (
            stored is None
            or stored.until < self._clock()
            or any(
                not view.shows(tool) or tool.name in view.catalog.hidden for tool in stored.tools
            )
        ):
            raise UnknownName(
                f"no result {quoted(handle)} is kept",
                hint=f"they are kept for {AGE / 60:g} minutes; the call has to be made again",
            )
        return stored

    def _handle(self, request: ClientRequest, handle: str = "") -> Handle:
        if not handle:
            # random: a model must not guess the result of another client
            handle = secrets.token_hex(_RANDOM)
            handle = f"{self._replica}.{handle}" if self._replica else handle
        is_listed = not self._view(request.client.audience).answers_searches
        return Handle(handle, READ_RESULT if is_listed else f"{CALL_TOOL} {READ_RESULT}")

    def _keep(self, holder: str, handle: str, stored: _StoredResult) -> None:
        now = self._clock()
        for other, results in [*self._stored.items()]:
            while results and next(iter(results.values())).until < now:
                results.popitem(last=False)
            if not results:
                del self._stored[other]
        own = self._stored.setdefault(holder, OrderedDict())
        own[handle] = stored
        while len(own) > MOST_EACH or _weight(own) > MOST_BYTES_EACH:
            own.popitem(last=False)
        while sum(map(_weight, self._stored.values())) > MOST_BYTES:
            # of the largest holder: those who keep little lose nothing to one who keeps much
            heaviest = max(self._stored.values(), key=_weight)
            heaviest.popitem(last=False)


def _weight(results: Mapping[str, _StoredResult]) -> int:
    return sum(len(stored.raw) for stored in results.values())


def _mime(text: str) -> str:
    return "application/json" if text.lstrip()[:1] in {"{", "["} else "text/plain"
