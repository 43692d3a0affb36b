"""What a gateway and the process of a script send each other: msgpack, each after its length."""

import struct

import msgspec

LARGEST = 64 * 1024 * 1024
"""Bytes of one message."""
HEAD = struct.Struct(">I")


class ScriptLimits(msgspec.Struct, frozen=True):
    """What a script may use, besides the tools."""

    seconds: float = 5.0
    """Of its own work, without the calls it waits for."""
    memory: int = 100 * 1024 * 1024
    sleep: float = 60.0
    """Seconds in `time.sleep`, in all."""
    depth: int = 200
    """Functions that call each other."""
    calls: int = 500
    output: int = 1024 * 1024
    """Bytes that it prints."""
    sent: int = 4 * 1024 * 1024
    """Bytes of its result, and of the arguments of a call."""


class Run(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Run a script, or go on with one from its state."""

    code: str = ""
    state: bytes = b""
    names: list[str]
    """The functions that it may call."""
    servers: list[str]
    limits: ScriptLimits


class CallAnswer(msgspec.Struct, frozen=True):
    """The result of one call, as JSON; or why there is none."""

    id: int
    result: bytes = b""
    error: str = ""


class CallAnswers(msgspec.Struct, frozen=True, tag=True):
    """The results of all calls that the script waits for."""

    answers: list[CallAnswer]


class Peek(msgspec.Struct, frozen=True, tag=True):
    """Tell which calls of the same tool would follow, if this one returned the sample."""

    sample: bytes
    most: int


class Dump(msgspec.Struct, frozen=True, tag=True):
    """Tell the state of the script, and end it."""


Order = Run | CallAnswers | Peek | Dump


class ScriptCall(msgspec.Struct, frozen=True):
    """One call that a script makes."""

    id: int
    name: str
    arguments: bytes
    """As JSON."""
    line: int


class ScriptCalls(msgspec.Struct, frozen=True, tag=True):
    """The calls that the script waits for, or those that would follow."""

    calls: list[ScriptCall]


class State(msgspec.Struct, frozen=True, tag=True):
    """Everything that another process needs to go on."""

    state: bytes


class ScriptDone(msgspec.Struct, frozen=True, tag=True):
    """The script has ended."""

    printed: str
    result: bytes
    """The value of its last expression, as JSON; `null` if there is none."""


class ScriptFailed(msgspec.Struct, frozen=True, tag=True):
    """The script has failed."""

    printed: str
    reason: str
    line: int = 0


Report = ScriptCalls | State | ScriptDone | ScriptFailed

encode = msgspec.msgpack.encode
_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)
_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
parse_order, parse_report = _orders.decode, _reports.decode


def frame(message: Order | Report) -> bytes:
    """A message as it is sent."""
    body = encode(message)
    return HEAD.pack(len(body)) + body
