"""A client on a stream that carries everything, both ways: pipes, or legacy SSE."""

from msgspec import Raw

from multitap.serve import faults
from multitap.serve.admission import admit_unheaded
from multitap.serve.gateway import Gateway
from multitap.serve.message import Message, Refused, answer, refusal
from multitap.serve.peer import Outlet, Peer
from multitap.serve.reading import read_message, read_params
from multitap.serve.turn import Turn
from multitap.tasks import LightTask, Tasks

MOST = 1024
"""Requests of one client that are worked on at the same time."""
_BEFORE_HANDSHAKE = frozenset({"initialize", "ping", "server/discover"})


class Dialogue:
    """One client's messages, each answered on its own.

    Args:
        gateway: Who knows the answers.
        peer: The client.
        outlet: Where all messages to it go.
        tasks: Where its requests are worked on.
    """

    def __init__(self, gateway: Gateway, peer: Peer, outlet: Outlet, tasks: Tasks) -> None:
        self._gateway = gateway
        self._peer = peer
        self._outlet = outlet
        self._tasks = tasks
        self._shares = gateway.under_way

    def take(self, data: bytes) -> None:
        """Take one message; never waits."""
        try:
            message = read_message(data)
        except Refused as exc:
            self._refuse(Raw(b""), exc)
            return
        if message.is_request:
            self._begin(message)
        elif message.method:
            self._gateway.notified(self._peer, message.method, message.params)
        else:
            self._peer.answered(message)

    def refuse(self, words: str) -> None:
        """Say that a message could not even be taken."""
        self._refuse(Raw(b""), Refused(faults.INVALID_REQUEST, words))

    def _begin(self, message: Message) -> None:
        key = bytes(message.id)
        if not message.is_sound:
            self._refuse(message.id, Refused(faults.INVALID_REQUEST, "not a JSON-RPC 2.0 request"))
        elif key in self._peer.scopes:
            words = f"the id {key.decode()} is in use"
            self._refuse(message.id, Refused(faults.INVALID_REQUEST, words))
        elif len(self._peer.scopes) >= MOST:
            words = f"{MOST} requests are under way already"
            self._refuse(message.id, Refused(faults.OVERLOADED, words, {"reason": "overloaded"}))
        elif not self._shares.take(self._peer.holder):
            words = self._shares.refusal(self._peer.holder)
            self._refuse(message.id, Refused(faults.OVERLOADED, words, {"reason": "overloaded"}))
        else:
            self._work_on(message, key)

    def _work_on(self, message: Message, key: bytes) -> None:
        light = self._peer.scopes[key] = LightTask(self._tasks)
        light.run(self._answer(message, key, light))

    async def _answer(self, message: Message, key: bytes, light: LightTask) -> None:
        became: Raw | bytes | Exception | None = None
        try:
            turn = self._turn(message, light)
            became = await self._gateway.answer(turn, message.method, message.params)
        except Exception as exc:  # noqa: BLE001 - boundary: one request is its own problem
            became = exc
        finally:
            self._ended(message, key, became)
            became = None  # or an error would keep this frame, and the frame the error

    def _ended(self, message: Message, key: bytes, became: Raw | bytes | Exception | None) -> None:
        """Answer a request; one that was cancelled gets no answer."""
        del self._peer.scopes[key]
        self._shares.give(self._peer.holder)
        if isinstance(became, Exception):
            self._refuse(message.id, faults.refused(became, message.method))
        elif became is not None:
            self._outlet.send(b"".join(answer(message.id, became)))

    def _turn(self, message: Message, light: LightTask) -> Turn:
        params = read_params(message)
        modern = admit_unheaded(message, params)
        if not modern and not self._peer.shook_hands and message.method not in _BEFORE_HANDSHAKE:
            raise Refused(faults.INVALID_REQUEST, "initialize first")
        return Turn(self._peer, message.id, self._outlet, params, light, modern=modern)

    def _refuse(self, request_id: Raw, error: Refused) -> None:
        self._outlet.send(refusal(request_id, error))
