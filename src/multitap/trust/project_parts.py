"""The parts of a project that are trusted one by one: their effect, digest, and what may change."""

import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from multitap.config.checks import table_of
from multitap.config.models import (
    HttpServer,
    Limits,
    OAuth,
    SandboxRules,
    ServerConfig,
    StdioServer,
)
from multitap.config.owners import is_within
from multitap.config.problems import Place
from multitap.config.project_bounds import folders_only, paths_of
from multitap.config.projects import PartKind, Proposal
from multitap.config.provenance import Level
from multitap.config.secrets import MASK, in_variables, is_telling, masked_text, risk_of
from multitap.config.variables import expand, locate, variables_of
from multitap.errors import ConfigError
from multitap.printable import is_seen
from multitap.sandbox.containers import CLIENTS, objections, parse_container_run
from multitap.sandbox.levels import decide
from multitap.sandbox.places import writable_folders
from multitap.trust.packages import launch_of

NARROWING = frozenset(("enabled", "sandbox", "sandbox_rules", "limits"))
"""Fields in which less needs no new question."""
_FREE = frozenset(
    (
        *("args", "command", "cwd", "description", "start", "idle_timeout", "timeout", "timeouts"),
        *("hard_timeout", "connect_timeout", "health_interval", "reconnect", "retry", "log_level"),
        *("era", "tool_names", "tool_descriptions", "select", "check_arguments", "check_results"),
    )
)
"""Fields that may change in a project that is followed; of the command, only within bounds."""
_STRENGTH: Mapping[str, int] = {"strict": 1, "bubblewrap": 2}


class PartBounds(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a server may reach at most."""

    enabled: bool = True
    sandbox: int = 0
    """The strength of the level that it asks for; 0 for the usual one."""
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    proc: bool = False
    amounts: dict[str, int] = {}
    """Its limits, and those of its sandbox."""
    variables: tuple[str, ...] = ()

    def covers(self, other: "PartBounds") -> bool:
        """Whether the other one reaches nothing that this one does not."""
        sets = ("read", "write", "hosts", "variables")
        return (
            (self.enabled or not other.enabled)
            and other.sandbox >= self.sandbox
            and (self.proc or not other.proc)
            and all({*getattr(other, name)} <= {*getattr(self, name)} for name in sets)
            and all(other.amounts.get(key, most) <= most for key, most in self.amounts.items())
        )


def bounds_of(config: ServerConfig) -> PartBounds:
    """The bounds of a server's entry, with unexpanded variables."""
    amounts = {name: getattr(config.limits, name) for name in Limits.__struct_fields__}
    names = {
        f"{variable.source} {variable.name}"
        for _, variable in variables_of(config)
        if variable.source != "folder"
    }
    if not isinstance(config, StdioServer):
        return PartBounds(enabled=config.enabled, amounts=amounts, variables=tuple(sorted(names)))
    rules: SandboxRules = config.sandbox_rules
    return PartBounds(
        enabled=config.enabled,
        sandbox=_STRENGTH.get(config.sandbox, 0),
        read=tuple(sorted(map(str, rules.read))),
        write=tuple(sorted(map(str, rules.write))),
        hosts=tuple(sorted(rules.hosts)),
        proc=rules.proc,
        amounts={**amounts, "processes": rules.processes, "memory": rules.memory},
        variables=tuple(sorted(names)),
    )


def program_of(config: ServerConfig, root: Path, folder: Path) -> str:
    """What runs, whatever its arguments: a package, a program outside, or code of the project."""
    if not isinstance(config, StdioServer):
        return f"address {getattr(config, 'url', '')}"
    if Path(config.command).name in CLIENTS:  # its arguments decide what of this machine it opens
        return " ".join(("container", config.command, *config.args))
    if launch := launch_of(config.command, config.args):
        return f"{launch.kind} {launch.name}@{launch.version} by {config.command}"
    if "/" not in config.command:
        return f"program {config.command}"
    scope = folders_only(folder, root)
    try:
        place = locate(expand(config.command, scope), scope)
    except (ConfigError, ValueError):
        return f"program {config.command}"
    return "code of the project" if is_within(place, root) else f"program {os.path.realpath(place)}"


def fixed_content(
    config: ServerConfig,
    settings: Mapping[str, Any],
    files: Mapping[str, str],
    root: Path,
    folder: Path,
) -> dict[str, Any]:
    """What may not change in a project that is followed."""
    values = [*_value_files(config, root, folder)]
    return {
        "program": program_of(config, root, folder),
        "fields": {key: value for key, value in settings.items() if key not in _FREE | NARROWING},
        # their content becomes a variable, a header or an argument
        "values": {name: digest for name, digest in files.items() if name in values},
    }


def _value_files(config: ServerConfig, root: Path, folder: Path) -> Collection[str]:
    scope = folders_only(folder, root)
    home = os.path.realpath(root)
    names = [variable.name for _, variable in variables_of(config) if variable.source == "file"]
    names += (str(path) for key, path in paths_of(config) if key != "cwd")
    paths: list[str] = []
    for name in names:
        try:
            real = os.path.realpath(locate(expand(name, scope), scope))
            paths.append(os.path.relpath(real, home))
        except (ConfigError, ValueError):
            continue
    return paths


_SHOWN = {"command", "args", "cwd", "env", "env_file", "url", "headers", "oauth", "provenance"}
"""Fields of a server with their own lines."""
_SHORT = 12
"""Characters of a digest that show a person whether something is the same."""
_DIGEST = re.compile(rf"( sha256:[0-9a-f]{{{_SHORT}}})[0-9a-f]+")
FILE = "file"
"""The label of lines about files that are watched for changes."""
_Lines = Iterator[tuple[str, str]]


class ProjectPart(msgspec.Struct, frozen=True, kw_only=True):
    """A server of a project, a skill, or the rest of its files."""

    kind: PartKind
    name: str
    file: str
    """Its file, relative to the project's folder."""
    lines: tuple[str, ...]
    """What it would do, for a person to read; control characters are escaped, secrets masked."""
    digest: str
    """A digest of everything relevant."""
    wants: tuple[str, ...] = ()
    """The secrets that it asks for."""
    writes: tuple[str, ...] = ()
    """Real paths of the folders among its arguments that it could write to."""
    bounds: PartBounds = PartBounds()
    """What it may reach; less needs no new question."""
    program: str = ""
    """What runs, whatever its arguments."""
    fixed: str = ""
    """A digest of what may not change in a project that is followed; empty if nothing may."""

    @property
    def key(self) -> str:
        """Identifies it among the project's parts, independent of its content."""
        return f"{self.kind} {self.name} in {self.file}"

    @property
    def title(self) -> str:
        """Its name for people."""
        name = f" {visible(self.name)}" if self.name else ""
        return f"{self.kind}{name} ({visible(self.file)})"


class KnownParts:
    """Caches the parts of servers within one command."""

    def __init__(self) -> None:
        self._parts: dict[
            tuple[str, Path, str], tuple[ServerConfig, Place | None, ProjectPart]
        ] = {}

    def part(self, name: str, proposal: Proposal) -> ProjectPart:
        config = proposal.servers[name]
        key = (name, proposal.root, _file(proposal, name))
        before = self._parts.get(key)
        replaced = proposal.replaces.get(name)
        # most files are found by several searches, and not all of them find the replaced entry
        if before is None or before[0] != config or replaced not in {None, before[1]}:
            part = server_part(
                name,
                config,
                proposal.root,
                proposal.folder,
                file=_file(proposal, name),
                usual=proposal.usual_level,
                replaces=replaced,
            )
            before = self._parts[key] = (config, replaced, part)
        return before[2]


def parts_of(proposal: Proposal, cache: KnownParts | None = None) -> tuple[ProjectPart, ...]:
    """The current parts of a project.

    Args:
        proposal: The content of its files.
        cache: A cache of servers, if any.
    """
    cache = cache or KnownParts()
    servers = (cache.part(name, proposal) for name in proposal.servers)
    skills = (skill_part(path, proposal.root) for path in proposal.find_skills())
    settings = (settings_part(proposal),) if proposal.settings else ()
    return (*servers, *settings, *skills)


def server_part(
    name: str,
    config: ServerConfig,
    root: Path,
    folder: Path,
    *,
    file: str = "",
    usual: Level = "guard",
    replaces: Place | None = None,
) -> ProjectPart:
    """One server: its configuration, and the files that decide what its program does.

    Args:
        name: Its name.
        config: Its configuration, with unexpanded variables.
        root: The project's folder.
        folder: The current folder.
        file: The file with its entry, relative to the project's folder.
        usual: The level of confinement, unless it asks for a stricter one.
        replaces: The user's entry that it replaces.
    """
    from multitap.trust import project_files  # noqa: PLC0415 - only where there is a project

    watched = project_files.of_server(config, root, folder)
    files = watched.files
    settings = {key: value for key, value in table_of(config).items() if key != "provenance"}
    expanded = _expand_known(config, root, folder)
    writes = writable_folders(expanded.args, expanded.cwd or root) if expanded else ()
    lines = (
        *_replacement(replaces),
        *_server_lines(config, settings),
        *(_reach(expanded, usual, writes) if expanded else ()),
        *(("note", f"not watched: {visible(gap)}") for gap in watched.gaps),
        *_files(files),
    )
    wants = dict.fromkeys(
        variable.name
        for _, variable in variables_of(config)
        if variable.source == "auth" and variable.name.isprintable()
    )
    content = {key: value for key, value in settings.items() if key not in NARROWING}
    return ProjectPart(
        kind="server",
        name=name,
        file=file,
        lines=_align(lines),
        digest=_digest(name, {"transport": config.transport, **content}, files),
        wants=tuple(wants),
        writes=writes,
        bounds=bounds_of(config),
        program=program_of(config, root, folder),
        fixed=_digest(name, fixed_content(config, settings, files, root, folder), {}),
    )


def _expand_known(config: ServerConfig, root: Path, folder: Path) -> StdioServer | None:
    """A program with what is known before it is trusted: folders, but no other variables."""
    if not isinstance(config, StdioServer):
        return None
    scope = folders_only(folder, root)
    args: list[str] = []
    for argument in config.args:
        try:
            args.append(expand(argument, scope))
        except ConfigError:
            args.append("")
    cwd = root
    with suppress(ConfigError):
        cwd = locate(expand(str(config.cwd or root), scope), scope)
    return config.replace(args=tuple(args), cwd=cwd)


def settings_part(proposal: Proposal) -> ProjectPart:
    """The part for everything except servers and skills."""
    from multitap.trust import project_files  # noqa: PLC0415 - see above

    written: dict[str, Any] = json.loads(json.dumps(proposal.settings, default=str))
    functions: list[str] = written.get("environment", {}).get("tools", [])
    scope = folders_only(proposal.folder, proposal.root)
    paths = (
        expand(function.rpartition(":")[0], scope) for function in functions if ".py:" in function
    )
    files = project_files.digests(map(Path, paths), proposal.root)
    lines = (
        *(("imports", quote_word(function)) for function in functions),
        *((key, value) for key, value in _flat(written) if key != "environment.tools"),
        *_files(files),
    )
    return ProjectPart(
        kind="settings",
        name="",
        file=_file(proposal, ""),
        lines=_align(lines),
        digest=_digest("", written, files),
    )


def skill_part(path: Path, root: Path) -> ProjectPart:
    """One skill: instructions for a model, and the files beside them."""
    from multitap.trust import project_files  # noqa: PLC0415 - see above

    files = project_files.of_skill(path, root)
    file = _within(root, path)
    return ProjectPart(
        kind="skill",
        name=path.name,
        file=file,
        lines=_align(_files(files)),
        digest=_digest(file, {}, files),
    )


def visible(text: str) -> str:
    """A text with control and invisible characters escaped."""
    # A project could otherwise hide half of its command from the person who reads it, with an
    # escape sequence or a right-to-left mark.
    return "".join(char if is_seen(char) else _escape(char) for char in text)


def quote_word(text: str) -> str:
    """One word of a command, quoted if necessary."""
    plain = is_seen(text) and not {*text} & {*" \"'\\"}
    # a quotation mark in it must not look like the end of the word
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return text if plain and text else f'"{visible(escaped)}"'


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode()


def _server_lines(config: ServerConfig, settings: Mapping[str, Any]) -> _Lines:
    match config:
        case StdioServer():
            yield "runs", " ".join(map(quote_word, (config.command, *config.args)))
            yield "in", quote_word(str(config.cwd)) if config.cwd else "the project's folder"
            yield from (("env", f"{visible(k)}={_value(k, v)}") for k, v in config.env.items())
            if config.env_file is not None:
                yield "env file", quote_word(str(config.env_file))
        case HttpServer():
            yield "connects", quote_word(config.url)
            yield from (
                ("header", f"{visible(k)}: {_value(k, v)}") for k, v in config.headers.items()
            )
            if isinstance(config.oauth, OAuth):
                login = table_of(config.oauth)
                yield from (("login", f"{k}={_value(k, str(v))}") for k, v in login.items())
            elif config.oauth is not None:
                yield "login", "never"
        case _:
            return
    for key, reference in dict.fromkeys(variables_of(config)):
        if reference.source in {"env", "file"}:
            kind = "variable" if reference.source == "env" else "reads"
            yield kind, f"{visible(reference.name)} (for {visible(key)})"
        elif reference.source == "auth":
            yield "secret", f"{visible(reference.name)} (for {visible(key)})"
    yield from _flat({key: value for key, value in settings.items() if key not in _SHOWN})


def _replacement(place: Place | None) -> _Lines:
    if place is not None:
        yield "replaces", f"yours ({visible(str(place))})"


def _reach(config: StdioServer, usual: Level, writes: Sequence[str]) -> _Lines:
    """How it is confined, and what it may do nevertheless."""
    program = shutil.which(config.command)  # a path in the project is never an engine's client
    confinement = decide(config, None, usual, program=program)
    yield "level", f"{confinement.level}: {confinement.meaning}"
    yield from (("may write", quote_word(path)) for path in writes)
    run = parse_container_run((config.command, *config.args))
    if run is not None:
        gains = objections(run, config.cwd, config.env)
        yield from (("warning", visible(gain)) for gain in gains)


def _value(name: str, value: str) -> str:
    """The value of a variable or header; only the digest of a secret."""
    secrets = sorted(in_variables({name: value}), key=len, reverse=True)
    if not is_telling(name) and not secrets:
        return quote_word(value)
    text = masked_text(value)
    if risk_of(name) and not is_telling(name):  # the rest of it decides what runs
        text = value
        for secret in secrets:
            text = text.replace(secret, MASK)
    if MASK not in text:
        return quote_word(text)
    digest = sha256(value.encode(errors="surrogatepass")).hexdigest()[:_SHORT]
    return f"{quote_word(text)} ({digest})"


def _flat(table: Mapping[str, Any], prefix: str = "") -> _Lines:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{visible(key)}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            yield f"{prefix}{visible(key)}", visible(json.dumps(value, ensure_ascii=False))


def _files(files: Mapping[str, str]) -> _Lines:
    return ((FILE, _DIGEST.sub(r"\1", f"{visible(name)} {held}")) for name, held in files.items())


def _align(lines: _Lines | tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return tuple(f"{label:<9} {text}" for label, text in lines)


def _file(proposal: Proposal, name: str) -> str:
    return _within(proposal.root, proposal.places[name].file)


def _within(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _digest(name: str, content: Mapping[str, Any], files: Mapping[str, str]) -> str:
    whole = {"name": name, "content": content, "files": files}
    # Canonical, so that the same content has the same digest: otherwise a reordered table would ask
    # a person again.
    text = json.dumps(whole, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()
