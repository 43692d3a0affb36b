"""One request to a server, made once and passed down unchanged."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from multitap.tasks import LightTask
from multitap.wire.jsonrpc.deadline import Deadline
from multitap.wire.jsonrpc.envelope import encode
from multitap.wire.jsonrpc.vocabulary import NAMING_PARAMS
from multitap.wire.wire import OnProgress


class Request(msgspec.Struct):
    """One request: method, parameters, caller and deadline."""

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
    light: LightTask | None = None
    """The light task that it runs in, if it is not a task."""
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
