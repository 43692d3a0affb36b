"""What a project's files ask for, what they may set, and what a person has approved of it.

The files of a project often come from a stranger. They are read as data, and nothing in them counts
before an `Approval` says so. Once it is trusted, a project's entry replaces the user's one of that
name within the project, as a whole; anything else of the user's stays, and only the user sets what
governs all servers. Files that a program or a person names (`--config`, `MULTITAP_CONFIG`, a path
or settings in Python) need no approval.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from msgspec.structs import replace

from multitap.config.dialects.draft import Entry, FieldPath, Reading, literal
from multitap.config.documents import Node, is_file
from multitap.config.entries import Stack, build_server, nest, usable, within
from multitap.config.models import SandboxRules, ServerConfig, ServerHome, Settings
from multitap.config.owners import entries_of, is_within
from multitap.config.problems import Place, Problem, Severity
from multitap.config.project_bounds import folders_only, objection, objections_to, restrain
from multitap.config.provenance import Level
from multitap.config.variables import Scope, content, expand, locate
from multitap.errors import ConfigError

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


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one project's files, with unexpanded variables."""

    root: Path
    """The project's folder."""
    folder: Path
    """The current folder."""
    servers: Mapping[str, ServerConfig] = msgspec.field(default_factory=dict[str, ServerConfig])
    settings: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Everything else, as tables."""
    places: Mapping[str, Place] = msgspec.field(default_factory=dict[str, Place])
    """The place of each server; the empty name stands for the rest."""
    skills: tuple[Path, ...] = ()
    """Folders of skills."""
    replaces: Mapping[str, Place] = msgspec.field(default_factory=dict[str, Place])
    """The user's entries that its servers would replace, by name."""
    usual_level: Level = "guard"
    """How the user confines programs of others."""

    def find_skills(self) -> tuple[Path, ...]:
        """The folder of each skill, without those that lead out of the project."""
        folders: list[Path] = []
        for folder in self.skills:
            try:
                inside = entries_of(self.folder / folder)
            except OSError:
                continue
            folders += (path for path in inside if is_file(path / MANUAL))
        # A link in a repository could make any folder of the home a skill, whose files a model may
        # read.
        return tuple(path for path in folders[:MAX_SKILLS] if is_within(path, self.root))


class TrustDecision(msgspec.Struct, frozen=True):
    """Which parts of a proposal count."""

    servers: Mapping[str, TrustState] = msgspec.field(default_factory=dict[str, TrustState])
    settings: TrustState = TrustState.NEW
    skills: Mapping[Path, TrustState] = msgspec.field(default_factory=dict[Path, TrustState])
    """By the folder of each skill."""


class StartGrant(msgspec.Struct, frozen=True, kw_only=True):
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


class Pending(msgspec.Struct, frozen=True, kw_only=True):
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


NAMED = ("agents.*", "profiles.*", "prompts.*")
"""Tables with named members: one that the user defines stays the user's as a whole."""
MAY = (
    *NAMED,
    *(f"environment.{key}" for key in ("id", "display_name", "description", "version")),
    "environment.tools",
    "environment.skills",
)
"""What a project may set besides its servers, once it is trusted."""
NEVER = ("agents.*.model",)
"""Exceptions: only the user decides who gets the user's keys."""
_SWITCH = ("enabled",)
_SKILLS = "skills"

Fields = Mapping[FieldPath, Node]


class ProjectLayers(msgspec.Struct, frozen=True):
    """The content of one project's files."""

    proposal: Proposal
    stacks: Mapping[str, Stack]
    fields: Fields
    problems: tuple[Problem, ...]


class AdoptedLayers(msgspec.Struct, frozen=True, kw_only=True):
    """The usable part of a project."""

    stacks: Mapping[str, Stack]
    """Its servers, without untrusted ones whose names the user uses; and the user's servers that
    it switches off."""
    servers: Mapping[str, ServerConfig]
    """The trusted servers."""
    switched_off: frozenset[str]
    """The user's servers that it switches off."""
    settings: Entry | None
    problems: tuple[Problem, ...]
    pending: tuple[Pending, ...]


def propose(readings: Iterable[Reading], root: Path, folder: Path) -> ProjectLayers:
    """What a project would set, as far as it may.

    Args:
        readings: The content of its files, the weakest first.
        root: The project's folder.
        folder: The current folder.
    """
    layers = [*readings]
    settings: dict[FieldPath, Node] = {}
    for reading in layers:
        settings |= reading.settings
    switch = settings.pop(_SWITCH, None)  # it speaks for its own servers
    entries: dict[str, list[Entry]] = {}
    for reading in layers:
        for entry in reading.entries:
            entries.setdefault(entry.name, []).append(entry)
    if switch is not None and switch.value is False:
        for name, parts in entries.items():
            if any(entry.complete for entry in parts):  # otherwise it speaks of the user's
                parts.append(Entry(name=name, node=switch, fields={_SWITCH: switch}))
    stacks = {name: Stack(tuple(parts), root) for name, parts in entries.items()}
    servers, about_servers = _servers(stacks, root, folder)
    fields, about_fields = _fields(settings, root, folder)
    places = {name: stack.merge_entries().node.key_place for name, stack in stacks.items()}
    if fields:
        places[""] = Place(next(iter(fields.values())).document.path)
    skills, scope = fields.get(("environment", _SKILLS)), folders_only(folder, root)
    proposal = Proposal(
        root=root,
        folder=folder,
        servers=servers,
        settings=nest(fields),
        places=places,
        skills=tuple(Path(expand(str(path), scope)) for path in skills.value)
        if skills
        else (root / _SKILLS,),
    )
    return ProjectLayers(proposal, stacks, fields, (*about_servers, *about_fields))


def adopt(
    layers: ProjectLayers,
    approval: Approval,
    hub: Stack,
    servers: Mapping[str, Stack],
    *,
    usual_level: Level = "guard",
) -> AdoptedLayers:
    """The part of a project that is used beside the user's configuration.

    Args:
        layers: The content of its files.
        approval: Decides which parts count.
        hub: The user's settings.
        servers: The user's servers.
        usual_level: How the user confines programs of others.
    """
    replaces = {
        name: servers[name].merge_entries().node.key_place
        for name in layers.proposal.servers
        if name in servers
    }
    proposal = replace(layers.proposal, replaces=replaces, usual_level=usual_level)
    decision = approval.decide(proposal)
    counting = {
        name: config
        for name, config in proposal.servers.items()
        if decision.servers.get(name) is TrustState.TRUSTED
    }
    changes = {
        name: _change(servers[name], stack)
        for name, stack in layers.stacks.items()
        if name in servers and not _is_complete(stack)
    }
    fields, refused = _not_owned(layers.fields, hub.fields)
    problems = [problem for problem in layers.problems if problem.server not in changes]
    problems += refused
    problems += (problem for change in changes.values() for problem in change.problems)
    stacks = {name: change.stack for name, change in changes.items() if change.stack is not None}
    switched_off = frozenset(stacks)
    for name, stack in layers.stacks.items():
        if name not in servers:
            stacks[name] = stack
        elif name in counting:
            # As a whole, not field by field: a project that adds an `env` to the user's server
            # could run its own code with the user's secrets.
            # The user's entries below it are only what `config explain` shows as replaced.
            stacks[name] = Stack((*servers[name].entries, *stack.entries), stack.project)
    entry = None
    if fields and decision.settings is TrustState.TRUSTED:
        entry = Entry(name="", node=next(iter(fields.values())).document.root, fields=fields)
    pending = _pending(proposal, decision)
    return AdoptedLayers(
        stacks=stacks,
        servers=counting,
        switched_off=switched_off,
        settings=entry,
        problems=tuple(problems),
        pending=pending,
    )


class _Change(msgspec.Struct, frozen=True):
    """What a project's entry without `command` and `url` does to the user's server."""

    stack: Stack | None
    """The server, switched off; None if it stays as it is."""
    problems: tuple[Problem, ...]


def _change(own: Stack, proposed: Stack) -> _Change:
    entry = proposed.merge_entries()
    place = own.merge_entries().node.key_place
    problems: list[Problem] = []
    if {*entry.fields} - {_SWITCH}:
        problems.append(
            Problem(
                severity=Severity.WARNING,
                message="is ignored: it has neither `command` nor `url`, and a project cannot "
                f"change your own entry ({place})",
                place=entry.node.key_place,
                key=entry.node.dotted,
                server=entry.name,
                hint="write the whole entry to replace yours in this project",
            )
        )
    switch = entry.fields.get(_SWITCH)
    if switch is None:
        return _Change(None, tuple(problems))
    own_switch = own.fields.get(_SWITCH)
    if switch.value is True and own_switch is not None and own_switch.value is False:
        problems.append(
            Problem(
                severity=Severity.WARNING,
                message=f"switches nothing on: you have disabled it ({own_switch.place})",
                place=switch.key_place,
                key=switch.dotted,
                server=entry.name,
                hint=f"run `multitap enable {entry.name}`",
            )
        )
    if switch.value is not False:
        return _Change(None, tuple(problems))
    off = Entry(
        name=entry.name, node=switch, fields={_SWITCH: switch}
    )  # less than the user's: it needs no trust
    return _Change(replace(own, entries=(*own.entries, off)), tuple(problems))


def _is_complete(stack: Stack) -> bool:
    return any(entry.complete for entry in stack.entries)


def _pending(proposal: Proposal, decision: TrustDecision) -> tuple[Pending, ...]:
    waiting = [
        Pending(
            root=proposal.root,
            kind="server",
            name=name,
            standing=standing,
            place=proposal.places[name],
            replaces=proposal.replaces.get(name),
        )
        for name in proposal.servers
        if (standing := decision.servers.get(name, TrustState.NEW)) is not TrustState.TRUSTED
    ]
    if proposal.settings and decision.settings is not TrustState.TRUSTED:
        place = proposal.places[""]
        waiting.append(
            Pending(
                root=proposal.root,
                kind="settings",
                name="",
                standing=decision.settings,
                place=place,
            )
        )
    waiting += (
        Pending(
            root=proposal.root, kind="skill", name=skill.name, standing=standing, place=Place(skill)
        )
        for skill, standing in decision.skills.items()
        if standing is not TrustState.TRUSTED
    )
    return tuple(waiting)


def _servers(
    stacks: Mapping[str, Stack], root: Path, folder: Path
) -> tuple[dict[str, ServerConfig], list[Problem]]:
    servers: dict[str, ServerConfig] = {}
    problems: list[Problem] = []
    for name, stack in stacks.items():
        config, complaints = build_server(stack)
        problems += complaints
        if config is None:
            continue
        config, refused = restrain(config, stack.merge_entries(), root, folder)
        problems += refused
        strays = [*objections_to(config, root, folder)]
        problems += (_stray(stack.fields, key, reason, name) for key, reason in strays)
        if not strays:
            # In the project, not where somebody works: a folder below it may be of another stranger
            # (a submodule, an unpacked archive), and what is trusted must not depend on it.
            servers[name] = config.at_home(ServerHome(paths=root, start=root))
    return servers, problems


def _stray(fields: Fields, key: str, reason: str, server: str) -> Problem:
    node = fields.get(tuple(key.split(".", 1))) or fields[key.partition(".")[0],]
    return Problem(
        severity=Severity.ERROR,
        message=f"{reason}; a project's server uses only its own files",
        place=node.place,
        key=node.dotted,
        server=server,
        hint=_YOURS,
    )


def _fields(
    settings: Fields, root: Path, folder: Path
) -> tuple[dict[FieldPath, Node], list[Problem]]:
    """The usable settings of a project; prompts' files are replaced by their texts."""
    allowed = {
        path: node
        for path, node in settings.items()
        if within(path, MAY) and not within(path, NEVER)
    }
    problems = [
        Problem(
            severity=Severity.ERROR,
            message=_OWNER_ONLY,
            place=node.key_place,
            key=node.dotted,
            hint=_YOURS,
        )
        for path, node in settings.items()
        if path not in allowed and not _says_nothing(path, node)
    ]
    confined: dict[FieldPath, Node] = {}
    for path, node in allowed.items():
        try:
            as_used, value = _confine(path, node, root, folder)
        except ConfigError as exc:
            problems.append(
                Problem(
                    severity=Severity.ERROR,
                    message=str(exc),
                    place=node.place,
                    key=node.dotted,
                    hint=_YOURS,
                )
            )
        else:
            confined[as_used] = value
    fields, complaints = usable(confined)
    return fields, [*problems, *complaints]


def _says_nothing(path: FieldPath, node: Node) -> bool:
    """Whether it is our default, or an empty table."""
    default: object = Settings()
    for step in path:
        default = getattr(default, step, None)
    return bool(node.value in ({}, default))


def _confine(path: FieldPath, node: Node, root: Path, folder: Path) -> tuple[FieldPath, Node]:
    """A field after checking that its paths are in the project.

    Raises:
        ConfigError: They are not, or a prompt's file cannot be read.
    """
    match path:
        case ("prompts", name, "file"):
            _check_inside(str(node.value), root, folder)
            scope = folders_only(folder, root)
            # The text, not the path, so that a person trusts exactly what the model will read.
            text = content(expand(str(node.value), scope), scope)
            return ("prompts", name, "text"), node.of(text)
        case ("environment", "skills"):
            scope = folders_only(folder, root)
            for item in node.value:
                _check_inside(str(item), root, folder)
            return path, node.of([Path(_locate_once(str(item), scope)) for item in node.value])
        case ("environment", "tools"):
            return path, node.of([_function(str(item), root, folder) for item in node.value])
        case _:
            pass
    return path, node


def _function(reference: str, root: Path, folder: Path) -> str:
    """A function with its resolved file: the trusted file is the one that is imported."""
    where, colon, name = reference.rpartition(":")
    if not where.endswith(".py"):
        return reference
    _check_inside(where, root, folder)
    return f"{_locate_once(where, folders_only(folder, root))}{colon}{name}"


def _locate_once(path: str, scope: Scope) -> str:
    """A path without variables, which a second expansion does not change."""
    return literal(str(locate(expand(path, scope), scope)))


def _check_inside(path: str, root: Path, folder: Path) -> None:
    if reason := objection(path, root, folder):
        raise ConfigError(f"{reason}; a project names only its own files")


def _not_owned(fields: Fields, own: Fields) -> tuple[dict[FieldPath, Node], list[Problem]]:
    """The settings without those that the user has set; each such table is reported once."""
    owners = {_owned_part(path): node for path, node in reversed([*own.items()])}
    left: dict[FieldPath, Node] = {}
    refused: dict[FieldPath, Problem] = {}
    for path, node in fields.items():
        thing = _owned_part(path)
        if thing in owners:
            refused.setdefault(thing, _is_yours(node, owners[thing].place))
        else:
            left[path] = node
    return left, [*refused.values()]


def _owned_part(path: FieldPath) -> FieldPath:
    return within(path, NAMED) or path


def _is_yours(node: Node, place: Place) -> Problem:
    message = (
        f"is ignored: your own configuration has it ({place}), and a project cannot change that"
    )
    return Problem(
        severity=Severity.WARNING,
        message=message,
        place=node.key_place,
        key=node.dotted,
        hint="use another name in the project",
    )


_OWNER_ONLY = "only your own configuration may set this, not a project's"
_YOURS = "name the file (`--config`, `MULTITAP_CONFIG`) if it is your own"
