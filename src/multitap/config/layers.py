"""Reads all sources and merges them into settings: the user's first, then trusted projects."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from multitap.config import discover
from multitap.config import sources as search
from multitap.config.checks import ConfigModel, InvalidSettings, build
from multitap.config.dialects import DIALECTS, detect, dialect
from multitap.config.dialects.draft import Entry, FieldPath, Reading
from multitap.config.documents import Document, Malformed, Node, is_table, is_there, read_file
from multitap.config.entries import Explained, Explanation, Stack, build_server, nest, usable
from multitap.config.models import ServerConfig, ServerHome, Settings
from multitap.config.owners import refusal
from multitap.config.problems import Place, Problem, Severity, did_you_mean
from multitap.config.projects import Approval, Pending, TrustNothing, adopt, propose
from multitap.config.provenance import Level
from multitap.config.sources import Search, Source, Surroundings, start_folder, state_directory
from multitap.config.variables import Scope
from multitap.config.watch import Stamps, stamps
from multitap.errors import ConfigError, UnknownName


class Layer(msgspec.Struct, frozen=True):
    """The content of one source."""

    reading: Reading
    project: Path | None = None
    """The folder of its project; None if the user chose it."""


class Merged(msgspec.Struct, frozen=True, kw_only=True):
    """The merged layers."""

    settings: Settings
    problems: tuple[Problem, ...]
    servers: Mapping[str, Stack]
    """All servers, also broken and untrusted ones."""
    hub: Stack
    """The settings of the hub itself."""
    pending: tuple[Pending, ...] = ()
    """Parts of a project that are not used until a person trusts them."""


def merge(
    layers: Sequence[Layer], *, approval: Approval | None = None, folder: Path | None = None
) -> Merged:
    """One configuration of all layers, the weakest first.

    A trusted project's server replaces the user's one of that name; settings stay the user's.

    Args:
        layers: The content of the sources.
        approval: Decides which parts of a project count; without it, none do.
        folder: The current folder.
    """
    # The user's layers first, on their own: they decide what a project may add, never the
    # other way round.
    own = [layer.reading for layer in layers if layer.project is None]
    hub, problems = _hub(own)
    problems = [*(problem for layer in layers for problem in layer.reading.problems), *problems]
    switch = hub.fields.get(("enabled",))
    servers = {name: _switch_off(stack, switch) for name, stack in _stacks(own).items()}
    configs: dict[str, ServerConfig] = {}
    # one by one: an entry that is wrong must not take the others with it
    for name, stack in servers.items():
        model, about_server = build_server(stack)
        problems += about_server
        if model is not None:
            configs[name] = _at_home(model, stack)
    pending: list[Pending] = []
    for root, readings in _projects(layers).items():
        proposed = propose(readings, root, folder or Path.cwd())
        adopted = adopt(
            proposed, approval or TrustNothing(), hub, servers, usual_level=_usual_level(hub)
        )
        problems += adopted.problems
        pending += adopted.pending
        # a project may switch a server of the user off in its folder, which harms nobody
        configs |= _off({name: configs[name] for name in adopted.switched_off if name in configs})
        configs |= adopted.servers if switch is None or switch.value else _off(adopted.servers)
        servers |= {name: _switch_off(stack, switch) for name, stack in adopted.stacks.items()}
        if adopted.settings is not None:
            hub = Stack((*hub.entries, adopted.settings))
    settings = _settings({**nest(hub.fields), "servers": configs})
    # once: a value that two layers share would be reported for each
    distinct = tuple(dict.fromkeys(problems))
    return Merged(
        settings=settings, problems=distinct, servers=servers, hub=hub, pending=tuple(pending)
    )


def _settings(table: Mapping[str, Any]) -> Settings:
    settings, mistakes = build(Settings, table)
    if settings is None:  # single values were valid, but not together
        raise InvalidSettings(mistakes)
    return settings


def _usual_level(hub: Stack) -> Level:
    """How the user confines programs of others; a project cannot set this."""
    # only this key: the others are checked once, together, at the end
    level = {key: value for key, value in nest(hub.fields).items() if key == "sandbox"}
    return _settings(level).sandbox


def _hub(readings: Iterable[Reading]) -> tuple[Stack, list[Problem]]:
    """The settings of the hub; an invalid value affects only itself."""
    entries: list[Entry] = []
    problems: list[Problem] = []
    for reading in readings:
        good, complaints = usable(reading.settings)
        problems += complaints
        if good:
            entries.append(
                Entry(name="", node=next(iter(good.values())).document.root, fields=good)
            )
    return Stack(tuple(entries)), problems


def _stacks(readings: Iterable[Reading]) -> dict[str, Stack]:
    entries: dict[str, list[Entry]] = {}
    for reading in readings:
        for entry in reading.entries:
            entries.setdefault(entry.name, []).append(entry)
    return {name: Stack(tuple(entries_of)) for name, entries_of in entries.items()}


def _at_home(model: ServerConfig, stack: Stack) -> ServerConfig:
    """The server with the home folder of its file; without a file, the current folder."""
    document = stack.merge_entries().node.document
    if not document.path.is_absolute():
        return model
    return model.at_home(ServerHome(paths=document.path.parent, start=start_folder(document.path)))


def _projects(layers: Iterable[Layer]) -> dict[Path, list[Reading]]:
    readings: dict[Path, list[Reading]] = {}
    for layer in layers:
        if layer.project is not None:
            readings.setdefault(layer.project, []).append(layer.reading)
    return readings


def _switch_off(stack: Stack, switch: Node | None) -> Stack:
    """The server, disabled if the user has disabled all servers."""
    if switch is None or switch.value is not False:
        return stack
    off = Entry(name=stack.entries[0].name, node=switch, fields={("enabled",): switch})
    return replace(stack, entries=(*stack.entries, off))


def _off(servers: Mapping[str, ServerConfig]) -> dict[str, ServerConfig]:
    return {name: server.replace(enabled=False) for name, server in servers.items()}


CONTAINERS = ("mcpServers", "servers", "mcp_servers", "context_servers", "extensions", "mcp")


class SearchedSource(msgspec.Struct, frozen=True):
    """A source that was examined."""

    source: Source
    found: bool
    dialect: str | None = None
    """The dialect in which it was read."""
    intact: bool = True
    """Whether it could be read, or is optional and missing."""


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration with the origin of its values."""

    settings: Settings
    problems: tuple[Problem, ...]
    sources: tuple[SearchedSource, ...]
    """In the order in which they were examined."""
    search: Search
    merged: Merged
    stamps: Stamps
    """The state of the files just before they were read."""
    approval: Approval = msgspec.field(default_factory=TrustNothing)
    """Decided which parts of a project count."""

    def __repr__(self) -> str:
        # without the search and the entries: their values may be secret
        return f"Loaded({self.settings!r}, {self.problems!r}, {self.sources!r})"

    @property
    def watched(self) -> tuple[Source, ...]:
        """The files that may change the result."""
        return (*self.search.sources, *_decisions(self.approval))

    @property
    def intact(self) -> bool:
        """Whether every source could be read; if not, servers may be missing by mistake."""
        return all(seen.intact for seen in self.sources)

    @property
    def files(self) -> tuple[str, ...]:
        """The files it comes from, required missing ones included."""
        return tuple(
            # gateways are found by their files, which another path may lead to
            os.path.realpath(seen.source.path)
            for seen in self.sources
            if seen.found or seen.source.required
        )

    @property
    def pending(self) -> tuple[Pending, ...]:
        """Parts of a project that are not used until a person trusts them."""
        return self.merged.pending

    @property
    def held(self) -> Mapping[str, Pending]:
        """Servers of a project that are not trusted, by name, unless the user's own is used."""
        return {
            part.name: part
            for part in self.pending
            if part.kind == "server" and part.name not in self.settings.servers
        }

    def project_of(self, name: str) -> Path | None:
        """The folder of the project that describes a server; None if the user described it."""
        stack = self.merged.servers.get(name)
        return stack.project if stack else None

    @property
    def scope(self) -> Scope:
        """Expands variables with their current values."""
        return Scope(env=self.search.env, folder=self.search.folder, home=Path.home())

    @property
    def state_directory(self) -> Path:
        """Where logs, call history and catalogs are kept."""
        return state_directory(self.settings.state_dir)

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity is Severity.ERROR)

    @property
    def broken(self) -> Mapping[str, tuple[Problem, ...]]:
        """Configured servers that cannot be used, and why."""
        # not by the problems alone: a server with a wrong field may still be used
        lost_names = self.merged.servers.keys() - self.settings.servers.keys()
        problems = {
            name: tuple(problem for problem in self.errors if problem.server == name)
            for name in sorted(lost_names)
        }
        return {name: reasons for name, reasons in problems.items() if reasons}

    def check(self) -> None:
        """Check that every source could be read.

        Raises:
            ConfigError: One could not, so servers would be missing; says where and why.
        """
        if not self.intact:
            hints = (problem.hint for problem in self.errors if problem.hint)
            reasons = "; ".join(problem.reason for problem in self.errors)
            raise ConfigError(reasons, hint=next(hints, None))

    def explain(self, name: str | None = None) -> Explanation:
        """Every value of a server, or of the hub itself: where it is set, and what it overrides.

        Raises:
            UnknownName: No source mentions such a server.
        """
        if name is None:
            return _with_defaults(self.merged.hub.explain(), self.settings)
        if stack := self.merged.servers.get(name):
            return _with_defaults(stack.explain(), self.settings.servers.get(name))
        hint = did_you_mean(name, self.merged.servers)
        raise UnknownName(f"no file defines {name!r}", hint=hint)

    def place(self, name: str) -> Place | None:
        """The place of a server's entry; None if no file mentions it."""
        stack = self.merged.servers.get(name)
        return stack.merge_entries().node.key_place if stack else None

    def places(self, name: str) -> Mapping[str, Place]:
        """The place of each field of a server, by its dotted name."""
        values = self.explain(name).values
        return {value.key: value.place for value in values if value.place}


def _with_defaults(explanation: Explanation, model: ConfigModel | None) -> Explanation:
    written = {value.key.partition(".")[0] for value in explanation.values}
    defaults = (
        Explained(key, getattr(model, key), None)
        for key in (model.__struct_fields__ if model else ())
        if key not in written and key != "servers"
    )
    return Explanation((*explanation.values, *defaults), explanation.dropped)


def load(
    where: Search | None = None,
    *,
    on_top: Sequence[Layer] = (),
    approval: Approval | None = None,
) -> Loaded:
    """Read all sources of a search; by default, `native` from the current folder.

    Never raises for the content of a file: see `problems`.

    Args:
        where: The files and folders.
        on_top: Settings that override every file.
        approval: Decides which parts of a project's files count; without it, they are read, but
            none of them counts (`pending` lists them).
    """
    places = where or search.native(Surroundings.here())
    decides = approval or TrustNothing()
    # Before anything is read: a file that changes meanwhile differs from its stamp, and is read
    # again.
    before = stamps((*places.sources, *_decisions(decides)))
    seen: list[SearchedSource] = []
    layers = [_defaults(places)]
    for source in places.sources:
        exists = is_there(source.path)
        readings = _read(source, places.folder)
        new_layers = [Layer(reading, source.project) for reading in readings]
        layers += new_layers
        # of a folder of servers, the first reading says whether it could be read
        seen.append(_to_seen(source, readings[0], exists=exists))
        # hosts that use the first file they find do not merge it with others
        if exists and places.first_only and _counts(new_layers, decides, places.folder):
            break
    merged = merge((*layers, *on_top), approval=decides, folder=places.folder)
    return Loaded(
        settings=merged.settings,
        problems=merged.problems,
        sources=tuple(seen),
        search=places,
        merged=merged,
        stamps=before,
        approval=decides,
    )


def settings_from(table: Mapping[str, Any]) -> Settings:
    """The settings in a mapping: our own keys, or the format of any client.

    Raises:
        ConfigError: A value cannot be used; names its key.
    """
    document = Document(path=Path("settings"), data=dict(table))
    dialect_ = detect(document)
    is_foreign = dialect_ is not None and dialect_ is not DIALECTS["multitap"]
    has_models = any(isinstance(value, ConfigModel) for value in _inner_values(table))
    # our own keys are checked as in Python: a file keeps what it does not know, for a newer version
    if has_models or not is_foreign:
        unknown = next((key for key in table if key not in Settings.__struct_fields__), None)
        if unknown is None:
            return Settings(**table)
        hint = did_you_mean(unknown, (*Settings.__struct_fields__, *CONTAINERS))
        raise ConfigError(f"`{unknown}`: is not a setting here", hint=hint)
    merged = merge([Layer(read_document(document, Path.cwd()))])
    for problem in merged.problems:
        if problem.severity is Severity.ERROR:
            key = f"`{problem.key}`: " if problem.key else ""
            raise ConfigError(f"{key}{problem.message}", hint=problem.hint)
    return merged.settings


def _inner_values(table: Mapping[str, Any]) -> Iterator[object]:
    """The values of a mapping, and of the mappings in it."""
    for value in table.values():
        yield value
        if is_table(value):
            yield from value.values()


def _decisions(approval: Approval) -> tuple[Source, ...]:
    return tuple(Source(path=path) for path in approval.files)


def _counts(layers: Sequence[Layer], approval: Approval, folder: Path) -> bool:
    """Whether a source is the first one; a stranger's file must not hide the user's own."""
    return not merge(layers, approval=approval, folder=folder).pending


def _to_seen(source: Source, reading: Reading, *, exists: bool) -> SearchedSource:
    # an unsafe file that we refuse to read is not missing
    ignored = reading.refused and source.project is not None
    intact = bool(reading.dialect or not reading.problems or ignored)
    return SearchedSource(source, exists, reading.dialect or None, intact)


def _defaults(search: Search) -> Layer:
    document = Document(path=Path("(preset)"), data=search.defaults)
    nodes: dict[FieldPath, Node] = {(name,): node for name, node in document.root.members()}
    return Layer(Reading(dialect="preset", settings=nodes))


def _read(source: Source, folder: Path) -> tuple[Reading, ...]:
    if problem := refusal(source.path, within=source.project, named=source.required):
        return (Reading(dialect="", problems=(problem,), refused=True),)
    if source.folder:
        return discover.scan(source.path, within=source.project)
    document, problems = read_file(source.path)
    if document is None:
        missing = source.required and not problems
        gone = Problem(
            severity=Severity.ERROR, message="there is no such file", place=Place(source.path)
        )
        return (Reading(dialect="", problems=(gone,) if missing else problems),)
    reading = read_document(document, folder, dialect_name=source.dialect)
    return (replace(reading, problems=(*problems, *reading.problems)),)


def read_document(document: Document, folder: Path, *, dialect_name: str | None = None) -> Reading:
    """Read a document in the given or detected dialect."""
    if not is_table(document.data):
        place = document.root.place
        problem = Problem(
            severity=Severity.ERROR, message="expected a table at the top", place=place
        )
        return Reading(dialect="", problems=(problem,))
    try:
        return _understand(document, folder, dialect_name)
    except Malformed as exc:
        problem = Problem(
            severity=Severity.ERROR,
            message=exc.words(document.format),
            place=document.at(exc.offset),
        )
        return Reading(dialect="", problems=(problem,))


def _understand(document: Document, folder: Path, dialect_name: str | None) -> Reading:
    if dialect_name:
        return _as_told(document, folder, dialect_name)
    if dialect_found := detect(document):
        return dialect_found.read(document, folder)
    # `{}` is how a file configures no servers
    if not document.data:
        return Reading(dialect="")
    near = (did_you_mean(key, CONTAINERS) for key in document.data)
    hint = next(filter(None, near), "name the dialect if it is one of ours")
    place = document.root.place
    problem = Problem(
        severity=Severity.ERROR, message="no MCP servers in this file", place=place, hint=hint
    )
    return Reading(dialect="", problems=(problem,))


def _as_told(document: Document, folder: Path, dialect_name: str) -> Reading:
    reading = dialect(dialect_name).read(document, folder)
    other = None if reading.entries or reading.settings else detect(document)
    if other is None or not other.read(document, folder).entries:
        return reading
    message = (
        f"no servers as {dialect(dialect_name).title} writes them; it looks like {other.title}"
    )
    problem = Problem(severity=Severity.WARNING, message=message, place=document.root.place)
    return replace(reading, problems=(*reading.problems, problem))
