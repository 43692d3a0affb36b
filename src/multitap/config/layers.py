"""Merges many files into one configuration: the user's first, then trusted projects."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from multitap.config import validate
from multitap.config.dialects.draft import Entry, Reading
from multitap.config.documents import Node
from multitap.config.models import ServerConfig, ServerHome, Settings
from multitap.config.problems import Problem
from multitap.config.project_layers import adopt, propose
from multitap.config.provenance import Level
from multitap.config.search import start_folder
from multitap.config.stacks import Stack, build, usable
from multitap.config.trust_gate import Approval, Pending, TrustNothing
from multitap.records import dataclass


@dataclass(frozen=True, slots=True)
class Layer:
    """The content of one source."""

    reading: Reading
    project: Path | None = None
    """The folder of its project; None if the user chose it."""


@dataclass(frozen=True, slots=True)
class Merged:
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
    for name, stack in servers.items():
        model, about_server = build(stack)
        problems += about_server
        if model is not None:
            configs[name] = _at_home(model, stack)
    pending: list[Pending] = []
    for root, readings in _projects(layers).items():
        said = propose(readings, root, folder or Path.cwd())
        found = adopt(said, approval or TrustNothing(), hub, servers, usual_level=_usual_level(hub))
        problems += found.problems
        pending += found.pending
        configs |= _off({name: configs[name] for name in found.switched_off if name in configs})
        configs |= found.servers if switch is None or switch.value else _off(found.servers)
        servers |= {name: _switch_off(stack, switch) for name, stack in found.stacks.items()}
        if found.settings is not None:
            hub = Stack((*hub.entries, found.settings))
    settings = Settings.model_validate({**validate.nest(hub.fields), "servers": configs})
    said_wrong = tuple(dict.fromkeys(problems))
    return Merged(settings, said_wrong, servers, hub, tuple(pending))


def _usual_level(hub: Stack) -> Level:
    """How the user confines programs of others; a project cannot set this."""
    level = {key: value for key, value in validate.nest(hub.fields).items() if key == "sandbox"}
    return Settings.model_validate(level).sandbox


def _hub(readings: Iterable[Reading]) -> tuple[Stack, list[Problem]]:
    """The settings of the hub; an invalid value affects only itself."""
    entries: list[Entry] = []
    problems: list[Problem] = []
    for reading in readings:
        good, complaints = usable(reading.settings)
        problems += complaints
        if good:
            entries.append(Entry("", next(iter(good.values())).document.root, good))
    return Stack(tuple(entries)), problems


def _stacks(readings: Iterable[Reading]) -> dict[str, Stack]:
    entries: dict[str, list[Entry]] = {}
    for reading in readings:
        for entry in reading.entries:
            entries.setdefault(entry.name, []).append(entry)
    return {name: Stack(tuple(said)) for name, said in entries.items()}


def _at_home(model: ServerConfig, stack: Stack) -> ServerConfig:
    """The server with the home folder of its file; without a file, the current folder."""
    document = stack.merge_entries().node.document
    if not document.path.is_absolute():
        return model
    return model.at_home(ServerHome(document.path.parent, start_folder(document.path)))


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
    off = Entry(stack.entries[0].name, switch, {("enabled",): switch})
    return replace(stack, entries=(*stack.entries, off))


def _off(servers: Mapping[str, ServerConfig]) -> dict[str, ServerConfig]:
    return {name: one.model_copy(update={"enabled": False}) for name, one in servers.items()}
