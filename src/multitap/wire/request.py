"""One request to a server, and the time by which it must end."""

import asyncio
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from multitap.wire.jsonrpc import NAMING_PARAMS, encode
from multitap.wire.wire import OnProgress

if TYPE_CHECKING:
    from multitap.wire.pending import PendingRequest


class Deadline(msgspec.Struct, eq=False, gc=False):
    """One deadline for a call with all its attempts: a retry gets what is left."""

    timeout: float | None
    """Seconds without progress; None: no limit."""
    hard_timeout: float | None
    """Seconds in total, whatever the progress; None: no limit."""
    latest: float
    """The hard limit, by the loop's clock."""
    at: float
    """The current deadline, by the loop's clock."""

    @classmethod
    def since(cls, now: float, timeout: float | None, hard_timeout: float | None) -> "Deadline":
        """The deadline of a request that begins `now`, by the loop's clock."""
        latest = math.inf if hard_timeout is None else now + hard_timeout
        at = latest if timeout is None else min(now + timeout, latest)
        return cls(timeout, hard_timeout, latest, at)

    def renew(self, now: float) -> None:
        """Start the time again after progress, up to the hard limit."""
        self.at = self.latest if self.timeout is None else min(now + self.timeout, self.latest)

    def words(self, method: str) -> str:
        """The limit that a request has exceeded, in words."""
        # progress may have moved it up to the hard limit, which is the one to raise then
        if self.timeout is None or (self.at >= self.latest and self.timeout != self.hard_timeout):
            return f"{method!r} did not end within its hard limit of {self.hard_timeout or 0:.3g} s"
        return f"no answer to {method!r} within {self.timeout:.3g} s"


class Request(msgspec.Struct):
    """One request: method, parameters, caller and deadline.

    One object all the way down. The path and the session fill in what they add (`stamp`, `headers`,
    `queued`, `connecting`, `waited`), wrap `on_progress`, and put answers to questions into
    `params`.
    """

    method: str
    params: bytes | None
    """The members of its parameters as JSON, without `_meta` and without the braces; None if it has
    no parameters."""
    deadline: Deadline
    """The deadline for everything: queueing, connecting, all attempts, the answer."""
    name: str | None = None
    """The tool, prompt or resource, by the server's own name."""
    call: object | None = None
    """The context of its caller, passed to handlers of questions that it causes."""
    slot_holder: object = None
    """The holder whose share of the server's slots it uses; None if there is only one."""
    on_progress: OnProgress | None = None
    meta: bytes = b""
    """The members of its `_meta` as JSON."""
    repeatable: bool = False
    """Whether it may be sent again although the server may have received it."""
    cancellable: bool = True
    """Whether a cancellation is sent to the server; not in the handshake."""
    stamp: bytes = b""
    """The members that a stateless session adds to `_meta`."""
    headers: Mapping[str, str] | None = None
    """Its own headers, on wires with headers."""
    queued: float = 0.0
    """Seconds it waited for its turn."""
    connecting: float = 0.0
    """Seconds it waited for its server to come up."""
    waited: float = 0.0
    """Seconds between its bytes and those of the answer; 0 if its wire does not know."""
    takes_task: bool = False
    """Whether a stateless server may answer with a task instead of the result."""
    pending: "PendingRequest | None" = None
    """The same on its wire, if it was sent without a task and no task has taken it over yet."""
    is_relayed: bool = False
    """Whether it comes from another replica, whose session has already handled it."""


def members(params: Mapping[str, Any]) -> bytes:
    """The members of an object as JSON, without the braces; any value may be a `Raw`."""
    return encode(params)[1:-1]


def make_request(
    method: str,
    params: Mapping[str, Any] | None,
    timeout: float | Deadline | None,
    *,
    call: object | None = None,
    slot_holder: object = None,
    on_progress: OnProgress | None = None,
    headers: Mapping[str, str] | None = None,
    repeatable: bool = False,
    cancellable: bool = True,
) -> Request:
    """A request of our own.

    Args:
        method: The method.
        params: Its parameters; any value may be a `Raw`, already encoded.
        timeout: Seconds for everything, which progress starts again; None: no limit. Or a
            deadline.
        call: The context of its caller.
        slot_holder: The holder whose share of the server's slots it uses.
        on_progress: Called with progress.
        headers: Extra headers, on wires with headers.
        repeatable: Whether it may be sent again although the server may have received it.
        cancellable: Whether a cancellation is sent to the server; not in the handshake.
    """
    meta = b""
    if not isinstance(timeout, Deadline):
        timeout = Deadline.since(asyncio.get_running_loop().time(), timeout, None)
    if params is not None and "_meta" in params:
        meta = members(params["_meta"])
        params = {key: value for key, value in params.items() if key != "_meta"}
    name = None if params is None else params.get(NAMING_PARAMS.get(method, ""))
    return Request(
        method,
        None if params is None else members(params),
        timeout,
        name if isinstance(name, str) else None,
        call,
        slot_holder,
        on_progress=on_progress,
        meta=meta,
        headers=headers,
        repeatable=repeatable,
        cancellable=cancellable,
    )
