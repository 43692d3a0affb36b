"""Changes configuration files for commands: which file, shown first, trusted and undone as one."""

import os
import sys
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from difflib import unified_diff
from pathlib import Path

import msgspec

from multitap.cli.configuration import problem_reason, unknown_server
from multitap.cli.options import CommonOptions
from multitap.cli.target import gateways
from multitap.cli.terminal import Colour, Exit, colour_text, note, say, short_path
from multitap.config import (
    Document,
    HttpServer,
    Loaded,
    StdioServer,
    Surroundings,
    detect,
    native,
    read_text,
)
from multitap.config.dialects import DIALECTS, Dialect, dialect
from multitap.config.documents import SUFFIXES, DocumentTooLarge, KeyPath
from multitap.config.edit.changes import Change, apply_edits, parse
from multitap.config.edit.clear_secrets import clear_secrets
from multitap.config.edit.journal import (
    PRIVATE,
    SHARED,
    FileEdit,
    Journal,
    Operation,
    PinRecord,
    Preview,
)
from multitap.config.layers import Layer, merge, read_document
from multitap.config.problems import Severity
from multitap.config.projects import TrustState
from multitap.config.secrets import in_text
from multitap.config.sources import FILE, project_folder, state_directory
from multitap.errors import ConfigError, MultitapError
from multitap.printable import printable
from multitap.redaction import Redactor
from multitap.trust.lock_file import LockError, LockFile, ServerPins
from multitap.trust.pins import LockPlaces, places_of
from multitap.trust.project_review import ProjectReview, review
from multitap.trust.projects import Projects
from multitap.trust.vault import Vault

_COLOURS: dict[str, Colour] = {"+": "green", "-": "red", "@": "bright_black"}


def show_differences(previews: Iterable[Preview]) -> None:
    """Print what changes, without secrets."""
    for preview in previews:
        # the secrets of both sides: a removed line may have the old key
        redact = Redactor(
            {*_secrets(preview.before, preview.path), *_secrets(preview.after, preview.path)}
        )
        before = preview.before.splitlines()
        lines = unified_diff(
            before, preview.after.splitlines(), str(preview.path), str(preview.path), lineterm=""
        )
        for line in lines:
            say(colour_text(printable(redact(line)), _COLOURS.get(line[:1]), sys.stdout))


def _secrets(text: str, path: Path) -> set[str]:
    """The secrets in a file: of its servers, and those that look like secrets."""
    secrets = {secret for line in text.splitlines() for secret in in_text(line)}
    document, _ = read_text(text, path)
    if document is not None:
        settings = merge([Layer(read_document(document, path.parent))]).settings
        for config in settings.servers.values():
            if isinstance(config, StdioServer | HttpServer):
                secrets.update(clear_secrets(config))
    # a reference only says where a secret is, and people need to see it
    return {secret for secret in secrets if "${" not in secret}


_MARK = "\ufeff"
"""The byte order mark that some editors write; it is kept."""


class EditTarget(msgspec.Struct, frozen=True):
    """The file to change."""

    path: Path
    dialect: str | None = None
    """Its dialect, if known."""
    is_project: bool = False
    """Whether it belongs to a project, and others read it."""

    def edit(self, change: Callable[[Document, Dialect], Iterable[Change]]) -> FileEdit:
        """An edit whose changes are computed from the current content of the file."""

        def change_text(text: str) -> str:
            plain = text.removeprefix(_MARK)
            document = self.document(plain)
            dialect_ = dialect(self.dialect) if self.dialect else dialect_of(document)
            mark = text[: len(text) - len(plain)]
            after = apply_edits(plain, self.path, change(document, dialect_))
            self._check_size(after, dialect_)
            return mark + after

        return FileEdit(self.path, change_text, SHARED if self.is_project else PRIVATE)

    def _check_size(self, text: str, dialect_: Dialect) -> None:
        """Check that the new text can be read again.

        Raises:
            ConfigError: There would be too many servers.
        """
        try:
            dialect_.read(self.document(text), self.path.parent)
        except DocumentTooLarge as exc:
            raise ConfigError(
                f"after this change, {self.name} could no longer be read: it {exc}",
                hint="distribute them over several files and name these with `--config`",
            ) from None

    def document(self, text: str) -> Document:
        plain = text.removeprefix(_MARK)
        if plain.strip():
            return parse(plain, self.path)
        return Document(
            path=self.path, data={}, format=SUFFIXES.get(self.path.suffix.lower(), "json")
        )

    @property
    def name(self) -> str:
        """The short path of the file."""
        return short_path(self.path)


def dialect_of(document: Document) -> Dialect:
    """The dialect of a file; for an empty one, guessed from its name."""
    if detected := detect(document):
        return detected
    return DIALECTS["multitap" if document.format == "toml" else "mcpservers"]


def edit_target(options: CommonOptions, *, project: bool = False) -> EditTarget:
    """The file that new servers go to.

    Raises:
        ConfigError: Several files are named, or the project's is a link out of the project.
    """
    where = Surroundings.here()
    named = [source for source in native(where, options.files).sources if source.required]
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


class EntryPlace(msgspec.Struct, frozen=True):
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
        raise unknown_server(loaded, name)
    # a server that was found in a folder has no entry that could be edited
    files = {seen.source.path: seen for seen in loaded.sources if not seen.source.folder}
    places: list[EntryPlace] = []
    for entry in stack.entries:
        seen = files.get(entry.node.document.path)
        if seen is not None and entry.node.key:
            target = EditTarget(seen.source.path, seen.dialect, is_project=not seen.source.trusted)
            places.append(EntryPlace(target, entry.node.key, entry.complete))
    return tuple(places)


def check_servers(
    document: Document, dialect_: Dialect, names: Sequence[str], *, typed: Sequence[str] = ()
) -> None:
    """Check that a document has no errors about these servers.

    `typed` are dotted settings that were just typed; those without effect are errors, too.

    Raises:
        ConfigError: It has; says where, what was expected and what to do.
    """
    reading = read_document(document, document.path.parent, dialect_name=dialect_.name)
    problems = merge([Layer(reading)]).problems
    for problem in problems:
        # with dots on both sides: `url` must not match the end of `base_url`
        idle = any(f"{problem.key}.".endswith(f".{key}.") for key in typed)
        is_wrong = problem.severity is Severity.ERROR or (
            idle and problem.severity is Severity.WARNING
        )
        if problem.server in names and is_wrong:
            expected = f" (expected {problem.expected})" if problem.expected else ""
            detail = (
                expected if problem.expected and problem.expected not in problem.message else ""
            )
            hint = problem.hint or "nothing was written"
            raise ConfigError(f"{problem_reason(problem)}{detail}", hint=hint)


@contextmanager
def trusting_own_edits(
    added: Collection[str] = (), *, folders: Collection[Path] = ()
) -> Generator[None]:
    """While entered, the user changes files with one of our commands.

    Trusted parts of a project stay trusted after the change; changed ones lose their granted
    secrets. Untrusted parts stay untrusted.

    `added` are new servers in the project's file, which become trusted; `folders` those of the
    files, by default the current one.
    """
    projects = Projects()
    places = {*folders} or {Path.cwd()}
    before = {
        (project.root, review_.part.key)
        for project in _projects(places, projects)
        for review_ in project.parts
        if review_.standing is TrustState.TRUSTED
    }
    yield
    # a failed edit raises, and trust stays as it was
    if not before and not added:
        return
    for project in _projects(places, projects):
        accepted = [
            review_
            for review_ in project.parts
            if (project.root, review_.part.key) in before or review_.part.name in added
        ]
        if any(review_.standing is not TrustState.TRUSTED for review_ in accepted):
            projects.trust(project.root, [review_.part for review_ in accepted])


def _projects(folders: Collection[Path], projects: Projects) -> list[ProjectReview]:
    reviews = (
        project for folder in folders if folder.is_dir() for project in review(folder, projects)[0]
    )
    return [*{project.root: project for project in reviews}.values()]


class PinEdit(msgspec.Struct, frozen=True):
    """The new entry of one server in a lock file; None to remove it."""

    lock: LockFile
    server: str
    after: ServerPins | None
    is_private: bool = True


def pins_of_new(
    places: LockPlaces, server: str, pins: ServerPins, *, project: bool
) -> tuple[PinEdit, ...]:
    """The pins of a server that was just tried; older ones are replaced."""
    if not project:
        return (PinEdit(places.own, server, pins),)
    private = PinEdit(places.private, server, pins)
    if places.project is None:
        return (private,)
    # without pending reviews, which are this user's: the file is committed
    committed = ServerPins(package=pins.package, tools=pins.tools, others=pins.others)
    return private, PinEdit(places.project, server, committed, is_private=False)


def pins_to_come(places: LockPlaces, servers: Iterable[str]) -> tuple[PinEdit, ...]:
    """Removes old pins under the names of servers that were not tried.

    They are pinned on first use; `undo` finds these pins, too.
    """
    return tuple(PinEdit(places.own, server, None) for server in servers)


def pins_without(loaded: Loaded, servers: Iterable[str]) -> tuple[PinEdit, ...]:
    """Edits that remove these servers from all lock files."""
    return tuple(
        PinEdit(lock, server, None, is_private=private)
        for server in servers
        for lock, private, _ in _entries(loaded, server)
    )


def pins_renamed(loaded: Loaded, old: str, new: str) -> tuple[PinEdit, ...]:
    """Edits that move the pins of a server to its new name."""
    return tuple(
        edit
        for lock, private, pins in _entries(loaded, old)
        for edit in (
            PinEdit(lock, new, pins, is_private=private),
            PinEdit(lock, old, None, is_private=private),
        )
    )


def record_pins(edits: Sequence[PinEdit]) -> list[PinRecord]:
    """The current entries of the lock files, for `undo`."""
    return [
        PinRecord(
            str(edit.lock.path),
            edit.server,
            before=_plain(_read(edit.lock).get(edit.server)),
            private=edit.is_private,
            existed=edit.lock.stamp() is not None,
        )
        for edit in edits
    ]


def write_pins(edits: Sequence[PinEdit]) -> None:
    """Change the lock files; on failure, servers are pinned again when they start."""
    if any(edit.after is None for edit in edits):
        _reload_gateways()
    for edit in edits:
        _write(edit.lock, edit.server, edit.after)


def restore_pins(records: Sequence[PinRecord]) -> None:
    """Restore the entries of lock files that an operation changed."""
    if any(record.before is None for record in records):
        _reload_gateways()
    # backwards: one operation may have changed the same entry twice
    for record in reversed(records):
        lock = LockFile(Path(record.path), is_private=record.private)
        before = None if record.before is None else msgspec.convert(record.before, ServerPins)
        _write(lock, record.server, before)
        if not record.existed and not _read(lock):
            lock.path.unlink(missing_ok=True)


def _reload_gateways() -> None:
    """Make running gateways drop the servers that files no longer name.

    They do so by themselves, but later: one that still has a server pins it again.
    """
    for live in gateways(state_directory()):
        try:
            live.reload()
        except MultitapError as exc:  # it may just have ended, and the files are as they should be
            note(str(exc))


def _entries(loaded: Loaded, server: str) -> list[tuple[LockFile, bool, ServerPins]]:
    places = places_of(loaded.search)
    entries = ((lock, _read(lock).get(server)) for lock in places.files)
    return [(lock, lock is not places.project, pins) for lock, pins in entries if pins is not None]


def _read(lock: LockFile) -> dict[str, ServerPins]:
    try:
        return lock.read().servers
    except LockError:
        return {}  # reported wherever the lock file is used


def _write(lock: LockFile, server: str, pins: ServerPins | None) -> None:
    if pins is None and server not in _read(lock):
        return
    try:
        with lock.changing() as content:
            if pins is not None:
                content.servers[server] = pins
            else:
                content.servers.pop(server, None)
    except LockError as exc:
        # the entry is already written, and must not be lost because of its pins
        note(f"warning: {exc}")


def _plain(pins: ServerPins | None) -> dict[str, object] | None:
    plain: dict[str, object] | None = None if pins is None else msgspec.to_builtins(pins)
    return plain


def run_edits(
    label: str,
    edits: Sequence[FileEdit],
    *,
    dry_run: bool,
    done: str,
    pins: Sequence[PinEdit] = (),
) -> int:
    """Apply edits, or only show them.

    `multitap undo --list` shows the label.
    """
    if dry_run:
        show_differences(Journal().preview(edits))
        note("nothing was written")
        return Exit.DONE
    with trusting_own_edits():
        operation = write_edits(label, edits, pins=pins)
    note(f"{done}; `multitap undo` reverts it" if operation else "nothing to change")
    return Exit.DONE


def write_edits(
    label: str,
    edits: Sequence[FileEdit],
    *,
    secrets: Mapping[str, str] | None = None,
    pins: Sequence[PinEdit] = (),
) -> Operation | None:
    """Apply edits together with secrets and pins; nothing is left if that fails."""
    new = secrets or {}
    vault = Vault()

    # before the files: a running gateway could not use one that refers to a missing secret
    def add_secrets() -> None:
        for name, value in new.items():
            vault.set(name, value)

    journal = Journal(forget=forget)
    operation = journal.apply(
        label, edits, secrets=[*new], pins=record_pins(pins), prepare=add_secrets
    )
    if operation is not None:
        # the pins last: if killed before, `undo` finds them unchanged
        write_pins(pins)
    return operation


def forget(secrets: Sequence[str]) -> None:
    """Remove secrets again, if they exist."""
    vault = Vault()
    for name in secrets:
        try:
            vault.remove(name)
        except MultitapError:
            continue  # somebody has removed it already; the others still have to go
