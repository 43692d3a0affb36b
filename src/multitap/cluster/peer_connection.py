"""Connections between replicas, and the messages on them."""

import asyncio
import hashlib
import hmac
import logging
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from multitap.wire.request import Deadline, Request

PROTOCOL = 1
"""Replicas with the same protocol work together; unknown messages are ignored."""
NO_CALL, SEVERAL_CALLS = -1, -2
"""In place of a request number: a server's message belongs to no call, or to one of several."""


class Greeting(msgspec.Struct, array_like=True, tag=0):
    """The first message on a connection, each way."""

    protocol: int
    replica: str


class Open(msgspec.Struct, array_like=True, tag=1):
    """Open a wire to a server of the receiver."""

    wire: int
    server: str


class Ask(msgspec.Struct, array_like=True, tag=2):
    """A request to the server; see `Request`."""

    wire: int
    number: int
    method: str
    params: bytes | None
    meta: bytes
    stamp: bytes
    name: str | None
    timeout: float | None
    hard_timeout: float | None
    left: float
    """Seconds until its deadline: relative, because clocks of two machines may differ."""
    latest: float
    """Seconds until its hard limit."""
    owner: int
    """Identifies the owner of the call; -1: none."""
    holder: int
    """Identifies the slot holder; -1: the replica itself."""
    repeatable: bool = False
    cancellable: bool = True

    @classmethod
    def of(cls, wire: int, number: int, request: Request, *, now: float, owner: int) -> "Ask":
        deadline, holder = request.deadline, request.slot_holder
        return cls(
            wire,
            number,
            request.method,
            request.params,
            request.meta,
            request.stamp,
            request.name,
            deadline.timeout,
            deadline.hard_timeout,
            deadline.at - now,
            deadline.latest - now,
            owner,
            -1 if holder is None else id(holder),
            request.repeatable,
            request.cancellable,
        )

    def deadline(self, now: float) -> Deadline:
        return Deadline(self.timeout, self.hard_timeout, now + self.latest, now + self.left)


class Cancel(msgspec.Struct, array_like=True, tag=3):
    """Cancels a request."""

    wire: int
    number: int


class Tell(msgspec.Struct, array_like=True, tag=4):
    """A notification to the server."""

    wire: int
    method: str
    params: bytes


class PeerAnswer(msgspec.Struct, array_like=True, tag=5):
    wire: int
    number: int
    result: bytes


class Failed(msgspec.Struct, array_like=True, tag=6):
    """The error of a request."""

    wire: int
    number: int
    kind: str
    """`rpc`, the name of a public error, or `unsent`: it provably never reached the server."""
    words: str
    hint: str | None = None
    code: int = 0
    data: bytes = b""


class Progress(msgspec.Struct, array_like=True, tag=7):
    wire: int
    number: int
    progress: float
    total: float | None
    message: str | None


class News(msgspec.Struct, array_like=True, tag=8):
    """A notification from the server, and the request it belongs to."""

    wire: int
    number: int
    method: str
    params: bytes


class PeerQuestion(msgspec.Struct, array_like=True, tag=9):
    """A request from the server."""

    wire: int
    question: int
    number: int
    method: str
    params: bytes


class PeerReply(msgspec.Struct, array_like=True, tag=10):
    """The client's answer to a question, as a JSON-RPC message."""

    wire: int
    question: int
    message: bytes


class Withdraw(msgspec.Struct, array_like=True, tag=11):
    """Cancels a question of the server."""

    wire: int
    question: int


class Close(msgspec.Struct, array_like=True, tag=12):
    """Closes the wire."""

    wire: int
    reason: str


class Leave(msgspec.Struct, array_like=True, tag=13):
    """The owner finishes the requests of this wire, and begins no more."""

    wire: int


PeerMessage = (
    Greeting
    | Open
    | Ask
    | Cancel
    | Tell
    | PeerAnswer
    | Failed
    | Progress
    | News
    | PeerQuestion
    | PeerReply
    | Withdraw
    | Close
    | Leave
)

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_parse = msgspec.msgpack.Decoder(PeerMessage).decode
_parse_all = msgspec.msgpack.Decoder(list[PeerMessage]).decode


def messages(batch: bytes) -> list[PeerMessage]:
    """All messages of a batch that this version knows.

    Raises:
        msgspec.DecodeError: It is not a batch.
    """
    try:
        # in one step, which nearly always works; an unknown message fails the whole batch
        return _parse_all(batch)
    except msgspec.ValidationError:
        return [message for raw in _decode(batch) if (message := _decode_known(raw)) is not None]


def _decode_known(raw: msgspec.Raw) -> PeerMessage | None:
    try:
        message: PeerMessage = _parse(raw)
    except msgspec.ValidationError:
        return None  # a message of a newer version
    return message


logger = logging.getLogger(__name__)

_MAGIC = b"multitap-peer-1\n"
_NONCE = 32
_HEAD = 4
_TAG = 16
_MOST = 256 * 1024 * 1024  # bytes of a sealed batch: a result may be as long as `limits.message`
_FIRST = 4096  # bytes of the first one, before the other side is authenticated
_BACKLOG = 64 * 1024 * 1024  # unsent bytes above which no more requests are sent
_BATCH = 1024 * 1024  # bytes of requests above which a batch is sealed
PATIENCE = 3.0
"""Seconds for the other side to authenticate."""


class _Transport(Protocol):
    """The part of a transport that is used; those of uvloop are not subclasses of asyncio's."""

    def write(self, data: bytes, /) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class PeerLine(Protocol):
    """Carries messages to another replica, or to another hub of this process."""

    @property
    def peer(self) -> str | None:
        """The other side's id."""
        ...

    @property
    def is_congested(self) -> bool: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def reason(self) -> str:
        """Why it is closed."""
        ...

    def send(self, message: PeerMessage) -> None: ...

    def withdraw(self, message: PeerMessage) -> bool: ...


class PeerConnection(asyncio.Protocol):
    """See the module.

    Args:
        key: The cluster's key.
        replica: Our id.
        is_caller: Whether we opened the connection.
        on_message: Called with each message; must not block or raise.
        on_close: Called once, when the connection is closed.
    """

    def __init__(
        self,
        key: bytes,
        replica: str,
        *,
        is_caller: bool,
        on_message: Callable[["PeerConnection", PeerMessage], None],
        on_close: Callable[["PeerConnection"], None],
    ) -> None:
        self.peer: str | None = None
        """The other side's id, once it is authenticated."""
        self.reason = "the other replica closed the connection"
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        """Done once the other side is authenticated."""
        self.is_closed = False
        self._key = key
        self._replica = replica
        self._is_caller = is_caller
        self._on_message = on_message
        self._on_close = on_close
        self._transport: _Transport | None = None
        self._ours = os.urandom(_NONCE)
        self._received = bytearray()
        self._sealing: AESGCM | None = None
        self._opening: AESGCM | None = None
        self._sent = self._opened = 0
        self._batch: OrderedDict[int, PeerMessage] = OrderedDict()
        """Messages that are not sealed yet, by object; while the other side does not read, these
        wait here, where a request can still be withdrawn."""
        self._full = False
        self._unsent = 0
        """The bytes of requests in the batch."""
        # from the start: a silent peer must not occupy a place
        self._timer = self._loop.call_later(PATIENCE, self._too_late)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment] # pyright: ignore[reportAttributeAccessIssue] - uvloop's is not a subclass
        if self.is_closed:
            # refused before it began: nothing must be sent to a connection that is not read
            transport.close()
            return
        self._write(_MAGIC + self._ours)

    @property
    def is_congested(self) -> bool:
        """Whether too much is unsent, because the other side does not read."""
        return self._unsent > _BACKLOG

    def send(self, message: PeerMessage) -> None:
        """Send a message, in one batch with others of this turn of the loop; dropped if closed."""
        # no await and no lock: callers are callbacks as often as tasks. Sealing costs about the
        # same for one message as for many, so those of one turn travel together.
        self._batch[id(message)] = message
        self._unsent += _size(message)
        if len(self._batch) == 1:
            self._loop.call_soon(self._flush)

    def withdraw(self, message: PeerMessage) -> bool:
        """Drop a message that is not sent yet; returns whether it was not."""
        if self._batch.pop(id(message), None) is None:
            return False
        self._unsent -= _size(message)
        return True

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._flush()

    def close(self, reason: str) -> None:
        """End it now."""
        if not self.is_closed:
            self.reason = reason
            # what was sent in this turn is still in the batch
            self._full = False
            self._flush()
            if self._transport is not None:
                self._transport.close()
            self._over()

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        self._received += data
        try:
            if self._opening is None:
                self._on_greeting()
            while self._opening is not None and not self.is_closed and self._open_next():
                pass
        except (InvalidTag, msgspec.DecodeError, ValueError) as exc:
            self._refuse(
                "it has a different cluster key"
                if isinstance(exc, InvalidTag)
                else f"it does not speak the replica protocol: {exc}"
            )

    def eof_received(self) -> None:
        """Close the connection: the other side sends nothing more."""

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self.reason = f"the connection to the other replica broke: {exc}"
        self._over()

    def _on_greeting(self) -> None:
        size = len(_MAGIC) + _NONCE
        if not _MAGIC.startswith(bytes(self._received[: len(_MAGIC)])):
            raise ValueError("no greeting")
        if len(self._received) < size:
            return
        theirs = bytes(self._received[len(_MAGIC) : size])
        del self._received[:size]
        # both numbers go into both keys, in the same order on both sides: keys are new for each
        # connection, and so a counter may serve as the nonce
        caller, called = (self._ours, theirs) if self._is_caller else (theirs, self._ours)
        keys = [
            AESGCM(hmac.digest(self._key, way + caller + called, hashlib.sha256))
            for way in (b"from caller", b"to caller")
        ]
        self._sealing, self._opening = keys if self._is_caller else reversed(keys)
        self.send(Greeting(PROTOCOL, self._replica))

    def _open_next(self) -> bool:
        received = self._received
        if len(received) < _HEAD:
            return False
        size = int.from_bytes(received[:_HEAD])
        if not _TAG <= size <= (_FIRST if self.peer is None else _MOST):
            raise ValueError(f"a batch of {size:,} bytes")
        if len(received) < _HEAD + size or self._opening is None:
            return False
        sealed = bytes(received[_HEAD : _HEAD + size])
        del received[: _HEAD + size]
        # the counter is not sent: a dropped or repeated batch cannot be decrypted
        batch = self._opening.decrypt(self._opened.to_bytes(12), sealed, None)
        self._opened += 1
        for message in messages(batch):
            if isinstance(message, Greeting):
                self._prove(message)
            # messages before the greeting are not accepted, even with the right key
            elif self.peer is not None:
                self._on_message(self, message)
        return True

    def _prove(self, greeting: Greeting) -> None:
        if greeting.protocol != PROTOCOL:
            raise ValueError(f"it speaks protocol {greeting.protocol}, not {PROTOCOL}")
        self.peer = greeting.replica
        self._timer.cancel()
        if not self.ready.done():
            self.ready.set_result(None)

    def _flush(self) -> None:
        # without a key, pending messages are sent with the greeting
        while self._batch and self._sealing is not None and not (self.is_closed or self._full):
            batch: list[PeerMessage] = []
            size = 0
            while self._batch and size <= _BATCH:
                _, message = self._batch.popitem(last=False)
                size += _size(message)
                batch.append(message)
            self._unsent -= size
            sealed = self._sealing.encrypt(self._sent.to_bytes(12), encode(batch), None)
            self._sent += 1
            self._write(len(sealed).to_bytes(_HEAD) + sealed)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _too_late(self) -> None:
        self._refuse(f"it did not authenticate within {PATIENCE:g} s")

    def _refuse(self, reason: str) -> None:
        logger.warning("a connection to another replica is closed: %s", reason)
        self.reason = reason
        if self._transport is not None:
            self._transport.abort()
        self._over()

    def _over(self) -> None:
        # reached twice: when we close it, and again when the transport reports its loss
        if self.is_closed:
            return
        self.is_closed = True
        self._timer.cancel()
        if not self.ready.done():
            self.ready.set_exception(ConnectionError(self.reason))
            self.ready.exception()  # retrieved, or asyncio warns about it
        self._on_close(self)


def _size(message: PeerMessage) -> int:
    """The bytes of a request; other messages are answers to what was bounded by its sender."""
    return len(message.params) if isinstance(message, Ask) and message.params else 0
