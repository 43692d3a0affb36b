"""The current state and what happened, for all observers: CLI, terminal, page, logs."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from multitap.errors import counted

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream


class LinkState(StrEnum):
    DISABLED = "disabled"
    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    NEEDS_AUTH = "needs_auth"
    ERROR = "error"


class Phase(StrEnum):
    """The phase in which a server failed."""

    SPAWN = "spawn"
    HANDSHAKE = "handshake"
    AUTH = "auth"
    LIST = "list"
    CALL = "call"
    HEALTH = "health"


class FailureCode(StrEnum):
    """The kind of failure; `heals` says whether retrying can help."""

    CONFIG = "config"
    MISSING_PROGRAM = "missing_program"
    AUTH = "auth"
    CRASH = "crash"
    HANG = "hang"
    STOPPED = "stopped"
    UNREACHABLE = "unreachable"
    PROTOCOL = "protocol"
    FLOOD = "flood"
    CRASH_LOOP = "crash_loop"

    @property
    def heals(self) -> bool:
        """Whether a new attempt, with nothing changed, may succeed."""
        return self not in _PERMANENT


_PERMANENT = frozenset({FailureCode.CONFIG, FailureCode.MISSING_PROGRAM, FailureCode.AUTH})


class Outcome(StrEnum):
    """How a call ended."""

    OK = "ok"
    ERROR = "error"
    """The tool reported a failure."""
    FAILED = "failed"
    """There was no usable answer."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """The caller gave up."""
    REFUSED = "refused"
    """Nothing was sent: not allowed, wrong arguments, too many calls."""


class Failure(msgspec.Struct, frozen=True):
    """A failure of one server."""

    code: FailureCode
    phase: Phase
    message: str
    """What happened."""
    hint: str | None = None
    """What to do about it."""
    exit_code: int | None = None
    stderr: str = ""
    """The last lines the server wrote to its standard error."""
    at: float = 0.0
    """Seconds since the epoch."""
    timings: Mapping[str, float] = msgspec.field(default_factory=dict[str, float])
    """Seconds spent in each phase of the attempt."""

    def __str__(self) -> str:
        return self.message


class HostTraffic(msgspec.Struct, frozen=True):
    """Traffic between a confined server and one host."""

    host: str
    """Name or address, with the port."""
    connections: int
    sent: int
    """Bytes, as the server sent them."""
    received: int


class RefusedHost(msgspec.Struct, frozen=True):
    """A host that a confined server tried to reach and may not."""

    host: str
    reason: str
    times: int


class SandboxState(msgspec.Struct, frozen=True):
    """How a program is confined, what that denied it, and what it did on the network."""

    level: Literal["off", "guard", "strict", "container"]
    reason: str
    """Why it is at this level."""
    hosts: tuple[HostTraffic, ...] = ()
    refused: tuple[RefusedHost, ...] = ()
    denied: tuple[str, ...] = ()
    """Paths that it tried to change while it started."""
    is_missing: bool = False
    """Whether it should be confined, but this machine cannot do that."""

    @property
    def confined(self) -> bool:
        return self.level != "off"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for people."""
        if self.is_missing:
            return (f"it runs without a sandbox: {self.reason}",)
        return (
            *(f"its sandbox denies it to write to {path}" for path in self.denied),
            *(
                f"its sandbox blocks {refusal.host}: {refusal.reason} ({refusal.times} tries)"
                for refusal in self.refused
            ),
        )


class ServerSnapshot(msgspec.Struct, frozen=True):
    """The current state of one server."""

    name: str
    transport: str
    state: LinkState
    failure: Failure | None = None
    """Why it is not connected, or why it was last lost."""
    warnings: tuple[str, ...] = ()
    """Minor problems: skipped tools, noise on stdout, truncated lists."""
    era: str | None = None
    """`handshake` or `stateless`, once known."""
    protocol_version: str | None = None
    title: str | None = None
    """What the server calls itself, with its version."""
    instructions: str | None = None
    pid: int | None = None
    tools: int = 0
    resources: int = 0
    templates: int = 0
    prompts: int = 0
    starts: int = 0
    """How often it was started."""
    since: float = 0.0
    """When it entered this state, in seconds since the epoch."""
    retry_at: float | None = None
    """When the next attempt is due."""
    in_flight: int = 0
    latency: float | None = None
    """Seconds the last health check took."""
    timings: Mapping[str, float] = msgspec.field(default_factory=dict[str, float])
    """Seconds the last successful start spent in each phase."""
    stale: bool = False
    """The tools come from the stored catalog; the server has not been asked yet."""
    pending: Failure | None = None
    """Why its changed configuration is not active; the previous one keeps serving."""
    sandbox: SandboxState | None = None
    """None if it is not a program, or this is unknown."""


def pending_words(reason: object) -> str:
    """The message about a server that still runs with its previous configuration."""
    return f"the changed configuration does not come up: {reason}; the previous one keeps serving"


class Withheld(msgspec.Struct, frozen=True):
    """A part of a project that is not used because its content is not trusted."""

    kind: str
    """`server`, `settings` or `skill`."""
    name: str
    reason: str
    hint: str
    changed: bool = False
    """Whether an earlier version was trusted; a running server keeps that version."""
    project: str = ""
    """The project's folder."""

    @property
    def words(self) -> str:
        return f"{self.reason}: {self.hint}"


def untrusted_words(withheld: Iterable[Withheld]) -> str:
    """How much of which project is not used, and the command that changes it; empty if nothing.

    It counts and names nothing: the names are a stranger's.
    """
    groups: dict[tuple[str, bool], list[Withheld]] = {}
    for part in withheld:
        groups.setdefault((part.project, part.changed), []).append(part)
    return "; ".join(
        f"{_counted_parts(parts)} of {project} "
        f"{'changed since you trusted the project' if changed else _not_used(parts)}: "
        f"{parts[0].hint}"
        for (project, changed), parts in groups.items()
    )


def withheld_note(withheld: Iterable[Withheld]) -> str:
    """The note for clients about a project that nobody has trusted; empty if there is none.

    It counts and names nothing: a model would read the names, which are a stranger's.
    """
    servers = sum(part.kind == "server" for part in withheld)
    if not servers:
        return ""
    are, they = ("is", "it") if servers == 1 else ("are", "they")
    return (
        f"{counted(servers, 'server')} of the user's project {are} not used as {they} {are} now, "
        "because nobody has trusted that: the user can run `multitap trust` in its folder"
    )


def _counted_parts(parts: Sequence[Withheld]) -> str:
    counts = Counter(part.kind for part in parts)
    *others, last = (
        "the settings" if kind == "settings" else counted(count, kind)
        for kind, count in counts.items()
    )
    return f"{', '.join(others)} and {last}" if others else last


def _not_used(parts: Sequence[Withheld]) -> str:
    verb = "is" if len(parts) == 1 and parts[0].kind != "settings" else "are"
    return f"{verb} not trusted and not used"


class Snapshot(msgspec.Struct, frozen=True):
    """The state of all servers at one moment."""

    revision: int
    servers: tuple[ServerSnapshot, ...]
    withheld: tuple[Withheld, ...] = ()
    """Parts of the configuration that are not trusted."""

    def server(self, name: str) -> ServerSnapshot:
        return next(server for server in self.servers if server.name == name)


class LinkChanged(msgspec.Struct, frozen=True):
    server: str
    state: LinkState
    failure: Failure | None = None


class LinkRemoved(msgspec.Struct, frozen=True):
    server: str


class CatalogChanged(msgspec.Struct, frozen=True):
    revision: int


class ListsAnnounced(msgspec.Struct, frozen=True):
    """A server said that lists changed, and they turned out to be as before."""

    server: str
    kinds: frozenset[str]
    """`tools`, `resources`, `prompts`."""
    session: str = ""
    """Which session with the server it said so in; empty for the one that all share."""


class ResourceUpdated(msgspec.Struct, frozen=True):
    server: str
    uri: str
    meta: Mapping[str, Any] | None = None
    """The `_meta` of the notification."""
    session: str = ""
    """Which session with the server heard of it; empty for the one that all share."""


class ServerLog(msgspec.Struct, frozen=True):
    """A log message the server sent as a notification."""

    server: str
    level: str
    logger: str | None
    text: str


class Warned(msgspec.Struct, frozen=True):
    """A minor problem of one server."""

    server: str
    text: str


class ToolsChanged(msgspec.Struct, frozen=True):
    """A server's tools differ from those that are pinned."""

    server: str
    changed: tuple[str, ...]
    """Tools with a changed definition, by the server's own names."""
    new: tuple[str, ...]
    """Tools that are new, by the server's own names."""
    withheld: bool
    """Whether they are hidden until a person has reviewed them."""
    text: str
    """A description for people."""


class ToolSuspected(msgspec.Struct, frozen=True):
    """A tool's definition looks like an attack."""

    server: str
    tool: str
    """The server's own name for it."""
    kind: str
    """`instructions`, `hidden text`, `look-alike name`, `exfiltration` or `secret`."""
    withheld: bool
    text: str
    """A description for people, with the passage quoted."""


class CallDone(NamedTuple):
    """A call has ended; a plain tuple, because there is one for every call."""

    server: str
    tool: str
    """The server's own name for it."""
    seconds: float
    outcome: Outcome
    size: int = 0
    """Bytes of the result."""
    error: str | None = None
    agent: str | None = None
    """Who called."""
    session: str | None = None
    """The caller's session, according to its call context."""


class Reloaded(msgspec.Struct, frozen=True):
    """The configuration was reloaded and applied."""

    plan: str
    """What changes, in words."""
    problems: tuple[str, ...] = ()
    """Problems that remain in the files."""
    kept: tuple[str, ...] = ()
    """Servers that keep their previous configuration, because the new one cannot be used."""
    changes: tuple[str, ...] = ()
    """Each server that was added, replaced or removed, with file and line."""


class ReloadFailed(msgspec.Struct, frozen=True):
    """The configuration cannot be read; nothing changes."""

    problems: tuple[str, ...]


Event = (
    LinkChanged
    | LinkRemoved
    | CatalogChanged
    | ListsAnnounced
    | ResourceUpdated
    | ServerLog
    | Warned
    | ToolsChanged
    | ToolSuspected
    | CallDone
    | Reloaded
    | ReloadFailed
)


def _forget(_: Event) -> None:
    pass


class EventBus:
    """Publishes events without ever blocking: a slow subscriber misses some.

    `record` is called with every event before subscribers get it.
    """

    def __init__(self, record: Callable[[Event], None] = _forget) -> None:
        self._record = record
        self._subscribers: dict[MemoryObjectSendStream[Event], bool] = {}
        """Subscribers, and whether they want calls too: there are thousands of those."""
        self.watched = False
        """Whether anyone subscribes to calls."""

    def publish(self, event: Event) -> None:
        self._record(event)
        if not self._subscribers:
            return
        import anyio  # noqa: PLC0415 - commands that only read the state need no event loop

        is_call = isinstance(event, CallDone)
        for stream, calls in tuple(self._subscribers.items()):
            if is_call and not calls:
                continue
            try:
                stream.send_nowait(event)
            except anyio.WouldBlock:
                continue  # the subscriber re-reads the snapshot when it catches up
            except anyio.BrokenResourceError:
                self._drop(stream)

    @contextmanager
    def subscribe(
        self, backlog: int = 256, *, calls: bool = True
    ) -> Generator[AsyncIterator[Event]]:
        """Subscribe to events while entered; without `calls`, to all except `CallDone`."""
        import anyio  # noqa: PLC0415 - see above

        send: MemoryObjectSendStream[Event]
        receive: MemoryObjectReceiveStream[Event]
        send, receive = anyio.create_memory_object_stream[Event](backlog)
        self._subscribers[send] = calls
        self.watched = any(self._subscribers.values())
        try:
            with send, receive:
                yield receive
        finally:
            self._drop(send)

    def _drop(self, stream: "MemoryObjectSendStream[Event]") -> None:
        self._subscribers.pop(stream, None)
        self.watched = any(self._subscribers.values())
