"""Formats the problems of a configuration for people and for programs."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from multitap.cli.terminal.near_paths import near
from multitap.cli.terminal.output import note
from multitap.config import Problem


def show(problems: Iterable[Problem], write: Callable[[str], None] = note) -> None:
    """Print problems with their hints."""
    for problem in problems:
        write(line(problem))
        if problem.hint:
            write(f"  hint: {problem.hint}")


def line(problem: Problem) -> str:
    """A problem in one line with its place."""
    return str(replace(problem, place=near(problem.place)))


def plain_line(problem: Problem) -> str:
    """The same without the severity, for an error message."""
    return replace(problem, place=near(problem.place)).reason


def for_programs(problem: Problem) -> dict[str, Any]:
    place = problem.place
    return {
        "severity": problem.severity,
        "message": problem.message,
        "file": str(place.file),
        "line": place.line or None,
        "column": place.column or None,
        "key": problem.key or None,
        "server": problem.server,
        "expected": problem.expected,
        "hint": problem.hint,
    }
