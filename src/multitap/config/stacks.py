"""Merges the entries of several files for one name; the last one wins, the others are kept."""

from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from multitap.config import validate
from multitap.config.dialects.draft import Entry, FieldPath
from multitap.config.documents import Node, is_table
from multitap.config.models import ServerConfig, Settings
from multitap.config.problems import Place, Problem, Severity
from multitap.records import dataclass

WHOLE = ("oauth", "model", "agents.*.model", "prompts.*")
"""Tables that a later layer replaces; one model's key must not go to another one's address."""


@dataclass(frozen=True, slots=True)
class Overridden:
    """A value that a later one overrides."""

    value: Any = field(repr=False)
    place: Place


@dataclass(frozen=True, slots=True)
class Explained:
    """One effective value, where it is set, and what it overrides."""

    key: str
    """The dotted name of our field."""
    value: Any = field(repr=False)
    """Unexpanded, and perhaps secret."""
    place: Place | None
    """None for a default."""
    overrode: tuple[Overridden, ...] = ()
    """The nearest first."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """All values of one server, or of the hub itself, from all files."""

    values: tuple[Explained, ...]
    dropped: tuple[Explained, ...] = ()
    """Values of an entry that a later one replaced as a whole; not effective."""


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """The entries of all layers for one name, the strongest last."""

    entries: tuple[Entry, ...]
    project: Path | None = None
    """The folder of the project that defines it; None if the user does."""

    @property
    def base(self) -> int:
        """The last entry that says how to reach the server; it replaces all earlier ones.

        Merging key by key could send one server's credentials to another one's address.
        """
        complete = [index for index, entry in enumerate(self.entries) if entry.complete]
        return complete[-1] if complete else 0

    @property
    def fields(self) -> Mapping[FieldPath, Node]:
        """The effective values."""
        return self.merge_entries().fields if self.entries else {}

    def merge_entries(self) -> Entry:
        """Merge all entries into one."""
        base, *amendments = self.entries[self.base :]
        fields = dict(base.fields)
        for amendment in amendments:
            for replaced in {
                _replaced_field(path, node) for path, node in amendment.fields.items()
            }:
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
                        Overridden(lower.value, lower.place)
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


def usable(fields: Mapping[FieldPath, Node]) -> tuple[dict[FieldPath, Node], tuple[Problem, ...]]:
    """The valid settings; an invalid value affects only itself."""
    _, problems = validate.validate_fields(Settings, fields)
    # with the dot, otherwise a problem of `a` would also affect `ab`
    wrong = tuple(f"{problem.key}." for problem in problems)
    good = {path: node for path, node in fields.items() if not f"{node.dotted}.".startswith(wrong)}
    return good, problems


def build(stack: Stack) -> tuple[ServerConfig | None, tuple[Problem, ...]]:
    """The server that a stack describes; None, with the reasons, if it cannot be used."""
    entry = stack.merge_entries()
    if entry.broken:
        return None, ()
    # a file may disable a server that exists only on another machine
    if entry.complete or [*entry.fields] != [("enabled",)] or entry.fields["enabled",].value:
        model, problems = validate.server(entry)
        if model is not None and stack.project:
            # Set here, not read: no file can claim to be the user's.
            model = model.model_copy(update={"provenance": "project"})
        return model, problems
    switch = entry.fields["enabled",]
    message = "disables a server that no file defines"
    return None, (Problem(Severity.NOTE, message, switch.key_place, switch.dotted, entry.name),)


def _replaced_field(path: FieldPath, node: Node) -> FieldPath | None:
    """The field of a lower layer that a field replaces: the same one, or the table around it."""
    empty = is_table(node.value) and not node.value  # only marks its presence
    return within(path, WHOLE) or (None if empty else path)


def _starts(path: FieldPath, table: FieldPath | None) -> bool:
    return table is not None and path[: len(table)] == table


def within(path: FieldPath, tables: Iterable[str]) -> FieldPath | None:
    """The first of these tables that a field is in, or is; `*` stands for any one name."""
    for table in tables:
        steps = table.split(".")
        if len(path) >= len(steps) and all(
            step in ("*", given) for step, given in zip(steps, path, strict=False)
        ):
            return path[: len(steps)]
    return None
