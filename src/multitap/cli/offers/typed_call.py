"""Splits the command line of a typed server from the call of its tool."""

import re
from dataclasses import replace

import click

from multitap.cli.options import CommonOptions

_ARGUMENT = re.compile(r"\A(-|[\w.-]*\w:?=.*|\{.*\})\Z", re.DOTALL)
"""`key=value`, `key:=json`, a JSON object, or `-` for standard input; an option is none."""


def split(
    options: CommonOptions, name: str | None, arguments: tuple[str, ...]
) -> tuple[CommonOptions, str, tuple[str, ...]]:
    """The server, the tool and its arguments, wherever they were typed.

    All three forms mean the same: `add a=1 -- python server.py`, `-- python server.py -- add a=1`,
    and `-- python server.py add a=1`, where the tool is the last word that is not an argument.
    """
    if name is not None:
        return options, name, arguments
    words = options.typed.command if options.typed else ()
    if "--" in words:
        end = words.index("--")
        command, call = words[:end], words[end + 1 :]
    else:
        end = _tool_at(words)
        command, call = words[:end], words[end:]
    if options.typed is None or not command or not call:
        raise click.UsageError("Missing argument 'NAME'.")
    return replace(options, typed=replace(options.typed, command=command)), call[0], call[1:]


def _tool_at(words: tuple[str, ...]) -> int:
    end = len(words)
    while end and _is_argument(words[end - 1]):
        end -= 1
    return max(end - 1, 0)


def _is_argument(word: str) -> bool:
    return word == "-" or (not word.startswith("-") and bool(_ARGUMENT.match(word)))
