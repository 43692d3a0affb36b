"""The state that a screen shows, polled from its gateway."""

import json
from collections.abc import Mapping
from typing import Any

from multitap.errors import MultitapError, counted
from multitap.gateway.fronts.control_messages import (
    About,
    AskAbout,
    AskExchange,
    AskFigures,
    AskLog,
    AskPicture,
    AskPulse,
    AskTools,
    Figures,
    GatewayPicture,
    ToolLine,
)
from multitap.gateway.fronts.control_records import LogPage, Pulse
from multitap.screens.gateway_client import GatewayClient
from multitap.screens.view_model import RecentCalls, ServerRow, server_rows, token_costs
from multitap.store.call_records import CallRecord
from multitap.store.exchanges import RecordedExchange
from multitap.store.log_records import Happening

_NOT_KEPT = 'What it said is not kept; set `record = "errors"` or `"all"` to keep it.'


class LiveView:
    """The latest picture of one gateway.

    Args:
        client: The way to it.
    """

    def __init__(self, client: GatewayClient) -> None:
        self.client = client
        self.about: About | None = None
        self.servers: tuple[ServerRow, ...] = ()
        self.tools: Mapping[str, ToolLine] = {}
        self.figures: Figures | None = None
        self.log: tuple[Happening, ...] = ()
        self.recent = RecentCalls()
        self.trouble = ""
        """Why the picture may be an old one; empty: it is not."""
        self._revision = -1

    async def take_pulse(self) -> bool:
        """Look at the counters; whether there is anything new."""
        try:
            pulse = await self.client.ask(AskPulse(self.recent.made), Pulse)
        except MultitapError as exc:
            self._lost(exc)
            return True
        return self.recent.take(pulse)

    async def look(self, log_filter: str | None) -> None:
        """Look at all the rest.

        Args:
            log_filter: What to show of the log; None: it is not in sight.
        """
        try:
            await self._look(log_filter)
        except MultitapError as exc:
            self._lost(exc)

    async def _look(self, log_filter: str | None) -> None:
        if self.about is None:
            self.about = await self.client.ask(AskAbout(), About)
        picture = await self.client.ask(AskPicture(), GatewayPicture)
        self.figures = await self.client.ask(AskFigures(), Figures)
        if picture.snapshot.revision != self._revision:
            found = await self.client.ask(AskTools(), list[ToolLine])
            self.tools = {tool.name: tool for tool in found}
            self._revision = picture.snapshot.revision
        if log_filter is not None:
            self.log = (await self.client.ask(AskLog(log_filter, limit=200), LogPage)).records
        costs = token_costs(self.tools.values())
        self.servers = server_rows(picture, self.figures, costs)
        self.trouble = "; ".join(picture.degraded)

    def server(self, name: str) -> ServerRow | None:
        return next((row for row in self.servers if row.name == name), None)

    def tool_of(self, call: CallRecord) -> ToolLine | None:
        """The tool that was called, if it is still there."""
        wanted = call.server, call.tool
        return next((one for one in self.tools.values() if (one.server, one.tool) == wanted), None)

    def last_good(self, call: CallRecord) -> CallRecord | None:
        """The last recorded call of the same tool that went well."""
        return next(
            (
                one
                for one in reversed(self.recent.records)
                if (one.server, one.tool, one.outcome.value) == (call.server, call.tool, "ok")
                and one is not call
                and one.exchange
            ),
            None,
        )

    async def exchange(self, call: CallRecord) -> RecordedExchange | None:
        """What a call sent and received, where that is kept."""
        if not isinstance(call.exchange, str):
            return call.exchange
        return await self.client.ask(AskExchange(call.exchange), RecordedExchange)

    async def said(self, call: CallRecord) -> str:
        """The same as a text."""
        if call.exchange is None:
            return _NOT_KEPT
        try:
            kept = await self.exchange(call)
        except MultitapError:
            return "What it said is not kept any more."
        if kept is None:
            return _NOT_KEPT
        return f"request\n{indented(kept.arguments)}\n\nresponse\n{indented(kept.result)}"

    async def arguments(self, call: CallRecord) -> Mapping[str, Any]:
        """The arguments of a recorded call; none where they are not kept as a whole."""
        try:
            kept = await self.exchange(call)
            return dict(json.loads(kept.arguments)) if kept else {}
        except (MultitapError, TypeError, ValueError):
            return {}

    @property
    def title(self) -> str:
        """How it all is, in one line; what matters most comes first."""
        bad = [row.name for row in self.servers if row.tone in {"error", "warning"}]
        up = sum(row.state == "connected" for row in self.servers)
        parts = (
            f"{up} of {counted(len(self.servers), 'server')} connected",
            f"needs attention: {', '.join(bad)}" if bad else "",
            self.trouble,
            f"{counted(self.recent.made, 'call')}",
            f"{self.recent.in_flight} under way" if self.recent.in_flight else "",
            f"pid {self.about.pid} {self.about.url or ''}".rstrip() if self.about else "",
        )
        return " | ".join(filter(None, parts))

    def _lost(self, exc: MultitapError) -> None:
        self.trouble = str(exc)
        self.about = None  # another gateway may take its place


def indented(text: str) -> str:
    """JSON as a person reads it; anything else as it is."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:  # it was cut
        return text
