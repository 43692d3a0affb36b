"""Every way to make a call: the library's two, and a gateway's clients of both eras and wires.

Outcomes have the same form everywhere, so that they can be compared.
"""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from itertools import count

import anyio
import mcp_types as types

from multitap import CallContext, Handlers, Settings, SyncHub, open_hub
from multitap.config import HttpServer, StdioServer
from multitap.errors import (
    BadAnswer,
    BadArguments,
    CallTimeout,
    HubClosed,
    MultitapError,
    Overloaded,
    ServerError,
    Unavailable,
    UnknownName,
)
from multitap.events import ServerLog
from multitap.gateway.fronts.tokens import Token
from tests.gateway.hostile.raw import (
    OLD,
    dial,
    hello,
    http,
    in_session,
    message,
    stateless,
)
from tests.gateway.talking import gate
from tests.waiting import PATIENCE, until_told

CANCELLED = "cancelled"
ABLE = {"elicitation": {"form": {}}, "sampling": {}}
TOKEN = Token(b"a-token-of-some-length", "ann")
BEARER = {"authorization": f"Bearer {TOKEN.secret.decode()}"}
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
NAME, MODEL = "Ada", "a model"
CODES = (
    (UnknownName, -32602),
    (CallTimeout, -32001),
    (Overloaded, -32003),
    (BadAnswer, -32004),
    (Unavailable, -32000),
    (HubClosed, -32000),
)
"""What the gateway says for each of the library's exceptions."""


def settings_of(servers, state):
    """For a hub; `servers` are tables as they stand in a file."""
    kinds = {name: HttpServer if "url" in one else StdioServer for name, one in servers.items()}
    return Settings(
        servers={name: kinds[name](**one) for name, one in servers.items()}, state_dir=state
    )


def toml(value):
    if isinstance(value, dict):
        pairs = ", ".join(f"{key} = {toml(one)}" for key, one in value.items())
        return f"{{ {pairs} }}"
    return json.dumps(value)


def file_of(servers, state):
    """The same settings as a file."""
    lines = [f"state_dir = {toml(str(state))}", "auto_reload = false"]
    for name, one in servers.items():
        lines += [f"[servers.{name}]", *(f"{key} = {toml(value)}" for key, value in one.items())]
    path = state.with_suffix(".toml")
    path.write_text("\n".join(lines))
    return path


def reply_to(method):
    """The answer of every client to a server's question."""
    if method == "elicitation/create":
        return {"action": "accept", "content": {"name": NAME}}
    said = {"type": "text", "text": "hello"}
    return {"role": "assistant", "content": said, "model": MODEL}


def result_of(text, *, failed):
    return {"failed": text} if failed else {"text": text}


class Front:
    """One way to make calls, and what it heard besides their answers."""

    can_log = True
    """Whether log messages reach who calls."""
    is_host = False
    """Whether it is no client of a gateway, but a program with a hub in it."""

    def __init__(self):
        self.progress, self.logs, self.asked = [], [], []

    def forget(self):
        for heard in (self.progress, self.logs, self.asked):
            heard.clear()

    async def call(self, tool, arguments=None, *, progress=False, log=False, able=False):
        """What comes of a call.

        Args:
            tool: By its name in the catalog.
            arguments: Its arguments.
            progress: Whether its progress is wanted.
            log: Whether its log messages are.
            able: Whether the server may ask something.
        """
        raise NotImplementedError

    async def give_up(self, tool, arguments, begun):
        """Cancel a call, as clients of the kind do, once `begun` returns."""
        raise NotImplementedError

    async def call_many(self, tool, many):
        """All at once, on one connection where there are connections; outcomes in order."""
        outcomes = [None] * len(many)

        async def one(number, arguments):
            outcomes[number] = await self.call(tool, arguments)

        async with anyio.create_task_group() as tasks:
            for number, arguments in enumerate(many):
                tasks.start_soon(one, number, arguments)
        return outcomes

    async def crowd(self, tool, arguments, number, enough):
        """Make `number` calls at once, cancelled when `enough(outcomes)` is true."""
        outcomes = []

        async def one():
            outcomes.append(await self.call_for_a_while(tool, arguments))

        async with anyio.create_task_group() as tasks:
            for _ in range(number):
                tasks.start_soon(one)
            await enough(outcomes)
            tasks.cancel_scope.cancel()
        return outcomes

    async def call_for_a_while(self, tool, arguments):
        """A call that is cancelled with its task."""
        return await self.call(tool, arguments)


class _Host(Front):
    """A program with a hub in it."""

    is_host = True

    def handlers(self):
        async def elicit(_, params):
            self.asked.append("elicitation/create")
            return types.ElicitResult.model_validate(reply_to("elicitation/create"))

        async def sample(_, params):
            self.asked.append("sampling/createMessage")
            return types.CreateMessageResult.model_validate(reply_to("sampling/createMessage"))

        return Handlers(elicit=elicit, sample=sample)

    def context(self, progress):
        def told(done, total, words):
            self.progress.append((done, total, words))

        return CallContext(on_progress=told) if progress else CallContext()

    @staticmethod
    async def outcome(calling):
        try:
            result = await calling
        except BadArguments as exc:  # the gateway tells it to the model
            return {"failed": f"{exc}; {exc.hint}" if exc.hint else str(exc)}
        except ServerError as exc:
            return {"error": exc.code, "words": exc.words, "data": exc.data}
        except MultitapError as exc:
            code = next(code for kind, code in CODES if isinstance(exc, kind))
            return {"error": code, "words": f"{exc}; {exc.hint}" if exc.hint else str(exc)}
        return result_of(result.text, failed=not result.success)


class Library(_Host):
    """`await hub.call(...)`."""

    @asynccontextmanager
    async def opened(self, servers, state):
        async with open_hub(settings_of(servers, state), handlers=self.handlers()) as self.hub:
            with anyio.fail_after(PATIENCE):
                await self.hub.settled()
            yield self

    async def call(self, tool, arguments=None, *, progress=False, log=False, able=False):
        with self.hub.events.subscribe(calls=False) as events, anyio.fail_after(PATIENCE):
            calling = self.hub.call(tool, arguments, context=self.context(progress))
            outcome = await self.outcome(calling)
            while log and not self.logs:
                event = await anext(events)
                if isinstance(event, ServerLog):
                    self.logs.append((event.level, event.logger, event.text))
        return outcome

    async def give_up(self, tool, arguments, begun):
        outcome = CANCELLED

        async def calls():
            nonlocal outcome
            outcome = await self.call(tool, arguments)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(calls)
            await begun()
            tasks.cancel_scope.cancel()
        return outcome


class Sync(_Host):
    """`SyncHub`, from threads."""

    can_log = False

    @asynccontextmanager
    async def opened(self, servers, state):
        hub = SyncHub(settings_of(servers, state), handlers=self.handlers())
        self.hub = await anyio.to_thread.run_sync(hub.__enter__)
        try:
            await anyio.to_thread.run_sync(hub.settled)
            yield self
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(hub.__exit__, None, None, None)

    async def call(self, tool, arguments=None, *, progress=False, log=False, able=False):
        context = self.context(progress)

        def calls():
            return self.hub.call(tool, arguments, context=context)

        with anyio.fail_after(PATIENCE):
            return await self.outcome(
                anyio.to_thread.run_sync(calls, limiter=anyio.CapacityLimiter(1))
            )

    async def call_for_a_while(self, tool, arguments):
        future = self.hub.submit(lambda hub: hub.call(tool, arguments))
        return await self.outcome(asyncio.wrap_future(future))

    async def give_up(self, tool, arguments, begun):
        future = self.hub.submit(lambda hub: hub.call(tool, arguments))
        await begun()
        future.cancel()
        return CANCELLED


class _Client(Front):
    """A client of the gateway, made of JSON and a wire."""

    def __init__(self, era):
        super().__init__()
        self.era = era
        self._ids = count(1)

    @property
    def is_stateless(self):
        return self.era == "stateless"

    async def ask(self, request_id, method, params, *, able):
        """The answer to one request; what else is said in the meantime goes to `hear`."""
        raise NotImplementedError

    async def reply(self, asked):
        """Answer a request of the gateway's."""
        raise NotImplementedError

    async def call(self, tool, arguments=None, *, progress=False, log=False, able=False):
        params = {"name": tool, "arguments": arguments or {}}
        if log:
            await self._want_logs(params)
        while True:
            number = next(self._ids)
            if progress:
                params["_meta"] = {"progressToken": f"of {number}"}
            with anyio.fail_after(PATIENCE):
                answer = await self.ask(number, "tools/call", params, able=able)
            result = answer.get("result", {})
            if result.get("resultType") != "input_required":
                return outcome_of(answer)
            asked = result["inputRequests"]
            self.asked += [one["method"] for one in asked.values()]
            params["inputResponses"] = {key: reply_to(one["method"]) for key, one in asked.items()}
            params["requestState"] = result["requestState"]

    async def _want_logs(self, params):
        if self.is_stateless:
            params["_meta"] = {LOG_LEVEL: "info"}
        else:
            answer = await self.ask(
                next(self._ids), "logging/setLevel", {"level": "info"}, able=False
            )
            assert "result" in answer

    async def hear(self, told):
        """Take a notification or a request."""
        params = told.get("params", {})
        if "id" in told:
            self.asked.append(told["method"])
            await self.reply(
                {"jsonrpc": "2.0", "id": told["id"], "result": reply_to(told["method"])}
            )
        elif told["method"] == "notifications/progress":
            self.progress.append((params["progress"], params.get("total"), params.get("message")))
        elif told["method"] == "notifications/message":
            self.logs.append((params["level"], params.get("logger"), params["data"]))


def outcome_of(answer):
    if "error" in answer:
        error = answer["error"]
        said = {"error": error["code"], "words": error["message"]}
        return (
            said if "reason" in (error.get("data") or ()) else {**said, "data": error.get("data")}
        )
    result = answer["result"]
    text = "\n".join(block.get("text", "") for block in result["content"])
    return result_of(text, failed=result.get("isError", False))


class OverHttp(_Client):
    """Raw sockets to a gateway in this process."""

    @asynccontextmanager
    async def opened(self, servers, state):
        # by its token, all calls of a stateless client are known to be its own
        async with gate(settings_of(servers, state), tokens=(TOKEN,)) as self.gate:
            self.port = int(self.gate.url.partition("://")[2].partition("/")[0].rpartition(":")[2])
            self.session = None
            if not self.is_stateless:
                await self._shake_hands()
            yield self

    async def _shake_hands(self):
        async with dial(self.port) as line:
            response = await line.asks(http(body=hello(capabilities=ABLE), **BEARER))
            self.session = response.headers["mcp-session-id"]
        await self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def _post(self, said):
        async with dial(self.port) as line:
            response = await line.asks(in_session(self.session, said, **BEARER))
            assert response.status == 202

    def written(self, number, method, params, *, able=False):
        """A request as bytes."""
        if self.is_stateless:
            able = ABLE if able else {}
            return stateless(number, method, able=able, headers=BEARER, **params)
        return in_session(self.session, message(number, method, **params), **BEARER)

    async def ask(self, request_id, method, params, *, able):
        async with dial(self.port) as line:
            await line.send(self.written(request_id, method, params, able=able))
            return await self._answer(line, request_id)

    async def reply(self, asked):
        await self._post(asked)

    async def _answer(self, line, request_id):
        _, headers = await line.head()
        if headers.get("content-type") != "text/event-stream":
            return json.loads(await line.reader.readexactly(int(headers["content-length"])))
        rest, answer = b"", None
        while part := await line.chunk():
            rest += part
            *events, rest = rest.replace(b"\r\n", b"\n").split(b"\n\n")
            for event in events:
                data = b"".join(
                    one[5:].strip() for one in event.split(b"\n") if one.startswith(b"data:")
                )
                told = json.loads(data) if data else {}
                if "method" in told:
                    await self.hear(told)
                elif told.get("id") == request_id:
                    answer = told
        return answer

    async def give_up(self, tool, arguments, begun):
        number = next(self._ids)
        async with dial(self.port) as line:
            params = {"name": tool, "arguments": arguments}
            await line.send(self.written(number, "tools/call", params))
            await begun()
            if self.is_stateless:
                return CANCELLED  # by leaving
            gives_up = {"requestId": number}
            await self._post(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": gives_up}
            )
            return cancelled(await self._answer(line, number))

    async def call_many(self, tool, many):
        numbers = [next(self._ids) for _ in many]
        async with dial(self.port) as line, anyio.create_task_group() as tasks:
            requests = [
                self.written(number, "tools/call", {"name": tool, "arguments": arguments})
                for number, arguments in zip(numbers, many, strict=True)
            ]
            tasks.start_soon(line.send, b"".join(requests))
            return [outcome_of(await self._answer(line, number)) for number in numbers]


class OverPipes(_Client):
    """A gateway that is a program, started by its client."""

    @asynccontextmanager
    async def opened(self, servers, state):
        config = file_of(servers, state)
        command = [sys.executable, "-m", "multitap", "serve", "-c", str(config)]
        self._waiting = {}
        async with (
            await anyio.open_process(
                command, stderr=subprocess.DEVNULL, env=dict(os.environ)
            ) as process,
            anyio.create_task_group() as tasks,
        ):
            self.process = process
            tasks.start_soon(self._read)
            if not self.is_stateless:
                info = {"name": "raw", "version": "1"}
                params = {"protocolVersion": OLD, "capabilities": ABLE, "clientInfo": info}
                await self.ask(next(self._ids), "initialize", params, able=False)
                await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            await self._settled(servers)
            yield self
            await process.stdin.aclose()
            with anyio.fail_after(PATIENCE):
                await process.wait()
            tasks.cancel_scope.cancel()

    async def _settled(self, servers):
        """The list is complete once a tool of each server is in it."""

        async def is_complete():
            answer = await self.ask(next(self._ids), "tools/list", {}, able=False)
            names = {tool["name"] for tool in answer["result"]["tools"]}
            return names >= {f"{server}_echo" for server in servers}

        await until_told(is_complete)

    async def _send(self, *said):
        await self.process.stdin.send(b"".join(json.dumps(one).encode() + b"\n" for one in said))

    async def _read(self):
        rest = b""
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError):
            while True:
                rest += await self.process.stdout.receive(2**20)
                *lines, rest = rest.split(b"\n")
                for told in map(json.loads, lines):
                    if "method" in told:
                        await self.hear(told)
                    elif waiting := self._waiting.pop(told["id"], None):
                        waiting.set_result(told)

    def written(self, number, method, params, *, able=False):
        if self.is_stateless:
            meta = {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": ABLE if able else {},
            }
            params = {**params, "_meta": {**meta, **params.get("_meta", {})}}
        return message(number, method, **params)

    def _expect(self, number):
        self._waiting[number] = asyncio.get_running_loop().create_future()
        return self._waiting[number]

    async def ask(self, request_id, method, params, *, able):
        waiting = self._expect(request_id)
        await self._send(self.written(request_id, method, params, able=able))
        try:
            return await waiting
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True), suppress(anyio.ClosedResourceError):
                await self._cancel(request_id)
            raise

    async def _cancel(self, request_id):
        gives_up = {"requestId": request_id}
        await self._send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": gives_up}
        )

    async def reply(self, asked):
        await self._send(asked)

    async def give_up(self, tool, arguments, begun):
        number = next(self._ids)
        waiting = self._expect(number)
        params = {"name": tool, "arguments": arguments}
        await self._send(self.written(number, "tools/call", params))
        await begun()
        await self._cancel(number)
        # whatever is said to it comes before the answer to what is asked next
        await self.ask(next(self._ids), "tools/list", {}, able=False)
        return cancelled(waiting.result()) if waiting.done() else CANCELLED

    async def call_many(self, tool, many):
        numbers = [next(self._ids) for _ in many]
        waiting = [self._expect(number) for number in numbers]
        requests = [
            self.written(number, "tools/call", {"name": tool, "arguments": arguments})
            for number, arguments in zip(numbers, many, strict=True)
        ]
        await self._send(*requests)
        with anyio.fail_after(PATIENCE):
            return [outcome_of(await one) for one in waiting]


def cancelled(answer):
    """The outcome of a cancelled call, from its answer."""
    return CANCELLED if answer.get("error", {}).get("code") == -32800 else outcome_of(answer)


FRONTS = {
    "library": Library,
    "sync": Sync,
    "http-handshake": lambda: OverHttp("handshake"),
    "http-stateless": lambda: OverHttp("stateless"),
    "stdio-handshake": lambda: OverPipes("handshake"),
    "stdio-stateless": lambda: OverPipes("stateless"),
}
