"""The gateway in the background: all clients of one user, each with the view of its folder.

A view is a hub with the files, the folder and the variables of its clients, so that nothing of one
client reaches the servers of another. Views come with their first client, and go some time after
their last one; the gateway goes with its last view.
"""

import asyncio
import hashlib
import hmac
import logging
import math
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, closing, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import msgspec
from anyio import to_thread

from multitap.config import Settings
from multitap.control import places
from multitap.control.joining import (
    MOVED,
    PATIENCE,
    STOPPED,
    BackgroundPlace,
    JoinReply,
    JoinRequest,
    Needs,
)
from multitap.control.server import listen
from multitap.errors import ConfigError, MultitapError, ungrouped
from multitap.events import Reloaded
from multitap.gateway.gateway import Gateway
from multitap.sandbox.places import NAMED_BY
from multitap.tasks import Bell, Tasks
from multitap.version import VERSION
from multitap.wire.process import NAMES, PREFIXES

if TYPE_CHECKING:
    from multitap.gateway.fronts.stdio import RelayedClient

logger = logging.getLogger(__name__)

GRACE = 5.0
"""Seconds without any client and view after which the gateway ends."""
STRANGERS = 64
"""Connections that have not shown whose they are; further ones have to come again."""
INTRODUCTION = 10.0
"""Seconds for each line of a client that says what it wants."""
_BUSY = "the background gateway has no time: try again"
_BUSY_LOOK = 2.0  # seconds between two looks at a view whose calls outlive their clients
_LAST_LINES = 1.0  # seconds for clients to read that the gateway stops
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(?=\}|:-)")
_ENGINES = ("DOCKER_HOST",)  # says which sockets a confined container client may use


class ViewKey(msgspec.Struct, frozen=True):
    """What clients must have in common to share a view."""

    folder: str
    files: tuple[str, ...] = ()
    dialect: str | None = None
    early: tuple[tuple[str, str], ...] = ()
    """Variables that say which files are read."""


class LoadedView(msgspec.Struct, frozen=True):
    """The configuration of a view, as far as a client has to know it."""

    needs: Needs
    is_alone: bool = False
    """Whether it must not be shared, because it is served on HTTP."""
    notes: tuple[str, ...] = ()


class OpenView(msgspec.Struct, frozen=True):
    """A running view."""

    gateway: Gateway
    control: Path
    """Its control socket."""
    needs: Callable[[], Needs]
    """The variables that its files name now."""
    is_needed: Callable[[], bool]
    """Whether another view uses its servers."""
    keep_apart: Callable[[str], None]
    """Has each view start a server for itself."""


class Views(msgspec.Struct, frozen=True):
    """How views are made; the command line knows how to read files."""

    load: Callable[[ViewKey], LoadedView]
    """Reads the files of a view, which blocks."""
    open: Callable[[ViewKey, Mapping[str, str], int], AbstractAsyncContextManager[OpenView]]
    """Opens a view with its variables, under a number of its own."""


class _View:
    """One view and the clients that use it."""

    def __init__(self) -> None:
        self.users: set[RelayedClient] = set()
        self.changed = Bell()
        self.open: OpenView | None = None
        self.error: MultitapError | None = None
        self.opened = asyncio.Event()
        """Set once it is open, or cannot be."""
        self.is_stale = False
        """Whether it takes no new clients."""
        self.loaded = LoadedView(Needs(()))

    def tell(self, order: bytes) -> None:
        """Tell all clients what they have to do."""
        for connection in self.users:
            connection.send(order)

    @property
    def is_busy(self) -> bool:
        """Whether calls go on although no client is connected."""
        if self.open is None:
            return False
        gateway = self.open.gateway
        working = any(link.requests.slots.working for link in gateway.hub.links.values())
        return working or bool(len(gateway.parked_calls)) or self.open.is_needed()


def needs_of(settings: Settings) -> Needs:
    """The variables that settings name, and those that programs inherit."""
    # by their text: any field of any part may name one
    named = _VARIABLE.findall(msgspec.json.encode(settings, enc_hook=str).decode())
    models = (settings.model, *(agent.model for agent in settings.agents.values()))
    keys = (f"{model.provider.upper()}_API_KEY" for model in models if model is not None)
    return Needs(tuple(sorted({*NAMES, *NAMED_BY, *_ENGINES, *named, *keys})), PREFIXES)


class BackgroundGateway:
    """Lets clients in, and gives each its view; made by `run_background`."""

    def __init__(self, views: Views, place: BackgroundPlace, tasks: Tasks, host: str = "") -> None:
        self._make = views
        self._host = host
        self._tasks = tasks
        self._views: dict[tuple[ViewKey, str], _View] = {}
        """The views that new clients may use."""
        self._running: set[_View] = set()
        self._loaded: dict[ViewKey, LoadedView] = {}
        """The configurations of views in use."""
        self._rooted: set[ViewKey] = set()
        """Views of which each client has one of its own: a server there knows its roots."""
        self._connections: set[RelayedClient] = set()
        self._strangers: set[RelayedClient] = set()
        """Those that have not shown whose they are."""
        self._numbers = count(1)
        self._changed = Bell()
        self._proof = places.prove(place.socket)
        self.retired = asyncio.Event()
        """Set when another gateway is about to take over."""

    def connect(self) -> "RelayedClient":
        """A connection for a client that comes now."""
        from multitap.gateway.fronts.stdio import RelayedClient  # noqa: PLC0415 - for clients on pipes

        lines: asyncio.Queue[bytes] = asyncio.Queue()
        connection = RelayedClient(lines.put_nowait, lambda: self._on_lost(connection))
        self._connections.add(connection)
        self._changed.ring()
        if len(self._strangers) >= STRANGERS:
            self._tasks.start_soon(self._send_away, connection)
        else:
            self._strangers.add(connection)
            self._tasks.start_soon(self._welcome, connection, lines)
        return connection

    async def _send_away(self, connection: "RelayedClient") -> None:
        """Have a client come again: one that got no answer would start another gateway."""
        await anyio.lowlevel.checkpoint()  # its transport comes after it in the same turn
        _reply(connection, error=_BUSY, is_busy=True)
        connection.close()

    def _on_lost(self, connection: "RelayedClient") -> None:
        self._connections.discard(connection)
        self._strangers.discard(connection)
        self._changed.ring()

    async def wait_unused(self) -> None:
        """Wait until there is no client and no view; if it may still be joined, for a while."""
        while True:
            if not self._connections and not self._running:
                if self.retired.is_set():
                    return
                # a part of another gateway does not end before that
                with anyio.move_on_after(math.inf if self._host else GRACE) as grace:
                    await self._changed.wait()
                if grace.cancelled_caught:
                    return
            else:
                await self._changed.wait()

    def hand_over(self) -> None:
        """Send all clients to the next gateway; calls in progress end here."""
        for view in tuple(self._running):
            self._retire(view)

    async def say_goodbye(self) -> None:
        """Tell all clients that the gateway was stopped."""
        for view in self._running:
            view.tell(STOPPED)
        with anyio.move_on_after(_LAST_LINES):
            for connection in tuple(self._connections):
                await connection.flush()

    def _retire(self, view: _View) -> None:
        """Have the clients of a view join again."""
        view.is_stale = True
        self._forget(view)
        view.tell(MOVED)
        view.changed.ring()

    async def _welcome(self, connection: "RelayedClient", lines: "asyncio.Queue[bytes]") -> None:
        view: _View | None = None
        try:
            request: JoinRequest | None = None
            with anyio.move_on_after(PATIENCE):  # no client waits longer
                request = await self._introduction(connection, lines)
            if request is not None:
                view = self._view_for(request)
                view.users.add(connection)
                await view.opened.wait()
                await self._serve(connection, view, request)
        except MultitapError as exc:
            is_configuration = isinstance(exc, ConfigError)
            _reply(connection, error=str(exc), hint=exc.hint, is_configuration=is_configuration)
        finally:
            if view is not None:
                view.users.discard(connection)
                view.changed.ring()
            connection.close()

    async def _introduction(
        self, connection: "RelayedClient", lines: "asyncio.Queue[bytes]"
    ) -> JoinRequest | None:
        """What a client wants, with its variables; None if it has its answer."""
        while True:
            line: bytes | None = None
            with anyio.move_on_after(INTRODUCTION):
                line = await lines.get()
            if line is None:
                await self._send_away(connection)
                return None
            request = self._read(line)
            if request is None:
                return None
            self._strangers.discard(connection)
            if request.purpose == "retire":
                # the next gateway may listen at our address as soon as this is answered
                self.retired.set()
                await anyio.lowlevel.checkpoint()
            if request.purpose in {"retire", "greet"}:
                _reply(connection, host=self._host)
                return None
            if request.variables is not None:
                return request
            loaded = await self._load(_key_of(request))
            _reply(connection, needs=loaded.needs)

    def _read(self, line: bytes) -> JoinRequest | None:
        """A request of a client that knows the user's secret; None for others."""
        try:
            request = msgspec.json.decode(line, type=JoinRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        # in constant time, so that nobody can guess the proof byte by byte
        return request if hmac.compare_digest(request.proof.encode(), self._proof) else None

    async def _load(self, key: ViewKey) -> LoadedView:
        # not read again for each client: the view follows its files
        if (loaded := self._loaded.get(key)) is None:
            loaded = await to_thread.run_sync(self._make.load, key, abandon_on_cancel=True)
        return loaded

    def _view_for(self, request: JoinRequest) -> _View:
        key = _key_of(request)
        env = {**request.early, **(request.variables or {})}
        whole = msgspec.json.encode(sorted(env.items()))
        identity = (key, hashlib.sha256(whole).hexdigest())
        if key in self._rooted:
            identity = (key, secrets.token_hex())
        view = self._views.get(identity)
        if view is None:
            view = self._views[identity] = _View()
            self._running.add(view)
            self._tasks.start_soon(self._run, view, key, env)
        return view

    async def _run(self, view: _View, key: ViewKey, env: Mapping[str, str]) -> None:
        """Run a view until nobody has used it for a while."""
        try:
            loaded = await self._load(key)
            self._loaded[key] = view.loaded = loaded
            if loaded.is_alone:
                return
            async with self._make.open(key, env, next(self._numbers)) as view.open:
                view.open.gateway.on_rooted = partial(self._on_rooted, view, key, view.open)
                view.opened.set()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._follow, view, key, view.open)
                    await self._until_unused(view, view.open.gateway)
                    tasks.cancel_scope.cancel()
        except MultitapError as exc:
            view.error = exc
        except Exception as exc:  # boundary: one view must not end the others
            logger.exception("the servers of %s cannot be served", key.folder)
            view.error = MultitapError(f"the gateway failed: {type(exc).__name__}: {exc}")
        finally:
            self._forget(view)
            self._running.discard(view)
            if not any(other == key for other, _ in self._views):
                self._loaded.pop(key, None)
            view.opened.set()
            self._changed.ring()

    def _on_rooted(self, view: _View, key: ViewKey, opened: OpenView, server: str) -> None:
        """Give each client a process of its own of a server that knows a client's roots."""
        opened.keep_apart(server)
        self._rooted.add(key)
        if len(view.users) > 1:
            self._retire(view)
        else:
            # it ends with its client: the next one has other roots
            view.is_stale = True
            self._forget(view)

    def _forget(self, view: _View) -> None:
        self._views = {key: other for key, other in self._views.items() if other is not view}

    async def _until_unused(self, view: _View, gateway: Gateway) -> None:
        while True:
            if view.users:
                await view.changed.wait()
                continue
            keep = 0.0 if view.is_stale else gateway.hub.settings.serve.keep
            with anyio.move_on_after(keep) as unused:
                await view.changed.wait()
            if not unused.cancelled_caught:
                continue
            if not view.is_busy:
                break
            with anyio.move_on_after(_BUSY_LOOK):
                await view.changed.wait()
        # at once: a client that comes now must not get a view that closes
        self._forget(view)

    async def _follow(self, view: _View, key: ViewKey, opened: OpenView) -> None:
        """Have clients join again when the files name variables that they have not sent."""
        before = {*opened.needs().names}
        with opened.gateway.hub.events.subscribe(calls=False) as events:
            async for event in events:
                if isinstance(event, Reloaded):
                    self._loaded.pop(key, None)
                    if not before.issuperset(opened.needs().names):
                        self._retire(view)

    async def _serve(self, connection: "RelayedClient", view: _View, request: JoinRequest) -> None:
        if view.error is not None:
            raise view.error
        opened, notes = view.open, view.loaded.notes
        if opened is None:
            _reply(connection, is_alone=True)
            return
        profiles = opened.gateway.hub.settings.profiles
        if request.profile is not None and request.profile not in profiles:
            names = ", ".join(profiles) or "none"
            raise ConfigError(
                f"no profile named {request.profile!r}", hint=f"the configuration has: {names}"
            )
        _reply(connection, control=str(opened.control), notes=notes)
        if request.purpose == "look":
            await connection.ended.wait()
        else:
            await connection.serve(opened.gateway, profile=request.profile)


def _key_of(request: JoinRequest) -> ViewKey:
    return ViewKey(
        request.folder, request.files, request.dialect, tuple(sorted(request.early.items()))
    )


def _reply(connection: "RelayedClient", **fields: Any) -> None:
    connection.send(msgspec.json.encode(JoinReply(version=VERSION, pid=os.getpid(), **fields)))


async def run_background(
    views: Views, place: BackgroundPlace, on_listening: Callable[[], None], *, host: str = ""
) -> None:
    """Serve all clients that come, until none has been there for a while.

    Args:
        host: The address of the gateway over HTTP that it is a part of, if any.
    """
    places.make_folder(place.socket.parent)
    listener = listen(place.socket)
    own = place.socket.stat().st_ino
    with closing(listener), ungrouped():
        async with Tasks() as tasks:
            gateway = BackgroundGateway(views, place, tasks, host)
            loop = asyncio.get_running_loop()
            server = await loop.create_unix_server(gateway.connect, sock=listener)
            on_listening()
            try:
                await _first_of(gateway.wait_unused, gateway.retired.wait)
                _leave(place.socket, own)
                server.close()
                gateway.hand_over()
                await gateway.wait_unused()
            except BaseException:
                _leave(place.socket, own)
                server.close()
                with anyio.CancelScope(shield=True):
                    await gateway.say_goodbye()
                raise


async def _first_of(*waits: Callable[[], Awaitable[Any]]) -> None:
    async with anyio.create_task_group() as tasks:

        async def end_with(wait: Callable[[], Awaitable[Any]]) -> None:
            await wait()
            tasks.cancel_scope.cancel()

        for wait in waits:
            tasks.start_soon(end_with, wait)


def _leave(path: Path, own: int) -> None:
    """Remove the address, unless another gateway listens there already."""
    with suppress(OSError):
        if path.stat().st_ino == own:
            path.unlink()
