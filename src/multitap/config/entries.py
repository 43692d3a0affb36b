"""The entries of several files for one name, merged and validated; every problem has its place."""

from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from multitap.config.checks import ConfigModel, Mistake, build
from multitap.config.dialects.draft import Entry, FieldPath
from multitap.config.documents import Node, is_table
from multitap.config.models import HttpServer, ServerConfig, Settings, StdioServer
from multitap.config.problems import Place, Problem, Severity, did_you_mean

Fields = Mapping[FieldPath, Node]
_Model = TypeVar("_Model", bound=ConfigModel)

_NOUNS: Mapping[type[ConfigModel], str] = {StdioServer: "a program", HttpServer: "a remote server"}


def server(entry: Entry) -> tuple[StdioServer | HttpServer | None, tuple[Problem, ...]]:
    """The model of an entry; None, with the reasons, if it is not valid."""
    kind = _kind(entry)
    if isinstance(kind, Problem):
        return None, (kind,)
    # a key of the other kind is harmless, and often left over when a server is changed
    fitting = {
        path: node for path, node in entry.fields.items() if path[0] in kind.__struct_fields__
    }
    idle = [
        _problem(Severity.WARNING, node, f"has no effect for {_NOUNS[kind]}", entry.name)
        for path, node in entry.fields.items()
        if path not in fitting
    ]
    model, problems = validate_fields(kind, fitting, name=entry.name)
    return model, (*idle, *problems)


def validate_fields(
    kind: type[_Model], fields: Fields, *, name: str | None = None
) -> tuple[_Model | None, tuple[Problem, ...]]:
    """The model of these fields, or what is wrong with them."""
    model, mistakes = build(kind, nest(fields))
    return model, tuple(_translate(mistake, fields, name) for mistake in mistakes)


def nest(fields: Fields) -> dict[str, Any]:
    """`{("env", "A"): …}` as `{"env": {"A": …}}`, in the order in which it is written.

    Of a table and another value in one place, as in `oauth = false` beside a client's id under
    another key, the later one counts.
    """
    tree: dict[str, Any] = {}
    for path, node in fields.items():
        table = tree
        for step in path[:-1]:
            if not isinstance(table.get(step), dict):
                table[step] = {}
            table = table[step]
        if node.value == {}:
            table.setdefault(path[-1], {})  # its members go into a new table
        else:
            table[path[-1]] = node.value
    return tree


def missing(entry: Entry, *names: str) -> Problem:
    """The problem of an entry that does not say how to reach its server."""
    names_written = [entry.words.get(name, name) for name in names]
    quoted = [f"`{word}`" for word in names_written]
    message = f"{quoted[0]} is missing" if len(quoted) == 1 else f"neither {' nor '.join(quoted)}"
    typo = next((hint for word in names_written if (hint := _typo(entry, word))), None)
    key = ".".join(
        filter(None, (entry.node.dotted, names_written[0] if len(names_written) == 1 else ""))
    )
    place = entry.node.key_place
    expected = " or ".join(quoted)
    return Problem(
        severity=Severity.ERROR,
        message=message,
        place=place,
        key=key,
        server=entry.name,
        expected=expected,
        hint=typo,
    )


def _kind(entry: Entry) -> type[StdioServer] | type[HttpServer] | Problem:
    transport = entry.fields.get(("transport",))
    command, url = ("command",) in entry.fields, ("url",) in entry.fields
    if transport is None:
        if command and url:
            message = "has both `command` and `url`"
            hint = "remove one of them, or name the transport"
            return _problem(Severity.ERROR, entry.node, message, entry.name, hint=hint)
        if not command and not url:
            return missing(entry, "command", "url")
        return StdioServer if command else HttpServer
    if transport.value == "stdio":
        return StdioServer if command else missing(entry, "command")
    return HttpServer if url else missing(entry, "url")


def _typo(entry: Entry, word: str) -> str | None:
    close = next((key for key in entry.extra if did_you_mean(key, [word])), None)
    return f"did you mean `{word}` instead of `{close}`?" if close else None


def _translate(mistake: Mistake, fields: Fields, name: str | None) -> Problem:
    node = _blame(mistake.path, fields)
    hint = did_you_mean(node.value, mistake.choices) if isinstance(node.value, str) else None
    key, place = node.dotted, node.place
    return Problem(
        severity=Severity.ERROR,
        message=mistake.message,
        place=place,
        key=key,
        server=name,
        expected=mistake.expected,
        hint=hint,
    )


def _blame(path: tuple[int | str, ...], fields: Fields) -> Node:
    """The field at a path, the one around it, or the table around several."""
    for end in range(len(path), 0, -1):
        if node := fields.get(tuple(map(str, path[:end]))):
            return node
    nearest = max(fields, key=lambda field: _shared_steps(field, path))
    member = fields[nearest]
    beyond = len(nearest) - max(_shared_steps(nearest, path), 1)
    return Node(None, member.key[: len(member.key) - beyond], member.document)


def _shared_steps(path: FieldPath, other: tuple[int | str, ...]) -> int:
    """The length of the common prefix."""
    pairs = zip(path, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _problem(
    severity: Severity, node: Node, message: str, name: str, *, hint: str | None = None
) -> Problem:
    return Problem(
        severity=severity,
        message=message,
        place=node.key_place,
        key=node.dotted,
        server=name,
        hint=hint,
    )


WHOLE = ("oauth", "model", "agents.*.model", "prompts.*")
"""Tables that a later layer replaces; one model's key must not go to another one's address."""


class Overridden(msgspec.Struct, frozen=True):
    """A value that a later one overrides."""

    value: Any
    place: Place

    def __repr__(self) -> str:
        return f"<Overridden at {self.place}>"  # the value may be secret


class Explained(msgspec.Struct, frozen=True):
    """One effective value, where it is set, and what it overrides."""

    key: str
    """The dotted name of our field."""
    value: Any
    """Unexpanded, and perhaps secret."""
    place: Place | None
    """None for a default."""
    overrode: tuple[Overridden, ...] = ()
    """The nearest first."""

    def __repr__(self) -> str:
        return f"<Explained {self.key}>"


class Explanation(msgspec.Struct, frozen=True):
    """All values of one server, or of the hub itself, from all files."""

    values: tuple[Explained, ...]
    dropped: tuple[Explained, ...] = ()
    """Values of an entry that a later one replaced as a whole; not effective."""


class Stack(msgspec.Struct, frozen=True, eq=False):
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
                for nested in [path for path in fields if _starts(path, replaced)]:
                    del fields[nested]
            fields |= amendment.fields
        extra = {key: node for entry in (base, *amendments) for key, node in entry.extra.items()}
        broken = any(entry.broken for entry in (base, *amendments))
        return Entry(
            name=base.name,
            node=base.node,
            fields=fields,
            extra=extra,
            broken=broken,
            words=base.words,
        )

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
    _, problems = validate_fields(Settings, fields)
    # with the dot, otherwise a problem of `a` would also affect `ab`
    wrong = tuple(f"{problem.key}." for problem in problems)
    good = {path: node for path, node in fields.items() if not f"{node.dotted}.".startswith(wrong)}
    return good, problems


def build_server(stack: Stack) -> tuple[ServerConfig | None, tuple[Problem, ...]]:
    """The server that a stack describes; None, with the reasons, if it cannot be used."""
    entry = stack.merge_entries()
    if entry.broken:
        return None, ()
    # a file may disable a server that exists only on another machine
    if entry.complete or [*entry.fields] != [("enabled",)] or entry.fields["enabled",].value:
        model, problems = server(entry)
        if model is not None and stack.project:
            # Set here, not read: no file can claim to be the user's.
            model = model.replace(provenance="project")
        return model, problems
    switch = entry.fields["enabled",]
    message = "disables a server that no file defines"
    return None, (
        Problem(
            severity=Severity.NOTE,
            message=message,
            place=switch.key_place,
            key=switch.dotted,
            server=entry.name,
        ),
    )


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
            step in ("*", part) for step, part in zip(steps, path, strict=False)
        ):
            return path[: len(steps)]
    return None
