"""`multitap logs`: shows a server's standard error and the events of a gateway."""

import codecs
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

from multitap.cli.completion import complete_server
from multitap.cli.configuration import load_configuration, require
from multitap.cli.options import CommonOptions, config_options, live_option, no_live_option
from multitap.cli.target import RunningGateway, choose_gateway, nobody_serves
from multitap.cli.terminal import Colour, Exit, colour_text, note, one_line, say
from multitap.config import Loaded
from multitap.printable import printable
from multitap.store.database import Archive
from multitap.store.queries import MAX_LIMIT, ActivityQuery, RecordFilter
from multitap.store.tables import Activity
from multitap.wire.stderr_log import log_folder, log_path, rotated_path

if TYPE_CHECKING:
    from multitap.control.client import Follower

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


class LogsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `logs`."""

    server: str | None
    follow: bool
    lines: int | None
    as_json: bool
    filter: str | None
    """The filter of events; None to print the server's stderr instead."""


@click.command()
@click.argument("server", required=False, shell_complete=complete_server)
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines")
@click.option(
    "--filter",
    "filter",
    metavar="FILTER",
    help="Print events that match, as in `multitap calls`; also level:warning and kind:state",
)
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), metavar="N", help="Only the last N lines"
)
@live_option
@no_live_option
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print events as lines of JSON")
def logs(options: CommonOptions, **typed: Any) -> int:
    """Print a server's stderr, or the event log

    With --filter, print past events instead: log messages, state changes and calls. With -f, also
    print events at a running gateway as they happen. Without SERVER, follow all servers.
    """
    filters = LogsOptions(**typed)
    server = filters.server
    if not filters.follow and filters.filter is None and (server is None or filters.as_json):
        raise click.UsageError("name a server, or use -f or --filter to see what happens")
    loaded = load_configuration(options)
    live = choose_gateway(options, loaded) if filters.follow else None
    if filters.filter is not None:
        return _events(loaded, live, filters)
    if server is None or filters.as_json:
        return _follow(live, filters) if live else nobody_serves()
    path = log_path(log_folder(loaded.state_directory, loaded.files), server)
    _explain_silence(loaded, server, path)
    with ExitStack() as stack:
        pause = _pause
        if live is not None:
            pause = _show_meanwhile(stack.enter_context(live.follow(server)), live)
        # a read may end in the middle of a character
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for data in read_log(path, follow=filters.follow, lines=filters.lines, pause=pause):
            _print(decoder.decode(data))
    return Exit.DONE


def _pause() -> None:
    time.sleep(INTERVAL)


def _events(loaded: Loaded, live: RunningGateway | None, filters: LogsOptions) -> Exit:
    """Past events, the newest last, then new ones."""
    past = ActivityQuery(
        server=filters.server,
        filter=RecordFilter.parse(filters.filter or ""),
        limit=MAX_LIMIT if filters.lines is None else filters.lines,
    )
    archive = Archive(loaded.state_directory)
    try:
        activities = archive.read(past).records if filters.lines != 0 else ()
    finally:
        archive.close()
    for activity in reversed(activities):
        _print_event(activity, as_json=filters.as_json)
    if not filters.follow:
        return Exit.DONE
    return _follow(live, filters) if live else nobody_serves()


def _follow(live: RunningGateway, filters: LogsOptions) -> Exit:
    passing = RecordFilter.parse(filters.filter or "")
    with live.follow(filters.server) as following:
        while not following.ended:
            for activity in following.within(INTERVAL):
                if passing.matches(activity.fields):
                    _print_event(activity, as_json=filters.as_json)
    note(f"{live.label} has ended")
    return Exit.DONE


def _print_event(activity: Activity, *, as_json: bool) -> None:
    say(msgspec.json.encode(activity).decode() if as_json else sentence(activity))


def _show_meanwhile(following: "Follower[Activity]", live: RunningGateway) -> Callable[[], None]:
    """Waits between two reads of a file, and prints the gateway's events meanwhile."""

    def pause() -> None:
        if following.ended:
            _pause()
            return
        for activity in following.within(INTERVAL):
            say(sentence(activity))
        if following.ended:
            note(f"{live.label} has ended")

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
    # a log may be there although no file names its server any more
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

    Starts with the last `lines` lines; the file may not exist. `pause` waits between two reads.
    """
    with ExitStack() as files:
        file = _open(path, files)
        # right after a rotation, the last lines are in the older file
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
        # the old file was renamed, and the next one is not there yet
        return False
    # by inode: a rotation renames the file, and ours stays open
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
