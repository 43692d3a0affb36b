"""Gateways that run right now, as commands speak to them."""

import socket
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Raw

from multitap.cli.asked import Asked
from multitap.cli.configured import state_directory
from multitap.cli.exits import Exit
from multitap.cli.output import complain, note
from multitap.cli.problems import line
from multitap.config import Loaded
from multitap.errors import (
    BadArguments,
    ConfigError,
    MultitapError,
    Unavailable,
    UnknownName,
)
from multitap.names import Naming, likely_owners
from multitap.records import dataclass
from multitap.serve.control_place import sockets
from multitap.serve.control_words import (
    MAX_QUESTION,
    About,
    Answer,
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
    Delivery,
    Errand,
    Figures,
    Picture,
    PromptLine,
    Question,
    ReloadReport,
    ResourceLine,
    Step,
    ToolLine,
    files_of,
)

if TYPE_CHECKING:
    from multitap.store.logs import Happening

FIRST = 2.0
"""Seconds for a gateway to say who it is."""
PATIENCE = 40.0
"""Seconds for any other answer: reading files anew may take a while."""
MAX_ANSWER = 256 * 1024 * 1024

OnStep = Callable[[float, float | None, str | None], None]
"""Told how far a call has come."""

_CHUNK = 256 * 1024
_WITHOUT = "`--no-live` does without it, where a command can"
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
        where = self.about.url or "on the pipes of its client"
        return f"the gateway at pid {self.about.pid} ({where})"

    def picture(self) -> Picture:
        return self._ask(AskPicture(), Picture)

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
        self, name: str, arguments: Mapping[str, Any], timeout: float | None, on_step: OnStep
    ) -> tuple[Delivery, bytes]:
        """Call a tool; leaving before it is done cancels the call."""
        question = AskCall(name, Raw(msgspec.json.encode(arguments)), timeout)
        return self._await(question, Delivery, on_step)

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
    def follow(self, server: str | None) -> Generator["Following"]:
        """Within the block, hear what happens, to one server or to all."""
        with closing(self._opened(AskEvents(server))) as lines:
            self._said(lines, FIRST, About)
            yield Following(lines)

    def _ask(self, question: Question, kind: type[_Said]) -> _Said:
        with closing(self._opened(question)) as lines:
            return self._said(lines, PATIENCE, kind)

    def _await(
        self, errand: Errand, kind: type[_Said], on_step: OnStep | None = None
    ) -> tuple[_Said, bytes]:
        """What comes of something that takes a server's time, and what follows it."""
        with closing(self._opened(errand)) as lines:
            while (answer := self._heard(lines, PATIENCE)).more:
                if on_step is not None and bytes(answer.ok) != b"null":
                    step = _decoded(answer.ok, Step)
                    on_step(step.done, step.total, step.message)
            said = _content(answer, kind)
            if not isinstance(said, Delivery):
                return said, b""
            try:
                return said, lines.take(said.size, PATIENCE)
            except OSError as exc:
                raise self._silent(exc) from None

    def _opened(self, question: Question) -> "_Lines":
        try:
            return _asked(self.path, question)
        except OSError as exc:
            raise self._silent(exc) from None

    def _said(self, lines: "_Lines", wait: float, kind: type[_Said]) -> _Said:
        return _content(self._heard(lines, wait), kind)

    def _heard(self, lines: "_Lines", wait: float) -> Answer:
        try:
            return _decoded(lines.next(wait), Answer)
        except OSError as exc:
            raise self._silent(exc) from None

    def _silent(self, exc: OSError) -> MultitapError:
        return MultitapError(f"{self.words} does not answer: {exc}", hint=_WITHOUT)


class Following:
    """What happens at a gateway, as it comes."""

    def __init__(self, lines: "_Lines") -> None:
        self._lines = lines
        self.ended = False
        """Whether the gateway is gone."""

    def within(self, seconds: float) -> "Generator[Happening]":
        """What happens in the next so many seconds."""
        from multitap.store.logs import Happening  # noqa: PLC0415 - most commands follow nothing

        deadline = time.monotonic() + seconds
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            try:
                yield _content(_decoded(self._lines.next(left), Answer), Happening)
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
        """The next so many bytes.

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


def _asked(path: Path, question: Question) -> _Lines:
    """The lines that answer a question; whoever asks closes them."""
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


def _content(answer: Answer, kind: type[_Said]) -> _Said:
    if answer.error is not None:
        raise _error(answer, answer.error)
    return _decoded(answer.ok, kind)


def _error(answer: Answer, words: str) -> MultitapError:
    """The error of a gateway, such as it would be without one."""
    server, hint = answer.server or "", answer.hint
    match answer.kind:
        case "unknown":
            return UnknownName(words, hint=hint)
        case "arguments":
            return BadArguments(words, path="", hint=hint)
        case "configuration":
            return ConfigError(words, hint=hint)
        case "unavailable" if server:
            return Unavailable(server, words.removeprefix(f"{server}: "), hint=hint)
        case _:
            return MultitapError(words, hint=hint)


def _decoded(data: bytes | Raw, kind: type[_Said]) -> _Said:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as exc:
        raise MultitapError(
            f"the gateway can not be understood: {exc}",
            hint="it may be of another version: start it anew",
        ) from None


def gateways(loaded: Loaded) -> tuple[Live, ...]:
    """All that answer, the one that started last first, after a word on those that do not."""
    found: list[Live] = []
    for pid, path in sockets(state_directory(loaded)).items():
        try:
            with closing(_asked(path, AskAbout())) as lines:
                found.append(Live(_content(_decoded(lines.next(FIRST), Answer), About), path))
        except (OSError, MultitapError) as exc:
            note(f"the gateway at pid {pid} does not answer: {exc}")
    return tuple(sorted(found, key=lambda live: live.about.started, reverse=True))


def matching(asked: Asked, loaded: Loaded) -> tuple[Live, ...]:
    """The gateways that a command is about: the one it names, or all with the same files.

    Raises:
        UnknownName: The one it names does not run.
    """
    if not asked.live:
        return ()
    running = gateways(loaded)
    if asked.pid is None:
        return tuple(live for live in running if live.runs(loaded))
    named = tuple(live for live in running if live.about.pid == asked.pid)
    if not named:
        others = ", ".join(live.words for live in running) or "none at all"
        raise UnknownName(f"no gateway runs at pid {asked.pid}", hint=f"there is {others}")
    return named


def chosen(asked: Asked, loaded: Loaded) -> Live | None:
    """The gateway that a command shows, after a word on which one that is; None: there is none.

    Raises:
        UnknownName: The one that was named does not run.
    """
    found = matching(asked, loaded)
    if not found:
        return None
    first, *others = found
    note(f"of {first.words}")
    if others:
        pids = ", ".join(str(live.about.pid) for live in others)
        note(f"more run with the same files: choose with `--live PID` among {pids}")
    return first


@contextmanager
def explained(live: Live, loaded: Loaded, name: str) -> Generator[None]:
    """Within the block, a tool or prompt of a server that cannot be used is not just unknown.

    Raises:
        ConfigError: What is written about its server cannot be used.
    """
    try:
        yield
    except UnknownName:
        naming = loaded.settings.naming
        if live.runs(loaded) and naming is not Naming.BARE:
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
