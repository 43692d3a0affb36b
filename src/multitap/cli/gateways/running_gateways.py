"""Finds running gateways and talks to them for commands."""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from multitap.cli.configuration.problem_lines import line
from multitap.cli.exits import Exit
from multitap.cli.gateways.control_client import (
    ControlClient,
    EventFollower,
    OnQuestion,
    OnStep,
    ask_about,
)
from multitap.cli.options import SHORTEST_WAIT, CommonOptions
from multitap.cli.terminal.output import complain, note
from multitap.config import Loaded
from multitap.errors import ConfigError, MultitapError, UnknownName
from multitap.events import LinkState, ServerSnapshot
from multitap.gateway.fronts import control_messages as protocol
from multitap.gateway.fronts.control_places import sockets
from multitap.names import Naming, likely_owners
from multitap.records import dataclass

if TYPE_CHECKING:
    from multitap.store.log_records import Activity
    from multitap.upstream.traced_wire import TracedMessage

_POLL = 0.05
"""Seconds between two looks at servers that start."""


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A running gateway."""

    about: protocol.About
    path: Path

    @property
    def client(self) -> ControlClient:
        return ControlClient(self.path, self.words)

    def runs(self, loaded: Loaded) -> bool:
        """Whether it is configured by the same files."""
        return self.about.files == protocol.files_of(loaded)

    @property
    def words(self) -> str:
        where = self.about.url or "on stdio"
        return f"the gateway with pid {self.about.pid} ({where})"

    def state(self) -> protocol.GatewayState:
        return self.client.ask(protocol.AskState(), protocol.GatewayState)

    def tools(self) -> list[protocol.ToolLine]:
        return self.client.ask(protocol.AskTools(), list[protocol.ToolLine])

    def resources(self) -> list[protocol.ResourceLine]:
        return self.client.ask(protocol.AskResources(), list[protocol.ResourceLine])

    def prompts(self) -> list[protocol.PromptLine]:
        return self.client.ask(protocol.AskPrompts(), list[protocol.PromptLine])

    def tool(self, name: str, timeout: float | None) -> protocol.ToolLine:
        return self.client.carry_out(protocol.AskTool(name, timeout), protocol.ToolLine)[0]

    def prompt(self, name: str, timeout: float | None) -> protocol.PromptLine:
        return self.client.carry_out(protocol.AskPrompt(name, timeout), protocol.PromptLine)[0]

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        timeout: float | None,
        on_step: OnStep,
        on_question: OnQuestion,
        *,
        person: bool,
    ) -> tuple[protocol.Delivery, bytes]:
        """Call a tool; leaving before it is done cancels the call."""
        question = protocol.AskCall(
            name, Raw(msgspec.json.encode(arguments)), timeout, person=person
        )
        return self.client.carry_out(question, protocol.Delivery, on_step, on_question)

    def read(self, uri: str, server: str | None, timeout: float | None) -> bytes:
        return self.client.carry_out(protocol.AskRead(uri, server, timeout), protocol.Delivery)[1]

    def fill(self, name: str, arguments: dict[str, str], timeout: float | None) -> bytes:
        return self.client.carry_out(protocol.AskFill(name, arguments, timeout), protocol.Delivery)[
            1
        ]

    def figures(self) -> protocol.Figures:
        return self.client.ask(protocol.AskFigures(), protocol.Figures)

    def reload(self) -> protocol.ReloadReport:
        return self.client.ask(protocol.AskReload(), protocol.ReloadReport)

    def console(self) -> str:
        """A link that opens its web console once."""
        return self.client.ask(protocol.AskConsole(), str)

    def restart(self, server: str) -> None:
        self.client.ask(protocol.AskRestart(server), type(None))

    @contextmanager
    def follow(self, server: str | None) -> Generator["EventFollower[Activity]"]:
        """Within the block, receive the events of one server or of all."""
        from multitap.store.log_records import Activity  # noqa: PLC0415 - most follow nothing

        with self.client.follow(protocol.AskEvents(server), Activity) as following:
            yield following

    @contextmanager
    def trace(self, server: str) -> Generator["EventFollower[TracedMessage]"]:
        """Within the block, receive each message to and from a server."""
        from multitap.upstream.traced_wire import TracedMessage  # noqa: PLC0415 - the same

        with self.client.follow(protocol.AskTrace(server), TracedMessage) as following:
            yield following


def gateways(loaded: Loaded) -> tuple[RunningGateway, ...]:
    """All running gateways, the latest first; reports those that do not answer."""
    found: list[RunningGateway] = []
    for pid, path in sockets(loaded.state_directory).items():
        try:
            found.append(RunningGateway(ask_about(path, f"the gateway with pid {pid}"), path))
        except MultitapError as exc:
            note(str(exc))
    return tuple(sorted(found, key=lambda live: live.about.started, reverse=True))


def matching(options: CommonOptions, loaded: Loaded) -> tuple[RunningGateway, ...]:
    """The gateways for a command: the named one, or all with the same files.

    Raises:
        UnknownName: The named one does not run.
    """
    if not options.live:
        return ()
    running = gateways(loaded)
    if options.pid is None:
        return tuple(live for live in running if live.runs(loaded))
    named = tuple(live for live in running if live.about.pid == options.pid)
    if not named:
        others = ", ".join(live.words for live in running) or "no gateway"
        raise UnknownName(f"no gateway runs with pid {options.pid}", hint=f"running: {others}")
    return named


def choose_gateway(options: CommonOptions, loaded: Loaded) -> RunningGateway | None:
    """The gateway that a command uses, after naming it; None if there is none.

    Raises:
        UnknownName: The named one does not run.
    """
    found = matching(options, loaded)
    if not found:
        return None
    first, *others = found
    note(f"from {first.words}")
    if others:
        pids = ", ".join(str(live.about.pid) for live in others)
        note(f"more gateways have the same files; choose one with `--live PID`: {pids}")
    return first


def hand_over(options: CommonOptions, loaded: Loaded) -> None:
    """Make running gateways use what was just trusted, and wait a while for its servers.

    They would notice by themselves, but later than the command asks them.
    """
    for live in matching(options, loaded):
        live.reload()
        while any(map(_is_starting, live.state().snapshot.servers)):
            if options.patience() <= SHORTEST_WAIT:
                break
            time.sleep(_POLL)


def _is_starting(server: ServerSnapshot) -> bool:
    return server.failure is None and server.state in {
        LinkState.CONNECTING,
        LinkState.DISCONNECTED,
    }


@contextmanager
def explain_unknown(live: RunningGateway, loaded: Loaded, name: str) -> Generator[None]:
    """Within the block, explain an unknown tool or prompt if its server cannot be used.

    Raises:
        ConfigError: The entry of its server cannot be used, or is not trusted.
    """
    try:
        yield
    except UnknownName:
        naming = loaded.settings.naming
        # a gateway with other files has servers that ours do not mention
        if live.runs(loaded) and naming is not Naming.BARE:
            for held, pending in loaded.held.items():
                if likely_owners(name, [held], naming):
                    raise pending.refusal() from None
            for broken, problems in loaded.broken.items():
                if likely_owners(name, [broken], naming):
                    raise ConfigError(line(problems[0]), hint=problems[0].hint) from None
        raise


def nobody_serves() -> Exit:
    """The error for a command that needs a gateway."""
    complain(
        "no gateway is serving this configuration",
        "`multitap serve --http 3000` starts one; `--live PID` asks one with other files",
    )
    return Exit.UNAVAILABLE
