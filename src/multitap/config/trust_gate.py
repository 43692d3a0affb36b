"""What a project asks for, and what a person has approved of it.

The files of a project often come from a stranger. They are read as data, and nothing in them counts
before an `Approval` says so. Files that a program or a person names (`--config`,
`MULTITAP_CONFIG`, a path or settings in Python) need no approval.
"""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from multitap.config.files import is_file
from multitap.config.folders import entries_of
from multitap.config.models import SandboxRules, ServerConfig
from multitap.config.owners import is_within
from multitap.config.problems import Place
from multitap.config.provenance import Level
from multitap.errors import ConfigError
from multitap.records import dataclass

MANUAL = "SKILL.md"
"""The file that makes a folder a skill."""
# An untrusted project must not decide how long its inspection takes.
MAX_SKILLS = 200

PartKind = Literal["server", "settings", "skill"]


class Untrusted(ConfigError):
    """A part of a project is not trusted, or has changed since."""


class TrustState(StrEnum):
    """A person's decision about a part of a project."""

    TRUSTED = "trusted"
    NEW = "not trusted"
    CHANGED = "changed"
    """A different content was trusted."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The content of one project's files, with unexpanded variables."""

    root: Path
    """The project's folder."""
    folder: Path
    """The current folder."""
    servers: Mapping[str, ServerConfig] = field(default_factory=dict[str, ServerConfig])
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Everything else, as tables."""
    places: Mapping[str, Place] = field(default_factory=dict[str, Place])
    """The place of each server; the empty name stands for the rest."""
    skills: tuple[Path, ...] = ()
    """Folders of skills."""
    replaces: Mapping[str, Place] = field(default_factory=dict[str, Place])
    """The user's entries that its servers would replace, by name."""
    usual_level: Level = "guard"
    """How the user confines programs of others."""

    def find_skills(self) -> tuple[Path, ...]:
        """The folder of each skill, without those that lead out of the project."""
        found: list[Path] = []
        for folder in self.skills:
            try:
                inside = entries_of(self.folder / folder)
            except OSError:
                continue
            found += (path for path in inside if is_file(path / MANUAL))
        # A link in a repository could make any folder of the home a skill, whose files a model may
        # read.
        return tuple(path for path in found[:MAX_SKILLS] if is_within(path, self.root))


@dataclass(frozen=True, slots=True)
class TrustDecision:
    """Which parts of a proposal count."""

    servers: Mapping[str, TrustState] = field(default_factory=dict[str, TrustState])
    settings: TrustState = TrustState.NEW
    skills: Mapping[Path, TrustState] = field(default_factory=dict[Path, TrustState])
    """By the folder of each skill."""


@dataclass(frozen=True, slots=True)
class StartGrant:
    """What a person let a project's server have, beyond its entry."""

    secrets: frozenset[str] = frozenset()
    """The secrets that it may use."""
    writes: tuple[str, ...] = ()
    """Real paths of folders among its arguments that it may write to."""
    rules: SandboxRules = SandboxRules()
    """Sandbox rules that a person added for it."""
    level: Level | None = None
    """How much a person chose to confine it."""
    identity: str = ""
    """Distinguishes it from another server of the same name, trusted later."""


class Approval(Protocol):
    """Decides which parts of a project count."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that contain decisions, to be watched for changes."""
        ...

    def decide(self, proposal: Proposal, /) -> TrustDecision:
        """Which parts of the current content count."""
        ...

    def check_start(self, root: Path, folder: Path, name: str, config: ServerConfig) -> StartGrant:
        """Check that a server's configuration, and the files it names, are trusted right now.

        Raises:
            Untrusted: They are not, or no longer.
        """
        ...

    def accepts_skill(self, root: Path, skill: Path) -> bool:
        """Whether a skill's files are those that were trusted."""
        ...


class TrustNothing:
    """Trusts nothing."""

    files: tuple[Path, ...] = ()

    def decide(self, proposal: Proposal, /) -> TrustDecision:
        return nothing_trusted(proposal)

    def check_start(
        self,
        root: Path,
        folder: Path,  # noqa: ARG002 - an `Approval`
        name: str,
        config: ServerConfig,  # noqa: ARG002
    ) -> StartGrant:
        raise Untrusted(f"{name!r} comes with the project {root}", hint=trust_hint(root))

    def accepts_skill(self, root: Path, skill: Path) -> bool:  # noqa: ARG002 - an `Approval`
        return False


def nothing_trusted(proposal: Proposal) -> TrustDecision:
    """The decision that no part counts."""
    return TrustDecision(
        dict.fromkeys(proposal.servers, TrustState.NEW),
        skills=dict.fromkeys(proposal.find_skills(), TrustState.NEW),
    )


@dataclass(frozen=True, slots=True)
class Pending:
    """A part of a project that is not used until a person trusts it."""

    root: Path
    kind: PartKind
    name: str
    """The name of the server or skill."""
    standing: TrustState
    place: Place
    replaces: Place | None = None
    """The user's entry that it would replace, which is used meanwhile."""

    @property
    def words(self) -> str:
        """Why, in one line."""
        changed = self.standing is TrustState.CHANGED
        reason = (
            "changed since you trusted it"
            if changed
            else "comes with a project that you have not trusted"
        )
        return f"{reason}; it would replace yours ({self.replaces})" if self.replaces else reason

    @property
    def hint(self) -> str:
        return trust_hint(self.root)

    def refusal(self) -> Untrusted:
        """The error for using it."""
        return Untrusted(f"{self.name!r} {self.words}", hint=self.hint)


def trust_hint(root: Path) -> str:
    """The command that shows a project and asks."""
    from shlex import quote  # noqa: PLC0415 - only where something is not trusted

    here = Path.cwd()
    return f"run `multitap trust{'' if root in (here, *here.parents) else f' {quote(str(root))}'}`"
