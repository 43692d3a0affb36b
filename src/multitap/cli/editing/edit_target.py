"""Chooses the file that a command changes, and its dialect."""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from multitap.cli.configuration.problem_lines import plain_line
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.output import short_path
from multitap.config import Document, Loaded, Surroundings, detect, native
from multitap.config.dialects import DIALECTS, Dialect, dialect
from multitap.config.documents import KeyPath
from multitap.config.edit.atomic_file import PRIVATE, SHARED
from multitap.config.edit.changes import Change
from multitap.config.edit.edited_text import apply_edits, parse
from multitap.config.edit.journal import FileEdit
from multitap.config.files import SUFFIXES
from multitap.config.formats.limits import DocumentTooLarge
from multitap.config.layers import Layer, merge
from multitap.config.loading import read_document
from multitap.config.problems import Severity, did_you_mean
from multitap.config.search import FILE, project_folder
from multitap.errors import ConfigError, UnknownName
from multitap.records import dataclass

_MARK = "\ufeff"
"""The byte order mark that some editors write; it is kept."""


@dataclass(frozen=True, slots=True)
class EditTarget:
    """The file to change."""

    path: Path
    told: str | None = None
    """Its dialect, if given."""
    is_project: bool = False
    """Whether it belongs to a project, and others read it."""

    def edit(self, change: Callable[[Document, Dialect], Iterable[Change]]) -> FileEdit:
        """An edit whose changes are computed from the current content of the file."""

        def change_text(text: str) -> str:
            plain = text.removeprefix(_MARK)
            document = self.document(plain)
            found = dialect(self.told) if self.told else dialect_of(document)
            mark = text[: len(text) - len(plain)]
            after = apply_edits(plain, self.path, change(document, found))
            self._check_size(after, found)
            return mark + after

        return FileEdit(self.path, change_text, SHARED if self.is_project else PRIVATE)

    def _check_size(self, text: str, found: Dialect) -> None:
        """Check that the new text can be read again.

        Raises:
            ConfigError: There would be too many servers.
        """
        try:
            found.read(self.document(text), self.path.parent)
        except DocumentTooLarge as exc:
            raise ConfigError(
                f"{self.name} would be a file that {exc}, and so could not be read",
                hint="distribute them over several files and name these with `--config`",
            ) from None

    def document(self, text: str) -> Document:
        plain = text.removeprefix(_MARK)
        if plain.strip():
            return parse(plain, self.path)
        return Document(self.path, {}, SUFFIXES.get(self.path.suffix.lower(), "json"))

    @property
    def name(self) -> str:
        """The short path of the file."""
        return short_path(self.path)


def dialect_of(document: Document) -> Dialect:
    """The dialect of a file; for an empty one, guessed from its name."""
    if found := detect(document):
        return found
    return DIALECTS["multitap" if document.format == "toml" else "mcpservers"]


def edit_target(options: CommonOptions, *, project: bool = False) -> EditTarget:
    """The file that new servers go to.

    Raises:
        ConfigError: Several files are named, or the project's is a link out of the project.
    """
    where = Surroundings.here()
    named = [one for one in native(where, options.files).sources if one.required]
    if len(named) > 1:
        raise ConfigError("several files are named", hint="name the one to change with `--config`")
    if named:
        return EditTarget(named[0].path, options.dialect)
    if not project:
        return EditTarget(where.config / FILE, "multitap")
    folder = project_folder(where)
    # a stranger's repository could lead the edit to any file of the user
    real = Path(os.path.realpath(folder / FILE))
    if real.parent != Path(os.path.realpath(folder)):
        raise ConfigError(
            f"{folder / FILE} is a link to {real}, outside of the project",
            hint="change that file itself: `--config`",
        )
    return EditTarget(folder / FILE, "multitap", is_project=True)


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """The place of a server's entry."""

    target: EditTarget
    key: KeyPath
    complete: bool
    """Whether it says how to reach the server; otherwise it amends another entry."""


def entry_places(loaded: Loaded, name: str) -> tuple[EntryPlace, ...]:
    """Every entry about a server that can be edited, the strongest last.

    Raises:
        UnknownName: No file mentions it.
        ConfigError: A file that may have it cannot be read.
    """
    stack = loaded.merged.servers.get(name)
    if stack is None:
        loaded.check()
        near = did_you_mean(name, loaded.merged.servers)
        raise UnknownName(
            f"no server named {name!r}",
            hint=" ".join(filter(None, (near, "`multitap status` lists all servers"))),
        )
    files = {seen.source.path: seen for seen in loaded.sources if not seen.source.folder}
    places: list[EntryPlace] = []
    for entry in stack.entries:
        seen = files.get(entry.node.document.path)
        if seen is not None and entry.node.key:
            target = EditTarget(seen.source.path, seen.dialect, is_project=not seen.source.trusted)
            places.append(EntryPlace(target, entry.node.key, entry.complete))
    return tuple(places)


def check_servers(
    document: Document, found: Dialect, names: Sequence[str], *, given: Sequence[str] = ()
) -> None:
    """Check that a document has no errors about these servers.

    Args:
        document: The new document.
        found: Its dialect.
        names: The servers.
        given: Dotted settings that were just typed; those without effect are errors, too.

    Raises:
        ConfigError: It has; says where, what was expected and what to do.
    """
    reading = read_document(document, document.path.parent, told=found.name)
    problems = merge([Layer(reading)]).problems
    for problem in problems:
        idle = any(f"{problem.key}.".endswith(f".{key}.") for key in given)
        is_wrong = problem.severity is Severity.ERROR or (
            idle and problem.severity is Severity.WARNING
        )
        if problem.server in names and is_wrong:
            expected = f" (expected {problem.expected})" if problem.expected else ""
            known = expected if problem.expected and problem.expected not in problem.message else ""
            hint = problem.hint or "nothing was written"
            raise ConfigError(f"{plain_line(problem)}{known}", hint=hint)
