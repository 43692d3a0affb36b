"""Several hubs in one process: a program that they would all start alike runs once.

The hub that starts it first owns it, and the others reach it as replicas of a cluster do, without a
network. When its owner ends it, the next hub that needs it becomes its owner.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path

import msgspec

from multitap.cluster.peer_messages import Greeting, PeerMessage
from multitap.cluster.relays import Relay, RelayedServer
from multitap.cluster.wires import ForwardedWire, RelayedWire, SharedInbound, open_forwarded
from multitap.config import ServerConfig, StdioServer
from multitap.errors import CannotStart, WireFault
from multitap.oauth.storage import LoginSharing
from multitap.sandbox.places import NAMED_BY
from multitap.tasks import Tasks
from multitap.upstream.connect import Dial, LocalPlacement, Placement
from multitap.upstream.link import Link
from multitap.wire.process import child_environment
from multitap.wire.stdio import locate
from multitap.wire.wire import DirectWire, Inbound, Wire

_LOOSE = frozenset({"PATH", "TERM", "SHELL", "LANG", "LANGUAGE"})
"""Inherited variables that may differ: a program that is found elsewhere is another one."""
_LOOSE_PREFIXES = ("LC_", "XDG_")
_FOLDERS = frozenset({f"XDG_{kind}_HOME" for kind in ("CACHE", "CONFIG", "DATA", "STATE")})


def identity_of(name: str, config: StdioServer, env: Mapping[str, str], state: Path) -> str | None:
    """The same for two hubs if they would start a program alike; None if it cannot be started."""
    whole = child_environment(env, config.env)
    try:
        program = locate(config.command, whole, config.start_folder)
    except CannotStart:
        return None
    inherited = {
        key: value
        for key, value in child_environment(env, {}).items()
        if key in _FOLDERS or not (key in _LOOSE or key.startswith(_LOOSE_PREFIXES))
    }
    places = {key: env[key] for key in (*NAMED_BY, "DOCKER_HOST") if key in env}
    parts = (name, config, config.home, config.provenance, program, inherited, places, str(state))
    return sha256(msgspec.json.encode(parts, enc_hook=str, order="sorted")).hexdigest()


class _LocalConnection:
    """One direction of a connection within this process; see `PeerLine`."""

    is_congested = False
    is_closed = False
    reason = ""

    def __init__(self, peer: str) -> None:
        self.peer: str | None = peer
        self.deliver: Callable[[PeerMessage], None] = lambda _: None
        self._loop = asyncio.get_running_loop()

    def send(self, message: PeerMessage) -> None:
        # not at once: the receiver may be in the middle of something that this would change
        self._loop.call_soon(self.deliver, message)

    def withdraw(self, message: PeerMessage) -> bool:  # noqa: ARG002 - it is as good as there
        return False


class _OwnedProgram:
    """A program, the link that runs it, and the other hubs that use it."""

    def __init__(self, hub: int, link: Link) -> None:
        self.hub = hub
        self.link = link
        self.users: dict[str, set[RelayedServer]] = defaultdict(set)
        self.is_running = True

    @property
    def relayed(self) -> set[RelayedServer]:
        return self.users[self.link.name]

    def cut(self, reason: str) -> None:
        """Send all other hubs away."""
        self.is_running = False
        for user in tuple(self.relayed):
            user.cut(reason)


class _OwnedWire:
    """See `Wire`; what the server says reaches the hub that it concerns."""

    def __init__(self, wire: Wire, users: Iterable[RelayedWire]) -> None:
        self._wire = wire
        self._users = users
        self.kind = wire.kind
        self.closed = wire.closed
        self.establish = wire.establish
        self.serves_only = wire.serves_only
        self.is_stopped = wire.is_stopped
        self.evidence = wire.evidence
        # attributes, not methods: every call passes here
        self.request = wire.request
        self.notify = wire.notify
        if isinstance(wire, DirectWire):
            self.begin = wire.begin

    @property
    def fault(self) -> WireFault | None:
        return self._wire.fault

    def attach(self, inbound: Inbound) -> None:
        self._wire.attach(SharedInbound(inbound, self._users))


class Neighbours:
    """The programs of all hubs of this process, by what they are."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._programs: dict[str, _OwnedProgram] = {}
        self._used: dict[tuple[int, str], str] = {}
        """What each hub uses under the name of a server."""
        self._apart: set[str] = set()
        """Programs that each hub starts for itself."""

    def place(self, hub: int, env: Mapping[str, str], state: Path) -> "HubPlacements":
        """Where the servers of one hub run, which has a number of its own."""
        return HubPlacements(self, hub, env, state)

    def is_needed(self, hub: int) -> bool:
        """Whether another hub uses a program that this one runs."""
        return any(program.hub == hub and program.relayed for program in self._programs.values())

    def restart(self, hub: int, server: str) -> None:
        """Restart a program, wherever it runs."""
        program = self._programs.get(self._used.get((hub, server), ""))
        if program is not None and program.hub != hub:
            program.link.restart()

    def keep_apart(self, hub: int, server: str) -> None:
        """Have each hub start a program for itself: it knows something about one hub's client."""
        identity = self._used.get((hub, server))
        if identity is None or identity in self._apart:
            return
        self._apart.add(identity)
        if (program := self._programs.get(identity)) is not None:
            program.cut("it belongs to one client")

    @asynccontextmanager
    async def find(
        self, hub: int, identity: str, link: Link, dial: Dial
    ) -> AsyncGenerator[Placement]:
        """Where a program runs: with this hub, if no other runs it."""
        self._used[hub, link.name] = identity
        program = self._programs.get(identity)
        if identity in self._apart:
            yield LocalPlacement(dial)
        elif program is not None and program.is_running:
            yield LocalPlacement(partial(self._open_forwarded, program=program), is_here=False)
        else:
            # known before anything is awaited: of hubs that start at once, one is the first
            own = self._programs[identity] = _OwnedProgram(hub, link)
            try:
                yield LocalPlacement(partial(_open_owned, dial=dial, program=own))
            finally:
                if self._programs.get(identity) is own:
                    del self._programs[identity]
                own.cut("its owner has ended it")

    @asynccontextmanager
    async def _open_forwarded(
        self, name: str, config: ServerConfig, program: _OwnedProgram
    ) -> AsyncGenerator[Wire]:
        ours, theirs = _LocalConnection("owner"), _LocalConnection(f"user {id(config)}")
        wires: dict[int, ForwardedWire] = {}
        relay = Relay(
            theirs,
            self._tasks,
            lambda _: program.link if program.is_running else None,
            program.users,
        )
        ours.deliver = relay.take

        def deliver(message: PeerMessage) -> None:
            if not isinstance(message, Greeting) and (wire := wires.get(message.wire)) is not None:
                wire.take(message)

        theirs.deliver = deliver
        try:
            async with open_forwarded(name, ours, wires, config.redact) as wire:
                yield wire
        finally:
            relay.close()


@asynccontextmanager
async def _open_owned(
    name: str, config: ServerConfig, dial: Dial, program: _OwnedProgram
) -> AsyncGenerator[Wire]:
    async with dial(name, config) as wire:
        yield _OwnedWire(wire, program.relayed)


class HubPlacements(msgspec.Struct, frozen=True):
    """See `Placements`; for a hub beside others in the same process."""

    neighbours: Neighbours
    hub: int
    env: Mapping[str, str]
    state: Path
    logins: LoginSharing | None = None

    def __call__(
        self, link: Link, config: ServerConfig, dial: Dial, /
    ) -> AbstractAsyncContextManager[Placement]:
        identity = (
            identity_of(link.name, config, self.env, self.state)
            if isinstance(config, StdioServer)
            else None
        )
        if identity is None:
            return _here(dial)
        return self.neighbours.find(self.hub, identity, link, dial)


@asynccontextmanager
async def _here(dial: Dial) -> AsyncGenerator[Placement]:
    yield LocalPlacement(dial)
