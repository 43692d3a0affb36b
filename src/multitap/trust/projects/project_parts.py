"""The parts of a project that are trusted one by one: their effect and digest."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from multitap.config.expand import variables
from multitap.config.mask import MASK, masked_text
from multitap.config.models import HttpServer, OAuth, ServerConfig, StdioServer
from multitap.config.problems import Place
from multitap.config.project_bounds import folders_only
from multitap.config.provenance import Level
from multitap.config.scope import expand, locate
from multitap.config.secrets import in_variables, is_telling
from multitap.config.steering_variables import risk_of
from multitap.config.trust_gate import PartKind, Proposal
from multitap.errors import ConfigError
from multitap.printable import is_seen
from multitap.records import dataclass
from multitap.sandbox.containers import objections, parse_container_run
from multitap.sandbox.folder_arguments import writable_folders
from multitap.sandbox.levels import decide
from multitap.trust.projects import project_files
from multitap.trust.projects.part_bounds import (
    NARROWING,
    PartBounds,
    bounds_of,
    fixed_content,
    program_of,
)

_SHOWN = {"command", "args", "cwd", "env", "env_file", "url", "headers", "oauth", "provenance"}
"""Fields of a server with their own lines."""
_SHORT = 12
"""Characters of a digest that show a person whether something is the same."""
_DIGEST = re.compile(rf"( sha256:[0-9a-f]{{{_SHORT}}})[0-9a-f]+")
FILE = "file"
"""The label of lines about files that are watched for changes."""
_Lines = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ProjectPart:
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


def parts_of(proposal: Proposal, known: KnownParts | None = None) -> tuple[ProjectPart, ...]:
    """The current parts of a project.

    Args:
        proposal: The content of its files.
        known: A cache of servers, if any.
    """
    known = known or KnownParts()
    servers = (known.part(name, proposal) for name in proposal.servers)
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
    watched = project_files.of_server(config, root, folder)
    files = watched.files
    said = config.model_dump(mode="json", exclude_unset=True, exclude={"provenance"})
    known = _expand_known(config, root, folder)
    writes = writable_folders(known.args, known.cwd or root) if known else ()
    lines = (
        *_replacement(replaces),
        *_server_lines(config, said),
        *(_reach(known, usual, writes) if known else ()),
        *(("note", f"not watched: {visible(gap)}") for gap in watched.gaps),
        *_files(files),
    )
    wants = dict.fromkeys(
        variable.name
        for _, variable in variables(config)
        if variable.source == "auth" and variable.name.isprintable()
    )
    content = {key: value for key, value in said.items() if key not in NARROWING}
    return ProjectPart(
        "server",
        name,
        file,
        _align(lines),
        _digest(name, {"transport": config.transport, **content}, files),
        tuple(wants),
        writes=writes,
        bounds=bounds_of(config),
        program=program_of(config, root, folder),
        fixed=_digest(name, fixed_content(config, said, files, root, folder), {}),
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
    return config.model_copy(update={"args": tuple(args), "cwd": cwd})


def settings_part(proposal: Proposal) -> ProjectPart:
    """The part for everything except servers and skills."""
    written: dict[str, Any] = json.loads(json.dumps(proposal.settings, default=str))
    functions: list[str] = written.get("environment", {}).get("tools", [])
    scope = folders_only(proposal.folder, proposal.root)
    paths = (expand(one.rpartition(":")[0], scope) for one in functions if ".py:" in one)
    files = project_files.digests(map(Path, paths), proposal.root)
    lines = (
        *(("imports", quote_word(one)) for one in functions),
        *((key, value) for key, value in _flat(written) if key != "environment.tools"),
        *_files(files),
    )
    digest = _digest("", written, files)
    return ProjectPart("settings", "", _file(proposal, ""), _align(lines), digest)


def skill_part(path: Path, root: Path) -> ProjectPart:
    """One skill: instructions for a model, and the files beside them."""
    files = project_files.of_skill(path, root)
    name = _within(root, path)
    return ProjectPart("skill", path.name, name, _align(_files(files)), _digest(name, {}, files))


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


def _server_lines(config: ServerConfig, said: Mapping[str, Any]) -> _Lines:
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
                login = config.oauth.model_dump(exclude_unset=True)
                yield from (("login", f"{k}={_value(k, str(v))}") for k, v in login.items())
            elif config.oauth is not None:
                yield "login", "never"
        case _:
            return
    for key, reference in dict.fromkeys(variables(config)):
        if reference.source in {"env", "file"}:
            kind = "variable" if reference.source == "env" else "reads"
            yield kind, f"{visible(reference.name)} (for {visible(key)})"
        elif reference.source == "auth":
            yield "secret", f"{visible(reference.name)} (for {visible(key)})"
    yield from _flat({key: value for key, value in said.items() if key not in _SHOWN})


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
    shown = masked_text(value)
    if risk_of(name) and not is_telling(name):  # the rest of it decides what runs
        shown = value
        for secret in secrets:
            shown = shown.replace(secret, MASK)
    if MASK not in shown:
        return quote_word(shown)
    digest = sha256(value.encode(errors="surrogatepass")).hexdigest()[:_SHORT]
    return f"{quote_word(shown)} ({digest})"


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
