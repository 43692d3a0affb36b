"""The state that a screen shows, polled from its gateway."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

from multitap.control import messages
from multitap.control.methods import Control
from multitap.control.overview import AccessOverview, AuditRow, GatewayOverview
from multitap.errors import MultitapError, counted
from multitap.events import Withheld
from multitap.gateway.person_questions import OpenQuestion
from multitap.screens.view import RecentCalls, ServerRow, server_rows, stderr_lines, token_costs
from multitap.store.queries import RecordFilter
from multitap.store.tables import Activity, CallRecord, RecordedExchange, indent_json

MOST_LINES = 200
"""Lines of the log that are shown; the filter finds older ones."""
MOST_PAST = 200
"""Older calls that are shown; the filter finds more."""
MOST_CALLS = 20
"""Calls in one pulse, more than a list shows; the counters are always exact."""
BEAT = 0.09
"""Seconds between two pulses; a busy screen still manages ten a second."""
AGAIN = 1.0
"""Seconds until the next search for a gateway that has stopped."""
SELDOM = 5
"""The Access place is updated only every this many refreshes while it is not visible."""
MOST_NAMES = 4
"""Names in the first line; the list has all of them."""
MOST_READ = 20
"""The maximum number of servers whose standard error is read every second."""
_DATA = re.compile(r"[A-Za-z0-9+/]{400,}={0,2}")
_NOT_KEPT = 'Its content is not kept; set `record = "errors"` or `"all"` to keep it.'


class LiveView:
    """The latest state of one gateway."""

    def __init__(self, client: Control) -> None:
        self.client = client
        self.about: messages.About | None = None
        self.servers: tuple[ServerRow, ...] = ()
        self.withheld: tuple[Withheld, ...] = ()
        """Parts of projects that are not trusted."""
        self.tools: Mapping[str, messages.ToolLine] = {}
        self.figures: messages.Figures | None = None
        self.log: tuple[Activity, ...] = ()
        self.tasks: Mapping[str, messages.TaskLine] = {}
        """Calls that run by themselves, newest first, by their ids."""
        self.questions: tuple[OpenQuestion, ...] = ()
        """Open questions for the person at a screen."""
        self.access = AccessOverview()
        self.audit: tuple[AuditRow, ...] = ()
        self.recent = RecentCalls()
        self.past: tuple[CallRecord, ...] = ()
        """Stored calls that match the filter of the Calls place, newest first."""
        self._past_filter: str | None = None
        self.trouble = ""
        """Why the state may be outdated; empty if it is current."""
        self._looks = 0
        self._overview: GatewayOverview | None = None
        self._revision = -1  # never a real revision, so the first refresh fetches the tools
        self._costs: Mapping[str, int] = {}

    async def follow(self) -> AsyncGenerator[None]:
        """Watch the gateway; yields whenever there is anything new, without end."""
        while True:
            try:
                feed = self.client.pulses(self.recent.made, most=MOST_CALLS, every=BEAT)
                async with feed as pulses:
                    async for pulse in pulses:
                        if pulse.overview is not None:
                            self._take(pulse.overview)
                        # drawing costs more than asking: draw rarely while the gateway is quiet
                        # `take` comes first, because it has to see every pulse
                        if self.recent.take(pulse) or pulse.overview is not None:
                            yield
            except MultitapError as exc:
                self._on_lost(exc)
                yield
            await asyncio.sleep(AGAIN)

    def _take(self, overview: GatewayOverview) -> None:
        self._overview, self.about, self.figures = overview, overview.about, overview.figures
        self.questions = overview.questions
        self.servers = server_rows(overview.state, overview.figures, self._costs)
        self.withheld = overview.state.snapshot.withheld
        self.trouble = "; ".join((*overview.state.degraded, *self.access.trouble))

    @property
    def has_answered(self) -> bool:
        """Whether the gateway has said anything yet."""
        return self._overview is not None

    @property
    def has_new_tools(self) -> bool:
        """Whether the tools have changed since they were fetched."""
        overview = self._overview
        return overview is not None and overview.state.snapshot.revision != self._revision

    async def look(
        self,
        *,
        calls: str | None = None,
        log: str | None = None,
        audit: str | None = None,
        tasks: bool = False,
    ) -> None:
        """Fetch what pulses do not include.

        Args:
            calls: The filter of the calls; None if they are not visible.
            log: The filter of the log; None if it is not visible.
            audit: The filter of the audit log; None if it is not visible.
        """
        try:
            # for changed tools in the first line, which may come a little late
            if audit is not None or self._looks % SELDOM == 0:
                self.access = await self.client.access()
            self._looks += 1
            await self._look_at_tools()
            if calls is not None:
                await self._look_at_calls(calls)
            if log is not None:
                await self._look_at_log(log)
            if tasks:
                self.tasks = {task.id: task for task in await self.client.tasks()}
            if audit is not None:
                self.audit = (await self.client.audit(audit)).records
        except MultitapError as exc:
            self._on_lost(exc)

    async def _look_at_tools(self) -> None:
        """Fetch the tools if they have changed: thousands of them take a megabyte."""
        overview = self._overview
        if overview is not None and self.has_new_tools:
            tools = await self.client.tools()
            self.tools = {tool.name: tool for tool in tools}
            self._costs = token_costs(tools)
            self._revision = overview.state.snapshot.revision
            self._take(self._overview or overview)  # a newer one may have come meanwhile

    async def _look_at_calls(self, text: str) -> None:
        """Fetch older calls that match the filter; new ones come with the pulses."""
        if text != self._past_filter:
            page = await self.client.calls(text, limit=MOST_PAST)
            self.past, self._past_filter = page.records, text

    async def _look_at_log(self, text: str) -> None:
        """Fetch events and servers' standard error, newest first."""
        record_filter = RecordFilter.parse(text)
        log = await self.client.log(text, limit=MOST_LINES)
        written: list[Activity] = []
        # remote servers have no readable standard error
        for server in [row.name for row in self.servers if row.transport == "stdio"][:MOST_READ]:
            output = await self.client.stderr(server)
            written += [
                activity
                for activity in stderr_lines(server, output)
                if record_filter.matches(activity.fields)
            ]
        activities = sorted(
            (*log.records, *written), key=lambda activity: activity.at, reverse=True
        )
        self.log = tuple(activities[:MOST_LINES])

    def server(self, name: str) -> ServerRow | None:
        return next((row for row in self.servers if row.name == name), None)

    def tool_of(self, call: CallRecord) -> messages.ToolLine | None:
        """The tool that was called, if it still exists."""
        name = call.server, call.tool
        return next(
            (tool for tool in self.tools.values() if (tool.server, tool.tool) == name), None
        )

    @property
    def calls(self) -> Iterator[CallRecord]:
        """The known calls, newest first; may contain duplicates."""
        yield from reversed(self.recent.records)
        yield from self.past

    async def last_good(self, call: CallRecord) -> CallRecord | None:
        """The last recorded successful call of the same tool, preferably before this one."""
        query = f"server:{_quoted(call.server)} tool:{_quoted(call.tool)} status:ok"
        page = await self.client.calls(query, limit=MOST_PAST)
        others = [
            record
            for record in page.records
            if record.exchange and record.exchange != call.exchange
        ]
        before = (record for record in others if record.at <= call.at)
        return next(before, others[0] if others else None)

    async def exchange(self, call: CallRecord) -> RecordedExchange | None:
        """The recorded request and response of a call, if kept."""
        if not isinstance(call.exchange, str):
            return call.exchange
        return await self.client.exchange(call.exchange)

    async def exchange_text(self, call: CallRecord) -> str:
        """The same as a text."""
        if call.exchange is None:
            return _NOT_KEPT
        try:
            exchange = await self.exchange(call)
        except MultitapError:
            return "Its content is no longer kept."
        if exchange is None:
            return _NOT_KEPT
        request, response = map(_readable, (exchange.arguments, exchange.result))
        return f"request\n{request}\n\nresponse\n{response}"

    async def arguments(self, call: CallRecord) -> Mapping[str, Any] | None:
        """The arguments of a recorded call; None if not kept in full."""
        try:
            exchange = await self.exchange(call)
            return dict(json.loads(exchange.arguments)) if exchange else None
        # what was cut when it was recorded is not JSON any more
        except (MultitapError, TypeError, ValueError):
            return None

    @property
    def title(self) -> str:
        """The overall state in one line, the most important first."""
        if not self.has_answered:
            return self.trouble or "multitap: connecting"
        bad = [
            row.name for row in self.servers if row.tone in {"error", "warning"} and not row.project
        ]
        changed = [review.server for review in self.access.pins]
        up = sum(row.state == "connected" for row in self.servers)
        usable = sum(not row.project or bool(row.transport) for row in self.servers)
        parts = (
            f"{up} of {counted(usable, 'server')} connected" if usable else "no servers yet",
            f"needs attention: {name_few(bad)}" if bad else "",
            "not trusted: press T to review" if self.withheld else "",
            f"{counted(len(self.questions), 'question')}: press 5" if self.questions else "",
            f"changed tools: {name_few(changed)}: press 5" if changed else "",
            self.trouble,
            f"{counted(self.recent.made, 'call')}",
            f"{self.recent.in_flight} under way" if self.recent.in_flight else "",
            f"pid {self.about.pid} {self.about.url or ''}".rstrip() if self.about else "",
        )
        return " | ".join(filter(None, parts))

    def _on_lost(self, exc: MultitapError) -> None:
        self.trouble = str(exc)
        self.about = None  # another gateway may have replaced it


def _readable(text: str) -> str:
    """Indented JSON in which pictures and other data are named with their size."""
    return _DATA.sub(
        # four characters of base64 are three bytes
        lambda data: f"{data[0][:24]}… ({len(data[0]) * 3 // 4096:,} KB of base64)",
        indent_json(text),
    )


def _quoted(word: str) -> str:
    """A word quoted as one term of a filter, whatever characters it has."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def name_few(names: Sequence[str]) -> str:
    """Names in one line: the first ones, and how many more there are."""
    more = len(names) - MOST_NAMES
    text = ", ".join(names[:MOST_NAMES])
    return f"{text} and {more} more" if more > 0 else text
