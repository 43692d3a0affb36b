"""The messages between replicas, and between hubs of one process."""

from typing import Protocol

import msgspec

from multitap.wire.request import Deadline, Request

PROTOCOL = 1
"""Replicas with the same protocol work together; unknown messages are ignored."""
NO_CALL, SEVERAL_CALLS = -1, -2
"""In place of a request number: a server's message belongs to no call, or to one of several."""


# By position: the names of fields would be most of a small message. A tag is never used again,
# since replicas of two versions work together during a roll-out.
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
    message: str
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
