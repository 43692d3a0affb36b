"""Building blocks of commands: their classes and the options that they share."""

import math
import time
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from multitap.cli.terminal import is_somebody_there

WAIT = 5.0
"""Seconds in which most servers start, and which users accept."""
THOROUGH = 20.0
"""The same for `doctor`: the first `npx` takes a while."""
SHORTEST_WAIT = 1.0
"""Seconds that a server always has."""
Work = Callable[..., int]
"""The work of a command; returns the exit code."""

_COMMAND = "multitap.typed_command"


class CommandGroup(click.Group):
    """A group that lists its commands in the order of their declaration."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [*self.commands]


class ServerCommand(click.Command):
    """A command that takes the command line of a server after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        # before click parses them: options of the server's command are not ours
        if "--" in args:
            end = args.index("--")
            ctx.meta[_COMMAND] = tuple(args[end + 1 :])
            args = args[:end]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


class TypedServer(msgspec.Struct, frozen=True):
    """A server that is not in a file: its command or its address was typed."""

    command: tuple[str, ...] = ()
    url: str | None = None
    headers: tuple[str, ...] = ()
    """Each as `Name: value`."""
    variables: tuple[str, ...] = ()
    """Each as `NAME=value`."""


class WaitClock:
    """Measures how long a command has kept its user waiting."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin again: until now, the command waited for its user."""
        self._since = time.monotonic()

    def read(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._since


class CommonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that commands share."""

    files: tuple[Path, ...] = ()
    """Files to use instead of searching; later ones override earlier ones."""
    dialect: str | None = None
    """The dialect of the files; detected if not given."""
    timeout: float | None = None
    """Seconds for a server to start, and for an answer."""
    wait: float = WAIT
    """Seconds to wait for servers before those that are up are shown; at a terminal, no limit."""
    asks_servers: bool = False
    """Whether servers are asked although what they offered last is known."""
    live: bool = True
    """Whether to ask a running gateway instead of the servers."""
    pid: int | None = None
    """Its process id; by default, a gateway with the same configuration."""
    typed: TypedServer | None = None
    """The only server, instead of those in files."""
    trust: bool = False
    """Whether to trust the project's current content for this run."""
    asks: bool = False
    """Whether the command uses a project's servers, and may ask at a terminal to trust them."""
    clock: WaitClock = msgspec.field(default_factory=WaitClock)
    """Measures the wait for servers, from the start of the command."""

    def patience(self) -> float:
        """Remaining seconds to wait for servers; always at least a moment."""
        return max(SHORTEST_WAIT, self.wait - self.clock.read())


class EditOptions(msgspec.Struct, frozen=True):
    """Which file to change, and whether it is written."""

    scope: str | None = None
    """`user` or `project`; None for the file with the server's entry."""
    dry_run: bool = False


def duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A typed duration in seconds."""
    from multitap.config.durations import seconds  # noqa: PLC0415 - not for `--help`

    if value is None:
        return None
    try:
        wait = seconds(_number(value), bare="s")
    except ValueError as exc:
        raise click.BadParameter(str(exc), ctx, param) from None
    if wait <= 0:
        raise click.BadParameter("expected more than 0 seconds", ctx, param)
    return wait


def rate(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """A typed rate: a number of requests per time."""
    from multitap.limits import Rate  # noqa: PLC0415 - not for `--help`

    try:
        return value if value is None or Rate.parse(value) else None
    except ValueError as exc:
        raise click.BadParameter(str(exc), ctx, param) from None


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


FILE = click.Path(readable=False, path_type=Path)
"""A path that the command itself opens, and reports better than the option parser would."""

config_option = click.option(
    "-c",
    "--config",
    "files",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="Use only FILE; any client's format (repeatable)  [env: MULTITAP_CONFIG]",
)
dialect_option = click.option(
    "--dialect", metavar="NAME", help="Dialect of the file; detected if not given"
)
timeout_option = click.option(
    "--timeout",
    metavar="SECONDS",
    callback=duration,
    help="How long a server may take to start and to answer: 5, 90s, 1m30s",
)


def _wait_option(seconds: float) -> Callable[[Work], Work]:
    def wait(ctx: click.Context, param: click.Parameter, value: str | None) -> float:
        if (chosen_wait := duration(ctx, param, value)) is not None:
            return chosen_wait
        # a person sees the progress, and ends it with Ctrl-C
        return math.inf if is_somebody_there() else seconds

    return click.option(
        "--wait",
        metavar="SECONDS",
        callback=wait,
        envvar="MULTITAP_WAIT",
        help="Ask the servers, and show results after this time; default: at a terminal, when all "
        f"have answered, else after {seconds:g}  [env: MULTITAP_WAIT]",
    )


live_option = click.option(
    "--live",
    "pid",
    type=int,
    metavar="PID",
    help="Use the gateway with this process id; default: the one with the same files",
)
no_live_option = click.option(
    "--no-live",
    "live",
    flag_value=False,
    default=True,
    help="Ask the servers directly, not a gateway",
)
trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Trust the project as it is now, for this run only (for CI)",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON")
url_option = click.option(
    "--url", metavar="URL", help="Use the server at this address instead of the configured ones"
)
header_option = click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="'NAME: VALUE'",
    help="Send this header to --url (repeatable)",
)
variable_option = click.option(
    "-e",
    "--env",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a variable for the COMMAND after -- (repeatable)",
)


dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would change, and write nothing"
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask")


def config_options(command: Work) -> Work:
    """Add the options that select the configuration."""
    return config_option(dialect_option(trust_option(_collect(command))))


def project_options(command: Work) -> Work:
    """The same for a command that uses a project's servers, and asks if they are not trusted."""
    return config_option(dialect_option(trust_option(_collect(command, asks=True))))


def server_options(command: Work) -> Work:
    """Add the options of commands that start servers."""
    waiting = (_wait_option(THOROUGH), timeout_option)
    return _with(command, (*_TYPED, trust_option, *waiting, *_FILES))


def gateway_options(command: Work) -> Work:
    """Add the options of commands that need a running gateway."""
    return config_option(dialect_option(trust_option(live_option(_collect(command)))))


def gateway_or_server_options(command: Work) -> Work:
    """Add the options of commands that ask a running gateway, or else servers."""
    waiting = (_wait_option(WAIT), timeout_option)
    gateway = (trust_option, no_live_option, live_option)
    return _with(command, (*_TYPED, *gateway, *waiting, *_FILES))


_NOT_TYPED = frozenset({None, ParameterSource.DEFAULT})
_TYPED = (variable_option, header_option, url_option)
_FILES = (dialect_option, config_option)


def file_options(command: Work) -> Work:
    """Add the options that choose the file to change: `scope` and `dry_run`."""
    user = click.option("--user", "scope", flag_value="user", help="Change your own configuration")
    project = click.option(
        "--project", "scope", flag_value="project", help="Change the project's configuration"
    )
    return user(project(dry_run_option(config_options(command))))


def edit_options(command: Work) -> Work:
    """The same in one value, `how`."""

    @wraps(command)
    def work(options: CommonOptions, *, scope: str | None, dry_run: bool, **arguments: Any) -> int:
        return command(options, how=EditOptions(scope, dry_run), **arguments)

    return file_options(work)


def _with(command: Work, options: Iterable[Callable[[Work], Work]]) -> Work:
    collecting = _collect(command, asks=True)
    # the option that is added last comes first in `--help`
    for option in options:
        collecting = option(collecting)
    return collecting


def _collect(command: Work, *, asks: bool = False) -> Work:
    """The command with its common options in one value."""

    @wraps(command)
    def collecting(  # noqa: PLR0917 - click passes them by name
        files: tuple[Path, ...],
        dialect: str | None,
        trust: bool,  # noqa: FBT001 - click passes it by name
        timeout: float | None = None,
        wait: float = WAIT,
        live: bool = True,  # noqa: FBT001, FBT002 - click passes it by name
        pid: int | None = None,
        url: str | None = None,
        headers: tuple[str, ...] = (),
        variables: tuple[str, ...] = (),
        **arguments: Any,
    ) -> int:
        ctx = click.get_current_context()
        # `multitap -c FILE status` and `multitap status -c FILE` mean the same
        whole: dict[str, Any] = ctx.find_root().params
        config_files = files or whole.get("files", ())
        typed = _if_typed(TypedServer(ctx.meta.get(_COMMAND, ()), url, headers, variables))
        if typed and (config_files or pid is not None):
            raise click.UsageError("a COMMAND or --url cannot be combined with --config or --live")
        options = CommonOptions(
            files=config_files,
            dialect=dialect,
            timeout=timeout,
            wait=wait,
            # a wait was requested: the servers' state now is wanted
            asks_servers=ctx.get_parameter_source("wait") not in _NOT_TYPED,
            # no gateway has a server that was only just typed
            live=live and typed is None,
            pid=pid,
            typed=typed,
            trust=trust,
            # programs read JSON, and cannot answer
            asks=asks and not arguments.get("as_json"),
        )
        return command(options, **arguments)

    return collecting


def _if_typed(server: TypedServer) -> TypedServer | None:
    """The typed server, if any."""
    if _COMMAND in click.get_current_context().meta and not server.command:
        raise click.UsageError("a command is expected after `--`")
    if server.command and server.url:
        raise click.UsageError("give a COMMAND or --url, not both")
    if server.headers and not server.url:
        raise click.UsageError("--header needs --url")
    if server.variables and not server.command:
        raise click.UsageError("--env needs a COMMAND after `--`")
    return server if server.command or server.url else None
