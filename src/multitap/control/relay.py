"""Relays one client's pipes to the background gateway, and recovers when that one goes.

It is what clients start, so there are many: it has no event loop and imports no hub. It forwards
whole lines, and knows of each only what recovery needs. If the gateway dies, requests in progress
are answered with an error, and the next gateway gets the handshake and the subscriptions again.
"""

import json
import os
import re
import select
import socket
import stat
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count

import msgspec
from msgspec import Raw

from multitap.control.joining import MOVED, PATIENCE, Joined, JoinRequest, join
from multitap.errors import MultitapError

Join = Callable[[], Joined]
"""Joins a gateway, which may have to be started."""

MAX_LINE = 32 * 1024 * 1024
"""Bytes of one message of the client; a longer one is dropped."""
AHEAD = 4 * 1024 * 1024
"""Bytes that may wait to be written to one side before the other one is no longer read."""
LAST_ANSWERS = 3.0
"""Seconds for the last answers after the client has closed its end."""
MOST_LOSSES, LOSS_WINDOW = 8, 60.0
"""Gateways that may be lost within that many seconds before the relay gives up."""

# as much as a pipe holds; malloc maps more than 128 KiB anew for each read, which costs 14 µs
_CHUNK = 64 * 1024
_LOST = -32000  # the first of the codes that JSON-RPC leaves to servers
_INVALID = -32600  # "Invalid Request" of JSON-RPC
_HEAD = re.compile(rb'\{"jsonrpc":"2\.0","id":(-?\d+|"(?:[^"\\]|\\.)*"),"(result|error|method)":')
_OWN = b'"multitap-relay-'
_LISTS = ("tools", "resources", "prompts")
_WAITS_ONCE = frozenset({"subscriptions/listen"})
"""Requests that the next gateway gets again: they only listen."""


class _Message(msgspec.Struct):
    id: Raw = Raw(b"")
    method: str = ""
    params: Raw = Raw(b"")


class _Cancelled(msgspec.Struct):
    requestId: Raw = Raw(b"")  # noqa: N815 - the wire's spelling


class _Subscription(msgspec.Struct):
    uri: str = ""


_read_message = msgspec.json.Decoder(_Message).decode
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Output:
    """Bytes on their way out of a descriptor that does not block."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._waiting: deque[bytes] = deque()
        self.size = 0

    def write(self, data: bytes) -> None:
        """Write, or keep what cannot be written yet.

        Raises:
            OSError: Nobody reads it any more.
        """
        # in order: what came first is written first
        if not self._waiting:
            data = data[self._put(data) :]
        if data:
            self._waiting.append(data)
            self.size += len(data)

    def withdraw(self, data: bytes) -> bool:
        """Drop what was to be written; returns whether none of it was."""
        if data not in self._waiting:  # the rest of what was begun is another one
            return False
        self._waiting.remove(data)
        self.size -= len(data)
        return True

    def flush(self) -> None:
        while self._waiting:
            data = self._waiting.popleft()
            written = self._put(data)
            self.size -= written
            if written < len(data):
                self._waiting.appendleft(data[written:])
                return

    def _put(self, data: bytes) -> int:
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0


class _Lines:
    """The complete lines of received bytes."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self.has_dropped = False
        """Whether the rest of the current line is dropped, because it is over the limit."""

    def feed(self, data: bytes) -> list[bytes]:
        if self.has_dropped:
            # the next line may be a good one
            _, end, data = data.partition(b"\n")
            if not end:
                return []
            self.has_dropped = False
        *lines, rest = data.split(b"\n")
        if lines and self._parts:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts.clear()
            self._size = 0
        if rest:
            # joined once the line is complete: a message of many chunks would be copied for each
            self._parts.append(rest)
            self._size += len(rest)
            if self._limit is not None and self._size > self._limit:
                self._parts.clear()
                self._size = 0
                self.has_dropped = True
        return lines


class _Gateway:
    """One connection to a gateway, and the requests that it works on."""

    def __init__(self, joined: Joined) -> None:
        self.connection = joined.connection
        self.connection.setblocking(False)
        self.fd = self.connection.fileno()
        self.lines = _Lines()
        self.output = _Output(self.fd)
        self.pending: dict[bytes, tuple[str, bytes]] = {}
        """The client's requests in progress, by id: their method and line."""
        self.is_leaving = False
        """Whether it only finishes what it has."""

    def close(self) -> None:
        self.connection.close()


class PipeRelay:
    """Between a client's pipes and a gateway."""

    def __init__(self, source: int, target: int, joined: Joined, join_again: Join) -> None:
        self._source = source
        self._join_again = join_again
        self._client = _Output(target)
        self._lines = _Lines(MAX_LINE)
        self._poll = select.poll()
        self._gateways: dict[int, _Gateway] = {}
        self._current: _Gateway | None = None
        self._asked: dict[bytes, _Gateway] = {}
        """Who asked the client, by the id of the question."""
        self._handshake: list[bytes] = []
        """What the next gateway has to know: the handshake, the log level."""
        self._level = b""
        self._followed: dict[str, bytes] = {}
        self._listening: dict[bytes, tuple[str, bytes]] = {}
        """Requests that only listen, whose gateway has left."""
        self._ids = count(1)
        self._losses: deque[float] = deque(maxlen=MOST_LOSSES)
        self._ends_at: float | None = None
        self._use(joined)

    def run(self) -> None:
        """Relay until the client closes its end.

        Raises:
            MultitapError: There is no gateway any more, and none can be started.
        """
        while self._ends_at is None or (self._gateways and time.monotonic() < self._ends_at):
            for fd, events in self._wait():
                if fd == self._source:
                    self._read_client()
                elif fd == self._client.fd and fd not in self._gateways:
                    if events & (select.POLLERR | select.POLLHUP) and not events & select.POLLOUT:
                        return  # nobody reads our answers
                    self._client.flush()
                elif (gateway := self._gateways.get(fd)) is not None:
                    if events & select.POLLOUT:
                        self._flush(gateway)
                    if events & ~select.POLLOUT:
                        self._read_gateway(gateway)

    def _wait(self) -> list[tuple[int, int]]:
        poll = self._poll = select.poll()
        # a client that does not read must not fill our memory: then the gateway has to wait
        is_full = self._client.size > AHEAD
        for fd, gateway in self._gateways.items():
            reading = 0 if is_full else select.POLLIN
            poll.register(fd, reading | (select.POLLOUT if gateway.output.size else 0))
        current = self._current
        if self._ends_at is None and (current is None or current.output.size <= AHEAD):
            poll.register(self._source, select.POLLIN)
        # also if there is nothing to write: this is how we notice that the client is gone
        if self._client.fd != self._source:
            poll.register(self._client.fd, select.POLLOUT if self._client.size else 0)
        timeout = None if self._ends_at is None else max(self._ends_at - time.monotonic(), 0) * 1000
        return poll.poll(timeout)

    def _read_client(self) -> None:
        data = os.read(self._source, _CHUNK)
        if not data:
            self._end()
            return
        was_dropping = self._lines.has_dropped
        for line in self._lines.feed(data):
            if line.strip():
                self._take(line)
        if self._lines.has_dropped and not was_dropping:
            self._refuse(b"null", f"a message has at most {MAX_LINE} bytes", code=_INVALID)

    def _end(self) -> None:
        """Let the gateways give their last answers."""
        self._ends_at = time.monotonic() + LAST_ANSWERS
        for gateway in tuple(self._gateways.values()):
            if gateway.output.size:
                # nothing is left to do but to hand over what the client said last
                gateway.connection.setblocking(True)
                self._flush(gateway)
            try:
                gateway.connection.shutdown(socket.SHUT_WR)
            except OSError:
                self._lose(gateway)

    def _take(self, line: bytes) -> None:
        """Send a line of the client to the gateway that it concerns."""
        try:
            message = _read_message(line)
        except _UNREADABLE:
            self._send(self._now(), line)  # the gateway says what is wrong with it
            return
        key = bytes(message.id)
        if not message.method:
            # a gateway that is leaving may still wait for this answer
            asker = self._asked.pop(key) if key in self._asked else self._now()
            self._send(asker, line)
        elif not key:
            if message.method != "notifications/cancelled":
                self._send(self._now(), line)
            elif (gateway := self._gateway_of(message)) is not None:
                self._send(gateway, line)
            if message.method == "notifications/initialized":
                self._handshake.append(line)
        else:
            gateway = self._now()
            if key not in gateway.pending:  # else the gateway refuses it
                gateway.pending[key] = message.method, line
                self._remember(message, line)
            self._send(gateway, line)

    def _gateway_of(self, cancellation: _Message) -> _Gateway | None:
        """The gateway of a request that is cancelled; None if it has not been sent, and is not."""
        try:
            key = bytes(msgspec.json.decode(cancellation.params, type=_Cancelled).requestId)
        except _UNREADABLE:
            return self._now()
        for gateway in self._gateways.values():
            if key in gateway.pending:
                # a cancelled request gets no answer
                _, line = gateway.pending.pop(key)
                return None if gateway.output.withdraw(line + b"\n") else gateway
        return self._now()

    def _remember(self, message: _Message, line: bytes) -> None:
        match message.method:
            case "initialize":
                self._handshake = [line]
            case "logging/setLevel":
                self._level = line
            case "resources/subscribe" | "resources/unsubscribe":
                try:
                    uri = msgspec.json.decode(message.params, type=_Subscription).uri
                except _UNREADABLE:
                    return
                if message.method == "resources/subscribe":
                    self._followed[uri] = line
                else:
                    self._followed.pop(uri, None)
            case _:
                pass

    def _now(self) -> _Gateway:
        """The gateway for a new message; joined again if it has left."""
        if self._current is None:
            self._use(self._join_again())
            self._repeat()
        assert self._current is not None  # noqa: S101 - `_use` sets it
        return self._current

    def _use(self, joined: Joined) -> None:
        gateway = self._current = _Gateway(joined)
        self._gateways[gateway.fd] = gateway
        if joined.rest:
            self._from_gateway(gateway, joined.rest)

    def _repeat(self) -> None:
        """Tell a new gateway what the last one knew about the client."""
        gateway = self._current
        if gateway is None:
            return
        gateway.pending |= self._listening
        for _, line in self._listening.values():
            self._send(gateway, line)
        self._listening.clear()
        if not self._handshake:
            return
        # under another id, because the client has its answer to that one
        first, *others = self._handshake
        self._send(gateway, self._renamed(first))
        for line in others:
            self._send(gateway, line)
        for line in filter(None, (self._level, *self._followed.values())):
            self._send(gateway, self._renamed(line))
        # it may offer something else
        for kind in _LISTS:
            self._say({"method": f"notifications/{kind}/list_changed"})

    def _renamed(self, line: bytes) -> bytes:
        """A request under an id of ours, whose answer the client does not get."""
        message = json.loads(line)
        message["id"] = f"multitap-relay-{next(self._ids)}"
        return json.dumps(message).encode()

    def _send(self, gateway: _Gateway, line: bytes) -> None:
        with suppress(OSError):  # reading from it shows that it is gone
            gateway.output.write(line + b"\n")

    def _flush(self, gateway: _Gateway) -> None:
        try:
            gateway.output.flush()
        except OSError:
            self._lose(gateway)

    def _read_gateway(self, gateway: _Gateway) -> None:
        try:
            data = gateway.connection.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._from_gateway(gateway, data)
        else:
            self._lose(gateway)

    def _from_gateway(self, gateway: _Gateway, data: bytes) -> None:
        # together: one write for all lines that have come
        answers: list[bytes] = []
        for line in gateway.lines.feed(data):
            if line.startswith(b"!"):
                self._leave(gateway, line)
                continue
            head = _HEAD.match(line)
            if head is not None:
                key = head[1]
                # the same id may be a question of a gateway, or an answer to the client
                if head[2] == b"method":
                    self._asked[key] = gateway
                elif key.startswith(_OWN):
                    continue
                else:
                    gateway.pending.pop(key, None)
            answers.append(line)
        if answers:
            answers.append(b"")
            self._client.write(b"\n".join(answers))
        if gateway.is_leaving and not gateway.pending and gateway.fd in self._gateways:
            self._drop(gateway)

    def _leave(self, gateway: _Gateway, order: bytes) -> None:
        """Handle that a gateway takes nothing new."""
        # what it works on, it finishes; the next message goes to another one
        gateway.is_leaving = True
        self._keep_listening(gateway)
        if gateway is self._current:
            self._current = None
            if order == MOVED and self._ends_at is None:
                self._now()

    def _keep_listening(self, gateway: _Gateway) -> None:
        """Keep the requests that only listen for the next gateway."""
        for key, (method, line) in tuple(gateway.pending.items()):
            if method in _WAITS_ONCE:
                del gateway.pending[key]
                self._listening[key] = method, line

    def _lose(self, gateway: _Gateway) -> None:
        """Answer what a gateway can no longer answer, and join the next one."""
        self._drop(gateway)
        self._keep_listening(gateway)
        for key in gateway.pending:
            self._refuse(key, "the gateway stopped during the request, which may have run")
        if gateway is not self._current:
            return
        self._current = None
        if self._ends_at is not None:
            return
        now = time.monotonic()
        # one that cannot run here would be started again and again, for ever
        if len(self._losses) == MOST_LOSSES and now - self._losses[0] < LOSS_WINDOW:
            raise MultitapError(
                f"the background gateway was lost {MOST_LOSSES} times within a minute",
                hint="`multitap serve --alone` does without it",
            )
        self._losses.append(now)
        self._now()

    def _drop(self, gateway: _Gateway) -> None:
        if self._gateways.pop(gateway.fd, None) is not None:
            gateway.close()
        for key in [key for key, asker in self._asked.items() if asker is gateway]:
            del self._asked[key]

    def _refuse(self, key: bytes, reason: str, *, code: int = _LOST) -> None:
        error = {"code": code, "message": reason}
        self._say({"id": Raw(key), "error": error})

    def _say(self, message: dict[str, object]) -> None:
        self._client.write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")


def relay(request: JoinRequest, joined: Joined) -> None:
    """Relay standard input and output to a gateway until the client closes them.

    Raises:
        MultitapError: The gateway is lost, and no other can be started.
    """

    def join_again() -> Joined:
        again = join(request, starts=True, patience=PATIENCE)
        assert again is not None  # noqa: S101 - it is started
        return again

    is_blocking = os.get_blocking(1)
    # a loop that waits to write must still read; files and terminals are always ready
    mode = os.fstat(1).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        os.set_blocking(1, False)
    try:
        PipeRelay(0, 1, joined, join_again).run()
    except BrokenPipeError:
        pass  # the client is gone
    finally:
        os.set_blocking(1, is_blocking)
