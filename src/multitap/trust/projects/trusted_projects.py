"""Which projects a person trusts, by part and content; stored outside the projects."""

import logging
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from multitap.config import Loaded, Place, Scope, Search, ServerConfig, expand_server, load
from multitap.config.trust_gate import (
    PartKind,
    Proposal,
    TrustDecision,
    TrustState,
    Untrusted,
    nothing_trusted,
    trust_hint,
)
from multitap.errors import MultitapError, UnknownName
from multitap.trust.audit import recorder
from multitap.trust.private_file import PrivateFile
from multitap.trust.projects.project_parts import ProjectPart, parts_of, server_part, skill_part
from multitap.trust.secrets.vault import scope_for
from multitap.user_folders import USER_FOLDERS

logger = logging.getLogger(__name__)


class ProjectsError(MultitapError):
    """The record of trusted projects cannot be used; the message says why, and what to do."""


class TrustedPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part that a person has trusted, as it was shown."""

    kind: PartKind
    name: str
    file: str
    digest: str
    lines: tuple[str, ...] = ()
    granted: tuple[str, ...] = ()
    """Secrets that it may use, until it changes."""
    at: float = 0.0

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name} in {self.file}"


TrustedParts = Mapping[str, TrustedPart]
"""By the key of the part."""


class _Records(msgspec.Struct, omit_defaults=True):
    version: int = 1
    projects: dict[str, dict[str, TrustedPart]] = {}


class Projects:
    """Remembers trusted parts; an `Approval`.

    Args:
        file: The record; by default, in the user's state directory, whatever `state_dir` says.
        trust_now: Whether to trust the content at the first check for the life of this object,
            without remembering it. It gets no secrets, and later changes are not trusted.
    """

    def __init__(self, file: Path | None = None, *, trust_now: bool = False) -> None:
        default = USER_FOLDERS.user_state_path / "trust"
        self._kept = PrivateFile(file or default / "projects.json", ProjectsError)
        self._record = recorder(file and file.parent)
        self._trust_now = trust_now
        self._for_now: dict[str, frozenset[str]] = {}
        """Digests that are trusted while this object lives, by project."""

    @property
    def files(self) -> tuple[Path, ...]:
        return (self._kept.path,)

    def decide(self, proposal: Proposal, /) -> TrustDecision:
        known = self._trusted_parts(proposal.root)
        if not known and not self._trust_now:
            return nothing_trusted(proposal)  # and none of its files is read
        parts = parts_of(proposal)
        if self._trust_now and _key(proposal.root) not in self._for_now:
            self._for_now[_key(proposal.root)] = frozenset(one.digest for one in parts)
            words = "; ".join(part.title for part in parts)
            place = str(proposal.root)
            self._record("trust.given_once", subject=place, decision="allow", detail=words)
        said = [(part, self._standing(proposal.root, part, known)) for part in parts]
        return TrustDecision(
            {part.name: standing for part, standing in said if part.kind == "server"},
            next((standing for part, standing in said if part.kind == "settings"), TrustState.NEW),
            {
                proposal.root / part.file: standing
                for part, standing in said
                if part.kind == "skill"
            },
        )

    def check_start(
        self, root: Path, folder: Path, name: str, config: ServerConfig
    ) -> frozenset[str]:
        # Computed again at each start: files may change after a person has trusted them.
        digest = server_part(name, config, root, folder).digest
        for part in self._trusted_parts(root).values():
            if part.digest == digest:
                return frozenset(part.granted)
        if digest in self._for_now.get(_key(root), ()):
            return frozenset()
        raise Untrusted(
            f"{name!r} changed since you trusted it, or you never did", hint=trust_hint(root)
        )

    def accepts_skill(self, root: Path, skill: Path) -> bool:
        digest = skill_part(skill, root).digest
        known = {one.digest for one in self._trusted_parts(root).values()}
        return digest in known or digest in self._for_now.get(_key(root), ())

    def trusted(self) -> Mapping[Path, TrustedParts]:
        """All projects with trusted parts.

        Raises:
            ProjectsError: Others could change the record, or it is damaged.
        """
        return {Path(root): parts for root, parts in self._read().projects.items()}

    def trust(
        self, root: Path, parts: Collection[ProjectPart], granted: Collection[str] = ()
    ) -> None:
        """Trust these parts of a project, instead of the previously trusted ones.

        Args:
            root: The project's folder.
            parts: Everything that should be trusted from now on.
            granted: The secrets that parts which ask for them may use.

        Raises:
            ProjectsError: It cannot be remembered.
        """
        now = time.time()
        with self._kept.hold_lock():
            records = self._read()
            known = records.projects.get(_key(root), {})
            records.projects[_key(root)] = {
                part.key: _remember(part, known.get(part.key), granted, now) for part in parts
            }
            self._kept.write(msgspec.json.encode(records))
        said = [part.title for part in parts if not _is_known(part, known)]
        said += [f"secret {name}" for name in granted]
        self._record("trust.given", subject=str(root), decision="allow", detail="; ".join(said))

    def refuse(self, root: Path) -> None:
        """Record that a person was shown a project and did not trust it."""
        self._record("trust.refused", subject=str(root), decision="deny")

    def distrust(self, root: Path) -> None:
        """Withdraw the trust in a project.

        Raises:
            UnknownName: Nothing of it is trusted.
            ProjectsError: It cannot be remembered.
        """
        with self._kept.hold_lock():
            records = self._read()
            if records.projects.pop(_key(root), None) is None:
                raise UnknownName(
                    f"{root} is not trusted", hint="`multitap trust --list` shows what is"
                )
            self._kept.write(msgspec.json.encode(records))
        self._record("trust.withdrawn", subject=str(root), decision="deny")

    def _standing(self, root: Path, part: ProjectPart, known: TrustedParts) -> TrustState:
        before = known.get(part.key)
        if _is_known(part, known):
            return TrustState.TRUSTED
        if part.digest in self._for_now.get(_key(root), ()):
            return TrustState.TRUSTED
        return TrustState.NEW if before is None else TrustState.CHANGED

    def _trusted_parts(self, root: Path) -> TrustedParts:
        try:
            return self._read().projects.get(_key(root), {})
        except ProjectsError as exc:  # then nothing is trusted
            logger.warning("%s", exc)
            return {}

    def _read(self) -> _Records:
        repair = "move it away; you will be asked for each project again"
        return self._kept.load(_Records, repair=repair)


def load_trusted(where: Search | None = None, *, projects: Projects | None = None) -> Loaded:
    """Read all sources of a search; only trusted parts of projects count.

    Args:
        where: The files and folders; by default, `native` from the current folder.
        projects: The trusted projects; by default, the user's own record.
    """
    return load(where, approval=projects or Projects())


def trusted_scope(loaded: Loaded, name: str, config: ServerConfig) -> Scope:
    """The scope for a server's variables; a project's server must be trusted right now.

    Raises:
        Untrusted: It is not, or it, or a file that it names, has changed.
    """
    folder, root = loaded.search.folder, loaded.project_of(name)
    if root is None:
        return scope_for(name, config, folder)
    known = loaded.settings.servers.get(name, config)  # a command may start it in another way
    granted = loaded.approval.check_start(root, folder, name, known)
    return scope_for(name, config, folder, granted=granted)


def expand_trusted(
    loaded: Loaded,
    name: str,
    config: ServerConfig,
    *,
    places: Mapping[str, Place] | None = None,
) -> ServerConfig:
    """Expand a server's variables just before it starts.

    Raises:
        Untrusted: A project describes it, and it is not trusted right now.
        ConfigError: A variable has no value.
    """
    return expand_server(config, trusted_scope(loaded, name, config), places=places)


def _remember(
    part: ProjectPart, before: TrustedPart | None, granted: Collection[str], now: float
) -> TrustedPart:
    secrets = tuple(name for name in part.wants if name in granted)
    if before is not None and before.digest == part.digest:
        given = tuple(dict.fromkeys((*before.granted, *secrets)))
        return msgspec.structs.replace(before, granted=given)
    return TrustedPart(part.kind, part.name, part.file, part.digest, part.lines, secrets, now)


def _is_known(part: ProjectPart, known: TrustedParts) -> bool:
    before = known.get(part.key)
    return before is not None and before.digest == part.digest


def _key(root: Path) -> str:
    return os.path.realpath(root)
