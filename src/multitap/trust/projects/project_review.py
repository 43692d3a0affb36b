"""The parts of a folder's projects, compared with what was trusted before."""

from collections.abc import Iterator
from difflib import ndiff
from pathlib import Path

from multitap.config import Problem, Search, Surroundings, excelmanus, kode, load, native, otter
from multitap.config.seed_files import at_prompt
from multitap.config.trust_gate import Proposal, TrustDecision, TrustNothing, TrustState
from multitap.records import dataclass
from multitap.trust.projects.project_parts import KnownParts, ProjectPart, parts_of
from multitap.trust.projects.trusted_projects import Projects, TrustedPart

SEARCHES = (native, kode, otter, excelmanus)
"""Every search that finds files of a project."""


@dataclass(frozen=True, slots=True)
class ReviewedPart:
    """One part as it is, and as it was trusted."""

    part: ProjectPart
    before: TrustedPart | None = None

    @property
    def standing(self) -> TrustState:
        if self.before is None:
            return TrustState.NEW
        return TrustState.TRUSTED if self.before.digest == self.part.digest else TrustState.CHANGED

    @property
    def wants(self) -> tuple[str, ...]:
        """Secrets that it asks for and has not been granted."""
        known = self.standing is TrustState.TRUSTED and self.before is not None
        granted = self.before.granted if known and self.before else ()
        return tuple(name for name in self.part.wants if name not in granted)

    def lines(self) -> tuple[str, ...]:
        """What it would do, or the difference if it changed."""
        if self.standing is not TrustState.CHANGED or self.before is None:
            return tuple(f"  {line}" for line in self.part.lines)
        compared = ndiff(self.before.lines, self.part.lines)
        return tuple(line for line in compared if not line.startswith("?"))


@dataclass(frozen=True, slots=True)
class ProjectReview:
    """Everything that one project would do."""

    root: Path
    parts: tuple[ReviewedPart, ...]
    gone: tuple[TrustedPart, ...] = ()
    """Trusted parts that no longer exist."""

    @property
    def news(self) -> tuple[ReviewedPart, ...]:
        """Parts that need a decision."""
        return tuple(
            one for one in self.parts if one.standing is not TrustState.TRUSTED or one.wants
        )


def review(folder: Path, projects: Projects) -> tuple[list[ProjectReview], list[Problem]]:
    """The projects whose files apply to a folder, and their problems.

    Raises:
        ProjectsError: The record of trusted projects cannot be used.
    """
    known = projects.trusted()
    proposals, problems = _proposals(folder)
    parts: dict[Path, dict[str, ProjectPart]] = {}
    known_parts = KnownParts()  # most files are found by several searches
    for proposal in proposals:
        found = parts.setdefault(proposal.root, {})
        found |= {part.key: part for part in parts_of(proposal, known_parts)}
    reviews: list[ProjectReview] = []
    for root, found in parts.items():
        before = known.get(root.resolve(), {})
        gone = tuple(one for key, one in before.items() if key not in found)
        reviewed = tuple(ReviewedPart(part, before.get(key)) for key, part in found.items())
        if reviewed or gone:
            reviews.append(ProjectReview(root, reviewed, gone))
    return reviews, problems


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
        found = load(search, approval=collector).problems
        problems |= dict.fromkeys(found)
    return collector.proposals, [*problems]


def _searches(folder: Path) -> Iterator[Search]:
    """The project's part of each search, without files that the user named."""
    here = Surroundings.here(folder)
    # Without the environment: MULTITAP_CONFIG would replace the project's files with named ones.
    where = Surroundings(here.folder, here.home, here.config, {})
    for search in SEARCHES:
        found = search(where)
        yield _of_project(found)
    yield _of_project(at_prompt(where)[0])


def _of_project(search: Search) -> Search:
    sources = tuple(source for source in search.sources if source.project is not None)
    return Search(sources, search.folder)
