"""Cuts long texts, and keeps the rest to be paged and searched."""

import secrets
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator

import msgspec

from multitap.errors import BadArguments, UnknownName, counted, quoted

SMALLEST_CAP = 100  # characters; fewer would leave no room for the note
# Models write these patterns. Rows overlap by this much, so that no hit is lost between two of
# them; longer patterns would mean more overlap, and more to search.
_LONGEST_PATTERN = 200
_ROW = 500
_ID_LENGTH = 6
_ID_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"  # an alphabet without look-alike characters
_REGEX_SIZE = 1_000_000  # bytes of the compiled pattern; `(a{99}){99}` would take far more
_SEARCHED = 64 * 1024  # characters searched at a time
EXACT = 256 * 1024
"""Bytes up to which a result is fully decoded, to state how much is not shown."""


class Capped(msgspec.Struct, frozen=True):
    """The beginning of a text, and where its pages end."""

    text: str
    """The beginning, within the limit, with a note about the rest."""
    missing: int
    """Characters left out."""
    ends: tuple[int, ...]
    """Where each page ends; the first page is what the text shows."""


class TextLine(msgspec.Struct, frozen=True):
    number: int
    text: str
    is_hit: bool


class Found(msgspec.Struct, frozen=True):
    """Matching lines, with their context."""

    lines: tuple[TextLine, ...]
    hits: int
    more: bool
    """Whether there are more hits than the limit."""

    def __str__(self) -> str:
        lines = [f"{line.number}{':' if line.is_hit else '-'} {line.text}" for line in self.lines]
        return "\n".join([*lines, f"… more than {self.hits} hits"] if self.more else lines)


def cap(text: str, limit: int, *, result_id: str | None = None) -> Capped:
    """`text` cut at the end of a line, else of a word, so that it fits `limit` with its note.

    Args:
        text: The whole text.
        limit: Characters, at least 100.
        result_id: Where the rest is kept, for the note.
    """
    if limit < SMALLEST_CAP:
        raise ValueError(f"a cap of {limit} leaves no room for the note")
    if len(text) <= limit:
        return Capped(text, 0, (len(text),))
    # sized for the largest numbers in the note: the real ones are known only after the cut
    room = len(_note(counted(len(text), "more character"), len(text), result_id))
    ends = tuple(_page_ends(text, limit - room))
    missing = len(text) - ends[0]
    beginning = text[: ends[0]].removesuffix("\n")
    return Capped(
        beginning + _note(counted(missing, "more character"), len(ends), result_id), missing, ends
    )


def _note(rest: str, pages: int | None, result_id: str | None) -> str:
    if result_id is None:
        return f"\n… {rest}, too much to keep"
    of = "" if pages is None else f" of {pages:,}"
    return f'\n… {rest}; the rest: result "{result_id}" page 2{of}'


def _page_ends(text: str, size: int) -> Iterator[int]:
    end = 0
    while end < len(text):
        end = _page_end(text, end, size)
        yield end


def _page_end(text: str, start: int, size: int) -> int:
    """Where the page that begins at `start` ends; `text` must extend beyond it or be complete."""
    half, full = start + size // 2, start + size
    if full >= len(text):
        return len(text)
    # No boundary in the second half of a page: a cut inside a word beats a page half empty.
    return text.rfind("\n", half, full) + 1 or text.rfind(" ", half, full) + 1 or full


class LongText:
    """A text that is assembled only as far as it is read.

    Args:
        parts_from: Returns the parts of the text from a given index on.
        size: The bytes of its parts.
    """

    def __init__(self, parts_from: Callable[[int], Iterable[str]], size: int) -> None:
        self._parts_from: Callable[[int], Iterable[str]] | None = parts_from
        self._taken = 0
        self._text = ""
        self.size = size

    @classmethod
    def of(cls, text: str) -> "LongText":
        """A text that is already assembled."""
        return cls(lambda taken: () if taken else (text,), len(text))

    @property
    def weight(self) -> int:
        """Bytes of memory that it uses."""
        source = 0 if self._parts_from is None else self.size
        return source + sys.getsizeof(self._text)

    def beginning(self, length: int) -> str:
        """At least the first `length` characters, if it has that many."""
        if self._parts_from is not None and len(self._text) < length:
            # twice as much each time, so that all steps together are linear work
            self._grow(self._parts_from(self._taken), max(length, 2 * len(self._text)))
        return self._text

    def whole(self) -> str:
        """All of it."""
        return self.beginning(sys.maxsize)

    def _grow(self, following: Iterable[str], length: int) -> None:
        # without an empty beginning: a single part is not copied
        parts, size = [self._text] if self._text else [], len(self._text)
        for part in following:
            self._taken += 1
            size += len(part)
            parts.append(part)
            if size >= length:
                break
        else:
            self._parts_from = None
        self._text = "".join(parts)


class KeptResult:
    """The full text of a truncated result.

    A large one is decoded from the beginning, only as far as a page or a search needs.
    """

    def __init__(self, result_id: str | None, text: LongText, limit: int) -> None:
        self.id = result_id
        """None if it was too large to keep."""
        self._text = text
        if text.size <= EXACT:
            capped = cap(text.whole(), limit, result_id=result_id)
            self._room, self._ends = 0, [*capped.ends]
            self.shown = capped.text
            """The beginning, with a note on how to get the rest."""
            self.rest = counted(capped.missing, "more character")
            """How much more there is."""
        else:
            self.rest = f"the result has {text.size / 1_000_000:,.1f} MB"
            note = _note(self.rest, None, result_id)
            self._room, self._ends = limit - len(note), list[int]()
            self.shown = self.page(1).removesuffix("\n") + note

    def __repr__(self) -> str:
        return f"<KeptResult {self.id}>"

    @property
    def text(self) -> str:
        return self._text.whole()

    @property
    def weight(self) -> int:
        """Bytes of memory that it uses."""
        return self._text.weight

    @property
    def pages(self) -> int:
        while self._has_more():
            pass
        return len(self._ends)

    def page(self, number: int) -> str:
        """One page of the text; all pages together are the whole text.

        Args:
            number: From 1 to `pages`; page 1 is the truncated text.
        """
        while len(self._ends) < number and self._has_more():
            pass
        if not 1 <= number <= len(self._ends):
            raise UnknownName(
                f"no page {number}", hint=f"the result has {counted(self.pages, 'page')}"
            )
        start = self._ends[number - 2] if number > 1 else 0
        end = self._ends[number - 1]
        return self._text.beginning(end)[start:end]

    def _has_more(self) -> bool:
        """Whether there is one more page; if so, its end is recorded."""
        if not self._room:
            return False
        start = self._ends[-1] if self._ends else 0
        text = self._text.beginning(start + self._room + 1)
        if self._ends and start == len(text):
            return False
        self._ends.append(_page_end(text, start, self._room))
        return True

    def grep(
        self, pattern: str, *, context: int = 0, limit: int = 50, regex: bool = False
    ) -> Found:
        """The lines that contain `pattern`.

        Args:
            pattern: Plain text, at most 200 characters.
            context: How many lines to show before and after each hit.
            limit: How many hits to show.
            regex: Whether the pattern is a regular expression, without look-around and back
                references. Very long lines are searched in pieces.
        """
        matches = _regex(pattern) if regex else _plain(pattern)
        return _grep(_rows(self._lines()), matches, context, limit)

    def _lines(self) -> Iterator[str]:
        at, size = 0, _SEARCHED
        while True:
            text = self._text.beginning(at + size)
            if len(text) < at + size:
                yield from text[at:].split("\n")
                return
            end = text.rfind("\n", at)
            if end < 0:
                size *= 2  # a longer line
                continue
            yield from text[at:end].split("\n")
            at, size = end + 1, _SEARCHED


def _plain(pattern: str) -> Callable[[str], bool]:
    _check(pattern)
    return lambda row: pattern in row


def _regex(pattern: str) -> Callable[[str], bool]:
    _check(pattern)
    import jsonschema_rs  # noqa: PLC0415 - megabytes that most programs do not need

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


def _rows(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Numbered lines; a long line as overlapping pieces, so that no plain hit is cut in two."""
    for number, line in enumerate(lines, start=1):
        if len(line) <= _ROW:
            yield number, line
            continue
        for start in range(0, len(line) - _LONGEST_PATTERN, _ROW - _LONGEST_PATTERN):
            yield number, line[start : start + _ROW]


def _grep(
    rows: Iterable[tuple[int, str]], matches: Callable[[str], bool], context: int, limit: int
) -> Found:
    lines: list[TextLine] = []
    before: deque[tuple[int, str]] = deque(maxlen=context)
    hits = after = 0
    for row in rows:
        if matches(row[1]):
            if hits == limit:
                return Found(tuple(lines), hits, more=True)
            hits, after = hits + 1, context
            lines += [TextLine(*neighbour, is_hit=False) for neighbour in before]
            lines.append(TextLine(*row, is_hit=True))
            before.clear()
        elif after:
            after -= 1
            lines.append(TextLine(*row, is_hit=False))
        else:
            before.append(row)
    return Found(tuple(lines), hits, more=False)


class KeptResults:
    """The last truncated texts, limited in number and memory."""

    def __init__(self, *, count: int = 64, size: int = 64 * 1024 * 1024) -> None:
        self._count = count
        self._size = size
        self._results: OrderedDict[str, KeptResult] = OrderedDict()

    def __len__(self) -> int:
        return len(self._results)

    def keep(self, text: LongText, limit: int) -> KeptResult:
        """Cut `text` to `limit` characters and keep the whole text while there is room."""
        # it would evict all others, and then itself
        if text.weight > self._size:
            return KeptResult(None, text, limit)
        result_id = self._free_id()
        result = self._results[result_id] = KeptResult(result_id, text, limit)
        self._make_room()
        return result

    def result(self, result_id: str) -> KeptResult:
        """The kept result of that id.

        Raises:
            UnknownName: There is none, or it is no longer kept.
        """
        try:
            self._results.move_to_end(result_id)
        except KeyError:
            raise UnknownName(
                f"no kept result {quoted(result_id)}",
                hint="only the last cut results are kept; call the tool again",
            ) from None
        result = self._results[result_id]
        self._make_room()
        return result

    def _make_room(self) -> None:
        """Evict the oldest texts; kept texts grow as they are read."""
        held = sum(result.weight for result in self._results.values())
        while len(self._results) > self._count or held > self._size:
            _, dropped = self._results.popitem(last=False)
            held -= dropped.weight

    def _free_id(self) -> str:
        while True:
            # random, not counted: a model must not guess the result of another call
            result_id = "".join(secrets.choice(_ID_LETTERS) for _ in range(_ID_LENGTH))
            if result_id not in self._results:
                return result_id
