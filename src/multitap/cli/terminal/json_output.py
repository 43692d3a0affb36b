"""Writes data as JSON, for programs."""

import json
from typing import Any

from multitap.cli.terminal.output import say


def say_json(value: Any) -> None:
    """Data for programs; what could steer a terminal is written as an escape."""
    say(json_text(value))


def json_text(value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return "".join(char if char.isprintable() or char == "\n" else _escape(char) for char in text)


def _escape(char: str) -> str:
    pair = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{pair[start : start + 4]}" for start in range(0, len(pair), 4))
