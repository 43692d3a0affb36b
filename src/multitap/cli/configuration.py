"""The configuration that the command line asks for, and how its problems are shown."""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
from msgspec.structs import replace

from multitap.cli.options import CommonOptions, TypedServer
from multitap.cli.terminal import advise, is_somebody_there, note
from multitap.config import Loaded, Pending, Place, Problem, Search, Surroundings, load
from multitap.config.dialects.draft import Entry, FieldPath, Reading, literal
from multitap.config.documents import Document, Node
from multitap.config.layers import Layer
from multitap.config.models import URL
from multitap.config.problems import did_you_mean
from multitap.config.projects import TrustState, trust_hint
from multitap.config.sources import at_prompt, host_files, several_environments
from multitap.errors import ConfigError, UnknownName
from multitap.names import Naming
from multitap.trust.projects import Projects, load_trusted

PLACE = Path("(command line)")
_STATE = "multitap.typed_state"
_ODD = re.compile(r"[^A-Za-z0-9_-]+")
_NAME = re.compile(r"(?!-)[^\n;(){}'\"]+")
"""A word that may be a script or a package, not an option or code for `python -c`."""
# they run any server, so their names say nothing about this one
_RUNNERS = frozenset({"python", "node", "bun", "deno", "npx", "uvx", "uv", "run", "docker"})


def configuration_of(server: TypedServer) -> Loaded:
    """Settings with only this server, whose tools keep their own names.

    Its state is in a folder that is deleted with the command: a server that is typed later must not
    inherit it.
    """
    ctx = click.get_current_context()
    if _STATE not in ctx.meta:
        ctx.meta[_STATE] = ctx.with_resource(tempfile.TemporaryDirectory())
    node = Document(path=PLACE, data={}).root
    values = _fields(server).items()
    fields: dict[FieldPath, Node] = {(key,): node.of(value) for key, value in values}
    entry = Entry(name=typed_name(server), node=node, fields=fields)
    preset = {"naming": Naming.BARE.value, "state_dir": ctx.meta[_STATE]}
    return load(
        Search((), defaults=preset), on_top=(Layer(Reading(dialect="typed", entries=(entry,))),)
    )


def typed_name(server: TypedServer) -> str:
    """A name for it: its script or package, its program, or its host."""
    if server.url:
        return _tidy(urlsplit(server.url).hostname or "") or "server"
    stems = [Path(word).stem for word in server.command]
    plain = [
        word
        for typed, word in zip(server.command, stems, strict=True)
        # without the version in `python3.13`
        if _NAME.fullmatch(typed) and word.rstrip("0123456789.") not in _RUNNERS
    ]
    return _tidy(next(iter(plain), stems[0])) or "server"


def _tidy(word: str) -> str:
    return _ODD.sub("-", word).strip("-")[:40]


def _fields(server: TypedServer) -> dict[str, Any]:
    """The fields of its entry; words are literal, because the shell expands variables."""
    if server.url:
        if not URL.match(server.url):
            raise click.UsageError(f"--url {server.url!r} is not an http:// or https:// address")
        return {
            "url": literal(server.url),
            "headers": dict(_pairs(server.headers, ":", "--header")),
        }
    command, *args = map(literal, server.command)
    return {"command": command, "args": args, "env": dict(_pairs(server.variables, "=", "--env"))}


def _pairs(texts: Iterable[str], mark: str, option: str) -> Iterator[tuple[str, str]]:
    for text in texts:
        name, separator, value = text.partition(mark)
        if not separator or not name.strip():
            raise click.UsageError(f"{option} {name!r} has no `{mark}`: expected NAME{mark}VALUE")
        # space around the value of a header means nothing; in a variable it may
        yield name.strip(), literal(value.strip() if mark == ":" else value)


def near(place: Place) -> Place:
    """The place with a path relative to the current folder, if it is inside."""
    here = Path.cwd()
    inside = place.file.is_relative_to(here)
    return replace(place, file=place.file.relative_to(here)) if inside else place


def show_problems(problems: Iterable[Problem], write: Callable[[str], None] = note) -> None:
    """Print problems with their hints."""
    for problem in problems:
        write(problem_line(problem))
        if problem.hint:
            write(f"  hint: {problem.hint}")


def problem_line(problem: Problem) -> str:
    """A problem in one line with its place."""
    return str(replace(problem, place=near(problem.place)))


def problem_reason(problem: Problem) -> str:
    """The same without the severity, for an error message."""
    return replace(problem, place=near(problem.place)).reason


def problem_json(problem: Problem) -> dict[str, Any]:
    place = problem.place
    return {
        "severity": problem.severity,
        "message": problem.message,
        "file": str(place.file),
        "line": place.line or None,
        "column": place.column or None,
        "key": problem.key or None,
        "server": problem.server,
        "expected": problem.expected,
        "hint": problem.hint,
    }


_NAMED = 5  # names in one line; `multitap trust` shows them all


def configuration_loader(
    options: CommonOptions, where: Surroundings | None = None
) -> Callable[[], Loaded]:
    """A function that reads the files again on each call."""
    # outside `read`: with `--trust`, a reload must not trust later changes
    projects = Projects(trust_now=options.trust)

    def read() -> Loaded:
        here = where or Surroundings.here()
        search, _ = at_prompt(here, options.files, dialect=options.dialect)
        return load_trusted(replace(search, env=here.env), projects=projects)

    return read


def load_configuration(options: CommonOptions) -> Loaded:
    """The configuration of the files or the typed server.

    Before that, a person at a terminal is asked about untrusted parts that the command would use;
    otherwise, a note says what is not used.

    Raises:
        ConfigError: There is no dialect of that name.
    """
    if options.typed is not None:
        return configuration_of(options.typed)
    announce_seeds(options)
    read = configuration_loader(options)
    loaded = read()
    if options.asks and offer_trust(loaded):
        options.clock.restart()
        loaded = read()
        from multitap.cli.target import hand_over  # noqa: PLC0415 - rarely needed

        hand_over(options, loaded)
    announce_pending(loaded.pending)
    return loaded


def offer_trust(loaded: Loaded) -> bool:
    """Ask a person at a terminal about untrusted parts; returns whether any are trusted now."""
    if not loaded.pending or not is_somebody_there():
        return False
    from multitap.cli.trust.trust import ask_in_place  # noqa: PLC0415 - rarely needed

    return ask_in_place(loaded)


def announce_seeds(
    options: CommonOptions,
    where: Surroundings | None = None,
    write: Callable[[str], None] = note,
) -> None:
    """Report which file of another design is read, because nobody named it."""
    where = where or Surroundings.here()
    _, seeds = at_prompt(where, options.files, dialect=options.dialect)
    if seeds:
        write(f"reading {seeds[0].path.relative_to(where.folder)} as {seeds[0].title} does")
    for other in seeds[1:]:
        path = other.path.relative_to(where.folder)
        write(f"{path} is left alone; `--config {path}` reads it")
    if not seeds and several_environments(where):
        write("there are several environments; `--config environments/NAME/config.jsonc` reads one")


def announce_pending(pending: Sequence[Pending], write: Callable[[str], None] = note) -> None:
    """Report untrusted parts in one line."""
    for root in dict.fromkeys(part.root for part in pending):
        changed, new = _of(root, pending, TrustState.CHANGED), _of(root, pending, TrustState.NEW)
        parts = (
            f"{_list_pending(new)} of {root} {_verb(new)} not trusted and {_verb(new)} not used"
            if new
            else "",
            f"{_list_pending(changed)} of {root} changed since you trusted {_it(changed)}"
            if changed
            else "",
        )
        write(f"{'; '.join(filter(None, parts))}: {trust_hint(root)}")


def _of(root: Path, pending: Sequence[Pending], standing: TrustState) -> list[Pending]:
    return [part for part in pending if part.root == root and part.standing is standing]


def _list_pending(pending: Sequence[Pending]) -> str:
    names = [
        f"{part.kind} {part.name}".strip() + (" (instead of yours)" if part.replaces else "")
        for part in pending
    ]
    first, more = names[:_NAMED], len(names) - _NAMED
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")


def _verb(pending: Sequence[Pending]) -> str:
    return "is" if len(pending) == 1 and pending[0].kind != "settings" else "are"


def _it(pending: Sequence[Pending]) -> str:
    return "it" if _verb(pending) == "is" else "them"


def require(loaded: Loaded, name: str) -> None:
    """Make sure that a server of that name can be used.

    Raises:
        UnknownName: No file mentions it.
        Untrusted: It comes with a project that is not trusted.
        ConfigError: Its entry cannot be used, or a file cannot be read.
    """
    if name in loaded.settings.servers:
        return
    refuse_unusable(loaded, lambda server: server == name)
    raise unknown_server(loaded, name)


def refuse_unusable(loaded: Loaded, owns: Callable[[str], bool]) -> None:
    """Raise an error if a server that may have something is not trusted, or its entry is wrong.

    Raises:
        Untrusted: It comes with a project that is not trusted.
        ConfigError: Its entry cannot be used.
    """
    for name, pending in loaded.held.items():
        if owns(name):
            raise pending.refusal()
    for name, problems in loaded.broken.items():
        if owns(name):
            raise ConfigError(problem_reason(problems[0]), hint=problems[0].hint)


def unknown_server(loaded: Loaded, name: str) -> UnknownName:
    """The error for a name that no file mentions.

    Raises:
        ConfigError: A file that may name it cannot be read.
    """
    loaded.check()
    near = did_you_mean(name, loaded.merged.servers)
    hint = " ".join(filter(None, (near, "`multitap status` lists all servers")))
    return UnknownName(f"no server named {name!r}", hint=hint)


def explain_emptiness(
    loaded: Loaded, where: Surroundings | None = None, write: Callable[[str], None] = note
) -> None:
    """Say what to do when no file names a server; one that cannot be read may name some."""
    if loaded.merged.servers or loaded.errors:
        return
    looked = ", ".join(str(seen.source.path) for seen in loaded.sources if not seen.source.folder)
    write(f"no servers are configured; looked in {looked}")
    others = host_files(where or Surroundings.here())

    def suggest(hint: str) -> None:
        if write is note:
            advise(hint)
        else:
            write(f"hint: {hint}")

    here = [file.path.name for file in others if file.project]  # probably intended
    if here:
        # never `--config`: a stranger may have written it, and that would trust it unseen
        suggest(
            f"`multitap import --project` collects {here[0]} in `multitap.toml`, for you to trust"
        )
    elif others:
        suggest("`multitap import` brings in the servers of your other MCP clients")
    else:
        suggest(
            "`multitap import` brings in those of other clients, `multitap add NAME -- COMMAND`"
            " adds one, `multitap search WORD` finds some"
        )
