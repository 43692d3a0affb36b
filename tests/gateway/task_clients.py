"""Clients that follow tasks, in the dialect of each era; no SDK has both."""

import itertools
import json
from contextlib import asynccontextmanager

import anyio
import httpx2

from tests.waiting import PATIENCE

TASKS = "io.modelcontextprotocol/tasks"
_META = "io.modelcontextprotocol/"
_NAMED = {"tools/call": "name", "tasks/get": "taskId", "tasks/update": "taskId"}
_NAMED |= {"tasks/cancel": "taskId", "prompts/get": "name", "resources/read": "uri"}
_EVENTS = "application/json, text/event-stream"


class Refused(Exception):
    """An error that answers a request."""

    def __init__(self, error):
        super().__init__(error["message"])
        self.code = error["code"]
        self.data = error.get("data")


class NewClient:
    """A client of the extension, which declares it with each request."""

    era = "new"

    def __init__(self, url, *, token=None, declares=True, able=True, more=()):
        self.url = url
        self._token = token
        self._numbers = itertools.count(1)
        extensions = {"extensions": {TASKS: {}, **{key: {} for key in more}}} if declares else {}
        self.capabilities = {**({"elicitation": {"form": {}}} if able else {}), **extensions}

    async def __aenter__(self):
        head = {} if self._token is None else {"authorization": f"Bearer {self._token}"}
        self._http = httpx2.AsyncClient(headers=head, timeout=60)
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *exc):
        await self._http.__aexit__(*exc)

    def _written(self, method, params, headers):
        meta = {
            f"{_META}protocolVersion": "2026-07-28",
            f"{_META}clientInfo": {"name": "t", "version": "1"},
            f"{_META}clientCapabilities": self.capabilities,
        }
        params = {**params, "_meta": {**meta, **params.get("_meta", {})}}
        head = {"mcp-protocol-version": "2026-07-28", "mcp-method": method, "accept": _EVENTS}
        if (key := _NAMED.get(method)) is not None:
            head["mcp-name"] = params[key]
        body = {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params}
        head |= headers or {}
        return {"json": body, "headers": {key: head[key] for key in head if head[key] is not None}}

    async def ask(self, method, params, headers=None):
        response = await self._http.post(self.url, **self._written(method, params, headers))
        return _outcome(_messages(response)[-1])

    @asynccontextmanager
    async def listens(self, **notifications):
        """The notifications of a stream, as they come."""
        written = self._written("subscriptions/listen", {"notifications": notifications}, None)
        async with self._http.stream("POST", self.url, **written) as response:
            yield (
                json.loads(line[5:])
                async for line in response.aiter_lines()
                if line.startswith("data:") and line[5:].strip()
            )

    async def call(self, tool, arguments=None, **more):
        return await self.ask("tools/call", {"name": tool, "arguments": arguments or {}, **more})

    async def begin(self, tool, arguments=None):
        """The id of the task that a call becomes."""
        created = await self.call(tool, arguments)
        assert created["resultType"] == "task", created
        return created["taskId"]

    async def get(self, task):
        return await self.ask("tasks/get", {"taskId": task})

    async def cancel(self, task):
        return await self.ask("tasks/cancel", {"taskId": task})

    async def reach(self, task, *statuses):
        """The state of a task, once it is one of these."""
        with anyio.fail_after(PATIENCE):
            while (state := await self.get(task))["status"] not in statuses:
                await anyio.sleep(0.05)
        return state

    async def finish(self, task):
        """Answer what a task asks; returns its result."""
        state = await self.reach(task, "completed", "failed", "cancelled", "input_required")
        if state["status"] == "input_required":
            answers = {key: accept(asked) for key, asked in state["inputRequests"].items()}
            await self.ask("tasks/update", {"taskId": task, "inputResponses": answers})
            return await self.finish(task)
        if state["status"] != "completed":
            raise Refused(state.get("error") or {"code": 0, "message": state["status"]})
        return state["result"]


class OldClient:
    """A client of 2025-11-25, which asks for tasks and collects their results."""

    era = "old"

    def __init__(self, url, *, token=None, able=True):
        self.url = url
        self._token = token
        self._numbers = itertools.count(1)
        self.capabilities = {"elicitation": {}} if able else {}
        self.told = []

    async def __aenter__(self):
        head = {"accept": _EVENTS}
        if self._token is not None:
            head["authorization"] = f"Bearer {self._token}"
        self._http = httpx2.AsyncClient(headers=head, timeout=60)
        await self._http.__aenter__()
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": self.capabilities,
            "clientInfo": {"name": "t", "version": "1"},
        }
        response = await self._http.post(self.url, json=self._message("initialize", hello))
        self.server = _outcome(_messages(response)[-1])
        self._http.headers["mcp-session-id"] = response.headers["mcp-session-id"]
        self._http.headers["mcp-protocol-version"] = "2025-11-25"
        initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        await self._http.post(self.url, json=initialized)
        return self

    async def __aexit__(self, *exc):
        await self._http.__aexit__(*exc)

    def _message(self, method, params):
        return {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": params}

    async def ask(self, method, params):
        body = self._message(method, params)
        async with self._http.stream("POST", self.url, json=body) as response:
            if response.headers["content-type"].startswith("application/json"):
                return _outcome(json.loads(await response.aread()))
            async for line in response.aiter_lines():
                if not line.startswith("data:") or not line[5:].strip():
                    continue
                message = json.loads(line[5:])
                if "method" not in message:
                    return _outcome(message)
                self.told.append(message)
                if "id" in message:
                    answer = {"jsonrpc": "2.0", "id": message["id"], "result": accept(message)}
                    await self._http.post(self.url, json=answer)
        raise AssertionError("the stream ended without an answer")

    async def call(self, tool, arguments=None, **more):
        return await self.ask("tools/call", {"name": tool, "arguments": arguments or {}, **more})

    async def begin(self, tool, arguments=None):
        created = await self.call(tool, arguments, task={"ttl": 60_000})
        return created["task"]["taskId"]

    async def get(self, task):
        return await self.ask("tasks/get", {"taskId": task})

    async def cancel(self, task):
        return await self.ask("tasks/cancel", {"taskId": task})

    async def reach(self, task, *statuses):
        with anyio.fail_after(PATIENCE):
            while (state := await self.get(task))["status"] not in statuses:
                await anyio.sleep(0.05)
        return state

    async def finish(self, task):
        return await self.ask("tasks/result", {"taskId": task})


def accept(asked):
    (name, _), *_ = asked["params"]["requestedSchema"]["properties"].items()
    return {"action": "accept", "content": {name: "Ada" if name == "name" else True}}


def _messages(response):
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        lines = response.text.splitlines()
        return [json.loads(line[5:]) for line in lines if line.startswith("data:") and line[5:]]
    return [response.json()]


def _outcome(message):
    if "error" in message:
        raise Refused(message["error"])
    return message["result"]


CLIENTS = {"old": OldClient, "new": NewClient}
