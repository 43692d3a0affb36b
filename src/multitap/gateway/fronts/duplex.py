"""A client on one bidirectional stream: stdio or legacy SSE."""

from msgspec import Raw

from multitap.gateway import client_errors
from multitap.gateway.client import Client, Outlet
from multitap.gateway.client_message import (
    UNPARSABLE,
    ClientMessage,
    Refused,
    Result,
    answer,
    parse,
    refusal,
)
from multitap.gateway.client_request import ClientRequest, modern_turn, session_turn
from multitap.gateway.eras.stateless_admission import admit_unheaded
from multitap.gateway.gateway import Gateway
from multitap.tasks import LightTask, Tasks

MOST = 1024
"""Requests of one client in progress at the same time; further ones are refused."""
_BEFORE_HANDSHAKE = frozenset({"initialize", "ping", "server/discover"})


class Duplex:
    """One client's messages, each answered on its own."""

    def __init__(self, gateway: Gateway, client: Client, outlet: Outlet, tasks: Tasks) -> None:
        self._gateway = gateway
        self._client = client
        self._outlet = outlet
        self._tasks = tasks
        self._shares = gateway.under_way

    def take(self, data: bytes) -> None:
        """Handle one message; never waits."""
        try:
            message = parse(data)
            if not data.isascii():
                data.decode()  # what stays undecoded is passed on: it has to be text
        except UNPARSABLE as exc:
            self._refuse(Raw(b""), client_errors.unreadable(data, exc))
            return
        if message.is_request:
            self._begin(message)
        elif message.method:
            self._gateway.on_notification(self._client, message.method, message.params)
        else:
            self._client.take_answer(message)

    def refuse(self, words: str) -> None:
        """Send an error for a message that could not be read."""
        self._refuse(Raw(b""), Refused(client_errors.INVALID_REQUEST, words))

    def _begin(self, message: ClientMessage) -> None:
        key = bytes(message.id)
        if not message.is_sound:
            self._refuse(
                message.id, Refused(client_errors.INVALID_REQUEST, "not a JSON-RPC 2.0 request")
            )
        elif key in self._client.scopes:
            words = f"the id {key.decode()} is in use"
            self._refuse(message.id, Refused(client_errors.INVALID_REQUEST, words))
        elif len(self._client.scopes) >= MOST:
            words = f"{MOST} requests are already in progress"
            self._refuse(
                message.id, Refused(client_errors.OVERLOADED, words, {"reason": "overloaded"})
            )
        elif not self._shares.take(self._client.holder):
            words = self._shares.refusal(self._client.holder)
            self._refuse(
                message.id, Refused(client_errors.OVERLOADED, words, {"reason": "overloaded"})
            )
        else:
            self._work_on(message, key)

    def _work_on(self, message: ClientMessage, key: bytes) -> None:
        # known before it runs: it may end, and remove itself, right there
        light = self._client.scopes[key] = LightTask(self._tasks)
        light.run(self._answer(message, key, light))

    async def _answer(self, message: ClientMessage, key: bytes, light: LightTask) -> None:
        became: Result | Exception | None = None
        try:
            request = self._turn(message, light)
            gateway = self._gateway
            if message.method == "tools/call":
                became = await gateway.calls.answer(request)
            else:
                became = await gateway.answer(request, message)
        except Exception as exc:  # noqa: BLE001 - boundary: a failed request must not end the others
            became = exc
        finally:
            self._on_end(message, key, became)
            became = None  # breaks the reference cycle of error and frame

    def _on_end(
        self, message: ClientMessage, key: bytes, became: Result | Exception | None
    ) -> None:
        """Send the response to a request; a cancelled one gets none."""
        # before the answer is sent: the client may use the id again as soon as it has it
        del self._client.scopes[key]
        self._shares.give(self._client.holder)
        if isinstance(became, Exception):
            self._refuse(message.id, client_errors.to_refusal(became, message.method))
        elif became is not None:
            self._outlet.send(b"".join(answer(message.id, became)))

    def _turn(self, message: ClientMessage, light: LightTask) -> ClientRequest:
        params = client_errors.read_params(message)
        modern = admit_unheaded(message, params)
        if not modern and not self._client.shook_hands and message.method not in _BEFORE_HANDSHAKE:
            raise Refused(client_errors.INVALID_REQUEST, "initialize first")
        client = self._client
        turn = modern_turn if modern else session_turn
        return turn(client, message.id, self._outlet, params, light)

    def _refuse(self, request_id: Raw, error: Refused) -> None:
        self._outlet.send(refusal(request_id, error))
