"""The log of a gateway: one line for each record, as text or as JSON."""

import logging
import re
import sys
import time
import traceback
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Literal

import msgspec

from multitap.printable import printable
from multitap.telemetry.spans import CURRENT

LogFormat = Literal["text", "json"]
LEVELS = ("debug", "info", "warning", "error", "critical")

_LONGEST = 16 * 1024  # characters of a message or stack trace; servers may cause both
_BREAKS = re.compile(r"\s+")
_encode = msgspec.json.Encoder().encode


class _TextFormatter(logging.Formatter):
    """Records without stack traces: they appear among other output."""

    def format(self, record: logging.LogRecord) -> str:
        exc = record.exc_info[1] if record.exc_info else None
        reason = f": {type(exc).__name__}: {exc}" if exc else ""
        return printable(_BREAKS.sub(" ", f"{record.getMessage()}{reason}")).strip()


class _JsonFormatter(logging.Formatter):
    """Records as JSON, with the names that OpenTelemetry uses where it has one."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "timestamp": f"{moment}.{int(record.created % 1 * 1e6):06d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage()[:_LONGEST],
        }
        if (span := CURRENT.get()) is not None:
            fields["trace_id"] = span.context.trace_id
            fields["span_id"] = span.context.span_id
        if record.exc_info and (exc := record.exc_info[1]) is not None:
            trace = "".join(traceback.format_exception(exc))
            fields["exception.type"] = type(exc).__qualname__
            fields["exception.message"] = str(exc)[:_LONGEST]
            fields["exception.stacktrace"] = trace[-_LONGEST:]  # the last frames say what failed
        return _sound(_encode_any(fields))


def _encode_any(fields: dict[str, Any]) -> str:
    """JSON for any text: messages may quote bytes of servers that are no Unicode."""
    try:
        return _encode(fields).decode()
    except UnicodeEncodeError:
        sound = {
            name: value.encode(errors="backslashreplace").decode()
            if isinstance(value, str)
            else value
            for name, value in fields.items()
        }
        return _encode(sound).decode()


def _sound(line: str) -> str:
    """The same JSON with what could steer a terminal as escapes."""
    if line.isascii():  # JSON has the controls of ASCII as escapes already
        return line.replace("\x7f", "\\u007f")
    return "".join(char if char.isprintable() else _escape(char) for char in line)


def _escape(char: str) -> str:
    pair = char.encode("utf-16-be").hex()
    return "".join(f"\\u{pair[start : start + 4]}" for start in range(0, len(pair), 4))


def parse_levels(texts: Iterable[str]) -> dict[str, str]:
    """Levels by logger; that of all others has the name `""`.

    Args:
        texts: Each is `LEVEL` or `LOGGER=LEVEL`; a logger includes those below it.

    Raises:
        ValueError: There is no such level.
    """
    levels: dict[str, str] = {}
    for text in texts:
        logger, _, level = text.rpartition("=")
        if level.lower() not in LEVELS:
            raise ValueError(f"{level!r} is not a level; there are {', '.join(LEVELS)}")
        levels[logger.strip()] = level.strip().lower()
    return levels


def set_up_logs(form: LogFormat, levels: Mapping[str, str], *, notes: str) -> None:
    """Write the log of this process to standard error.

    As JSON, this includes notes for the user, warnings of Python, and the error that ends the
    program: readers can parse every line.

    Args:
        form: How records are written.
        levels: Their least levels, as of `parse_levels`; `warning` for all others.
        notes: The logger of notes for the user, which is not used for text.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level.upper())
    if form == "json":
        logger = logging.getLogger(notes)
        logger.addHandler(handler)
        logger.propagate = False
        logger.setLevel(logging.INFO)  # at any level: it says where the gateway listens
        logging.captureWarnings(capture=True)
        sys.excepthook = _log_crash


def _log_crash(kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("multitap").critical("the program failed", exc_info=(kind, exc, trace))
