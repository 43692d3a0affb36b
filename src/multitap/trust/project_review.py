"""The parts of a folder's projects, compared with what was trusted before."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from multitap.config.layers import load
from multitap.config.problems import Problem, Severity
from multitap.config.projects import Proposal, TrustDecision, TrustNothing, TrustState
from multitap.config.sources import (
    Search,
    Surroundings,
    at_prompt,
    excelmanus,
    kode,
    names_transports,
    native,
    otter,
)
from multitap.errors import counted
from multitap.sandbox.levels import MEANINGS
from multitap.trust.project_parts import (
    FILE,
    KnownParts,
    ProjectPart,
    parts_of,
    quote_word,
    visible,
)
from multitap.trust.projects import Projects, TrustedPart

SEARCHES = (native, kode, otter)
"""Every search that finds files of a project."""
MOST_FILES_SHOWN = 20
"""Files of one part that are listed; the others are counted."""
_STATES = {
    TrustState.NEW: "new",
    TrustState.CHANGED: "changed",
    TrustState.TRUSTED: "trusted, and asks for more",
}
_NOT_WATCHED = (
    "Also not watched: programs and packages outside the project. A change there does not ask "
    "again."
)
_FOLLOWED = "It is followed: you trusted its future changes, and this is beyond them."


class ReviewedPart(msgspec.Struct, frozen=True):
    """One part as it is, and as it was trusted."""

    part: ProjectPart
    before: TrustedPart | None = None
    followed: bool = False
    """Whether the project is trusted with its future changes."""

    @property
    def standing(self) -> TrustState:
        if self.before is None:
            return TrustState.NEW
        is_accepted = self.before.accepts(self.part, followed=self.followed)
        return TrustState.TRUSTED if is_accepted else TrustState.CHANGED

    @property
    def wants(self) -> tuple[str, ...]:
        """Secrets that it asks for and has not been granted."""
        return tuple(name for name in self.part.wants if name not in self._given("granted"))

    @property
    def new_folders(self) -> tuple[str, ...]:
        """Folders among its arguments that it may not write to yet."""
        return tuple(path for path in self.part.writes if path not in self._given("writes"))

    def _given(self, field: Literal["granted", "writes"]) -> tuple[str, ...]:
        if self.before is None or self.standing is not TrustState.TRUSTED:
            return ()
        return self.before.granted if field == "granted" else self.before.writes

    def lines(self) -> Iterator[str]:
        """What it would do, or the difference if it changed; long lists of files are counted."""
        yield f"{self.part.title}: {_STATES[self.standing]}"
        if self.standing is not TrustState.CHANGED or self.before is None:
            yield from _shorten([f"  {line}" for line in self._effects()])
        else:
            yield from _shorten([*_compare(self.before.lines, self._effects())])
        for name in self.wants:
            yield f"    wants the secret {visible(name)}"

    def _effects(self) -> tuple[str, ...]:
        """What it would do, with the level and the rules that a person gave it before."""
        trusted = self.before
        if trusted is None or not trusted.stays_for(self.part):
            return self.part.lines
        rules = trusted.rules
        kinds = {"may read": rules.read, "may write": rules.write, "may reach": rules.hosts}
        added = [
            f"{label:<9} {quote_word(value)} (you added it)"
            for label, values in kinds.items()
            for value in values
        ]
        level = (
            trusted.level
            and f"{'level':<9} {trusted.level}: {MEANINGS[trusted.level]}; you chose it"
        )
        lines = (level if level and line.startswith("level ") else line for line in self.part.lines)
        return (*lines, *added)


class ProjectReview(msgspec.Struct, frozen=True):
    """Everything that one project would do."""

    root: Path
    parts: tuple[ReviewedPart, ...]
    gone: tuple[TrustedPart, ...] = ()
    """Trusted parts that no longer exist."""
    followed: bool = False
    """Whether it is trusted with its future changes."""

    @property
    def news(self) -> tuple[ReviewedPart, ...]:
        """Parts that need a decision."""
        return tuple(
            part
            for part in self.parts
            if part.standing is not TrustState.TRUSTED or part.wants or part.new_folders
        )

    def unfollow(self) -> "ProjectReview":
        """The review of the same project if its changes are not trusted by themselves."""
        parts = tuple(replace(reviewed, followed=False) for reviewed in self.parts)
        return replace(self, parts=parts, followed=False)

    def lines(self) -> Iterator[str]:
        """All that a person needs to know to decide."""
        yield f"project {visible(str(self.root))}"
        for reviewed in self.news:
            yield ""
            yield from reviewed.lines()
        for gone in self.gone:
            yield ""
            yield f"{visible(gone.key)}: no longer there"
        yield ""
        if others := len(self.parts) - len(self.news):
            yield f"{counted(others, 'other part')} of it: trusted and unchanged"
        yield _NOT_WATCHED
        if self.followed:
            yield _FOLLOWED


def review(folder: Path, projects: Projects) -> tuple[list[ProjectReview], list[Problem]]:
    """The projects whose files apply to a folder, and their problems.

    Raises:
        ProjectsError: The record of trusted projects cannot be used.
    """
    trusted = projects.trusted()
    proposals, problems = _proposals(folder)
    parts: dict[Path, dict[str, ProjectPart]] = {}
    known_parts = KnownParts()  # most files are found by several searches
    for proposal in proposals:
        current = parts.setdefault(proposal.root, {})
        current |= {part.key: part for part in parts_of(proposal, known_parts)}
    reviews: list[ProjectReview] = []
    for root, current in parts.items():
        before = trusted.get(root.resolve(), {})
        gone = tuple(part for key, part in before.items() if key not in current)
        followed = projects.follows(root)
        reviewed = tuple(
            ReviewedPart(part, before.get(key), followed) for key, part in current.items()
        )
        if reviewed or gone:
            reviews.append(ProjectReview(root, reviewed, gone, followed))
    return reviews, problems


def _compare(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    # not `ndiff`, which compares similar lines with each other: a project could make that take long
    from difflib import SequenceMatcher  # noqa: PLC0415 - a gateway imports this, and shows nothing

    # without `autojunk`, which leaves out lines that are frequent in a long list
    for kind, start, end, new_start, new_end in SequenceMatcher(
        None, before, after, autojunk=False
    ).get_opcodes():
        if kind == "equal":
            yield from (f"  {line}" for line in after[new_start:new_end])
        else:
            yield from (f"- {line}" for line in before[start:end])
            yield from (f"+ {line}" for line in after[new_start:new_end])


def _shorten(lines: Sequence[str]) -> Iterator[str]:
    """The lines without most of those about files: there may be thousands.

    All others are shown. In a comparison, they also come after files that are gone.
    """
    mark = f"{FILE} "
    others = [line for line in lines if not line[2:].startswith(mark)]
    # changed files first: they are what a person looks for
    files = sorted(
        (line for line in lines if line[2:].startswith(mark)),
        key=lambda line: line.startswith("  "),
    )
    yield from (f"  {line}" for line in (*others, *files[:MOST_FILES_SHOWN]))
    if len(files) > MOST_FILES_SHOWN:
        yield f"    {FILE:<9} and {counted(len(files) - MOST_FILES_SHOWN, 'more file')}"


class _Collector(TrustNothing):
    """Collects the proposals, and trusts none."""

    def __init__(self) -> None:
        self.proposals: list[Proposal] = []

    def decide(self, proposal: Proposal, /) -> TrustDecision:
        self.proposals.append(proposal)
        return super().decide(proposal)


def _proposals(folder: Path) -> tuple[list[Proposal], list[Problem]]:
    collector = _Collector()
    problems: dict[Problem, None] = {}
    for search in _searches(folder):
        theirs = [source.path for source in search.sources if source.project is not None]
        for problem in load(search, approval=collector).problems:
            if any(problem.place.file.is_relative_to(path) for path in theirs):
                problems[problem] = None
    usable = {
        (place.file, name)
        for proposal in collector.proposals
        for name, place in proposal.places.items()
    }
    # what one design refuses may be right for another, as a server without `transport`
    return collector.proposals, [
        problem
        for problem in problems
        if problem.severity is not Severity.ERROR
        or (problem.place.file, problem.server) not in usable
    ]


def _searches(folder: Path) -> Iterator[Search]:
    """Each search with the user's files, which a project may replace, but without named ones."""
    here = Surroundings.here(folder)
    # Without the environment: MULTITAP_CONFIG would replace the project's files with named ones.
    where = Surroundings(here.folder, here.home, here.config, {})
    yield from (search(where) for search in SEARCHES)
    if names_transports(folder / "mcp.json"):
        yield excelmanus(where)
    yield at_prompt(where)[0]
