"""What a direct connection shows, a connection through the gateway shows too.

Tasks, pages that call tools by bare names and skills are compared in `test_extension_cells.py`.
CORS has nothing to compare with: a preflight is answered by the gateway (`fronts/test_cors.py`).
"""

import socket
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from multitap import Settings
from multitap.config import StdioServer
from multitap.wire.jsonrpc import TASKS
from tests.gateway import plain_client, plain_server, task_server
from tests.gateway.talking import CELLS, gate, rest
from tests.module_life import anyio_backend, nothing_left  # noqa: F401 - fixtures

ERAS = ("old", "new")
ABLE = {"extensions": {"com.example/acme": {"mine": 1}, "io.modelcontextprotocol/ui": {}}}
PROGRAM = (sys.executable, plain_server.__file__)


class Pair:
    """The same client, connected to its server directly and through the gateway."""

    def __init__(self, direct, through, era, server):
        self.direct = direct
        self.through = through
        self.era = era
        self.server = server
        self.clients = (direct, through)

    async def both(self, method, **params):
        """What both connections answer, without what differs by design."""
        return [plain(await client.request(method, **params)) for client in self.clients]


def plain(answer):
    if "error" in answer:
        return answer["error"]
    return {
        key: value
        for key, value in answer["result"].items()
        if key not in {"resultType", "ttlMs", "cacheScope"}
    }


@asynccontextmanager
async def web_server(era):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = subprocess.Popen([*PROGRAM, era, str(port)])
    try:
        with anyio.fail_after(plain_client.PATIENCE):
            while True:
                try:
                    async with await anyio.connect_tcp("127.0.0.1", port):
                        break
                except OSError:
                    await anyio.sleep(0.02)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait()


def program(home, url):
    """The command of a gateway before the server at an address."""
    home.mkdir()
    config = home / "multitap.toml"
    config.write_text(f'state_dir = "{home / "state"}"\n[servers.plain]\nurl = "{url}"\n')
    return [sys.executable, "-m", "multitap", "serve", "--config", str(config)]


@pytest.fixture(scope="module")
async def urls():
    """Servers at addresses, by their era."""
    async with web_server("old") as old, web_server("new") as new:
        yield {"old": old, "new": new}


@pytest.fixture(scope="module")
async def gates(tmp_path_factory):
    """Gateways at addresses, each before a program of one era."""
    async with AsyncExitStack() as stack:
        found = {}
        for era in ERAS:
            server = StdioServer(command=PROGRAM[0], args=(PROGRAM[1], era))
            state = tmp_path_factory.mktemp(era)
            settings = Settings(state_dir=state, servers={"plain": server})
            found[era] = (await stack.enter_async_context(gate(settings))).url
        yield found


@pytest.fixture(
    params=[pytest.param(cell, marks=rest(cell)) for cell in CELLS],
    ids=lambda cell: f"{cell[0]}-{cell[1]} client-{cell[2]} server",
)
async def pair(request, urls, gates, tmp_path):
    transport, era, server = request.param
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        if transport == "http":
            direct = await enter(plain_client.on_http(era, urls[era], ABLE))
            through = await enter(plain_client.on_http(era, gates[server], ABLE))
        else:
            direct = await enter(plain_client.on_pipes(era, (*PROGRAM, era), ABLE))
            command = program(tmp_path / "home", urls[server])
            through = await enter(plain_client.on_pipes(era, command, ABLE))
        found = Pair(direct, through, era, server)
        found.is_alone = transport == "stdio"
        found.said = [await client.begin() for client in found.clients]
        if transport == "http" and era == "old":
            direct.follow()
            through.follow()
        for client in found.clients:  # until then a gateway may not know its server
            await client.result("tools/list")
        yield found


async def test_capabilities_that_mcp_does_not_define_are_shown(pair):
    # a gateway that has just been installed answers the first client before it knows its server
    if pair.era == "new":
        pair.said[1] = await pair.through.begin()
    direct, through = (said["capabilities"] for said in pair.said)

    if pair.era == "new" or "events" in through:
        for name in ("extensions", "experimental", "events"):
            # the gateway has extensions of its own
            assert through[name].items() >= direct[name].items()


async def test_requests_that_mcp_does_not_define_are_answered(pair):
    params = {"list": [1, None], "text": "ü", "_meta": {"example.com/mine": 1}}
    direct, through = await pair.both("acme/echo", **params)

    assert through == direct
    assert through["echo"] == {"list": [1, None], "text": "ü"}
    assert through["extensions"] == ABLE["extensions"]


async def test_a_request_that_nobody_knows_is_refused_in_the_servers_words(pair):
    direct, through = await pair.both("acme/unknown")

    assert through == direct
    assert through["data"] == {"plain": True}


async def test_notifications_that_mcp_does_not_define_reach_the_server(pair):
    for client in pair.clients:
        await client.notify("notifications/acme/hint", number=7)
        await client.notify("acme/note", number=8)
        with anyio.fail_after(plain_client.PATIENCE):
            while True:
                heard = (await client.result("acme/heard"))["heard"]
                if ["acme/note", {"number": 8}] in heard:
                    break
                await anyio.sleep(0.02)

        assert ["notifications/acme/hint", {"number": 7}] in heard


async def test_notifications_of_a_call_reach_the_client(pair):
    heard = []
    for client in pair.clients:
        name = await named(client, "say")
        await client.text(name)
        heard.append(await client.hears("notifications/acme/said"))

    assert heard[0] == heard[1]


async def test_the_server_sees_the_clients_extensions(pair):
    seen = [await client.text(await named(client, "seen")) for client in pair.clients]

    assert seen[0] == seen[1]


async def test_tools_for_the_clients_extensions_are_listed(pair):
    for client in pair.clients:
        names = {tool["name"].removeprefix("plain_") for tool in await tools(client)}

        assert "with_page" in names
        assert "without_page" not in names


async def test_icons_titles_and_meta_are_those_of_the_server(pair):
    listed = [
        [{**tool, "name": tool["name"].removeprefix("plain_")} for tool in await tools(client)]
        for client in pair.clients
    ]
    direct, through = await pair.both("resources/list")
    prompts = [
        [{**prompt, "name": prompt["name"].removeprefix("plain_")} for prompt in answer["prompts"]]
        for answer in await pair.both("prompts/list")
    ]

    assert listed[0] == listed[1]
    assert direct == through
    assert prompts[0] == prompts[1]


async def test_completions_pass_with_members_that_mcp_does_not_define(pair):
    argument = {"name": "x", "value": "v"}
    answers = []
    for client, name in zip(pair.clients, ("hi", "plain_hi"), strict=True):
        ref = {"type": "ref/prompt", "name": name}
        answers.append(await client.request("completion/complete", ref=ref, argument=argument))

    assert plain(answers[0]) == plain(answers[1])


async def test_an_update_reaches_a_subscriber_once_with_its_meta(pair):
    heard = []
    for client in pair.clients:
        async with anyio.create_task_group() as tasks:
            if pair.era == "old":
                await client.result("resources/subscribe", uri=plain_server.WATCHED)
            else:
                client.listen(tasks, resourceSubscriptions=[plain_server.WATCHED])
                await client.hears("notifications/subscriptions/acknowledged")
            await client.text(await named(client, "touch"))
            await client.hears("notifications/resources/updated")
            await client.text(await named(client, "seen"))  # a second one would be here by now
            heard.append(client.of("notifications/resources/updated"))
            tasks.cancel_scope.cancel()

    for (update,) in heard:
        assert update["params"]["uri"] == plain_server.WATCHED
        assert update["params"]["_meta"].items() >= plain_server.KEPT.items()


async def test_a_list_that_is_said_to_have_changed_is_said_to_have_changed(pair):
    for client in pair.clients:
        async with anyio.create_task_group() as tasks:
            client.listen(tasks, toolsListChanged=True)
            if pair.era == "new":
                await client.hears("notifications/subscriptions/acknowledged")
            await client.text(await named(client, "flicker"))
            await client.hears("notifications/tools/list_changed")
            tasks.cancel_scope.cancel()


async def test_a_log_level_goes_to_the_server(pair):
    if pair.era != "old":
        pytest.skip("the stateless era has a level for each request")
    levels = []
    for client in pair.clients:
        await client.result("logging/setLevel", level="error")
        levels.append(await client.text(await named(client, "log")))

    if pair.server == "old" and pair.is_alone:  # else others of its clients may want more
        assert levels == ["error", "error"]


async def test_a_server_can_ask_what_mcp_does_not_define(pair):
    if (pair.era, pair.server) != ("old", "old"):
        pytest.skip("the stateless era has no requests of servers")
    answers = [await client.text(await named(client, "ask")) for client in pair.clients]

    assert answers == ['{"asked": {"n": 1}}'] * 2


async def test_listeners_are_notified_of_changes_of_a_task(tmp_path):
    able = {"elicitation": {"form": {}}, "extensions": {TASKS: {}}}
    command = (sys.executable, task_server.__file__, "new")
    server = StdioServer(command=command[0], args=command[1:])
    heard = []
    async with (
        gate(Settings(state_dir=tmp_path, servers={"plain": server})) as gateway,
        plain_client.on_pipes("new", command, able) as direct,
        plain_client.on_http("new", gateway.url, able) as through,
    ):
        for client in (direct, through):
            name = await named(client, "confirm_delete")
            task = (await client.result("tools/call", name=name, arguments={}))["taskId"]
            async with anyio.create_task_group() as tasks:
                client.listen(tasks, taskIds=[task, "made-up"])
                accepted = await client.hears("notifications/subscriptions/acknowledged")
                asking = await told_of(client, "input_required")
                answers = {key: {"action": "decline"} for key in asking["inputRequests"]}
                await client.result("tasks/update", taskId=task, inputResponses=answers)
                ended = await told_of(client, "completed")
                tasks.cancel_scope.cancel()
            questions = [question["method"] for question in asking["inputRequests"].values()]
            told = ended["result"]["content"], questions, ended.keys() - {"_meta", "statusMessage"}
            is_own = {asking["taskId"], ended["taskId"]} == {task}
            heard.append((accepted["params"]["notifications"] == {"taskIds": [task]}, is_own, told))

    assert heard[0] == heard[1]
    assert heard[0][:2] == (True, True)


async def told_of(client, status):
    """What is said about a task when it first has a status."""
    with anyio.fail_after(plain_client.PATIENCE):
        while True:
            for notification in client.of("notifications/tasks"):
                if notification["params"]["status"] == status:
                    return notification["params"]
            await client.stirs()


async def tools(client):
    return (await client.result("tools/list"))["tools"]


async def named(client, tool):
    return next(one["name"] for one in await tools(client) if one["name"].endswith(tool))
