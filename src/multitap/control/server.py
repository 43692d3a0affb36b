"""Serves the control methods as HTTP and JSON: to commands on a local socket, and to pages."""

import contextlib
import hmac
import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import msgspec

from multitap.control import places
from multitap.control.messages import MAX_BODY, ControlFailure, ServerQuestion
from multitap.errors import MultitapError, ungrouped
from multitap.http.server.connections import HttpLimits
from multitap.http.server.request import JSON, Headers, HttpRequest, Rejected, RequestHead, ToDo
from multitap.http.server.server import open_http_server

if TYPE_CHECKING:
    from multitap.control.methods import Method
    from multitap.control.service import ControlService

logger = logging.getLogger(__name__)

WORK = 30.0
"""Seconds for one answer without a server: a request must not occupy its place forever."""
CALM = 0.05
"""Seconds between two reports of progress: a server may send thousands."""
MOST_ACTIONS = 24
"""Actions that may wait for servers at a time, so that other requests still get an answer."""
PIECE = 256 * 1024
"""Bytes of a result that are written in one turn of the loop."""
LIMITS = HttpLimits(
    # of one user, who gets three quarters of them
    connections=43,
    body=MAX_BODY,
    request_timeout=5.0,
    keep_alive=30.0,  # idle ones give way; a client may wait for a processor before it asks
    write_timeout=5.0,
    drain=0.5,
)
"""For the local socket: commands come and go, and none may keep the others out."""
ROOT = "/control/"

_STATUS = {
    "unknown": 404,
    "arguments": 400,
    "configuration": 409,
    "unavailable": 503,
    "denied": 403,
    "failed": 500,
}
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_UNPROVEN = ControlFailure(
    "this gateway answers only programs that know the secret of its user",
    hint="confined servers may not use it; commands need the gateway's HOME and XDG_STATE_HOME",
    kind="denied",
)
_encode = msgspec.json.Encoder().encode

Handler = Callable[[HttpRequest], ToDo]


class ControlApi:
    """Runs the methods for HTTP requests.

    A method is answered by JSON. A stream, and an action whose client accepts one, is answered by
    server-sent events: `item`, or `begun`, `progress`, `question`, and at last `answer` or
    `failure`.

    Args:
        service: Makes the service, for the first request: most gateways never get one.
        caller: A name for those who send the requests.
        largest: Bytes of the longest answer that they can take.
        check: Raises a `MultitapError` for a request that this client may not make.
    """

    def __init__(
        self,
        service: "Callable[[], ControlService]",
        caller: str,
        *,
        largest: int | None = None,
        headers: Headers | None = None,
        check: Callable[[HttpRequest, str, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._service = cache(service)
        self._check = check
        self._caller = caller
        self._largest = largest
        self._headers = headers
        self._actions = 0
        self._turn = anyio.Lock()

    def handler(self, name: str) -> Handler | None:
        """Handles requests for one method; None if there is no such method."""
        from multitap.control.methods import method  # noqa: PLC0415 - see `service`

        control_method = method.get(name)
        return (
            None
            if control_method is None
            else lambda http_request: self._run(control_method, http_request)
        )

    def refuse(
        self, http_request: HttpRequest, failure: ControlFailure, status: int | None = None
    ) -> None:
        """Answer with an error."""
        self._respond(http_request, failure, status or _STATUS[failure.kind])

    async def _run(self, control_method: "Method", http_request: HttpRequest) -> None:
        try:
            arguments = control_method.unpack(http_request.body or b"{}")
        except _UNREADABLE as exc:
            self.refuse(
                http_request, ControlFailure(f"{control_method.name}: {exc}", kind="arguments")
            )
            return
        async with self._turn:
            # encoding a long list takes a while: one answer per turn of the loop, however
            # many ask at once
            await anyio.lowlevel.checkpoint()
        answer = getattr(self._service(), control_method.name)
        try:
            if self._check is not None:
                self._check(http_request, control_method.name, arguments)
            if control_method.takes_person:
                await self._act(http_request, answer, arguments)
                return
            if control_method.is_stream:
                await self._stream(http_request, answer(**arguments))
                return
            with anyio.fail_after(WORK):
                self._respond(http_request, await answer(**arguments))
        except MultitapError as exc:
            if http_request.responded:
                raise
            self.refuse(http_request, ControlFailure.of(exc))
        except TimeoutError:
            self.refuse(http_request, ControlFailure(f"it took more than {WORK:g} seconds"))

    async def _stream(
        self, http_request: HttpRequest, feed: AbstractAsyncContextManager[Any]
    ) -> None:
        async with feed as items:
            http_request.stream(self._headers)
            async for item in items:
                await http_request.write(_event(b"item", _encode(item)))
        http_request.end()

    async def _act(
        self, http_request: HttpRequest, act: Callable[..., Any], arguments: dict[str, Any]
    ) -> None:
        """Run an action until it is done, or its client has left."""
        if self._actions >= MOST_ACTIONS:
            error = f"{MOST_ACTIONS} calls are already waiting for servers"
            self.refuse(http_request, ControlFailure(error, kind="unavailable"))
            return
        from multitap.control.actions import RemoteUser  # noqa: PLC0415 - see `service`

        person = RemoteUser(self._caller, can_answer=arguments.pop("person"))
        conversations = self._service().conversations
        conversations[person.id] = person
        self._actions += 1
        outcome: list[Any] = []

        async def work() -> None:
            try:
                outcome.append(await act(**arguments, person=person))
            except MultitapError as exc:
                outcome.append(ControlFailure.of(exc))
            finally:
                person.end()

        try:
            http_request.stream(self._headers)
            await http_request.write(_event(b"begun", _encode(person.id)))
            with ungrouped():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(work)
                    while True:
                        step = await person.next()
                        if person.is_over:
                            break
                        await http_request.write(_describe(step))
                        await anyio.sleep(CALM)
            for answer in outcome:
                await self._deliver(http_request, answer)
            http_request.end()
        finally:
            # also if the client has left: a server that waits needs an answer
            person.end()
            del conversations[person.id]
            self._actions -= 1

    async def _deliver(self, http_request: HttpRequest, answer: Any) -> None:
        """Send the last event, which may be long, as fast as it is read."""
        encoded = _encode(answer)
        if self._largest is not None and len(encoded) > self._largest:
            error = f"the result has {len(encoded):,} bytes: too many to be shown on a page"
            answer = ControlFailure(error, hint="`multitap call` writes it to a file")
            encoded = _encode(answer)
        kind = b"failure" if isinstance(answer, ControlFailure) else b"answer"
        whole = memoryview(_event(kind, encoded))
        for start in range(0, len(whole), PIECE):
            await http_request.write(bytes(whole[start : start + PIECE]))
            await anyio.lowlevel.checkpoint()

    def _respond(self, http_request: HttpRequest, answer: Any, status: int = 200) -> None:
        http_request.respond(status, (_encode(answer),), kind=JSON, extra=self._headers)


def _describe(step: Any) -> bytes:
    if step is None:
        return b": still working\n\n"
    kind = b"question" if isinstance(step, ServerQuestion) else b"progress"
    return _event(kind, _encode(step))


def _event(kind: bytes, data: bytes) -> bytes:
    # line breaks in JSON are only between tokens
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"event: %b\ndata: %b\n\n" % (kind, data)


class ControlSocket:
    """The methods on a local socket, for programs of its user that know the user's secret."""

    def __init__(self, service: "Callable[[], ControlService]", path: Path) -> None:
        self._api = ControlApi(service, "command line")
        self._path = path
        self._proof = places.prove(path)

    def admit(self, head: RequestHead) -> Rejected | None:
        # not a user of their own: the folder protects us where the system cannot tell users
        if head.peer.user() not in {None, os.getuid()}:
            return _reject(403, "this gateway answers only its own user")
        if not self._is_proven(head.headers.get(b"authorization", b"")):
            return Rejected(403, _encode(_UNPROVEN).decode(), kind=JSON)
        if head.method != b"POST":
            return _reject(405, "methods are called with POST")
        head.keeps_body = True
        head.handler = self._api.handler(head.path.decode("latin-1").removeprefix(ROOT))
        return None

    def handle(self, http_request: HttpRequest) -> ToDo:
        """Answer a request for which `admit` found no method."""
        path = http_request.head.path.decode("latin-1")
        self._api.refuse(http_request, ControlFailure(f"no method {path!r}", kind="unknown"))
        return None

    def _is_proven(self, credentials: bytes) -> bool:
        """Whether a client knows the secret, which no confined server can read."""
        proof = credentials.removeprefix(b"Bearer ")
        if hmac.compare_digest(proof, self._proof):
            return True
        # the secret is new if somebody has removed the old one
        with contextlib.suppress(MultitapError):
            self._proof = places.prove(self._path)
        return hmac.compare_digest(proof, self._proof)


def _reject(status: int, error: str) -> Rejected:
    return Rejected(status, _encode(ControlFailure(error)).decode(), kind=JSON)


@asynccontextmanager
async def open_control(
    service: "Callable[[], ControlService]",
    state: Path,
    limits: HttpLimits = LIMITS,
    *,
    number: int = 0,
) -> AsyncGenerator[None]:
    """While entered, commands reach the gateway, unless the socket cannot be created.

    The service is made for the first of them.
    """
    try:
        path = places.own_socket(state, number)
        app = ControlSocket(service, path)
        places.sockets(state)  # remove the sockets of dead gateways
        listener = listen(path)
    except (OSError, MultitapError) as exc:
        logger.warning("commands such as `multitap status` cannot reach the gateway: %s", exc)
        yield
        return
    with contextlib.closing(listener):
        async with open_http_server(app, listener, limits):
            try:
                yield
            finally:
                # before it stops answering: a socket that exists answers
                places.leave(path)


def listen(path: Path) -> socket.socket:
    """A socket that listens at this path, instead of one that a dead process left there.

    Raises:
        OSError: It cannot be created.
    """
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(str(draft))
        draft.chmod(0o600)
        listener.listen(64)
        draft.replace(path)  # a socket that exists answers, so one that does not is dead
    except OSError:
        listener.close()
        raise
    return listener
