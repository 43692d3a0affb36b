"""What a command acts on: a running gateway, or a hub of its own, behind the same methods."""

import os
import signal
import time
from collections.abc import Callable, Collection, Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from multitap.cli.configuration import explain_emptiness, refuse_unusable
from multitap.cli.options import SHORTEST_WAIT, CommonOptions
from multitap.cli.terminal import Exit, complain, is_somebody_there, note
from multitap.config import Loaded
from multitap.control import messages
from multitap.control.methods import Control
from multitap.control.places import sockets
from multitap.errors import MultitapError, UnknownName
from multitap.events import LinkState, ServerSnapshot
from multitap.names import Naming, likely_owners

if TYPE_CHECKING:
    from multitap.control.client import Follower
    from multitap.store.tables import Activity
    from multitap.upstream.tracing import TracedMessage

_Answer = TypeVar("_Answer")
Question = Callable[[Control], Coroutine[Any, Any, _Answer]]
"""What a command asks, by the methods of a gateway."""
_POLL = 0.05
"""Seconds between two looks at servers that start."""


class RunningGateway(msgspec.Struct, frozen=True):
    """A running gateway."""

    about: messages.About
    path: Path
    held: object = None
    """Keeps its view open, if the command has joined it."""

    def runs(self, loaded: Loaded) -> bool:
        """Whether it is configured by the same files."""
        return self.about.files == loaded.files

    @property
    def label(self) -> str:
        here = "in the background" if self.about.is_background else "on stdio"
        where = self.about.url or here
        return f"the gateway with pid {self.about.pid} ({where})"

    def ask(self, question: Question[_Answer]) -> _Answer:
        """The answer to a question.

        Raises:
            MultitapError: The gateway does not answer, or answers with an error.
        """
        from multitap.control.client import ControlClient, wait  # noqa: PLC0415 - asyncio

        return wait(question(ControlClient(self.path, self.label)))

    def state(self) -> messages.GatewayState:
        return self.ask(lambda control: control.state())

    def figures(self) -> messages.Figures:
        return self.ask(lambda control: control.figures())

    def reload(self) -> messages.ReloadReport:
        return self.ask(lambda control: control.reload())

    def console(self) -> str:
        """A link that opens its web console once."""
        return self.ask(lambda control: control.console())

    def restart(self, server: str) -> None:
        self.ask(lambda control: control.restart(server))

    def follow(self, server: str | None) -> "AbstractContextManager[Follower[Activity]]":
        """While entered, receive the events of one server or of all."""
        from multitap.control.client import ControlClient, follow  # noqa: PLC0415 - asyncio

        return follow(ControlClient(self.path, self.label).events(server))

    def trace(self, server: str) -> "AbstractContextManager[Follower[TracedMessage]]":
        """While entered, receive each message to and from a server."""
        from multitap.control.client import ControlClient, follow  # noqa: PLC0415 - asyncio

        return follow(ControlClient(self.path, self.label).trace(server))


class Target:
    """The gateway that a command asks, after naming it; without one, a hub for each question.

    Raises:
        UnknownName: The gateway that was named does not run.
    """

    def __init__(self, options: CommonOptions, loaded: Loaded) -> None:
        self._options = options
        self.loaded = loaded
        self.gateway = choose_gateway(options, loaded) or join_background(options, loaded)
        """None for a hub of the command's own."""

    @property
    def has_these_files(self) -> bool:
        """Whether its servers are those of the command's own configuration."""
        return self.gateway is None or self.gateway.runs(self.loaded)

    def look(
        self,
        question: Question[_Answer],
        *,
        server: str | None = None,
        listed: Collection[str] = (),
    ) -> _Answer:
        """The answer about what servers offer; our own hub starts them, except lazy ones.

        Only one `server` is started if it is named, and none that is `listed` from last time.
        """
        if self.gateway is None:
            return self._ask_own(question, server, settled=True, listed=listed)
        # it may have started just now, also for this command
        _wait_for_servers(self.gateway, self._options, listed)
        return self.gateway.ask(question)

    def use(
        self,
        question: Question[_Answer],
        *,
        name: str = "",
        server: str | None = None,
        can_ask: bool = False,
    ) -> _Answer:
        """The answer about one thing; our own hub starts only the server that has it.

        `name` is that of a tool or a prompt; `can_ask` lets its server ask the user.
        """
        with explain_unknown(self.gateway, self.loaded, name):
            if self.gateway is None:
                return self._ask_own(question, server, settled=False, can_ask=can_ask)
            return self.gateway.ask(question)

    def _ask_own(
        self,
        question: Question[_Answer],
        server: str | None,
        *,
        settled: bool,
        can_ask: bool = False,
        listed: Collection[str] = (),
    ) -> _Answer:
        # half a second that a gateway spares
        from multitap.cli.own_hub import open_own_hub  # noqa: PLC0415
        from multitap.cli.signals import run_async  # noqa: PLC0415

        async def ask() -> _Answer:
            async with open_own_hub(
                self.loaded,
                self._options,
                only=server,
                settled=settled,
                can_ask=can_ask,
                listed=listed,
            ) as control:
                return await question(control)

        return run_async(ask)


def gateways(state_directory: Path) -> tuple[RunningGateway, ...]:
    """All running gateways, the latest first; reports those that do not answer."""
    running: list[RunningGateway] = []
    for path, pid in sockets(state_directory).items():
        # in the loop: most commands find no gateway, and need no event loop
        from multitap.control.client import FIRST, ControlClient, wait  # noqa: PLC0415 - asyncio

        client = ControlClient(path, f"the gateway with pid {pid}", patience=FIRST)
        try:
            running.append(RunningGateway(wait(client.about()), path))
        except MultitapError as exc:
            note(str(exc))
    return tuple(sorted(running, key=lambda live: live.about.started, reverse=True))


def matching(options: CommonOptions, loaded: Loaded) -> tuple[RunningGateway, ...]:
    """The gateways for a command: the named one, or all with the same files.

    Raises:
        UnknownName: The named one does not run.
    """
    if not options.live:
        return ()
    running = gateways(loaded.state_directory)
    if options.pid is None:
        same = [live for live in running if live.runs(loaded)]
        if not same and not loaded.settings.servers:
            # the bundled servers are in no file
            same = [live for live in running if live.about.files is None]
        # the one of this folder first: others have other values for `${workspaceFolder}`
        here = str(loaded.search.folder)
        return tuple(sorted(same, key=lambda live: live.about.folder != here))
    named = tuple(live for live in running if live.about.pid == options.pid)
    if not named:
        others = ", ".join(live.label for live in running) or "no gateway"
        raise UnknownName(f"no gateway runs with pid {options.pid}", hint=f"running: {others}")
    return named


def choose_gateway(options: CommonOptions, loaded: Loaded) -> RunningGateway | None:
    """The gateway that a command uses, after naming it; None if there is none.

    Raises:
        UnknownName: The named one does not run.
    """
    running = matching(options, loaded)
    if options.pid is None:
        # in the background, each folder has its own values for its servers
        here = str(loaded.search.folder)
        own = {None, here}
        running = tuple(
            live for live in running if not live.about.is_background or live.about.folder in own
        )
    if not running:
        return None
    first, *others = running
    note(f"from {first.label}")
    # a gateway in the background has one socket for each of its views
    pids = ", ".join(str(pid) for pid in {live.about.pid for live in others} - {first.about.pid})
    if pids:
        note(f"more gateways have the same files; choose one with `--live PID`: {pids}")
    return first


def join_background(options: CommonOptions, loaded: Loaded) -> RunningGateway | None:
    """Join the gateway in the background; None if there is none, or the command has its own.

    A person at a terminal starts one: the next command finds its servers running.
    """
    # what is typed or trusted for this run only must not reach what others share
    is_own = options.typed is not None or options.trust or bool(os.environ.get("MULTITAP_ALONE"))
    if is_own or not options.live or options.pid is not None:
        return None
    from multitap.control.joining import JoinRequest, join  # noqa: PLC0415 - seldom needed

    request = JoinRequest(
        purpose="look",
        folder=str(loaded.search.folder),
        files=tuple(map(str, options.files)),
        dialect=options.dialect,
    )
    try:
        joined = join(request, starts=is_somebody_there())
    except MultitapError as exc:  # the command works without it
        note(str(exc))
        return None
    if joined is None or joined.reply.is_alone:
        return None
    from multitap.control.client import ControlClient, wait  # noqa: PLC0415 - asyncio

    path = Path(joined.reply.control)
    about = wait(ControlClient(path).about())
    live = RunningGateway(about, path, joined.connection)
    note(f"from {live.label}")
    return live


def hand_over(options: CommonOptions, loaded: Loaded) -> None:
    """Make running gateways use what was just trusted, and wait a while for its servers.

    They would notice by themselves, but later than the command asks them.
    """
    for live in matching(options, loaded):
        live.reload()
        _wait_for_servers(live, options)


def _wait_for_servers(
    live: RunningGateway, options: CommonOptions, listed: Collection[str] = ()
) -> None:
    """Wait a while until no server of a gateway is starting, except `listed` ones.

    At a terminal, it shows what they do, and Ctrl-C ends the wait: the command shows what there is.
    """
    from multitap.cli.progress import PATIENCE, drawing  # noqa: PLC0415 - most are up

    interrupts: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if is_somebody_there():
        signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    shown_from = time.monotonic() + PATIENCE
    try:
        with drawing() as draw:
            while options.patience() > SHORTEST_WAIT and not interrupts:
                state = live.state()
                if not _are_starting(state, listed):
                    break
                if time.monotonic() >= shown_from:
                    draw(state.snapshot.servers)
                time.sleep(_POLL)
    finally:
        signal.signal(signal.SIGINT, before)


def _are_starting(state: messages.GatewayState, listed: Collection[str]) -> bool:
    others = {*listed, *state.asleep}
    return any(
        _is_starting(server) for server in state.snapshot.servers if server.name not in others
    )


def _is_starting(server: ServerSnapshot) -> bool:
    return server.failure is None and server.state in {
        LinkState.CONNECTING,
        LinkState.DISCONNECTED,
    }


@contextmanager
def explain_unknown(live: RunningGateway | None, loaded: Loaded, name: str) -> Generator[None]:
    """While entered, explain an unknown tool, prompt or resource if its server cannot be used.

    Raises:
        ConfigError: The entry of its server cannot be used, or is not trusted, or a file that may
            have it cannot be read.
    """
    try:
        yield
    except UnknownName:
        # a gateway with other files has servers that ours do not mention
        if live is not None and not live.runs(loaded):
            raise
        naming = loaded.settings.naming
        # bare names do not tell which server they belong to
        if naming is not Naming.BARE:
            refuse_unusable(loaded, lambda server: bool(likely_owners(name, [server], naming)))
        loaded.check()
        explain_emptiness(loaded)
        raise


def nobody_serves() -> Exit:
    """The error for a command that needs a gateway."""
    complain(
        "no gateway is serving this configuration",
        "`multitap serve --http 3000` starts one; `--live PID` asks one with other files",
    )
    return Exit.UNAVAILABLE
