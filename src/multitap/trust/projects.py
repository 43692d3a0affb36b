"""Which projects a person trusts, by part and content; stored outside the projects."""

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial
from pathlib import Path
from secrets import token_hex

import msgspec
from msgspec import structs
from msgspec.structs import replace

from multitap.config.layers import Loaded, load
from multitap.config.models import ServerConfig, StdioServer
from multitap.config.problems import Place
from multitap.config.project_bounds import check_expanded, read_inside
from multitap.config.projects import (
    PartKind,
    Proposal,
    StartGrant,
    TrustDecision,
    TrustState,
    Untrusted,
    nothing_trusted,
    trust_hint,
)
from multitap.config.provenance import Level
from multitap.config.sources import Search
from multitap.config.variables import Scope, expand_server
from multitap.errors import MultitapError, UnknownName
from multitap.files import USER_FOLDERS
from multitap.sandbox.learning import LearnedRules
from multitap.sandbox.places import writable_folders
from multitap.trust.audit import AuditWriter, recorder
from multitap.trust.private_file import PrivateFile
from multitap.trust.project_parts import PartBounds, ProjectPart, parts_of, server_part, skill_part
from multitap.trust.vault import scope_for

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
    bounds: PartBounds = PartBounds()
    program: str = ""
    fixed: str = ""
    """What may not change in a project that is followed, as a digest."""
    writes: tuple[str, ...] = ()
    """Folders among its arguments that it may write to."""
    rules: LearnedRules = LearnedRules()
    """Sandbox rules that a person added, until its program changes."""
    level: Level | None = None
    """How much a person chose to confine it, until its program changes."""
    identity: str = ""
    """Made up when its program was first trusted."""

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name} in {self.file}"

    def accepts(self, part: ProjectPart, *, followed: bool) -> bool:
        """Whether a part is this one, or narrower; in a followed project, with other code."""
        if not self.bounds.covers(part.bounds):
            return False
        if self.digest == part.digest:
            return True
        # Unconfined code has all of the person's rights, and other servers may have changed it.
        is_confined = self.level != "off"
        return followed and is_confined and bool(part.fixed) and self.fixed == part.fixed

    def stays_for(self, part: ProjectPart) -> bool:
        """Whether the level and the rules that a person gave it apply to its new version, too."""
        return self.program == part.program


TrustedParts = Mapping[str, TrustedPart]
"""By the key of the part."""


class _Records(msgspec.Struct, omit_defaults=True):
    version: int = 1
    projects: dict[str, dict[str, TrustedPart]] = {}
    followed: tuple[str, ...] = ()
    """Projects that are trusted with their future changes."""
    refused: dict[str, tuple[str, ...]] = {}
    """Digests of parts that a person was shown last and did not trust, by project."""

    def unfollow(self, root: Path) -> None:
        self.followed = tuple(followed for followed in self.followed if followed != _key(root))


class Projects:
    """Remembers trusted parts; an `Approval`.

    Args:
        file: The record; by default, in the user's state directory, whatever `state_dir` says.
        trust_now: Whether to trust the content at the first check for the life of this object,
            without remembering it. It gets no secrets, and later changes are not trusted.
    """

    def __init__(self, file: Path | None = None, *, trust_now: bool = False) -> None:
        self._path = file or USER_FOLDERS.user_state_path / "trust" / "projects.json"
        self._audit_folder = file and file.parent
        self._trust_now = trust_now
        self._for_now: dict[str, dict[str, TrustedPart]] = {}
        """Parts that are trusted while this object lives, by project."""

    @property
    def files(self) -> tuple[Path, ...]:
        return (self._path,)

    @cached_property
    def _kept(self) -> PrivateFile:
        return PrivateFile(self._path, ProjectsError)

    @cached_property
    def _record(self) -> AuditWriter:
        return recorder(self._audit_folder)

    def decide(self, proposal: Proposal, /) -> TrustDecision:
        trusted = self._trusted_parts(proposal.root)
        if not trusted and not self._trust_now:
            return nothing_trusted(proposal)  # and none of its files is read
        parts = parts_of(proposal)
        if self._trust_now and _key(proposal.root) not in self._for_now:
            # without folders to write to: nobody was shown them
            self._for_now[_key(proposal.root)] = {
                part.key: _remember(msgspec.structs.replace(part, writes=()), None, (), 0.0)
                for part in parts
            }
            titles = "; ".join(part.title for part in parts)
            subject = str(proposal.root)
            self._record("trust.given_once", subject=subject, decision="allow", detail=titles)
        standings = [(part, self._standing(proposal.root, part, trusted)) for part in parts]
        return TrustDecision(
            {part.name: standing for part, standing in standings if part.kind == "server"},
            next(
                (standing for part, standing in standings if part.kind == "settings"),
                TrustState.NEW,
            ),
            {
                proposal.root / part.file: standing
                for part, standing in standings
                if part.kind == "skill"
            },
        )

    def check_start(self, root: Path, folder: Path, name: str, config: ServerConfig) -> StartGrant:
        # Computed again at each start: files may change after a person has trusted them.
        part = server_part(name, config, root, folder)
        followed = self.follows(root)
        for before in (*self._trusted_parts(root).values(), *self._now(root).values()):
            if (before.kind, before.name) == ("server", name) and before.accepts(
                part, followed=followed
            ):
                return _grant(before)
        raise Untrusted(
            f"{name!r} changed since you trusted it, or you never did", hint=trust_hint(root)
        )

    def accepts_skill(self, root: Path, skill: Path) -> bool:
        digest = skill_part(skill, root).digest
        trusted = (*self._trusted_parts(root).values(), *self._now(root).values())
        return any(part.digest == digest for part in trusted)

    def follows(self, root: Path) -> bool:
        """Whether a project is trusted with its future changes."""
        try:
            return _key(root) in self._read().followed
        except ProjectsError:  # then nothing is trusted
            return False

    def trusted(self) -> Mapping[Path, TrustedParts]:
        """All projects with trusted parts.

        Raises:
            ProjectsError: Others could change the record, or it is damaged.
        """
        return {Path(root): parts for root, parts in self._read().projects.items()}

    def trust(
        self,
        root: Path,
        parts: Collection[ProjectPart],
        granted: Collection[str] = (),
        *,
        follow: bool | None = None,
    ) -> None:
        """Trust these parts of a project, instead of the previously trusted ones.

        Args:
            root: The project's folder.
            parts: Everything that should be trusted from now on.
            granted: The secrets that parts which ask for them may use.
            follow: Whether its servers are trusted with their future changes; None to leave that
                as it is.

        Raises:
            ProjectsError: It cannot be remembered.
        """
        now = time.time()
        with self._kept.hold_lock():
            records = self._read()
            trusted = records.projects.get(_key(root), {})
            # one that is no longer followed is trusted as it is now, not as it was once
            followed = _key(root) in records.followed and follow is not False
            records.projects[_key(root)] = {
                part.key: _remember(part, trusted.get(part.key), granted, now, followed=followed)
                for part in parts
            }
            if follow is not None:
                records.unfollow(root)
                records.followed += (_key(root),) if follow else ()
            records.refused.pop(_key(root), None)
            self._kept.write(msgspec.json.encode(records))
        details = [part.title for part in parts if not _is_known(part, trusted)]
        details += [f"secret {name}" for name in granted]
        details += ["with its future changes"] if follow else []
        self._record("trust.given", subject=str(root), decision="allow", detail="; ".join(details))

    def unfollow(self, root: Path) -> None:
        """Stop trusting a project's changes: those that no person has seen ask again.

        Raises:
            ProjectsError: It cannot be remembered.
        """
        with self._kept.hold_lock():
            records = self._read()
            records.unfollow(root)
            self._kept.write(msgspec.json.encode(records))
        self._record("trust.unfollowed", subject=str(root), decision="deny")

    def allow(self, root: Path, name: str, rules: LearnedRules) -> None:
        """Add sandbox rules to a trusted server of a project, whatever its file's dialect.

        Args:
            root: The project's folder.
            name: The server.
            rules: What it may use as well; paths that no rule can open are left out.

        Raises:
            UnknownName: It is not trusted.
            ProjectsError: It cannot be remembered.
        """

        def join(part: TrustedPart) -> TrustedPart:
            return msgspec.structs.replace(part, rules=part.rules.join(_resolve(rules)))

        self._change(root, name, join)
        detail = "; ".join((name, *rules.read, *rules.write, *rules.hosts))
        self._record("trust.widened", subject=str(root), decision="allow", detail=detail)

    def set_level(self, root: Path, name: str, level: Level) -> None:
        """Choose how much a trusted server of a project is confined.

        Raises:
            UnknownName: It is not trusted.
            ProjectsError: It cannot be remembered.
        """
        self._change(root, name, lambda part: msgspec.structs.replace(part, level=level))
        detail = f"{name}: sandbox {level}"
        self._record("trust.widened", subject=str(root), decision="allow", detail=detail)

    def _change(self, root: Path, name: str, change: Callable[[TrustedPart], TrustedPart]) -> None:
        with self._kept.hold_lock():
            records = self._read()
            parts = records.projects.get(_key(root), {})
            servers = {
                key: part
                for key, part in parts.items()
                if (part.kind, part.name) == ("server", name)
            }
            if not servers:
                raise UnknownName(f"{name!r} of {root} is not trusted", hint=trust_hint(root))
            parts |= {key: change(part) for key, part in servers.items()}
            self._kept.write(msgspec.json.encode(records))

    def refuse(self, root: Path, parts: Collection[ProjectPart] = ()) -> None:
        """Record that a project was shown and not trusted.

        Args:
            root: The project's folder.
            parts: What a person answered no to: commands do not ask about these again.

        Raises:
            ProjectsError: It cannot be remembered.
        """
        if parts:
            with self._kept.hold_lock():
                records = self._read()
                records.refused[_key(root)] = tuple(part.digest for part in parts)
                self._kept.write(msgspec.json.encode(records))
        self._record("trust.refused", subject=str(root), decision="deny")

    def has_refused(self, root: Path, parts: Collection[ProjectPart]) -> bool:
        """Whether a person was shown these parts, as they are, and did not trust them.

        Raises:
            ProjectsError: The record cannot be used.
        """
        return {part.digest for part in parts} <= {*self._read().refused.get(_key(root), ())}

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
            records.unfollow(root)
            self._kept.write(msgspec.json.encode(records))
        self._record("trust.withdrawn", subject=str(root), decision="deny")

    def _standing(self, root: Path, part: ProjectPart, parts: TrustedParts) -> TrustState:
        before = parts.get(part.key)
        for trusted in (before, self._now(root).get(part.key)):
            if trusted is not None and trusted.accepts(part, followed=self.follows(root)):
                return TrustState.TRUSTED
        return TrustState.NEW if before is None else TrustState.CHANGED

    def _now(self, root: Path) -> TrustedParts:
        return self._for_now.get(_key(root), {})

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
    root = _project_of(loaded, name, config)
    if root is None:
        return scope_for(name, config, loaded.search.folder, env=loaded.search.env)
    return _scope(loaded, name, config, root)[0]


def _project_of(loaded: Loaded, name: str, config: ServerConfig) -> Path | None:
    """The project that a configuration comes from, even if another one has its name by now."""
    if config.provenance == "project":
        root = config.home.paths or loaded.project_of(name)
        if root is None:
            raise Untrusted(f"{name!r} comes with a project that is no longer there")
        return root
    return None


def _scope(loaded: Loaded, name: str, config: ServerConfig, root: Path) -> tuple[Scope, StartGrant]:
    folder = loaded.search.folder
    described = loaded.settings.servers.get(name)
    if described is None or described.provenance != "project":
        described = config  # it runs as it was trusted, although the files have changed
    grant = loaded.approval.check_start(root, folder, name, described)
    scope = scope_for(name, config, folder, env=loaded.search.env, granted=grant.secrets)
    return replace(scope, read=partial(read_inside, root)), grant


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
        ConfigError: A variable has no value, or leads out of the project.
    """
    root = _project_of(loaded, name, config)
    if root is None:
        return expand_server(config, trusted_scope(loaded, name, config), places=places)
    scope, grant = _scope(loaded, name, config, root)
    expanded = check_expanded(expand_server(config, scope, places=places), root)
    return _apply(grant, expanded, root)


def _apply(grant: StartGrant, config: ServerConfig, root: Path) -> ServerConfig:
    """The expanded server with what a person let it have."""
    home = structs.replace(config.home, identity=grant.identity, level=grant.level)
    if not isinstance(config, StdioServer):
        return config.at_home(home)
    # By real path: a folder whose name now leads elsewhere is not the one that was shown.
    folders = writable_folders(config.args, config.start_folder or root)
    home = structs.replace(home, writes=tuple(path for path in folders if path in grant.writes))
    real = {
        "read": tuple(filter(_is_real, grant.rules.read)),
        "write": tuple(filter(_is_real, grant.rules.write)),
    }
    rules = config.sandbox_rules.widen(grant.rules.replace(**real))
    return config.replace(sandbox_rules=rules).at_home(home)


def _is_real(path: Path) -> bool:
    """Whether a path, which was real when a person allowed it, does not lead elsewhere by now."""
    return os.path.realpath(path) == str(path)


def _resolve(rules: LearnedRules) -> LearnedRules:
    return LearnedRules(
        read=tuple(map(os.path.realpath, rules.read)),
        write=tuple(map(os.path.realpath, rules.write)),
        hosts=rules.hosts,
        proc=rules.proc,
    )


def _grant(part: TrustedPart) -> StartGrant:
    return StartGrant(
        secrets=frozenset(part.granted),
        writes=part.writes,
        rules=part.rules.as_settings(),
        level=part.level,
        identity=part.identity,
    )


def _remember(
    part: ProjectPart,
    before: TrustedPart | None,
    granted: Collection[str],
    now: float,
    *,
    followed: bool = False,
) -> TrustedPart:
    secrets = tuple(name for name in part.wants if name in granted)
    if before is not None and before.accepts(part, followed=followed):
        # The one that a person saw stays the measure: a chain of small changes goes no further.
        return msgspec.structs.replace(
            before,
            granted=tuple(dict.fromkeys((*before.granted, *secrets))),
            writes=tuple(dict.fromkeys((*before.writes, *part.writes))),
        )
    same = before if before is not None and before.stays_for(part) else None
    return TrustedPart(
        part.kind,
        part.name,
        part.file,
        part.digest,
        part.lines,
        secrets,
        now,
        bounds=part.bounds,
        program=part.program,
        fixed=part.fixed,
        writes=part.writes,
        rules=same.rules if same else LearnedRules(),
        level=same.level if same else None,
        identity=same.identity if same else token_hex(8),
    )


def _is_known(part: ProjectPart, trusted: TrustedParts) -> bool:
    before = trusted.get(part.key)
    return before is not None and before.accepts(part, followed=False)


def _key(root: Path) -> str:
    return os.path.realpath(root)
