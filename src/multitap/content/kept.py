"""Long texts: cut to what a reader can take, the rest kept to be paged and searched."""

import secrets
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import jsonschema_rs

from multitap.errors import BadArguments, UnknownName, quoted

SMALLEST_CAP = 100
_LONGEST_PATTERN = 200
_ROW = 500
_ID_LENGTH = 6
_ID_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"  # none is mistaken for another
_REGEX_SIZE = 1_000_000


@dataclass(frozen=True, slots=True)
class Capped:
    """The beginning of a text, and where its pages end."""

    text: str
    """At most the limit, with a note of what is missing."""
    missing: int
    """Characters left out."""
    ends: tuple[int, ...]
    """Where each page ends; the first page is what the text shows."""


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    text: str
    is_hit: bool


@dataclass(frozen=True, slots=True)
class Found:
    """Lines that match, with their neighbours where asked for."""

    lines: tuple[Line, ...]
    hits: int
    more: bool
    """There are more hits than were asked for."""

    def __str__(self) -> str:
        shown = [f"{line.number}{':' if line.is_hit else '-'} {line.text}" for line in self.lines]
        return "\n".join([*shown, f"… more than {self.hits} hits"] if self.more else shown)


def cap(text: str, limit: int, *, result_id: str | None = None) -> Capped:
    """`text` cut at the end of a line, else of a word, so that it fits `limit` with its note.

    Args:
        text: The whole.
        limit: Characters, at least 100.
        result_id: Where the rest is kept, for the note.
    """
    if limit < SMALLEST_CAP:
        raise ValueError(f"a cap of {limit} leaves no room for the note")
    if len(text) <= limit:
        return Capped(text, 0, (len(text),))
    room = len(_note(len(text), len(text), result_id))
    ends = tuple(_page_ends(text, limit - room))
    missing = len(text) - ends[0]
    shown = text[: ends[0]].removesuffix("\n")
    return Capped(shown + _note(missing, len(ends), result_id), missing, ends)


def _note(missing: int, pages: int, result_id: str | None) -> str:
    if result_id is None:
        return f"\n… {missing:,} more characters, too many to keep"
    return f'\n… {missing:,} more characters; the rest: result "{result_id}" page 2 of {pages:,}'


def _page_ends(text: str, size: int) -> Iterator[int]:
    end = 0
    while len(text) - end > size:
        # No boundary in the second half of a page: a cut inside a word beats a page half empty.
        half, full = end + size // 2, end + size
        end = text.rfind("\n", half, full) + 1 or text.rfind(" ", half, full) + 1 or full
        yield end
    yield len(text)


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The whole text of a result that was cut."""

    id: str | None
    """None where it was too large to keep."""
    text: str = field(repr=False)
    capped: Capped = field(repr=False)

    @property
    def pages(self) -> int:
        return len(self.capped.ends)

    def page(self, number: int) -> str:
        """One page of the text; they join to the whole.

        Args:
            number: From 1 to `pages`; page 1 is what the cut text shows.
        """
        if not 1 <= number <= self.pages:
            raise UnknownName(f"no page {number}", hint=f"the result has {self.pages} pages")
        start = self.capped.ends[number - 2] if number > 1 else 0
        return self.text[start : self.capped.ends[number - 1]]

    def grep(
        self, pattern: str, *, context: int = 0, limit: int = 50, regex: bool = False
    ) -> Found:
        """The lines that contain `pattern`.

        Args:
            pattern: Plain text, at most 200 characters.
            context: How many lines to show before and after each hit.
            limit: How many hits to show.
            regex: Whether the pattern is a regular expression, without look-around and back
                references. Of a very long line pieces are searched.
        """
        matches = _regex(pattern) if regex else _plain(pattern)
        return _grep(_rows(self.text), matches, context, limit)


def _plain(pattern: str) -> Callable[[str], bool]:
    _check(pattern)
    return lambda row: pattern in row


def _regex(pattern: str) -> Callable[[str], bool]:
    _check(pattern)
    # A backtracking engine could be made to run for years; this one is linear.
    options = jsonschema_rs.RegexOptions(size_limit=_REGEX_SIZE)
    try:
        return jsonschema_rs.Draft202012Validator(
            {"pattern": pattern}, pattern_options=options
        ).is_valid
    except ValueError:
        raise BadArguments(
            f"not a regular expression we can search with: {quoted(pattern)}",
            path="/pattern",
            hint="look-around and back references are not supported; plain text always works",
        ) from None


def _check(pattern: str) -> None:
    if not 1 <= len(pattern) <= _LONGEST_PATTERN:
        raise BadArguments(
            f"a pattern has 1 to {_LONGEST_PATTERN} characters, not {len(pattern)}",
            path="/pattern",
        )


def _rows(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines; of a long one overlapping pieces, so that no plain hit is cut in two."""
    for number, line in enumerate(text.split("\n"), start=1):
        if len(line) <= _ROW:
            yield number, line
            continue
        for start in range(0, len(line) - _LONGEST_PATTERN, _ROW - _LONGEST_PATTERN):
            yield number, line[start : start + _ROW]


def _grep(
    rows: Iterable[tuple[int, str]], matches: Callable[[str], bool], context: int, limit: int
) -> Found:
    found: list[Line] = []
    before: deque[tuple[int, str]] = deque(maxlen=context)
    hits = after = 0
    for row in rows:
        if matches(row[1]):
            if hits == limit:
                return Found(tuple(found), hits, more=True)
            hits, after = hits + 1, context
            found += [Line(*neighbour, is_hit=False) for neighbour in before]
            found.append(Line(*row, is_hit=True))
            before.clear()
        elif after:
            after -= 1
            found.append(Line(*row, is_hit=False))
        else:
            before.append(row)
    return Found(tuple(found), hits, more=False)


class KeptResults:
    """The last texts that were cut, within bounds of number and memory."""

    def __init__(self, *, count: int = 64, size: int = 64 * 1024 * 1024) -> None:
        self._count = count
        self._size = size
        self._held = 0
        self._results: OrderedDict[str, KeptResult] = OrderedDict()

    def __len__(self) -> int:
        return len(self._results)

    def keep(self, text: str, limit: int) -> KeptResult:
        """Cut `text` to `limit` characters and keep the whole, for as long as there is room."""
        if sys.getsizeof(text) > self._size:
            return KeptResult(None, text, cap(text, limit))
        result_id = self._free_id()
        result = KeptResult(result_id, text, cap(text, limit, result_id=result_id))
        self._results[result_id] = result
        self._held += sys.getsizeof(text)
        while len(self._results) > self._count or self._held > self._size:
            _, dropped = self._results.popitem(last=False)
            self._held -= sys.getsizeof(dropped.text)
        return result

    def result(self, result_id: str) -> KeptResult:
        """The kept result of that id.

        Raises:
            UnknownName: There is none, or none any more.
        """
        try:
            self._results.move_to_end(result_id)
        except KeyError:
            raise UnknownName(
                f"no kept result {quoted(result_id)}",
                hint="only the last cut results are kept; call the tool again",
            ) from None
        return self._results[result_id]

    def _free_id(self) -> str:
        while True:
            result_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
            if result_id not in self._results:
                return result_id
