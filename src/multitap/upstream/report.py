"""Reports about one server: redacted, bounded and rate-limited."""

import logging
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from multitap.errors import LONGEST_QUOTE, counted, quoted, shortened
from multitap.events import Event, Failure, ServerLog, ToolsChanged, ToolSuspected, Warned
from multitap.redaction import Redactor
from multitap.upstream.backoff import PROVED
from multitap.wire.wire import Evidence

logger = logging.getLogger(__name__)

_MOST_REPORTED = 32  # failures that are remembered, so that each is logged once
_MOST_MISFITS = 32  # tools that are warned about
_MOST_WARNINGS, _WARNING = 20, 500  # warnings of one server, and characters of each
_LOG_MESSAGE = 4000  # characters of a text that a server sends


class ServerReport:
    """Owns the warnings about a server's calls, and the wording of reports about it."""

    def __init__(self, name: str, redact: Redactor, *, on_event: Callable[[Event], None]) -> None:
        self.name = name
        self.session = ""
        """Tells the sessions with one server apart; empty for the one that all share."""
        self.is_trial = False
        """Whether a failure only shows that the server does not speak an era."""
        self.redact = redact
        """Removes the server's secrets; replaced whenever its variables have new values."""
        self._on_event = on_event
        self._reported: set[str] = set()
        """Failures that were logged since it last proved healthy."""
        self._misfits: dict[str, str] = {}
        """By tool: problems of arguments that were passed on nevertheless."""
        self._odd_results: dict[tuple[str, str], str] = {}
        """By tool and kind of problem: problems of its results."""

    def tell(self, event: Event) -> None:
        match event:
            case Warned() | ToolsChanged() | ToolSuspected():
                event = replace(event, text=self._redacted(event.text))
            case ServerLog(_, level, source, text):
                event = replace(
                    event,
                    level=self._redacted(level, LONGEST_QUOTE),
                    logger=None if source is None else self._redacted(source, LONGEST_QUOTE),
                    text=self._redacted(text, _LOG_MESSAGE),
                )
            case _:
                pass
        self._on_event(event)

    def log_failure(self, failure: Failure, healthy_for: float | None) -> None:
        """Log a failure once, however often it repeats."""
        if (healthy_for or 0.0) >= PROVED or len(self._reported) >= _MOST_REPORTED:
            self._reported.clear()
        if (text := str(failure)) not in self._reported:
            self._reported.add(text)
            level = logging.INFO if self.is_trial else logging.WARNING
            logger.log(level, "%s: %s", self.name, text)

    def note_misfit(self, tool: str, problem: str) -> None:
        """Warn once per tool about arguments that do not match its schema and were passed on."""
        if tool in self._misfits or len(self._misfits) >= _MOST_MISFITS:
            return
        warning = (
            f"arguments for {quoted(tool)} that do not match its schema were passed on: {problem}"
        )
        self._misfits[tool] = warning
        self.tell(Warned(self.name, warning))

    def note_result(self, tool: str, problem: str) -> None:
        """Warn once per tool and kind of problem about a result; the kind ends with a colon."""
        key = (tool, problem.partition(":")[0])
        if key in self._odd_results or len(self._odd_results) >= _MOST_MISFITS:
            return
        warning = f"in a result of {quoted(tool)}, {problem}"
        self._odd_results[key] = warning
        self.tell(Warned(self.name, warning))

    def warnings(
        self, of_offers: tuple[str, ...], of_lists: Iterable[str], evidence: Evidence
    ) -> tuple[str, ...]:
        """All problems of the server that do not keep it from working.

        Of the problems of single offers, only the first few are reported.
        """
        own = [*of_lists, *self._misfits.values(), *self._odd_results.values()]
        if evidence.noise:
            times = "once" if evidence.noise == 1 else f"{evidence.noise} times"
            own.append(
                f"it sent something that is not an MCP message ({times}): {evidence.noise_sample!r}"
            )
        return (*self._first(of_offers), *map(self._redacted, own))

    def _first(self, warnings: tuple[str, ...]) -> tuple[str, ...]:
        """The first warnings, each without secrets and not too long."""
        first = [self._redacted(warning) for warning in warnings[:_MOST_WARNINGS]]
        if (more := len(warnings) - len(first)) > 0:
            first.append(f"{counted(more, 'more warning')} like these")
        return tuple(first)

    def _redacted(self, warning: str, limit: int = _WARNING) -> str:
        return shortened(self.redact(shortened(warning, 2 * limit)), limit)
