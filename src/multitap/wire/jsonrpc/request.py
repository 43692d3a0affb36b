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
    """What a server is asked, for whom, and how long it may take."""

    method: str
    params: bytes | None
    """The members of its parameters as JSON, without `_meta` and without the braces; None if it has
    no parameters."""
    deadline: Deadline
    """For everything: waiting for its turn and for the server, all attempts, the answer."""
    name: str | None = None
    """Which tool, prompt or resource it is about, by the server's own name."""
    call: object | None = None
    """On whose behalf it is; handed to who answers what the server asks because of it."""
    slot_holder: object = None
    """Whose share of the server's time it takes; None if there are no others."""
    light: LightTask | None = None
    """What it runs in, if it is not a task."""
    on_progress: OnProgress | None = None
    meta: bytes = b""
    """The members of its `_meta` as JSON."""
    repeatable: bool = False
    """Whether it may be sent again though it may have reached the server."""
    cancellable: bool = True
    """Whether a cancellation is sent to the server; not in the handshake."""
    stamp: bytes = b""
    """What a session of the stateless era adds to `_meta`."""
    headers: Mapping[str, str] | None = None
    """Headers of its own, where the wire has headers."""
    queued: float = 0.0
    """Seconds it waited for its turn."""
    connecting: float = 0.0
    """Seconds it waited for its server to come up."""
    is_relayed: bool = False
    """Whether another replica made it, which does all that a session does."""


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
        method: What to ask for.
        params: Its parameters; any value may be a `Raw`, already encoded.
        timeout: Seconds for everything, from now on; progress starts them again. None: no limit.
            Or the deadline.
        call: On whose behalf it is.
        slot_holder: Whose share of the server's time it takes.
        on_progress: Called with progress.
        headers: Extra headers where the wire has headers.
        repeatable: Whether it may be sent again though it may have reached the server.
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
