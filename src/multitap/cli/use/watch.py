"""`--watch`: repeats a command whenever the source files of a typed server change."""

from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from multitap.cli.options import CommonOptions, TypedServer, Work
from multitap.cli.terminal import complain, note
from multitap.errors import MultitapError

if TYPE_CHECKING:
    from watchfiles.main import FileChange

_SOURCES = """
    .py .js .mjs .cjs .jsx .ts .mts .cts .tsx .go .rs .rb .java .kt .cs .php .lua .ex .sh
    .json .jsonc .toml .yaml .yml .env .md .txt
"""
SOURCES = frozenset(_SOURCES.split())
"""Suffixes of sources: a server that writes a log or a database must not restart itself."""
_LOOK = 50  # milliseconds


def watch_option(command: Work) -> Work:
    """Add `--watch`, which runs the command again after each change."""

    @wraps(command)
    def work(options: CommonOptions, *, watch: bool, **arguments: Any) -> int:
        if watch:
            return _on_every_change(options, lambda: command(options, **arguments))
        return command(options, **arguments)

    return click.option(
        "--watch", is_flag=True, help="Repeat whenever the sources of the COMMAND change"
    )(work)


def _on_every_change(options: CommonOptions, work: Callable[[], int]) -> int:
    """Run a command again after each change, until interrupted; failures are shown."""
    if options.typed is None or not options.typed.command:
        raise click.UsageError("--watch needs the COMMAND of a server after `--`")
    changes = _changes(options.typed)
    next(changes)  # from here on, changes are noticed, even while the server works
    while True:
        try:
            work()
        except MultitapError as exc:
            complain(str(exc), exc.hint)
        note(f"watching {', '.join(map(str, folders(options.typed)))}; Ctrl-C ends it")
        changed = next(filter(None, changes))
        note(f"{_names(changed)} changed")


def folders(server: TypedServer) -> tuple[Path, ...]:
    """The folders of a server's sources: of the files in its command, else the current one."""
    named = [Path(word) for word in server.command[1:] if not word.startswith("-")]
    there = [path if path.is_dir() else path.parent for path in named if path.exists()]
    return tuple(dict.fromkeys(path.resolve() for path in there)) or (Path.cwd(),)


def _changes(server: TypedServer) -> "Iterator[set[FileChange]]":
    """Changes since the last check; periodically empty if there are none."""
    import watchfiles  # noqa: PLC0415 - rarely

    beside = watchfiles.DefaultFilter()  # files that tools create beside sources
    return watchfiles.watch(
        *folders(server),
        watch_filter=lambda change, path: Path(path).suffix in SOURCES and beside(change, path),
        rust_timeout=_LOOK,
        yield_on_timeout=True,
        raise_interrupt=True,
    )


def _names(changes: "set[FileChange]") -> str:
    names = sorted({Path(path).name for _, path in changes})
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
