"""What there is to see, and what happened, for whoever is watching: CLI, TUI, web page, logs."""

from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream


class LinkState(StrEnum):
    DISABLED = "disabled"
    DISCONNECTED = "disconnected"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    NEEDS_AUTH = "needs_auth"
    ERROR = "error"


class Phase(StrEnum):
    """How far a server had come when it failed."""

    SPAWN = "spawn"
    HANDSHAKE = "handshake"
    AUTH = "auth"
    LIST = "list"
    CALL = "call"
    HEALTH = "health"


class FailureCode(StrEnum):
    """What kind of failure it is, and so whether trying again can help."""

    CONFIG = "config"
    MISSING_PROGRAM = "missing_program"
    AUTH = "auth"
    CRASH = "crash"
    HANG = "hang"
    STOPPED = "stopped"
    UNREACHABLE = "unreachable"
    PROTOCOL = "protocol"
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
    """The tool says that it failed."""
    FAILED = "failed"
    """No usable answer came."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    """The caller gave up."""
    REFUSED = "refused"
    """Nothing was sent: not allowed, wrong arguments, too many calls."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong with one server."""

    code: FailureCode
    phase: Phase
    message: str
    """What happened, in words."""
    hint: str | None = None
    """What to do about it."""
    exit_code: int | None = None
    stderr: str = ""
    """The last lines the server wrote to its standard error."""
    at: float = 0.0
    """Seconds since the epoch."""
    timings: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds spent in each phase of the attempt."""

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """One server as it is now."""

    name: str
    transport: str
    state: LinkState
    failure: Failure | None = None
    """Why it is not connected, or why it was last lost."""
    warnings: tuple[str, ...] = ()
    """What is odd but bearable: skipped tools, noise on stdout, cut lists."""
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
    timings: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds the last successful start spent in each phase."""
    stale: bool = False
    """The tools come from the stored catalog; the server has not been asked yet."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a screen would show, at one moment."""

    revision: int
    servers: tuple[ServerSnapshot, ...]

    def server(self, name: str) -> ServerSnapshot:
        return next(server for server in self.servers if server.name == name)


@dataclass(frozen=True, slots=True)
class LinkChanged:
    server: str
    state: LinkState
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class LinkRemoved:
    server: str


@dataclass(frozen=True, slots=True)
class CatalogChanged:
    revision: int


@dataclass(frozen=True, slots=True)
class ResourceUpdated:
    server: str
    uri: str


@dataclass(frozen=True, slots=True)
class ServerLog:
    """A log message the server sent as a notification."""

    server: str
    level: str
    logger: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Warned:
    """Something odd about one server that does not stop it."""

    server: str
    text: str


class CallDone(NamedTuple):
    """A call has ended; made for every call, and so of the cheapest kind."""

    server: str
    tool: str
    """What the server calls it."""
    seconds: float
    outcome: Outcome
    size: int = 0
    """Bytes of the result."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The configuration was read anew, and the servers follow it."""

    plan: str
    """What that takes, in words."""
    problems: tuple[str, ...] = ()
    """What is wrong with it all the same."""
    kept: tuple[str, ...] = ()
    """Servers that go on as they were, because what is written about them now cannot be used."""


@dataclass(frozen=True, slots=True)
class ReloadFailed:
    """The configuration cannot be read; everything goes on as it was."""

    problems: tuple[str, ...]


Event = (
    LinkChanged
    | LinkRemoved
    | CatalogChanged
    | ResourceUpdated
    | ServerLog
    | Warned
    | CallDone
    | Reloaded
    | ReloadFailed
)


@dataclass(slots=True)
class EventBus:
    """Fan-out that never blocks the publisher: a slow subscriber misses events, not the hub."""

    _subscribers: set[MemoryObjectSendStream[Event]] = field(
        default_factory=set[MemoryObjectSendStream[Event]]
    )

    @property
    def watched(self) -> bool:
        """Whether anybody would hear an event."""
        return bool(self._subscribers)

    def publish(self, event: Event) -> None:
        for stream in tuple(self._subscribers):
            try:
                stream.send_nowait(event)
            except anyio.WouldBlock:
                continue  # the subscriber re-reads the snapshot when it catches up
            except anyio.BrokenResourceError:
                self._subscribers.discard(stream)

    @contextmanager
    def subscribe(self, backlog: int = 256) -> Generator[AsyncIterator[Event]]:
        send: MemoryObjectSendStream[Event]
        receive: MemoryObjectReceiveStream[Event]
        send, receive = anyio.create_memory_object_stream[Event](backlog)
        self._subscribers.add(send)
        try:
            with send, receive:
                yield receive
        finally:
            self._subscribers.discard(send)
