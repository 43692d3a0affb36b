"""`multitap help`: explains failure codes, error messages and commands, without a network."""

import re
from collections.abc import Iterable, Iterator
from importlib.resources import files

import click
import msgspec

from multitap.cli.app import COMMANDS, SECTIONS, multitap
from multitap.cli.completion import complete_code
from multitap.cli.terminal import Exit, note, say
from multitap.errors import UnknownName

PAGE = "troubleshooting.md"
"""Beside this module; `docs/troubleshooting.md` is made from it."""

_CODE = re.compile(r"^### `(\w+)`$", re.MULTILINE)
_SECTION = re.compile(r"^## .*", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_ANYTHING = ".*"
_WIDTH = 88
# characters; fewer would begin too many messages
_SHORTEST_START = 10
_STATES = {"not_trusted": "untrusted", "changed": "untrusted", "disconnected": "connecting"}
"""The codes that explain other states of a server."""


class FailureHelp(msgspec.Struct, frozen=True):
    """The explanation of one failure, and what to do about it."""

    code: str
    messages: tuple[str, ...]
    """Its error messages; `…` stands for any text."""
    text: str
    """Paragraphs of Markdown."""

    def fits(self, message: str) -> bool:
        """Whether it explains an error message, or the beginning of one."""
        start = message.strip().casefold()
        return any(
            _pattern(pattern).search(message)
            or (len(start) >= _SHORTEST_START and pattern.casefold().startswith(start))
            for pattern in self.messages
        )


def explanations() -> Iterator[FailureHelp]:
    """All explanations, in the order of the page."""
    page = files("multitap.cli.problems").joinpath(PAGE).read_text(encoding="utf-8")
    _, *parts = _CODE.split(page)
    for code, part in zip(parts[::2], parts[1::2], strict=True):
        lines = _SECTION.sub("", part).strip().splitlines()
        messages = tuple(line.removeprefix("> ") for line in lines if line.startswith("> "))
        rest = "\n".join(line for line in lines if not line.startswith("> "))
        yield FailureHelp(code, messages, rest.strip())


@click.command("help")
@click.argument("topic", nargs=-1, metavar="[COMMAND|CODE|MESSAGE]", shell_complete=complete_code)
def help_(topic: tuple[str, ...]) -> int | None:
    """Explain a failure code, an error message or a command

    Works without a network. `help commands` lists all commands, `help codes` all failure codes.
    """
    text = " ".join(topic)
    if not topic:
        _show_help()
        say(_ERRORS)
    elif text == "commands":
        _list_commands()
    elif text == "codes":
        _list_codes()
    # a code wins: `multitap COMMAND --help` is another way to the rest
    elif topic[0] in COMMANDS and topic[0] not in {failure.code for failure in explanations()}:
        return _show_help(*topic)
    else:
        _explain(text)
    return Exit.DONE


_ERRORS = """
An error: `multitap help CODE` or `multitap help 'MESSAGE'` explains it."""


def _show_help(*command: str) -> int | None:
    return multitap.main([*command, "--help"], "multitap", standalone_mode=False)  # type: ignore[no-any-return]


def _list_commands() -> None:
    formatter = click.get_current_context().make_formatter()
    for title, section in SECTIONS.items():
        with formatter.section(title):
            formatter.write_dl([(name, command.summary) for name, command in section.items()])
    say(formatter.getvalue().strip("\n"))


def _list_codes() -> None:
    for failure in explanations():
        say(f"{failure.code:<24}{failure.messages[0] if failure.messages else ''}".rstrip())
    note("`multitap help CODE` explains one; an error message in quotes works, too")


def _explain(text: str) -> None:
    """Explain a code or a message.

    Raises:
        UnknownName: Nothing explains it.
    """
    failures = {failure.code: failure for failure in explanations()}
    # a code that was copied from a message may have quotation marks
    code = re.sub(r"[\s-]", "_", text.strip("`'\"").lower())
    exact = failures.get(_STATES.get(code, code))
    matches = [exact] if exact else [failure for failure in failures.values() if failure.fits(text)]
    if not matches:
        matches = [*_recognised(text, failures.values())]
    if not matches:
        raise UnknownName(
            f"there is no explanation for {text!r}", hint="`multitap help codes` lists all codes"
        )
    for number, failure in enumerate(matches):
        say("\n" * bool(number) + failure.code)
        for message in failure.messages:
            say(f"  | {message}")
        plain = _LINK.sub(r"\1", failure.text)
        say("\n" + click.wrap_text(plain, _WIDTH, preserve_paragraphs=True))


def _recognised(text: str, failures: Iterable[FailureHelp]) -> Iterator[FailureHelp]:
    """The explanations of what is recognised in the output of a program."""
    from multitap.upstream.diagnosis import recognise  # noqa: PLC0415 - the rest of its room

    # all output that one pattern recognises has the same reason
    if pattern := recognise(text):
        is_same = re.compile(pattern, re.MULTILINE).search
        yield from (failure for failure in failures if any(map(is_same, failure.messages)))


def _pattern(message: str) -> re.Pattern[str]:
    """A pattern for a message of the page, with any quotations and numbers."""
    fits = re.sub(r"(?:\\\ )?…", lambda _: _ANYTHING, re.escape(message))
    fits = re.sub(r"'[^']*'", lambda _: "'?.*'?", fits)  # a shell removes quotation marks
    return re.compile(re.sub(r"\d[\d,]*", r"[\\d,.]+", fits), re.IGNORECASE)
