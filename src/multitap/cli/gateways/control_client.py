"""Questions to a running gateway over its control socket, and the answers."""

import socket
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from multitap.errors import MultitapError
from multitap.gateway.fronts import control_messages as protocol
from multitap.gateway.fronts.control_answers import content, decode_answer
from multitap.gateway.fronts.control_secret import prove
from multitap.records import dataclass

FIRST = 2.0
"""Seconds for a gateway to say who it is."""
PATIENCE = 40.0
"""Seconds for any other answer: more than `control_service.WORK`, so that a gateway can say why."""
MAX_ANSWER = 256 * 1024 * 1024
"""Bytes of an answer; a longer one counts as no answer."""

OnStep = Callable[[float, float | None, str | None], None]
"""Called with the progress of a call."""
OnQuestion = Callable[[protocol.ServerQuestion], protocol.CommandReply]
"""Answers a server's question during a call."""

_CHUNK = 256 * 1024  # bytes per read, for results of megabytes
_WITHOUT = "use `--no-live` if the command has it"
_Said = TypeVar("_Said")


@dataclass(frozen=True, slots=True)
class ControlClient:
    """Asks one gateway, with a connection for each question."""

    path: Path
    words: str

    def ask(self, question: protocol.Question, kind: type[_Said], wait: float = PATIENCE) -> _Said:
        """The answer to a question that involves no server.

        Raises:
            MultitapError: The gateway does not answer, or answers with an error.
        """
        with closing(self._open(question)) as lines:
            return content(self._heard(lines, wait), kind)

    def carry_out(
        self,
        action: protocol.GatewayAction,
        kind: type[_Said],
        on_step: OnStep | None = None,
        on_question: OnQuestion | None = None,
    ) -> tuple[_Said, bytes]:
        """The result of an action that involves a server.

        Raises:
            MultitapError: The gateway does not answer, or answers with an error.
        """
        with closing(self._open(action)) as lines:
            while (answer := self._heard(lines, PATIENCE)).more:
                # the gateway waits for this reply before the call can end
                if answer.question is not None and on_question is not None:
                    self._reply(lines, on_question(answer.question))
                elif on_step is not None and bytes(answer.ok) != b"null":
                    step = decode_answer(answer.ok, protocol.ProgressStep)
                    on_step(step.done, step.total, step.message)
            said = content(answer, kind)
            if not isinstance(said, protocol.Delivery):
                return said, b""
            try:
                return said, lines.take(said.size, PATIENCE)
            except OSError as exc:
                raise self._silent(exc) from None

    @contextmanager
    def follow(
        self, question: protocol.Question, kind: type[_Said]
    ) -> Generator["EventFollower[_Said]"]:
        """Within the block, receive events as they happen."""
        with closing(self._open(question)) as lines:
            content(self._heard(lines, FIRST), protocol.About)
            yield EventFollower(lines, kind)

    def _open(self, question: protocol.Question) -> "_Lines":
        try:
            return _lines(self.path, question)
        except OSError as exc:
            raise self._silent(exc) from None

    def _heard(self, lines: "_Lines", wait: float) -> protocol.ControlAnswer:
        try:
            return decode_answer(lines.next(wait), protocol.ControlAnswer)
        except OSError as exc:
            raise self._silent(exc) from None

    def _reply(self, lines: "_Lines", reply: protocol.CommandReply) -> None:
        try:
            lines.send(msgspec.json.encode(reply) + b"\n")
        except OSError as exc:
            raise self._silent(exc) from None

    def _silent(self, exc: OSError) -> MultitapError:
        return MultitapError(f"{self.words} does not answer: {exc}", hint=_WITHOUT)


def ask_about(path: Path, words: str) -> protocol.About:
    """Ask which gateway has a socket.

    Raises:
        MultitapError: It does not answer.
    """
    return ControlClient(path, words).ask(protocol.AskAbout(), protocol.About, FIRST)


class EventFollower(Generic[_Said]):
    """Events of a gateway, as they happen."""

    def __init__(self, lines: "_Lines", kind: type[_Said]) -> None:
        self._lines = lines
        self._kind = kind
        self.ended = False
        """Whether the gateway has stopped."""

    def within(self, seconds: float) -> Generator[_Said]:
        """The events of the next `seconds`."""
        deadline = time.monotonic() + seconds
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            try:
                yield content(
                    decode_answer(self._lines.next(left), protocol.ControlAnswer), self._kind
                )
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
        """Send a line.

        Raises:
            OSError: The other side has closed, or does not read.
        """
        self._connection.settimeout(FIRST)
        self._connection.sendall(line)

    def next(self, wait: float) -> bytes:
        """One line.

        Raises:
            OSError: The other side has closed, or sends nothing for too long.
        """
        deadline = time.monotonic() + wait
        # searched from the end of the last search: large answers come in hundreds of chunks
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
            OSError: The other side has closed, or sends nothing for too long.
        """
        if size > MAX_ANSWER:
            raise ConnectionError("its answer is too long")
        while len(self._waiting) < size:
            # the timeout restarts with each chunk: a long result may take long while it arrives
            self._receive(time.monotonic() + wait)
        taken = bytes(self._waiting[:size])
        del self._waiting[:size]
        return taken

    def _receive(self, deadline: float) -> None:
        # 0 would make the socket non-blocking
        self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
        received = self._connection.recv(_CHUNK)
        if not received:
            raise ConnectionResetError("it has ended")
        self._waiting += received


def _lines(path: Path, question: protocol.Question) -> _Lines:
    """The lines that answer a question; the caller closes them."""
    line = msgspec.json.encode(question) + b"\n"
    # checked here to give a hint; the gateway would only close the connection
    if len(line) > protocol.MAX_QUESTION:
        raise MultitapError(
            f"a gateway takes at most {protocol.MAX_QUESTION} bytes from a command", hint=_WITHOUT
        )
    proof = prove(path)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(FIRST)
        connection.connect(str(path))
        connection.sendall(proof + b"\n" + line)
    except OSError:
        connection.close()
        raise
    return _Lines(connection)
