"""Loads files into settings, problems, and the origin of every value."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from multitap.config import discover, search
from multitap.config.dialects import detect, dialect
from multitap.config.dialects.draft import FieldPath, Reading
from multitap.config.documents import Document, Malformed, Node, is_table
from multitap.config.files import is_there, read_file
from multitap.config.frozen_model import FrozenModel
from multitap.config.layers import Layer, Merged, merge
from multitap.config.models import Settings
from multitap.config.owners import refusal
from multitap.config.problems import Place, Problem, Severity, did_you_mean
from multitap.config.scope import Scope
from multitap.config.search import Search, Source, Surroundings, state_directory
from multitap.config.stacks import Explained, Explanation
from multitap.config.stamps import Stamps, stamps
from multitap.config.trust_gate import Approval, Pending, TrustNothing
from multitap.errors import ConfigError, UnknownName
from multitap.records import dataclass

CONTAINERS = ("mcpServers", "servers", "mcp_servers", "context_servers", "extensions", "mcp")


@dataclass(frozen=True, slots=True)
class SearchedSource:
    """A source that was examined."""

    source: Source
    found: bool
    dialect: str | None = None
    """The dialect in which it was read."""
    intact: bool = True
    """Whether it could be read, or is optional and missing."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration with the origin of its values."""

    settings: Settings
    problems: tuple[Problem, ...]
    sources: tuple[SearchedSource, ...]
    """In the order in which they were examined."""
    search: Search = field(repr=False)
    merged: Merged = field(repr=False)
    stamps: Stamps = field(repr=False)
    """The state of the files just before they were read."""
    approval: Approval = field(default_factory=TrustNothing, repr=False)
    """Decided which parts of a project count."""

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
        return Scope.of_process(self.search.folder)

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
        lost = self.merged.servers.keys() - self.settings.servers.keys()
        problems = {
            name: tuple(problem for problem in self.errors if problem.server == name)
            for name in sorted(lost)
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


def _with_defaults(said: Explanation, model: FrozenModel | None) -> Explanation:
    written = {value.key.partition(".")[0] for value in said.values}
    defaults = (
        Explained(key, getattr(model, key), None)
        for key in (type(model).model_fields if model else ())
        if key not in written and key != "servers"
    )
    return Explanation((*said.values, *defaults), said.dropped)


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
    wanted = where or search.native(Surroundings.here())
    decides = approval or TrustNothing()
    # Before anything is read: a file that changes meanwhile differs from its stamp, and is read
    # again.
    before = stamps((*wanted.sources, *_decisions(decides)))
    seen: list[SearchedSource] = []
    layers = [_defaults(wanted)]
    for source in wanted.sources:
        found = is_there(source.path)
        readings = _read(source, wanted.folder)
        said = [Layer(reading, source.project) for reading in readings]
        layers += said
        seen.append(_to_seen(source, readings[0], found=found))
        # hosts that use the first file they find do not merge it with others
        if found and wanted.first_only and _counts(said, decides, wanted.folder):
            break
    merged = merge((*layers, *on_top), approval=decides, folder=wanted.folder)
    return Loaded(merged.settings, merged.problems, tuple(seen), wanted, merged, before, decides)


def _decisions(approval: Approval) -> tuple[Source, ...]:
    return tuple(Source(path) for path in approval.files)


def _counts(layers: Sequence[Layer], approval: Approval, folder: Path) -> bool:
    """Whether a source is the first one; a stranger's file must not hide the user's own."""
    return not merge(layers, approval=approval, folder=folder).pending


def _to_seen(source: Source, reading: Reading, *, found: bool) -> SearchedSource:
    # an unsafe file that we refuse to read is not missing
    ignored = reading.refused and source.project is not None
    intact = bool(reading.dialect or not reading.problems or ignored)
    return SearchedSource(source, found, reading.dialect or None, intact)


def _defaults(wanted: Search) -> Layer:
    document = Document(Path("(preset)"), wanted.defaults)
    nodes: dict[FieldPath, Node] = {(name,): node for name, node in document.root.members()}
    return Layer(Reading("preset", settings=nodes))


def _read(source: Source, folder: Path) -> tuple[Reading, ...]:
    if problem := refusal(source.path, within=source.project, named=source.required):
        return (Reading("", problems=(problem,), refused=True),)
    if source.folder:
        return discover.scan(source.path, within=source.project)
    document, problems = read_file(source.path)
    if document is None:
        missing = source.required and not problems
        gone = Problem(Severity.ERROR, "there is no such file", Place(source.path))
        return (Reading("", problems=(gone,) if missing else problems),)
    reading = read_document(document, folder, told=source.dialect)
    return (replace(reading, problems=(*problems, *reading.problems)),)


def read_document(document: Document, folder: Path, *, told: str | None = None) -> Reading:
    """Read a document in the given or detected dialect."""
    if not is_table(document.data):
        place = document.root.place
        problem = Problem(Severity.ERROR, "expected a table at the top", place)
        return Reading("", problems=(problem,))
    try:
        return _understand(document, folder, told)
    except Malformed as exc:
        problem = Problem(Severity.ERROR, exc.words(document.format), document.at(exc.offset))
        return Reading("", problems=(problem,))


def _understand(document: Document, folder: Path, told: str | None) -> Reading:
    if told:
        return _as_told(document, folder, told)
    if found := detect(document):
        return found.read(document, folder)
    if not document.data:
        return Reading("")
    near = (did_you_mean(key, CONTAINERS) for key in document.data)
    hint = next(filter(None, near), "name the dialect if it is one of ours")
    place = document.root.place
    problem = Problem(Severity.ERROR, "no MCP servers in this file", place, hint=hint)
    return Reading("", problems=(problem,))


def _as_told(document: Document, folder: Path, told: str) -> Reading:
    reading = dialect(told).read(document, folder)
    other = None if reading.entries or reading.settings else detect(document)
    if other is None or not other.read(document, folder).entries:
        return reading
    message = f"no servers as {dialect(told).title} writes them; it looks like {other.title}"
    problem = Problem(Severity.WARNING, message, document.root.place)
    return replace(reading, problems=(*reading.problems, problem))
