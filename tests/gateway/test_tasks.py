"""Tasks of old and new clients at old and new servers."""

import json
import sys
from contextlib import ExitStack, asynccontextmanager
from itertools import product

import anyio
import pytest

from multitap import Settings
from multitap.config import HttpServer, StdioServer
from multitap.config.policy_rules import PolicyRule
from multitap.errors import MultitapError
from multitap.gateway.fronts.tokens import Token
from multitap.gateway.task_dialects import TaskId, TaskIds
from multitap.principal import ANONYMOUS, local_principal
from multitap.trust.private_file import PrivateFile
from tests.gateway import task_server
from tests.gateway.talking import CELLS, gate, rest
from tests.gateway.task_clients import CLIENTS, NewClient, OldClient, Refused
from tests.waiting import PATIENCE, until
from tests.wire.sdk_web import served

cells = pytest.mark.parametrize(
    ("transport", "client_era", "server_era"),
    [pytest.param(*cell, marks=rest(cell)) for cell in CELLS],
)
ENDED = ("completed", "failed", "cancelled")


@asynccontextmanager
async def opened(tmp_path, transport, server_era, *, servers=None, tokens=(), **fields):
    """A gateway before one server with tasks."""
    with ExitStack() as stack:
        if transport == "stdio":
            args = (task_server.__file__, server_era)
            config = StdioServer(command=sys.executable, args=args)
        else:
            url = stack.enter_context(served(task_server.app(server_era, servers)))
            config = HttpServer(url=f"{url}/mcp")
        settings = Settings(state_dir=tmp_path, servers={"s": config}, **fields)
        async with gate(settings, tokens=tokens) as opened_gate:
            yield opened_gate


def text_of(result):
    return result["content"][0]["text"]


@cells
async def test_a_task_ends_with_its_result(tmp_path, transport, client_era, server_era):
    async with (
        opened(tmp_path, transport, server_era) as gateway,
        CLIENTS[client_era](gateway.url) as client,
    ):
        task = await client.begin("s_slow_compute", {"seconds": 1.5, "label": "x"})
        early = await client.get(task)
        result = await client.finish(task)
        late = await client.get(task)

    assert not task.startswith("task-")
    assert early["taskId"] == task
    assert early["status"] == "working"
    assert text_of(result) == "computed x"
    assert late["status"] == "completed"


@cells
async def test_what_a_task_asks_reaches_its_client(tmp_path, transport, client_era, server_era):
    async with (
        opened(tmp_path, transport, server_era) as gateway,
        CLIENTS[client_era](gateway.url) as client,
    ):
        confirmed = await client.finish(await client.begin("s_confirm_delete"))
        both = await client.finish(await client.begin("s_multi_input"))

    assert text_of(confirmed) == "accept {'confirm': True}"
    assert text_of(both) == "{'name': 'Ada'} {'confirm': True}"


@cells
async def test_a_failed_tool_and_a_protocol_error_differ(
    tmp_path, transport, client_era, server_era
):
    async with (
        opened(tmp_path, transport, server_era) as gateway,
        CLIENTS[client_era](gateway.url) as client,
    ):
        failing = await client.begin("s_failing_job")
        result = await client.finish(failing)
        state = await client.get(failing)
        with pytest.raises(Refused) as refused:
            await client.finish(await client.begin("s_protocol_error_job"))

    assert result["isError"]
    assert state["status"] == {"old": "failed", "new": "completed"}[client_era]
    assert refused.value.code == -32099


@cells
async def test_a_task_can_be_cancelled(tmp_path, transport, client_era, server_era):
    async with (
        opened(tmp_path, transport, server_era) as gateway,
        CLIENTS[client_era](gateway.url) as client,
    ):
        task = await client.begin("s_endless")
        answer = await client.cancel(task)
        state = await client.reach(task, *ENDED)
        if client_era == "new":
            assert (await client.cancel(task)) == answer == {"resultType": "complete"}
        else:
            assert answer["status"] == "cancelled"
            with pytest.raises(Refused) as refused:
                await client.cancel(task)
            assert refused.value.code == -32602

    assert state["status"] == "cancelled"


@cells
async def test_a_client_without_tasks_waits_for_them(tmp_path, transport, client_era, server_era):
    more = {"declares": False} if client_era == "new" else {}
    async with (
        opened(tmp_path, transport, server_era) as gateway,
        CLIENTS[client_era](gateway.url, able=False, **more) as client,
    ):
        failed = await client.call("s_failing_job")
        greeting = await client.call("s_greet", {"name": "Ada"})

    assert text_of(failed) == "it failed"
    assert text_of(greeting) == "Hello, Ada!"
    assert "task" not in failed.get("_meta", {})


@pytest.mark.parametrize("server_era", ["old", "new"])
async def test_progress_of_a_task_reaches_a_client_that_waits_for_it(tmp_path, server_era):
    async with (
        opened(tmp_path, "http", server_era) as gateway,
        OldClient(gateway.url) as client,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(_endless, client)
        with anyio.fail_after(PATIENCE):
            while not client.told:
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()

    (told,) = client.told
    assert told["method"] == "notifications/progress"
    assert told["params"]["message"] == "for ever"


async def _endless(client):
    await client.call("s_endless", _meta={"progressToken": "p"})


@pytest.mark.parametrize("server_era", ["old", "new"])
async def test_questions_before_a_task_are_asked_before_it(tmp_path, server_era):
    async with opened(tmp_path, "http", server_era) as gateway, NewClient(gateway.url) as client:
        first = await client.call("s_test_tool_with_task")
        answers = {
            key: {"action": "accept", "content": {"name": "Eve"}} for key in first["inputRequests"]
        }
        state = {"requestState": first["requestState"]} if "requestState" in first else {}
        created = await client.call("s_test_tool_with_task", inputResponses=answers, **state)
        result = await client.finish(created["taskId"])

    assert first["resultType"] == "input_required"
    assert text_of(result) == "done for Eve"


@pytest.mark.parametrize(("transport", "server_era"), [*product(("http", "stdio"), ("old", "new"))])
async def test_a_slow_call_becomes_a_task(tmp_path, transport, server_era):
    async with opened(tmp_path, transport, server_era) as gateway, NewClient(gateway.url) as client:
        gateway.gateway.task_calls.slow = 0.2
        if server_era == "new":  # a server without the extension
            link = gateway.hub.links["s"]
            link.session.capabilities.others["extensions"].clear()
        quick = await client.call("s_greet", {"name": "Ada"})
        task = await client.begin("s_plain_sleep", {"seconds": 0.6})
        result = await client.finish(task)

    assert text_of(result) == "slept"
    assert quick["resultType"] == "complete"


@cells
async def test_another_principal_finds_nothing(tmp_path, transport, client_era, server_era):
    """CVE-2026-52870: any client could list, read and cancel the tasks of others."""
    tokens = (Token(b"a" * 40, "ada"), Token(b"e" * 40, "eve"))
    make = CLIENTS[client_era]
    async with (
        opened(tmp_path, transport, server_era, tokens=tokens) as gateway,
        make(gateway.url, token="a" * 40) as ada,
        make(gateway.url, token="e" * 40) as eve,
    ):
        task = await ada.begin("s_confirm_delete")
        await ada.reach(task, "input_required")
        for attempt in (eve.get, eve.cancel, eve.finish):
            with pytest.raises(Refused) as refused:
                await attempt(task)
            assert (refused.value.code, str(refused.value)) == (-32602, "no such task")
        if client_era == "new":
            with pytest.raises(Refused):
                await eve.ask("tasks/update", {"taskId": task, "inputResponses": {"confirm": {}}})
        else:
            assert (await eve.ask("tasks/list", {}))["tasks"] == []
        still = await ada.get(task)
        await ada.cancel(task)

    assert still["status"] == "input_required"


async def test_strangers_cannot_list_tasks(tmp_path):
    """MCP 2025-11-25: who cannot tell requestors apart must not list their tasks."""
    async with (
        opened(tmp_path, "http", "old") as gateway,
        OldClient(gateway.url) as one,
        OldClient(gateway.url) as other,
    ):
        task = await one.begin("s_slow_compute", {"label": "x"})
        for client in (one, other):
            assert "list" not in client.server["capabilities"]["tasks"]
            with pytest.raises(Refused) as refused:
                await client.ask("tasks/list", {})
            assert refused.value.code == -32601
        result = await one.finish(task)

    assert text_of(result) == "computed x"


async def test_a_task_of_the_local_user_is_of_no_use_to_strangers(tmp_path):
    ids, task = TaskIds(None, tmp_path), TaskId("record", "s", "compute")
    sealed = await ids.seal(task, local_principal())

    assert await ids.unseal(sealed, local_principal()) == task
    assert await ids.unseal(sealed, ANONYMOUS) is None


@pytest.mark.parametrize("task", ["", "task-1", "x" * 400, "AAAA", "é", "=" * 9])
async def test_made_up_ids_are_refused(tmp_path, task):
    async with opened(tmp_path, "http", "new") as gateway, OldClient(gateway.url) as client:
        for method in ("tasks/get", "tasks/result", "tasks/cancel"):
            with pytest.raises(Refused) as refused:
                await client.ask(method, {"taskId": task})
            assert refused.value.code == -32602


@pytest.mark.parametrize("server_era", ["old", "new"])
async def test_the_policy_is_asked_again_and_cancelling_always_passes(tmp_path, server_era):
    async with opened(tmp_path, "http", server_era) as gateway, NewClient(gateway.url) as client:
        task = await client.begin("s_confirm_delete")
        await client.reach(task, "input_required")
        denied = (PolicyRule(decision="deny", tools=("s_confirm_delete",)),)
        settings = gateway.hub.settings
        gateway.hub.apply(settings.replace(policy=denied))
        for method in ("tasks/get", "tasks/update"):
            with pytest.raises(Refused) as refused:
                await client.ask(method, {"taskId": task, "inputResponses": {}})
            assert "hidden" in str(refused.value)
        await client.cancel(task)
        gateway.hub.apply(settings)
        state = await client.reach(task, *ENDED)

    assert state["status"] == "cancelled"


async def test_a_task_is_followed_in_the_session_that_it_was_made_in(tmp_path):
    # with extensions of its own a client has another session: with a program, another process
    async with (
        opened(tmp_path, "stdio", "new") as gateway,
        NewClient(gateway.url, more=["com.example/other"]) as client,
    ):
        task = await client.begin("s_slow_compute", {"seconds": 0.2, "label": "x"})
        result = await client.finish(task)

    assert text_of(result) == "computed x"


async def test_the_header_with_the_id_may_be_missing_but_not_wrong(tmp_path):
    # clients of the Python SDK 2.3 do not send it
    async with opened(tmp_path, "http", "new") as gateway, NewClient(gateway.url) as client:
        task = await client.begin("s_slow_compute", {"seconds": 0.2, "label": "x"})
        state = await client.ask("tasks/get", {"taskId": task}, {"mcp-name": None})
        with pytest.raises(Refused) as refused:
            await client.ask("tasks/get", {"taskId": task}, {"mcp-name": "other"})

    assert state["taskId"] == task
    assert refused.value.code == -32020


async def test_a_server_of_both_eras_has_its_tasks_for_old_clients(tmp_path):
    async with opened(tmp_path, "stdio", "both") as gateway, OldClient(gateway.url) as client:
        for _ in range(2):  # the second time it is known
            task = await client.begin("s_failing_job")
            result = await client.finish(task)
            plain = await client.call("s_failing_job")

            assert result["isError"]
            assert plain["isError"]


@pytest.mark.parametrize("server_era", ["old", "new"])
async def test_old_clients_list_their_tasks(tmp_path, server_era):
    async with (
        opened(tmp_path, "http", server_era, tokens=(Token(b"a" * 40, "ada"),)) as gateway,
        OldClient(gateway.url, token="a" * 40) as client,
    ):
        tasks = [await client.begin("s_slow_compute", {"label": number}) for number in range(3)]
        for task in tasks:
            await client.finish(task)
        listed = await client.ask("tasks/list", {})
        with pytest.raises(Refused):
            await client.ask("tasks/list", {"cursor": "-1"})

    assert [task["taskId"] for task in listed["tasks"]] == tasks[::-1]
    assert {task["status"] for task in listed["tasks"]} == {"completed"}
    assert client.server["capabilities"]["tasks"]["list"] == {}


@pytest.mark.parametrize(("transport", "server_era"), [*product(("http", "stdio"), ("old", "new"))])
async def test_changes_of_a_task_come_with_subscriptions(tmp_path, transport, server_era):
    async with opened(tmp_path, transport, server_era) as gateway, NewClient(gateway.url) as client:
        task = await client.begin("s_confirm_delete")
        statuses = []
        with anyio.fail_after(PATIENCE):
            async with client.listens(taskIds=[task, "made-up"]) as messages:
                async for message in messages:
                    params = message["params"]
                    if message["method"] == "notifications/subscriptions/acknowledged":
                        assert params["notifications"]["taskIds"] == [task]
                        continue
                    assert message["method"] == "notifications/tasks"
                    assert params["taskId"] == task
                    statuses.append(params["status"])
                    if params["status"] == "input_required":
                        answers = {key: {"action": "decline"} for key in params["inputRequests"]}
                        update = {"taskId": task, "inputResponses": answers}
                        await client.ask("tasks/update", update)
                    if params["status"] in ENDED:
                        break

    assert statuses[-1] == "completed"
    assert text_of(params["result"]) == "decline None"
    assert "input_required" in statuses


@pytest.mark.parametrize("server_era", ["old", "new"])
async def test_old_clients_are_told_of_changes(tmp_path, server_era):
    async with opened(tmp_path, "http", server_era) as gateway, OldClient(gateway.url) as client:
        (session,) = gateway.front.sessions
        outlet = session.client.outlet = Kept()
        task = await client.begin("s_slow_compute", {"label": 1})
        await client.finish(task)
        with anyio.fail_after(PATIENCE):
            while not outlet.sent or outlet.sent[-1]["params"]["status"] != "completed":
                await anyio.sleep(0.01)

    assert {message["method"] for message in outlet.sent} == {"notifications/tasks/status"}
    assert {message["params"]["taskId"] for message in outlet.sent} == {task}


class Kept:
    """An outlet that keeps what is sent."""

    def __init__(self):
        self.sent = []

    def send(self, message):
        self.sent.append(json.loads(message))
        return True


@pytest.mark.parametrize(("era", "shown"), [("old", {"optional"}), ("new", set())])
async def test_clients_see_tasks_of_tools_as_their_era_knows_them(tmp_path, era, shown):
    async with opened(tmp_path, "http", "old") as gateway, CLIENTS[era](gateway.url) as client:
        listed = await client.ask("tools/list", {})

    tools = {tool["name"]: tool.get("execution", {}) for tool in listed["tools"]}
    assert {execution["taskSupport"] for execution in tools.values() if execution} == shown
    assert tools["s_greet"] == {}


async def test_a_client_that_does_not_declare_tasks_may_not_ask_for_them(tmp_path):
    async with (
        opened(tmp_path, "http", "new") as gateway,
        NewClient(gateway.url) as client,
        NewClient(gateway.url, declares=False) as other,
    ):
        task = await client.begin("s_slow_compute")
        with pytest.raises(Refused) as refused:
            await other.get(task)
        with pytest.raises(Refused) as mismatched:
            await client.ask("tasks/get", {"taskId": task}, {"mcp-name": "other"})

    assert refused.value.code == -32021
    assert refused.value.data["requiredCapabilities"]["extensions"]
    assert mismatched.value.code == -32020


@pytest.mark.parametrize(("client_era", "server_era"), [*product(("old", "new"), ("old", "new"))])
async def test_a_task_of_a_server_elsewhere_survives_the_gateway(tmp_path, client_era, server_era):
    with served(task_server.app(server_era)) as url:
        servers = {"s": HttpServer(url=f"{url}/mcp")}
        settings = Settings(state_dir=tmp_path, servers=servers)
        async with gate(settings) as gateway, CLIENTS[client_era](gateway.url) as client:
            task = await client.begin("s_slow_compute", {"seconds": 2, "label": "on"})
            # a task is known at its server before its gateway ends
            await client.get(task)
        async with gate(settings) as gateway, CLIENTS[client_era](gateway.url) as client:
            result = await client.finish(task)

    assert text_of(result) == "computed on"


@pytest.mark.parametrize(
    ("transport", "client_era", "tool"),
    [
        ("stdio", "new", "s_endless"),
        ("stdio", "old", "s_endless"),
        ("http", "old", "s_plain_sleep"),
    ],
)
async def test_what_ended_with_the_gateway_has_failed(tmp_path, transport, client_era, tool):
    async with (
        opened(tmp_path, transport, "old") as gateway,
        CLIENTS[client_era](gateway.url) as client,
    ):
        task = await client.begin(tool, {"seconds": 60})
    async with (
        opened(tmp_path, transport, "old") as gateway,
        CLIENTS[client_era](gateway.url) as client,
    ):
        states = [await client.get(task), await client.get(task)]

    for state in states:
        assert (state["taskId"], state["status"]) == (task, "failed")
        assert "restarted" in state["statusMessage"]


async def test_a_call_that_ends_while_its_task_is_made_keeps_its_result(tmp_path):
    created = []
    key = PrivateFile(tmp_path / "tasks.key", MultitapError)
    async with opened(tmp_path, "http", "old") as gateway, NewClient(gateway.url) as client:

        async def call():
            created.append(await client.call("s_slow_compute", {"seconds": 0.3, "label": "x"}))

        async with anyio.create_task_group() as tasks:
            with key.hold_lock():  # the id of its task cannot be sealed
                tasks.start_soon(call)
                await until(lambda: gateway.hub.runs.running)
                (run,) = gateway.hub.runs.running.values()
                await until(lambda: run.record.has_ended)
        result = await client.finish(created[0]["taskId"])

    # one that has ended would have its result, for which this answer has no place
    assert created[0]["status"] == "working"
    assert text_of(result) == "computed x"
