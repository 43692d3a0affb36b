"""`multitap logs`: shows a server's standard error and the events of a gateway."""

import codecs
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from multitap.cli.configuration.chosen_configuration import load_configuration, require
from multitap.cli.exits import Exit
from multitap.cli.gateways.control_client import EventFollower
from multitap.cli.gateways.running_gateways import RunningGateway, choose_gateway, nobody_serves
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.output import Colour, colour_text, note, say
from multitap.cli.terminal.tables import one_line
from multitap.config import Loaded
from multitap.printable import printable
from multitap.records import dataclass
from multitap.store.archive import Archive
from multitap.store.log_query import MAX_LIMIT
from multitap.store.log_records import Activity, ActivityQuery
from multitap.store.record_filter import RecordFilter
from multitap.wire.process.stderr_log import log_folder, log_path, rotated_path

INTERVAL = 0.2
"""Seconds between two reads of a followed file."""

_COLOURS: dict[str, Colour] = {
    "debug": "bright_black",
    "warning": "yellow",
    "error": "red",
    "critical": "red",
    "alert": "red",
    "emergency": "red",
}


@dataclass(frozen=True, slots=True)
class LogsOptions:
    """The options of `logs`."""

    server: str | None
    follow: bool
    lines: int | None
    as_json: bool
    filter: str | None
    """The filter of events; None to print the server's stderr instead."""


def logs(options: CommonOptions, wanted: LogsOptions) -> int:
    """Print a server's stderr; with `follow`, also events of the gateway."""
    server = wanted.server
    if not wanted.follow and wanted.filter is None and (server is None or wanted.as_json):
        raise click.UsageError("name a server, or use -f or --filter to see what happens")
    loaded = load_configuration(options)
    live = choose_gateway(options, loaded) if wanted.follow else None
    if wanted.filter is not None:
        return _events(loaded, live, wanted)
    if server is None or wanted.as_json:
        return _follow(live, wanted) if live else nobody_serves()
    path = log_path(log_folder(loaded.state_directory, loaded.files), server)
    _explain_silence(loaded, server, path)
    with ExitStack() as stack:
        pause = _pause
        if live is not None:
            pause = _show_meanwhile(stack.enter_context(live.follow(server)), live)
        # a read may end in the middle of a character
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for data in read_log(path, follow=wanted.follow, lines=wanted.lines, pause=pause):
            _print(decoder.decode(data))
    return Exit.DONE


def _pause() -> None:
    time.sleep(INTERVAL)


def _events(loaded: Loaded, live: RunningGateway | None, wanted: LogsOptions) -> Exit:
    """Past events, the newest last, then new ones."""
    past = ActivityQuery(
        server=wanted.server,
        filter=RecordFilter.parse(wanted.filter or ""),
        limit=MAX_LIMIT if wanted.lines is None else wanted.lines,
    )
    archive = Archive(loaded.state_directory)
    try:
        found = archive.read(past).records if wanted.lines != 0 else ()
    finally:
        archive.close()
    for activity in reversed(found):
        _print_event(activity, as_json=wanted.as_json)
    if not wanted.follow:
        return Exit.DONE
    return _follow(live, wanted) if live else nobody_serves()


def _follow(live: RunningGateway, wanted: LogsOptions) -> Exit:
    passing = RecordFilter.parse(wanted.filter or "")
    with live.follow(wanted.server) as following:
        while not following.ended:
            for activity in following.within(INTERVAL):
                if passing.matches(activity.fields):
                    _print_event(activity, as_json=wanted.as_json)
    note(f"{live.words} has ended")
    return Exit.DONE


def _print_event(activity: Activity, *, as_json: bool) -> None:
    say(msgspec.json.encode(activity).decode() if as_json else sentence(activity))


def _show_meanwhile(following: EventFollower[Activity], live: RunningGateway) -> Callable[[], None]:
    """Waits between two reads of a file, and yields the gateway's events meanwhile."""

    def pause() -> None:
        if following.ended:
            _pause()
            return
        for activity in following.within(INTERVAL):
            say(sentence(activity))
        if following.ended:
            note(f"{live.words} has ended")

    return pause


def sentence(activity: Activity) -> str:
    """An event in one line."""
    at = time.strftime("%H:%M:%S", time.localtime(activity.at))
    level = colour_text(f"{activity.level:<7}", _COLOURS.get(activity.level), sys.stdout)
    took = "" if activity.seconds is None else f" ({activity.seconds * 1000:,.1f} ms)"
    who = "" if activity.server is None else f"{one_line(activity.server)}  "
    return f"{at}  {level}  {who}{one_line(activity.text)}{took}"


def _explain_silence(loaded: Loaded, server: str, path: Path) -> None:
    if _content(path) or _content(rotated_path(path)):
        return
    if not path.exists():
        require(loaded, server)
    note(f"{server} has not written anything")


def read_log(
    path: Path,
    *,
    follow: bool,
    lines: int | None,
    pause: Callable[[], None] = _pause,
) -> Iterator[bytes]:
    """The content of a log and, with `follow`, new data, even after rotation.

    Args:
        path: The log file, which may not exist.
        follow: Whether to wait for new data.
        lines: Start with this many of the last lines.
        pause: Waits between two reads.
    """
    with ExitStack() as files:
        file = _open(path, files)
        yield _last((_content(rotated_path(path)) if lines != 0 else b"") + _rest(file), lines)
        while follow:
            yield _rest(file)
            # read to its end once more: the server may have written between our read and the
            # rotation
            if _replaced(file, path):
                yield _rest(file)
                file = _open(path, files)
            else:
                pause()


def _open(path: Path, files: ExitStack) -> BinaryIO | None:
    # close the old file first: many rotations would exhaust descriptors
    files.pop_all().close()
    try:
        return files.enter_context(path.open("rb"))
    except FileNotFoundError:
        return None


def _rest(file: BinaryIO | None) -> bytes:
    return file.read() if file else b""


def _replaced(file: BinaryIO | None, path: Path) -> bool:
    """Whether the path now leads to another file."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return False
    return file is None or now.st_ino != os.fstat(file.fileno()).st_ino


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _last(data: bytes, lines: int | None) -> bytes:
    if lines is None:
        return data
    return b"".join(data.splitlines(keepends=True)[-lines:]) if lines else b""


def _print(text: str) -> None:
    if text:
        click.echo(printable(text) if sys.stdout.isatty() else text, nl=False)
