"""Many files, one configuration: the later layer wins, and it is known what it won against."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from multitap.config import validate
from multitap.config.dialects.draft import Entry, FieldPath, Reading
from multitap.config.documents import Node, is_table
from multitap.config.models import ServerConfig, Settings
from multitap.config.problems import Place, Problem, Severity
from multitap.config.project_sandbox import restrained
from multitap.records import dataclass

OWNER_ONLY = (
    "serve",
    "record",
    "registry",
    "state_dir",
    "model",
    "agents.*.model",
    "environment.tools",
    "environment.execute_tool",
    "environment.invoke_llm",
    "policy",
    "audit",
)
"""What a project must not decide: where we listen and write, what runs here, who gets our keys."""
WHOLE = ("oauth", "model", "agents.*.model", "prompts.*")
"""Tables that a later layer replaces; one model's key must not go to another one's address."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What one source says."""

    reading: Reading
    trusted: bool = True
    """Chosen by the user; a project's file comes with the project."""


@dataclass(frozen=True, slots=True)
class Written:
    """A value that lost to a later one."""

    value: Any = field(repr=False)
    place: Place


@dataclass(frozen=True, slots=True)
class Explained:
    """One value in force, where it was written, and what it overrode."""

    key: str
    """Dotted, in our words."""
    value: Any = field(repr=False)
    """Unexpanded, and perhaps secret."""
    place: Place | None
    """None: our default."""
    overrode: tuple[Written, ...] = ()
    """The nearest first."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything the files say about one server, or about the hub itself."""

    values: tuple[Explained, ...]
    dropped: tuple[Explained, ...] = ()
    """Said by an entry that a later one replaced as a whole, and not in force."""


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """What the layers say about one name, the strongest last."""

    entries: tuple[Entry, ...]

    @property
    def base(self) -> int:
        """The last entry that says how to reach the server; it replaces whatever lies below.

        Amended key by key, one server's credentials would follow another one's address.
        """
        complete = [index for index, entry in enumerate(self.entries) if entry.complete]
        return complete[-1] if complete else 0

    @property
    def trusted(self) -> bool:
        """Whether all that is in force was chosen by the user."""
        return all(entry.trusted for entry in self.entries[self.base :])

    @property
    def fields(self) -> Mapping[FieldPath, Node]:
        """What is in force."""
        return self.merged().fields if self.entries else {}

    def merged(self) -> Entry:
        """One entry in place of all."""
        base, *amendments = self.entries[self.base :]
        fields = dict(base.fields)
        for amendment in amendments:
            for replaced in {_replaced(path, node) for path, node in amendment.fields.items()}:
                for nested in [known for known in fields if _starts(known, replaced)]:
                    del fields[nested]
            fields |= amendment.fields
        extra = {key: node for entry in (base, *amendments) for key, node in entry.extra.items()}
        broken = any(entry.broken for entry in (base, *amendments))
        return Entry(base.name, base.node, fields, extra, broken, base.words)

    def explain(self) -> Explanation:
        fields = self.fields
        written: dict[FieldPath, list[Node]] = {}
        for entry in self.entries:
            for path, node in entry.fields.items():
                written.setdefault(path, []).append(node)
        return Explanation(
            values=tuple(
                Explained(
                    ".".join(path),
                    node.value,
                    node.place,
                    tuple(
                        Written(lower.value, lower.place)
                        for lower in reversed(written[path])
                        if lower is not node
                    ),
                )
                for path, node in fields.items()
            ),
            dropped=tuple(
                Explained(".".join(path), nodes[-1].value, nodes[-1].place)
                for path, nodes in written.items()
                if path not in fields
            ),
        )


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome of all layers."""

    settings: Settings
    problems: tuple[Problem, ...]
    servers: Mapping[str, Stack]
    """Broken ones too."""
    hub: Stack
    """What is said about the hub itself."""


def merge(layers: Sequence[Layer]) -> Merged:
    """One configuration of all layers, the weakest first."""
    hub, about_hub = _hub(layers)
    problems = [problem for layer in layers for problem in layer.reading.problems]
    problems += about_hub
    servers = _stacks(layers, hub.fields.get(("enabled",)))
    built: dict[str, ServerConfig] = {}
    for name, stack in servers.items():
        model, about_server = _built(stack)
        problems += about_server
        if model is not None:
            built[name] = model
    settings = Settings.model_validate({**validate.nested(hub.fields), "servers": built})
    return Merged(settings, tuple(dict.fromkeys(problems)), servers, hub)


def _hub(layers: Iterable[Layer]) -> tuple[Stack, list[Problem]]:
    """What is said about the hub; a value that is wrong costs only itself."""
    entries: list[Entry] = []
    problems: list[Problem] = []
    for layer in layers:
        fields, refused = _allowed(layer)
        _, complaints = validate.validated(Settings, fields)
        problems += (*refused, *complaints)
        wrong = tuple(f"{complaint.key}." for complaint in complaints)
        good = {
            path: node for path, node in fields.items() if not f"{node.dotted}.".startswith(wrong)
        }
        if good:
            entries.append(Entry("", next(iter(good.values())).document.root, good))
    return Stack(tuple(entries)), problems


def _allowed(layer: Layer) -> tuple[dict[FieldPath, Node], list[Problem]]:
    allowed = dict(layer.reading.settings)
    if layer.trusted:
        return allowed, []
    refused = [allowed.pop(path) for path in [*allowed] if _within(path, OWNER_ONLY)]
    message = "only your own configuration may set this, not a project's"
    hint = "name the file (`--config`, `MULTITAP_CONFIG`) if you trust it"
    return allowed, [
        Problem(Severity.ERROR, message, node.key_place, node.dotted, hint=hint) for node in refused
    ]


def _replaced(path: FieldPath, node: Node) -> FieldPath | None:
    """What of a lower layer a field takes the place of: the same one, or the table around it."""
    empty = is_table(node.value) and not node.value  # says only that it is there
    return _within(path, WHOLE) or (None if empty else path)


def _starts(path: FieldPath, table: FieldPath | None) -> bool:
    return table is not None and path[: len(table)] == table


def _within(path: FieldPath, tables: Iterable[str]) -> FieldPath | None:
    """The first of these tables that a field is in, or is; `*` stands for any one name."""
    for table in tables:
        steps = table.split(".")
        if len(path) >= len(steps) and all(
            step in ("*", given) for step, given in zip(steps, path, strict=False)
        ):
            return path[: len(steps)]
    return None


def _stacks(layers: Iterable[Layer], switch: Node | None) -> dict[str, Stack]:
    entries: dict[str, list[Entry]] = {}
    for layer in layers:
        for entry in layer.reading.entries:
            said = replace(entry, trusted=layer.trusted)
            entries.setdefault(entry.name, []).append(said)
    if switch is not None and switch.value is False:
        for name, all_said in entries.items():
            all_said.append(Entry(name, switch, {("enabled",): switch}))
    return {name: Stack(tuple(said)) for name, said in entries.items()}


def _built(stack: Stack) -> tuple[ServerConfig | None, tuple[Problem, ...]]:
    entry = stack.merged()
    if entry.broken:
        return None, ()
    if entry.complete or [*entry.fields] != [("enabled",)] or entry.fields["enabled",].value:
        model, problems = validate.server(entry)
        if model is not None and not stack.trusted:
            model = model.model_copy(update={"provenance": "project"})
            model, refused = restrained(model, entry)
            problems = (*problems, *refused)
        return model, problems
    switch = entry.fields["enabled",]
    message = "disables a server that no file defines"
    return None, (Problem(Severity.NOTE, message, switch.key_place, switch.dotted, entry.name),)
