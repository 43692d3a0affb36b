"""Parses arguments as typed: `key=value`, `key:=json`, an object, or standard input."""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from multitap.catalog.schemas.json_values import is_object
from multitap.config.problems import nearest
from multitap.errors import BadArguments, quoted
from multitap.records import dataclass

_WORD = re.compile(r"(.+?)(:?=)(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ArgumentWord:
    """One `key=value` or `key:=json`."""

    key: str
    text: str
    is_json: bool = False

    @property
    def json(self) -> Any:
        """The value as JSON.

        Raises:
            BadArguments: It is not JSON.
        """
        try:
            return json.loads(self.text)
        except ValueError as exc:
            raise bad_argument(self.key, f"expected JSON, got {quoted(self.text)}: {exc}") from None


def words(arguments: Iterable[str]) -> tuple[ArgumentWord, ...]:
    """The parsed arguments, with files read.

    Raises:
        BadArguments: One is not `key=value`, or its file cannot be read.
    """
    return tuple(map(_word, arguments))


def whole(argument: str) -> dict[str, Any] | None:
    """All arguments at once if the word is a JSON object or `-`; otherwise None.

    Raises:
        BadArguments: It should be a JSON object, but is not.
    """
    if argument == "-":
        return _object(sys.stdin.read(), "standard input")
    return _object(argument, "the argument") if argument.lstrip().startswith("{") else None


def texts(given: Sequence[ArgumentWord], known: Sequence[str]) -> dict[str, str]:
    """The arguments of a prompt, which are all texts.

    Raises:
        BadArguments: The prompt takes no such argument, or it is given twice.
    """
    arguments: dict[str, str] = {}
    for word in given:
        if word.key not in known:
            raise unknown(word.key, known)
        if word.key in arguments:
            raise twice(word.key)
        arguments[word.key] = word.text
    return arguments


def bad_argument(key: str, reason: str, hint: str | None = None) -> BadArguments:
    return BadArguments(f"{key}: {reason}", path=f"/{key}", hint=hint)


def unknown(key: str, known: Sequence[str]) -> BadArguments:
    near = nearest(key, known)
    takes = f"it takes {', '.join(known)}" if known else "it takes no arguments"
    hint = f"did you mean {near!r}? {takes}" if near else takes
    return BadArguments(f"there is no argument {key!r}", path=f"/{key}", hint=hint)


def twice(key: str) -> BadArguments:
    return bad_argument(key, "it is given more than once but takes one value")


def _word(argument: str) -> ArgumentWord:
    match = _WORD.fullmatch(argument)
    if match is None:
        raise BadArguments(
            f"expected key=value, got {quoted(argument)}",
            path="",
            hint="such as `path=README.md`",
        )
    key, sign, value = match.groups()
    if value.startswith("@@"):
        value = value[1:]
    elif value.startswith("@"):
        value = _content(key, value[1:])
    return ArgumentWord(key, value, is_json=sign == ":=")


def _content(key: str, path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).expanduser().read_text("utf-8")
    except OSError as exc:
        hint = "`@` reads a file; write `@@` for a literal `@`"
        raise bad_argument(key, f"cannot read {path!r}: {exc.strerror}", hint) from None
    except UnicodeDecodeError:
        raise bad_argument(key, f"{path!r} is not UTF-8 text") from None


def _object(text: str, source: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as exc:
        raise BadArguments(f"{source} is not JSON: {exc}", path="") from None
    if not is_object(value):
        raise BadArguments(f"{source} is not a JSON object", path="", hint='such as {"a": 1}')
    return value
