"""`multitap help`: explains a failure code or an error message, without a network."""

import re
from collections.abc import Iterator
from importlib.resources import files

import click

from multitap.cli.terminal.output import note, say
from multitap.errors import UnknownName
from multitap.records import dataclass

PAGE = "troubleshooting.md"
"""Beside this module; `docs/troubleshooting.md` is made from it."""

_CODE = re.compile(r"^### `(\w+)`$", re.MULTILINE)
_SECTION = re.compile(r"^## .*", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_ANYTHING = ".*"
_WIDTH = 88


@dataclass(frozen=True, slots=True)
class FailureHelp:
    """The explanation of one failure, and what to do about it."""

    code: str
    messages: tuple[str, ...]
    """Its error messages; `…` stands for any text."""
    text: str
    """Paragraphs of Markdown."""

    def fits(self, message: str) -> bool:
        """Whether it explains an error message."""
        return any(_pattern(one).search(message) for one in self.messages)


def explanations() -> Iterator[FailureHelp]:
    """All explanations, in the order of the page."""
    page = files("multitap.cli.servers").joinpath(PAGE).read_text(encoding="utf-8")
    _, *parts = _CODE.split(page)
    for code, part in zip(parts[::2], parts[1::2], strict=True):
        lines = _SECTION.sub("", part).strip().splitlines()
        said = tuple(line.removeprefix("> ") for line in lines if line.startswith("> "))
        rest = "\n".join(line for line in lines if not line.startswith("> "))
        yield FailureHelp(code, said, rest.strip())


def explain(words: str | None) -> int:
    """Explain a code or a message; without words, list all codes.

    Raises:
        UnknownName: Nothing explains it.
    """
    known = {one.code: one for one in explanations()}
    if words is None:
        for code, one in known.items():
            say(f"{code:<24}{one.messages[0] if one.messages else ''}".rstrip())
        note("`multitap help CODE` explains one; an error message in quotes works, too")
        return 0
    # a code that was copied from a message may have quotation marks
    exact = known.get(words.strip("`'\"").lower().replace("-", "_"))
    found = [exact] if exact else [one for one in known.values() if one.fits(words)]
    if not found:
        raise UnknownName(
            f"there is no explanation for {words!r}", hint="`multitap help` lists all codes"
        )
    for number, one in enumerate(found):
        say("\n" * bool(number) + one.code)
        for message in one.messages:
            say(f"  | {message}")
        plain = _LINK.sub(r"\1", one.text)
        say("\n" + click.wrap_text(plain, _WIDTH, preserve_paragraphs=True))
    return 0


def _pattern(message: str) -> re.Pattern[str]:
    """A pattern for a message of the page, with any quotations and numbers."""
    fits = re.sub(r"(?:\\\ )?…", lambda _: _ANYTHING, re.escape(message))
    fits = re.sub(r"'[^']*'", lambda _: "'?.*'?", fits)  # a shell removes quotation marks
    return re.compile(re.sub(r"\d[\d,]*", r"[\\d,.]+", fits), re.IGNORECASE)
