"""Finds running gateways and talks to them for commands."""

import socket
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import Raw

from multitap.cli.configuration.problem_lines import line
from multitap.cli.exits import Exit
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.output import complain, note
from multitap.config import Loaded
from multitap.errors import ConfigError, MultitapError, UnknownName
from multitap.gateway.fronts.control_answers import content, decoded
from multitap.gateway.fronts.control_messages import (
    MAX_QUESTION,
    About,
    AskAbout,
    AskCall,
    AskEvents,
    AskFigures,
    AskFill,
    AskPicture,
    AskPrompt,
    AskPrompts,
    AskRead,
    AskReload,
    AskResources,
    AskRestart,
    AskTool,
    AskTools,
    AskTrace,
    CommandReply,
    ControlAnswer,
    Delivery,
    Figures,
    GatewayAction,
    GatewayPicture,
    ProgressStep,
    PromptLine,
    Question,
    ReloadReport,
    ResourceLine,
    ServerQuestion,
    ToolLine,
    files_of,
)
from multitap.gateway.fronts.control_places import sockets
from multitap.names import Naming, likely_owners
from multitap.records import dataclass

if TYPE_CHECKING:
    from multitap.store.log_records import Happening
    from multitap.upstream.traced_wire import TracedMessage

FIRST = 2.0
"""Seconds for a gateway to say who it is."""
PATIENCE = 40.0
"""Seconds for any other answer: a reload may take a while."""
MAX_ANSWER = 256 * 1024 * 1024

OnStep = Callable[[float, float | None, str | None], None]
"""Told how far a call has come."""
OnQuestion = Callable[[ServerQuestion], CommandReply]
"""Answers what a server asks during a call."""

_CHUNK = 256 * 1024
_WITHOUT = "use `--no-live` if the command has it"
_Said = TypeVar("_Said")


@dataclass(frozen=True, slots=True)
class Live:
    """One gateway that answers."""

    about: About
    path: Path

    def runs(self, loaded: Loaded) -> bool:
        """Whether it is configured by the same files."""
        return self.about.files == files_of(loaded)

    @property
    def words(self) -> str:
        where = self.about.url or "on stdio"
        return f"the gateway with pid {self.about.pid} ({where})"

    def picture(self) -> GatewayPicture:
        return self._ask(AskPicture(), GatewayPicture)

    def tools(self) -> list[ToolLine]:
        return self._ask(AskTools(), list[ToolLine])

    def resources(self) -> list[ResourceLine]:
        return self._ask(AskResources(), list[ResourceLine])

    def prompts(self) -> list[PromptLine]:
        return self._ask(AskPrompts(), list[PromptLine])

    def tool(self, name: str, timeout: float | None) -> ToolLine:
        return self._await(AskTool(name, timeout), ToolLine)[0]

    def prompt(self, name: str, timeout: float | None) -> PromptLine:
        return self._await(AskPrompt(name, timeout), PromptLine)[0]

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        timeout: float | None,
        on_step: OnStep,
        on_question: OnQuestion,
        *,
        person: bool,
    ) -> tuple[Delivery, bytes]:
        """Call a tool; leaving before it is done cancels the call."""
        question = AskCall(name, Raw(msgspec.json.encode(arguments)), timeout, person=person)
        return self._await(question, Delivery, on_step, on_question)

    def read(self, uri: str, server: str | None, timeout: float | None) -> bytes:
        return self._await(AskRead(uri, server, timeout), Delivery)[1]

    def fill(self, name: str, arguments: dict[str, str], timeout: float | None) -> bytes:
        return self._await(AskFill(name, arguments, timeout), Delivery)[1]

    def figures(self) -> Figures:
        return self._ask(AskFigures(), Figures)

    def reload(self) -> ReloadReport:
        return self._ask(AskReload(), ReloadReport)

    def restart(self, server: str) -> None:
        self._ask(AskRestart(server), type(None))

    @contextmanager
    def follow(self, server: str | None) -> Generator["Following[Happening]"]:
        """Within the block, hear what happens, to one server or to all."""
        from multitap.store.log_records import Happening  # noqa: PLC0415 - most follow nothing

        with closing(self._opened(AskEvents(server))) as lines:
            content(self._heard(lines, FIRST), About)
            yield Following(lines, Happening)

    @contextmanager
    def trace(self, server: str) -> Generator["Following[TracedMessage]"]:
        """Within the block, hear of each message to and from a server."""
        from multitap.upstream.traced_wire import TracedMessage  # noqa: PLC0415 - the same

        with closing(self._opened(AskTrace(server))) as lines:
            content(self._heard(lines, FIRST), About)
            yield Following(lines, TracedMessage)

    def _ask(self, question: Question, kind: type[_Said]) -> _Said:
        with closing(self._opened(question)) as lines:
            return content(self._heard(lines, PATIENCE), kind)

    def _await(
        self,
        action: GatewayAction,
        kind: type[_Said],
        on_step: OnStep | None = None,
        on_question: OnQuestion | None = None,
    ) -> tuple[_Said, bytes]:
        """What comes of something that takes a server's time, and what follows it."""
        with closing(self._opened(action)) as lines:
            while (answer := self._heard(lines, PATIENCE)).more:
                if answer.question is not None and on_question is not None:
                    self._reply(lines, on_question(answer.question))
                elif on_step is not None and bytes(answer.ok) != b"null":
                    step = decoded(answer.ok, ProgressStep)
                    on_step(step.done, step.total, step.message)
            said = content(answer, kind)
            if not isinstance(said, Delivery):
                return said, b""
            try:
                return said, lines.take(said.size, PATIENCE)
            except OSError as exc:
                raise self._silent(exc) from None

    def _opened(self, question: Question) -> "_Lines":
        try:
            return _options(self.path, question)
        except OSError as exc:
            raise self._silent(exc) from None

    def _heard(self, lines: "_Lines", wait: float) -> ControlAnswer:
        try:
            return decoded(lines.next(wait), ControlAnswer)
        except OSError as exc:
            raise self._silent(exc) from None

    def _reply(self, lines: "_Lines", reply: CommandReply) -> None:
        try:
            lines.send(msgspec.json.encode(reply) + b"\n")
        except OSError as exc:
            raise self._silent(exc) from None

    def _silent(self, exc: OSError) -> MultitapError:
        return MultitapError(f"{self.words} does not answer: {exc}", hint=_WITHOUT)


class Following(Generic[_Said]):
    """What happens at a gateway, as it comes."""

    def __init__(self, lines: "_Lines", kind: type[_Said]) -> None:
        self._lines = lines
        self._kind = kind
        self.ended = False
        """Whether the gateway is gone."""

    def within(self, seconds: float) -> Generator[_Said]:
        """What happens in the next `seconds`."""
        deadline = time.monotonic() + seconds
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            try:
                yield content(decoded(self._lines.next(left), ControlAnswer), self._kind)
            except TimeoutError:
                return
            except OSError:
                self.ended = True


class _Lines:
    """The lines of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._waiting = bytearray()

    def close(self) -> None:
        self._connection.close()

    def send(self, line: bytes) -> None:
        """Say something in the middle of it.

        Raises:
            OSError: The other side is gone, or does not read.
        """
        self._connection.settimeout(FIRST)
        self._connection.sendall(line)

    def next(self, wait: float) -> bytes:
        """One line.

        Raises:
            OSError: The other side is gone, or says nothing for too long.
        """
        deadline = time.monotonic() + wait
        looked = 0
        while (end := self._waiting.find(b"\n", looked)) < 0:
            looked = len(self._waiting)
            if looked > MAX_ANSWER:
                raise ConnectionError("its answer is too long")
            self._receive(deadline)
        line = bytes(self._waiting[:end])
        del self._waiting[: end + 1]
        return line

    def take(self, size: int, wait: float) -> bytes:
        """The next `size` bytes.

        Raises:
            OSError: The other side is gone, or says nothing for too long.
        """
        if size > MAX_ANSWER:
            raise ConnectionError("its answer is too long")
        while len(self._waiting) < size:
            self._receive(time.monotonic() + wait)
        taken = bytes(self._waiting[:size])
        del self._waiting[:size]
        return taken

    def _receive(self, deadline: float) -> None:
        self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
        received = self._connection.recv(_CHUNK)
        if not received:
            raise ConnectionResetError("it has ended")
        self._waiting += received


def _options(path: Path, question: Question) -> _Lines:
    """The lines that answer a question; the caller closes them."""
    line = msgspec.json.encode(question) + b"\n"
    if len(line) > MAX_QUESTION:
        raise MultitapError(
            f"a gateway takes at most {MAX_QUESTION} bytes from a command", hint=_WITHOUT
        )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(FIRST)
        connection.connect(str(path))
        connection.sendall(line)
    except OSError:
        connection.close()
        raise
    return _Lines(connection)


def gateways(loaded: Loaded) -> tuple[Live, ...]:
    """All that answer, the one that started last first, after a word on those that do not."""
    found: list[Live] = []
    for pid, path in sockets(loaded.state_directory).items():
        try:
            with closing(_options(path, AskAbout())) as lines:
                found.append(Live(content(decoded(lines.next(FIRST), ControlAnswer), About), path))
        except (OSError, MultitapError) as exc:
            note(f"the gateway with pid {pid} does not answer: {exc}")
    return tuple(sorted(found, key=lambda live: live.about.started, reverse=True))


def matching(options: CommonOptions, loaded: Loaded) -> tuple[Live, ...]:
    """The gateways that a command is about: the one it names, or all with the same files.

    Raises:
        UnknownName: The one it names does not run.
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


def chosen(options: CommonOptions, loaded: Loaded) -> Live | None:
    """The gateway that a command shows, after a word on which one that is; None: there is none.

    Raises:
        UnknownName: The one that was named does not run.
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


@contextmanager
def explained(live: Live, loaded: Loaded, name: str) -> Generator[None]:
    """Within the block, a tool or prompt of a server that cannot be used is not just unknown.

    Raises:
        ConfigError: What is written about its server cannot be used, or is not trusted.
    """
    try:
        yield
    except UnknownName:
        naming = loaded.settings.naming
        if live.runs(loaded) and naming is not Naming.BARE:
            for held, pending in loaded.held.items():
                if likely_owners(name, [held], naming):
                    raise pending.refusal() from None
            for broken, problems in loaded.broken.items():
                if likely_owners(name, [broken], naming):
                    raise ConfigError(line(problems[0]), hint=problems[0].hint) from None
        raise


def nobody_serves() -> Exit:
    """Say that there is no gateway, where a command is of no use without one."""
    complain(
        "no gateway is serving this configuration",
        "`multitap serve --http 3000` starts one; `--live PID` asks one with other files",
    )
    return Exit.UNAVAILABLE
