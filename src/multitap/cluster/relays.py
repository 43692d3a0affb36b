"""What runs here, as another replica or another hub of this process uses it."""

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Raw

from multitap.cluster import peer_messages as say
from multitap.cluster.peer_messages import PeerLine
from multitap.cluster.wires import HANDSHAKE, RelayedCall
from multitap.errors import (
    AnswerInvalid,
    MultitapError,
    ServerError,
    Unavailable,
    UpstreamError,
    WireFault,
)
from multitap.tasks import Tasks, Work
from multitap.upstream.availability import Availability
from multitap.upstream.handshake import Era
from multitap.upstream.requests import RequestPath
from multitap.upstream.session import Session
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import RpcError
from multitap.wire.request import Request

logger = logging.getLogger(__name__)

_UNCOUNTED = frozenset({"subscriptions/listen"})
"""Requests without an end, which must not use up the slots of calls."""
_GONE = "the replica of the client that was asked is gone"


class OwnedLink(Protocol):
    """The part of a link that a relay uses."""

    availability: Availability
    requests: RequestPath


class Relay:
    """The servers of this replica, as one other replica uses them over one connection."""

    def __init__(
        self,
        connection: PeerLine,
        tasks: Tasks,
        find: Callable[[str], OwnedLink | None],
        users: Mapping[str, set["RelayedServer"]],
    ) -> None:
        self._connection = connection
        self._tasks = tasks
        self._find = find
        self._users = users
        self._servers: dict[int, RelayedServer] = {}

    def take(self, message: say.PeerMessage) -> None:
        """Handle a message to us as the owner."""
        match message:
            case say.Open(wire=number, server=server):
                relayed = RelayedServer(server, number, self._connection, self._tasks, self._find)
                self._servers[number] = relayed
                self._users[server].add(relayed)
            case say.Close(wire=number):
                if (gone := self._servers.pop(number, None)) is not None:
                    self._forget(gone)
            case say.Ask(wire=number) | say.Cancel(wire=number) | say.Tell(wire=number):
                if (server_ := self._servers.get(number)) is not None:
                    server_.take(message)
            case say.PeerReply(wire=number):
                if (server_ := self._servers.get(number)) is not None:
                    server_.take(message)
            case _:
                pass  # only sent to users

    def close(self) -> None:
        """Cancel the calls of the other replica, which is gone."""
        # emptied first: messages that still arrive find no server
        servers, self._servers = self._servers, {}
        for relayed in servers.values():
            self._forget(relayed)

    def _forget(self, gone: "RelayedServer") -> None:
        self._users[gone.server].discard(gone)
        gone.close()


class RelayedServer:
    """One server of ours, as one wire of another replica uses it; see `RelayedWire`."""

    def __init__(
        self,
        server: str,
        number: int,
        connection: PeerLine,
        tasks: Tasks,
        find: Callable[[str], OwnedLink | None],
    ) -> None:
        self.server = server
        self._number = number
        self._connection = connection
        self._tasks = tasks
        self._find = find
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, Work] = {}
        self._owners: dict[int, object] = {}
        self._questions: dict[int, asyncio.Future[bytes]] = {}
        self._question_numbers = itertools.count(1)

    def take(self, message: say.Ask | say.Cancel | say.Tell | say.PeerReply) -> None:
        match message:
            case say.Ask():
                # known before it runs: it may end, and remove itself, in its first step
                work = self._calls[message.number] = Work()
                self._tasks.begin(work, self._serve(message))
            case say.Cancel(number=number):
                if (called_off := self._calls.get(number)) is not None:
                    called_off.cancel()
            case say.Tell():
                # in a task: this is a callback of the connection, and pipes may be full
                self._tasks.start_soon(self._pass_on, message)
            case say.PeerReply(question=question, message=answer):
                future = self._questions.get(question)
                # the server may have withdrawn its question while the answer was on its way
                if future is not None and not future.done():
                    future.set_result(answer)

    def tell(self, number: int | None, method: str, params: Raw) -> None:
        which = say.NO_CALL if number is None else number
        self._connection.send(say.News(self._number, which, method, bytes(params)))

    async def ask(self, number: int, method: str, params: Raw) -> Any:
        question = next(self._question_numbers)
        future = self._questions[question] = self._loop.create_future()
        self._connection.send(
            say.PeerQuestion(self._number, question, number, method, bytes(params))
        )
        try:
            answer = await future
        except asyncio.CancelledError:
            self._connection.send(say.Withdraw(self._number, question))
            raise
        finally:
            del self._questions[question]
        try:
            return jsonrpc.result_of(jsonrpc.parse(answer))
        except AnswerInvalid as exc:
            raise RpcError(jsonrpc.INTERNAL_ERROR, str(exc)) from None

    def leave(self) -> None:
        self._connection.send(say.Leave(self._number))

    def cut(self, reason: str) -> None:
        self._connection.send(say.Close(self._number, reason))

    def close(self) -> None:
        # a copy: each removes itself as it ends
        for work in tuple(self._calls.values()):
            work.cancel()
        for future in self._questions.values():
            if not future.done():
                future.set_exception(RpcError(jsonrpc.SERVER_ERROR, _GONE))

    async def _serve(self, ask: say.Ask) -> None:
        try:
            result = await self._result(ask)
        except Exception as exc:  # noqa: BLE001 - boundary: the caller is on another machine
            # its frames would keep the request alive as long as the error
            exc.__traceback__ = None
            self._connection.send(_failure(self._number, ask.number, exc))
        else:
            self._connection.send(say.PeerAnswer(self._number, ask.number, bytes(result)))
        finally:
            del self._calls[ask.number]
            if not self._calls:
                self._owners.clear()

    async def _result(self, ask: say.Ask) -> Raw:
        link = self._find(self.server)
        if link is None:
            raise _NotOurs
        now, session = self._loop.time(), link.availability.session
        if session is not None and session.wire.kind == "cluster":
            raise _NotOurs  # its owner has just changed, and it is about to be started here
        if ask.method in HANDSHAKE:
            try:
                session = await link.availability.session_by(ask.deadline(now))
            except Unavailable as exc:
                raise _Down(exc) from None
            return _introduce(ask.method, session)
        request = Request(
            ask.method,
            ask.params,
            ask.deadline(now),
            ask.name,
            None if ask.owner < 0 else RelayedCall(self, ask.number, self._owner(ask.owner)),
            # the holder's number is unique at its own replica only
            (self._connection.peer, ask.holder),
            lambda done, total, message: self._connection.send(
                say.Progress(self._number, ask.number, done, total, message)
            ),
            ask.meta,
            ask.repeatable,
            ask.cancellable,
            ask.stamp,
            is_relayed=True,
        )
        if ask.method in _UNCOUNTED:
            session = await link.availability.session_by(request.deadline)
            return await session.wire.request(request)
        return await link.requests.request(request)

    def _owner(self, key: int) -> object:
        # compared by identity: the same object as long as any of its calls is in progress
        return self._owners.setdefault(key, object())

    async def _pass_on(self, message: say.Tell) -> None:
        # each user does its handshake with us; the server has already done its own
        link = self._find(self.server)
        session = link.availability.session if link is not None else None
        if session is not None and message.method != "notifications/initialized":
            await session.wire.notify(message.method, jsonrpc.decode(message.params))


class _NotOurs(Exception):
    pass


class _Down(Exception):
    def __init__(self, why: Unavailable) -> None:
        super().__init__(_words(why))
        self.hint = why.hint


def _introduce(method: str, session: Session) -> Raw:
    """The server's answer to the handshake, as the owner received it."""
    if method == "ping":
        return Raw(b"{}")
    is_stateless = session.era is Era.STATELESS
    if is_stateless != (method == "server/discover"):
        raise RpcError(jsonrpc.METHOD_NOT_FOUND, "Method not found")
    introduction: dict[str, Any] = {
        "capabilities": {
            name: value
            for name, value in msgspec.to_builtins(session.capabilities).items()
            if value is not None and not name.startswith(" ")
        }
        | dict(session.capabilities.others)
    }
    info = {"name": session.title or "", "version": ""}
    if session.instructions is not None:
        introduction["instructions"] = session.instructions
    if is_stateless:
        introduction["supportedVersions"] = [session.protocol_version]
        introduction["_meta"] = {jsonrpc.SERVER_INFO_KEY: info}
        introduction["resultType"] = "complete"
    else:
        introduction["protocolVersion"] = session.protocol_version
        introduction["serverInfo"] = info
    return Raw(jsonrpc.encode(introduction))


def _failure(wire: int, number: int, exc: Exception) -> say.Failed:  # noqa: PLR0911 - one line for each kind
    match exc:
        case RpcError():
            data = b"" if exc.data is None else jsonrpc.encode(exc.data)
            return say.Failed(wire, number, "rpc", str(exc), code=exc.code, data=data)
        case ServerError():
            data = b"" if exc.data is None else jsonrpc.encode(exc.data)
            return say.Failed(wire, number, "rpc", exc.words, code=exc.code, data=data)
        case UpstreamError():
            return say.Failed(wire, number, type(exc).__name__, _words(exc), exc.hint)
        case _NotOurs():
            return say.Failed(wire, number, "unsent", "another replica owns it now")
        case _Down():
            return say.Failed(wire, number, "down", str(exc), exc.hint)
        case WireFault():
            kind = "Unavailable" if exc.sent else "unsent"
            return say.Failed(wire, number, kind, str(exc))
        case MultitapError():
            return say.Failed(wire, number, "Unavailable", str(exc), exc.hint)
        case _:
            logger.error("a forwarded request failed", exc_info=exc)
            return say.Failed(wire, number, "Unavailable", "its owner failed to ask it")


def _words(exc: UpstreamError) -> str:
    return str(exc).removeprefix(f"{exc.server}: ")
