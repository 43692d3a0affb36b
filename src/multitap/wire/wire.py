"""The interface of all wires, and how they fail."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec
from msgspec import Raw

from multitap.errors import WireFault

if TYPE_CHECKING:
    from multitap.wire.jsonrpc import Params
    from multitap.wire.request import Request

OnProgress = Callable[[float, float | None, str | None], None]
"""Called with a call's progress: how far, of how much, in what words. Must not block."""

SEVERAL = object()
"""In place of a call: a message may belong to any of several calls."""

INBOUND_REQUESTS = 32
"""Requests of one server that are answered at the same time; further ones are refused."""


LONG = frozenset({"tools/call", "resources/read", "prompts/get"})
"""Requests that may take long: these always ask for progress, which renews the deadline."""


class OwnedCall:
    """A call with an owner."""

    __slots__ = ()

    @property
    def owner(self) -> object:
        """The owner; a server's message may be delivered with any call of the same owner."""
        return self


def owner_of(call: object) -> object:
    """The owner of a call; by default, the call itself."""
    return call.owner if isinstance(call, OwnedCall) else call


class Inbound(Protocol):
    """Receives the server's own messages."""

    def on_unaddressed(self) -> None:
        """Called when the server asks or logs during calls without naming the call."""
        ...

    def notification(self, method: str, params: Raw, call: object | None) -> None:
        """Handle one notification, in the order of arrival; must not block or raise.

        Args:
            method: Its method.
            params: Undecoded.
            call: The `Request.call` it belongs to; `SEVERAL` where that is
                not certain, None where it belongs to none.
        """
        ...

    async def request(self, method: str, params: Raw, call: object | None) -> Any:
        """Answer a request of the server.

        Args:
            method: Its method.
            params: Undecoded; empty where the server sent none.
            call: The `Request.call` it belongs to; `SEVERAL` where that is
                not certain, None where it belongs to none.

        Raises:
            RpcError: Sent to the server as the answer.
        """
        ...


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a server's condition, for error messages."""

    pid: int | None = None
    exit_code: int | None = None
    """Negative: the signal that ended it."""
    stderr: str = ""
    """Its last lines."""
    has_read: bool = True
    """Whether it has read anything we wrote, if that can be known."""
    level: str = "off"
    """How much it is confined."""
    denied: tuple[str, ...] = ()
    """Paths outside its sandbox that it tried to change while it started."""
    needs_proc: bool = False
    """Whether it ended while it started, and `/proc/self` was closed to it."""
    noise: int = 0
    """How many lines or events were not JSON-RPC messages."""
    noise_sample: str = ""
    """One of them, shortened."""


class Wire(Protocol):
    """Messages to and from one server, however they travel.

    A wire is entered and left by the task that owns the link; any task may call its methods.
    """

    @property
    def kind(self) -> str:
        """`stdio`, `streamable-http`, `sse`, `local` or `cluster`."""
        ...

    @property
    def closed(self) -> asyncio.Event:
        """Set once the wire is closed."""
        ...

    @property
    def fault(self) -> WireFault | None:
        """Why it closed; None if we closed it."""
        ...

    def attach(self, inbound: Inbound) -> None:
        """Set the receiver of the server's messages, before the first request."""
        ...

    def request(self, request: "Request") -> Coroutine[Any, Any, Raw]:
        """Send a request and return its undecoded result.

        Raises:
            RpcError: The server answered with an error.
            WireFault: There is no usable answer.
        """
        ...

    async def notify(
        self, method: str, params: "Params | None", *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a notification; dropped if the wire is closed."""
        ...

    def establish(self, protocol_version: str, *, stateless: bool) -> None:
        """Note what was negotiated; Streamable HTTP of the handshake era opens its stream now."""
        ...

    def serves_only(self, owner: object) -> bool:
        """Whether all pending calls belong to this owner."""
        ...

    def is_stopped(self) -> bool:
        """Whether the server's process is stopped, as by SIGSTOP, which no message shows."""
        ...

    def evidence(self) -> Evidence:
        """The current evidence about the server's condition."""
        ...


@runtime_checkable
class DirectWire(Protocol):
    """A wire that sends a request without a task, as long as nothing has to be waited for.

    Most requests only wait for their answer, and a task for that costs more than the rest.
    """

    def begin(self, request: "Request", on_news: Callable[[], None]) -> bool:
        """Send a request now; returns False, with nothing sent, if it has to wait for that.

        `on_news` is called once, usually with the answer in `request.pending`. `Wire.request` goes
        on with the request instead, from wherever it is.

        Raises:
            WireClosed: The wire is closed.
        """
        ...
