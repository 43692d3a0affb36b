"""A server with tasks, in the dialect of one era: `task_server.py old|new|both [PORT [FILE]]`.

It has the tools that the conformance suite wants, and speaks the protocol itself: no SDK runs tasks
in both dialects. With a port, and as `app`, it is the same over HTTP; it notes the labels of its
computations in the file, for all its processes.
"""

import itertools
import json
import os
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
from anyio import to_thread
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

TASKS = "io.modelcontextprotocol/tasks"
_META = "io.modelcontextprotocol/"
ENDED = {"completed", "failed", "cancelled"}
NAMED = {"tools/call": "name", "tasks/get": "taskId", "tasks/update": "taskId"}
NAMED["tasks/cancel"] = "taskId"


def _ask(message, **properties):
    schema = {"type": "object", "properties": properties}
    return {
        "method": "elicitation/create",
        "params": {"mode": "form", "message": message, "requestedSchema": schema},
    }


CONFIRM = _ask("really?", confirm={"type": "boolean"})
WHO = _ask("who are you?", name={"type": "string"})
SUPPORT = {
    "greet": "forbidden",
    "plain_sleep": "forbidden",
    "slow_compute": "optional",
    "confirm_delete": "optional",
    "multi_input": "optional",
    "failing_job": "required",
    "protocol_error_job": "required",
    "test_tool_with_task": "required",
    "endless": "required",
    "long_job": "required",
}


class Failure(Exception):
    """A protocol error."""

    def __init__(self, code, message, data=None):
        super().__init__(message)
        self.code = code
        self.data = data

    @property
    def body(self):
        more = {} if self.data is None else {"data": self.data}
        return {"code": self.code, "message": str(self), **more}


class Task:
    """A call that goes on by itself."""

    def __init__(self, number, name, ttl):
        # easy to guess: nobody but us may see it; but its successor must not use it again
        self.id = f"task-{os.getpid()}-{number}"
        self.name = name
        self.ttl = ttl
        self.status = "working"
        self.message = None
        self.created = self.updated = _now()
        self.result = self.error = None
        self.questions = {}
        self.answers = {}
        self.changed = anyio.Event()
        self.scope = anyio.CancelScope()

    def become(self, status, message=None):
        if self.status in ENDED:
            return
        self.status, self.message, self.updated = status, message, _now()
        self.stir()

    def stir(self):
        self.changed.set()
        self.changed = anyio.Event()

    async def ask(self, **questions):
        """The answers of the client, once all are there."""
        self.questions |= questions
        self.become("input_required", "it asks")
        while not questions.keys() <= self.answers.keys():
            await self.changed.wait()
        self.become("working", "it goes on")
        return [self.answers[key] for key in questions]

    def answer(self, key, answer):
        if self.questions.pop(key, None) is not None:
            self.answers[key] = answer
            self.stir()


class TaskServer:
    """The behaviour of the server, over all its connections."""

    def __init__(self, era, tasks, poll=50):
        self.era = era
        self.poll = poll
        self.tasks = {}
        self.calls = []
        self.labels = []
        self.cancelled = []
        self.asked_by = {}
        self._group = tasks
        self._numbers = itertools.count(1)

    async def answer(self, message, ask=None, tell=None):
        """The answer to a request; `ask` asks the client during it, `tell` notifies it."""
        params = message.get("params") or {}
        try:
            method = message["method"].replace("/", "_")
            handler = getattr(self, f"_{self.era}_{method}", None) or getattr(
                self, f"_{method}", None
            )
            result = await (handler or _unknown)(params, ask, tell)
        except Failure as exc:
            return {"jsonrpc": "2.0", "id": message["id"], "error": exc.body}
        if self.era == "new":
            result = {"resultType": "complete", **result}
        return {"jsonrpc": "2.0", "id": message["id"], "result": result}

    async def _old_initialize(self, params, *_):
        self.asked_by = params["capabilities"]
        tasks = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "tasks": tasks},
            "serverInfo": {"name": "tasks", "version": "1"},
        }

    async def _old_ping(self, *_):
        return {}

    async def _new_server_discover(self, *_):
        return {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}, "extensions": {TASKS: {}}},
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": {f"{_META}serverInfo": {"name": "tasks", "version": "1"}},
        }

    async def _tools_list(self, *_):
        tools = [
            {"name": name, "description": name, "inputSchema": {"type": "object"}}
            for name in SUPPORT
        ]
        if self.era == "old":
            for tool in tools:
                tool["execution"] = {"taskSupport": SUPPORT[tool["name"]]}
            return {"tools": tools}
        return {"tools": tools, "ttlMs": 0, "cacheScope": "private"}

    async def _old_tools_call(self, params, ask, tell):
        name = params["name"]
        wish, support = params.get("task"), SUPPORT[name]
        if support == "forbidden" if wish else support == "required":
            raise Failure(-32601, f"{name}: tasks are {support}")
        self.calls.append(name)
        if wish is None:
            return await self._work(name, params, None, tell)
        if name == "test_tool_with_task":  # asks before there is a task
            params["given"] = [await ask(WHO)]
        task = self._begin(name, params, wish.get("ttl", 60_000))
        return {"task": self._describe(task)}

    async def _new_tools_call(self, params, _, tell):
        name = params["name"]
        declared = _declared(params)
        if SUPPORT[name] == "required" and not declared:
            raise _undeclared()
        given = params.get("inputResponses", {})
        if name == "test_tool_with_task":
            if "who" not in given:
                return {"resultType": "input_required", "inputRequests": {"who": WHO}}
            params["given"] = [given["who"]]
        self.calls.append(name)
        if SUPPORT[name] == "forbidden" or not declared:
            return await self._work(name, params, None, tell)
        return {"resultType": "task", **self._describe(self._begin(name, params, 60_000))}

    async def _tasks_get(self, params, *_):
        task = self._find(params)
        told = self._describe(task)
        if self.era == "new":
            if task.status == "input_required":
                told["inputRequests"] = task.questions
            elif task.status == "completed":
                told["result"] = task.result
            elif task.status == "failed":
                told["error"] = task.error
        return told

    async def _new_subscriptions_listen(self, params, _, tell):
        if tell is None:  # over HTTP, it answers with one message
            return await _unknown()
        wanted = params["notifications"].get("taskIds", [])
        watched = [number for number in wanted if number in self.tasks]
        await tell("subscriptions/acknowledged", notifications={"taskIds": watched})
        async with anyio.create_task_group() as following:
            for number in watched:
                following.start_soon(self._follow, number, params, tell)
        return await anyio.sleep_forever()

    async def _follow(self, number, params, tell):
        while True:
            changed = self.tasks[number].changed
            state = await self._tasks_get({**params, "taskId": number})
            await tell("tasks", **state)
            if state["status"] in ENDED:
                return
            await changed.wait()

    async def _new_tasks_update(self, params, *_):
        task = self._find(params)
        for key, answer in params.get("inputResponses", {}).items():
            task.answer(key, answer)
        return {}

    async def _new_tasks_cancel(self, params, *_):
        self._cancel(self._find(params))
        return {}

    async def _old_tasks_cancel(self, params, *_):
        task = self._find(params)
        if task.status in ENDED:
            raise Failure(-32602, "the task has ended")
        self._cancel(task)
        return self._describe(task)

    async def _old_tasks_list(self, *_):
        return {"tasks": [self._describe(task) for task in self.tasks.values()]}

    async def _old_tasks_result(self, params, ask, _):
        task = self._find(params)
        related = {f"{_META}related-task": {"taskId": task.id}}
        while task.status not in ENDED:
            changed = task.changed
            async with anyio.create_task_group() as asking:
                for key, question in task.questions.items():
                    asked = {**question, "params": {**question["params"], "_meta": related}}
                    asking.start_soon(_pass_on, task, key, ask, asked)
            if not changed.is_set():
                await changed.wait()
        if task.status == "cancelled":
            raise Failure(-32603, "the task was cancelled")
        if task.result is None:
            raise Failure(task.error["code"], task.error["message"])
        return {**task.result, "_meta": related}

    def _cancel(self, task):
        if task.status not in ENDED:
            self.cancelled.append(task.name)
            task.become("cancelled")
            task.scope.cancel()

    def _find(self, params):
        if self.era == "new" and not _declared(params):
            raise _undeclared()
        task = self.tasks.get(params["taskId"])
        if task is None:
            raise Failure(-32602, "no such task")
        return task

    def _begin(self, name, params, ttl):
        task = Task(next(self._numbers), name, ttl)
        self.tasks[task.id] = task
        self._group.start_soon(self._run, task, params)
        return task

    async def _run(self, task, params):
        with task.scope:
            try:
                result = await self._work(task.name, params, task, None)
            except Failure as exc:
                task.error = exc.body
                task.become("failed")
            else:
                task.result = result
                is_failed = result.get("isError") and self.era == "old"
                task.become("failed" if is_failed else "completed")

    async def _work(self, name, params, task, tell):
        arguments = params.get("arguments", {})
        match name:
            case "greet":
                return _text(f"Hello, {arguments.get('name')}!")
            case "plain_sleep":
                await anyio.sleep(arguments.get("seconds", 0))
                return _text("slept")
            case "slow_compute":
                self.labels.append(arguments.get("label"))
                if task is not None:
                    task.become("working", "half way")
                await anyio.sleep(arguments.get("seconds", 0))
                return _text(f"computed {arguments.get('label')}")
            case "long_job":
                task.become("working", "patience")
                await anyio.sleep(arguments["seconds"])
                return _text("at last")
            case "endless":
                task.become("working", "for ever")
                await anyio.sleep_forever()
            case "confirm_delete" if task is not None:
                (answer,) = await task.ask(confirm=CONFIRM)
                return _text(f"{answer['action']} {answer.get('content')}")
            case "multi_input" if task is not None:
                first, second = await task.ask(first=WHO, second=CONFIRM)
                return _text(f"{first.get('content')} {second.get('content')}")
            case "failing_job":
                await anyio.sleep(0.1)
                return {**_text("it failed"), "isError": True}
            case "protocol_error_job":
                raise Failure(-32099, "a protocol error")
            case "test_tool_with_task":
                return _text(f"done for {params['given'][0]['content']['name']}")
        return _text("nobody was asked")

    def _describe(self, task):
        suffix = "Ms" if self.era == "new" else ""
        told = {
            "taskId": task.id,
            "status": task.status,
            "createdAt": task.created,
            "lastUpdatedAt": task.updated,
            f"ttl{suffix}": task.ttl,
            f"pollInterval{suffix}": self.poll,
        }
        return told if task.message is None else {**told, "statusMessage": task.message}


async def _pass_on(task, key, ask, question):
    task.answer(key, await ask(question))


def _undeclared():
    needs = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
    return Failure(-32021, "Missing required client capability", needs)


async def _unknown(*_):
    raise Failure(-32601, "Method not found")


class BothEras(TaskServer):
    """A server whose tasks only the stateless era has, although it speaks both."""

    async def _new_initialize(self, *_):
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tasks", "version": "1"},
        }

    async def _new_ping(self, *_):
        return {}


def _now():
    return datetime.now(UTC).isoformat()


def _text(text):
    return {"content": [{"type": "text", "text": text}]}


def _declared(params):
    capabilities = params.get("_meta", {}).get(f"{_META}clientCapabilities", {})
    return TASKS in capabilities.get("extensions", {})


class Questions:
    """Requests to a client, and its answers."""

    def __init__(self):
        self._numbers = itertools.count(1000)
        self._open = {}

    async def ask(self, send, question):
        number = next(self._numbers)
        answered = anyio.Event()
        self._open[number] = [answered, None]
        await send({"jsonrpc": "2.0", "id": number, **question})
        await answered.wait()
        return self._open.pop(number)[1]

    def take(self, message):
        if (waiting := self._open.get(message["id"])) is not None:
            waiting[1] = message.get("result", {"action": "decline"})
            waiting[0].set()


async def main(era):
    questions = Questions()
    async with anyio.create_task_group() as tasks:
        server = BothEras("new", tasks) if era == "both" else TaskServer(era, tasks)

        async def send(message):
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

        async def tell(method, **params):
            await send({"jsonrpc": "2.0", "method": f"notifications/{method}", "params": params})

        async def answer(message):
            ask = partial(questions.ask, send)
            await send(await server.answer(message, ask=ask, tell=tell))

        while line := await to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            message = json.loads(line)
            if "method" not in message:
                questions.take(message)
            elif "id" in message:
                tasks.start_soon(answer, message)
        tasks.cancel_scope.cancel()


class Notes:
    """Lines of a file."""

    def __init__(self, path):
        self._path = Path(path)

    def append(self, label):
        with self._path.open("a") as file:
            file.write(f"{label}\n")


def app(era, servers=None, labels=None):
    """The server over Streamable HTTP; it is put into `servers`, if that is given."""
    state = {}

    @asynccontextmanager
    async def lifespan(_):
        async with anyio.create_task_group() as tasks:
            state["server"], state["questions"] = TaskServer(era, tasks), Questions()
            if labels is not None:
                state["server"].labels = labels
            if servers is not None:
                servers[era] = state["server"]
            yield
            tasks.cancel_scope.cancel()

    async def post(request):
        message = await request.json()
        server, questions = state["server"], state["questions"]
        if "method" not in message:
            questions.take(message)
        if "method" not in message or "id" not in message:
            return Response(status_code=202)
        if era == "new":
            if (wrong := _mismatch(request.headers, message)) is not None:
                return JSONResponse(wrong, status_code=400)
            answer = await server.answer(message)
            is_refused = answer.get("error", {}).get("code") in {-32021, -32602}
            return JSONResponse(answer, status_code=400 if is_refused else 200)
        if message["method"] == "initialize":
            answer = await server.answer(message)
            return JSONResponse(answer, headers={"mcp-session-id": "the-only-one"})
        return StreamingResponse(
            _stream(server, questions, message), media_type="text/event-stream"
        )

    return Starlette(routes=[Route("/mcp", post, methods=["POST"])], lifespan=lifespan)


async def _stream(server, questions, message):
    sender, received = anyio.create_memory_object_stream(100)

    async def work():
        async with sender:
            ask = partial(questions.ask, sender.send)
            await sender.send(await server.answer(message, ask=ask))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        async with received:
            async for sent in received:
                yield f"data: {json.dumps(sent)}\n\n"


def _mismatch(headers, message):
    method, params = message["method"], message.get("params", {})
    wanted = {"mcp-method": method}
    if (key := NAMED.get(method)) is not None:
        wanted["mcp-name"] = params.get(key)
    for name, value in wanted.items():
        if headers.get(name) != value:
            failure = Failure(-32020, f"Header mismatch: {name}")
            return {"jsonrpc": "2.0", "id": message["id"], "error": failure.body}
    return None


if __name__ == "__main__":
    era, *place = sys.argv[1:]
    if place:
        import uvicorn

        port, *file = place
        served = app(era, labels=Notes(*file) if file else None)
        uvicorn.run(served, host="127.0.0.1", port=int(port), log_level="warning")
    else:
        anyio.run(main, era)
