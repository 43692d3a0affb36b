"""The interface of all wires, and how they fail."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Raw

from multitap.faults import WireFault
from multitap.records import dataclass

if TYPE_CHECKING:
    from multitap.wire.jsonrpc.request import Request

Params = Mapping[str, Any]
"""Parameters of a message; any value may be a `Raw`, already encoded."""

OnProgress = Callable[[float, float | None, str | None], None]
"""Called with a call's progress: how far, of how much, in what words. Must not block."""

SEVERAL = object()
"""Stands for the call that something belongs to, where it may be any of several."""

INBOUND_REQUESTS = 32
"""Requests of one server that we answer at the same time; more are refused at once."""


LONG = frozenset({"tools/call", "resources/read", "prompts/get"})
"""Requests that may take long: the server is always asked for progress, which gives it time."""


class OwnedCall:
    """A call that says who made it."""

    __slots__ = ()

    @property
    def owner(self) -> object:
        """Whom a server may tell or ask with any of the calls that they made."""
        return self


def owner_of(call: object) -> object:
    """Who made a call; each that does not say so is somebody else's."""
    return call.owner if isinstance(call, OwnedCall) else call


class RpcError(Exception):
    """The server answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class Inbound(Protocol):
    """Receives what the server says unasked."""

    def on_unaddressed(self) -> None:
        """Learn that the server asks or logs in the middle of calls without saying of which."""
        ...

    def notification(self, method: str, params: Raw, call: object | None) -> None:
        """Take one notification, in the order of arrival; must not block or raise.

        Args:
            method: What it tells of.
            params: Undecoded.
            call: The `Request.call` it belongs to; `SEVERAL` where that is
                not certain, None where it belongs to none.
        """
        ...

    async def request(self, method: str, params: Raw, call: object | None) -> Any:
        """Answer a request of the server.

        Args:
            method: What it asks for.
            params: Undecoded; empty where the server sent none.
            call: The `Request.call` it belongs to; `SEVERAL` where that is
                not certain, None where it belongs to none.

        Raises:
            RpcError: Sent to the server as the answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about a server's condition, for the words of a failure."""

    pid: int | None = None
    exit_code: int | None = None
    """Negative: the signal that ended it."""
    stderr: str = ""
    """Its last lines."""
    has_read: bool = True
    """Whether it has read anything we wrote, if that can be known."""
    is_confined: bool = False
    """Whether it runs in a sandbox."""
    noise: int = 0
    """How many lines or events were no JSON-RPC message."""
    noise_sample: str = ""
    """One of them, shortened."""


class Wire(Protocol):
    """Messages to and from one server, however they travel.

    A wire is entered and left by the task that owns the link; everybody may call its methods.
    """

    @property
    def kind(self) -> str:
        """`stdio`, `streamable-http`, `sse`, `local` or `cluster`."""
        ...

    @property
    def closed(self) -> asyncio.Event:
        """Set once no more messages can travel."""
        ...

    @property
    def fault(self) -> WireFault | None:
        """Why it closed, where somebody else closed it."""
        ...

    def attach(self, inbound: Inbound) -> None:
        """Say who listens; before the first request."""
        ...

    async def request(self, request: "Request") -> Raw:
        """Ask the server and return its result, undecoded.

        Raises:
            RpcError: The server answered with an error.
            WireFault: There is no usable answer.
        """
        ...

    async def notify(
        self, method: str, params: Params | None, *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Tell the server something; dropped silently when the wire is closed."""
        ...

    def establish(self, protocol_version: str, *, stateless: bool) -> None:
        """Say what was negotiated: old-era HTTP opens its listening stream now."""
        ...

    def serves_only(self, owner: object) -> bool:
        """Whether no call of anybody else is under way."""
        ...

    def is_stopped(self) -> bool:
        """Whether the server is there but stopped, as by SIGSTOP, which no message shows."""
        ...

    def evidence(self) -> Evidence:
        """What is known about the server's condition at this moment."""
        ...
