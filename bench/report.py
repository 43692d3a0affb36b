"""What was measured, as tables for people, and which promises it keeps."""

import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


@dataclass(frozen=True, slots=True)
class Promise:
    words: str
    limit: float
    measured: float
    unit: str = ""

    @property
    def kept(self) -> bool:
        return self.measured <= self.limit


@dataclass(frozen=True, slots=True)
class Report:
    """One benchmark's outcome."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    promises: Sequence[Promise]


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs"


def milli(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def render(reports: Sequence[Report]) -> str:
    promises = [promise for report in reports for promise in report.promises]
    kept = (
        (
            promise.words,
            f"{promise.limit:g}{promise.unit}",
            f"{promise.measured:.2f}{promise.unit}",
            "yes" if promise.kept else "**no**",
        )
        for promise in promises
    )
    parts = [machine(), table(("promise", "at most", "measured", "kept"), kept)]
    for report in reports:
        parts += [f"### {report.title}", table(report.columns, report.rows)]
    return "\n\n".join(parts) + "\n"


def machine() -> str:
    packages = ("mcp", "msgspec", "aiohttp", "uvicorn", "anyio")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return (
        f"{today}: {os.cpu_count()} cores, {_processor()}, {platform.system()}, "
        f"Python {platform.python_version()}; {versions}."
    )


def write(**parts: str) -> None:
    """Put texts between the page's markers, each between those of its name."""
    page = PAGE.read_text()
    for name, text in parts.items():
        marked = re.compile(rf"(<!-- {name}:begin -->\n).*(<!-- {name}:end -->)", re.DOTALL)
        page = marked.sub(lambda found, text=text: f"{found[1]}\n{text}\n{found[2]}", page)
    PAGE.write_text(page)


def better(first: Report, again: Report) -> Report:
    """A report with the lesser figure for each promise that was measured twice."""
    known = {promise.words: promise for promise in again.promises}
    lesser = [
        min(promise, known.get(promise.words, promise), key=lambda one: one.measured)
        for promise in first.promises
    ]
    return replace(first, promises=lesser)


def _processor() -> str:
    try:
        cpuinfo = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    names = re.findall(r"model name\s*: (.*)", cpuinfo)
    return names[0] if names else platform.machine()
