"""The hub from code that does not await, in any thread, inside or outside a running loop."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from mcp.server import MCPServer

from multitap import LocalServer, Settings, StdioServer, SyncHub, ToolFilter
from multitap.errors import HubClosed, MultitapError, UnknownName
from multitap.events import LinkState
from tests.waiting import PATIENCE
from tests.zoo.modes import command


def calculator():
    server = MCPServer("calculator")

    @server.tool()
    async def add(a: int, b: int) -> int:
        return a + b

    @server.resource("calc://pi")
    def pi() -> str:
        return "3.14159"

    @server.prompt()
    def explain(topic: str) -> str:
        return f"Explain {topic}."

    return server


@pytest.fixture
def settings(tmp_path):
    return Settings(servers={"calc": LocalServer(server=calculator())}, state_dir=tmp_path)


def test_every_verb_works_without_await(settings):
    with SyncHub(settings) as hub:
        hub.settled()

        assert hub.call("calc_add", {"a": 1, "b": 2}).text == "3"
        assert [tool.name for tool in hub.tools] == ["calc_add"]
        assert hub.read("calc://pi").contents[0].text == "3.14159"
        assert hub.prompt("calc_explain", {"topic": "x"}).messages[0].content.text == "Explain x."
        assert hub.snapshot().server("calc").state is LinkState.CONNECTED
        assert str(hub.apply(settings)) == "keep calc"
        with pytest.raises(UnknownName):
            hub.call("calc_nothing")


def test_tools_have_the_formats_of_models_and_can_be_called(settings):
    with SyncHub(settings) as hub:
        hub.settled()
        offer = hub.tools.for_openai(strict=True)
        function = {"name": "calc_add", "arguments": '{"a": 1, "b": 2}'}
        (call,) = offer.calls(
            {"tool_calls": [{"id": "1", "type": "function", "function": function}]}
        )
        result = offer.execute(call)

        assert [tool["function"]["name"] for tool in offer.tools] == ["calc_add"]
        assert offer.messages([(call, result)])[0]["content"] == "3"
        assert len(hub.tools.for_anthropic().tools) == len(hub.tools.for_gemini().tools) == 1
        assert hub.tools.execute("calc_add", {"a": 1, "b": 2}).text == "3"
        assert not hub.tools.narrowed(ToolFilter(deny=["*"])).list()
        assert "calc_add" in hub.tools
        assert hub.tools.get("calc_add").name == "calc_add"
        assert hub.tools.tokens().total > 0


def test_it_can_be_opened_and_closed_without_a_block(settings):
    hub = SyncHub(settings).open()
    hub.settled()
    answer = hub.call("calc_add", {"a": 1, "b": 2}, timeout=PATIENCE)
    hub.close()
    hub.close()

    assert answer.text == "3"
    with pytest.raises(HubClosed):
        hub.call("calc_add")


def test_fifty_threads_share_one_background_thread(settings):
    with SyncHub(settings) as hub:
        hub.settled()
        before = threading.active_count()
        with ThreadPoolExecutor(50) as pool:
            answers = list(
                pool.map(lambda n: hub.call("calc_add", {"a": n, "b": 1}).text, range(200))
            )
        assert threading.active_count() == before

    assert answers == [str(n + 1) for n in range(200)]


async def test_it_works_inside_a_running_loop(settings):
    with SyncHub(settings) as hub:
        hub.settled()

        assert hub.call("calc_add", {"a": 1, "b": 2}).text == "3"


def test_outside_its_block_it_refuses(settings):
    hub = SyncHub(settings)
    with pytest.raises(HubClosed):
        hub.tools.list()
    with hub:
        hub.settled()
    with pytest.raises(HubClosed):
        hub.call("calc_add", {"a": 1, "b": 2})
    with pytest.raises(MultitapError, match="opened before"), hub:
        pass


def test_a_call_under_way_ends_when_the_hub_is_closed(tmp_path):
    program, *args = command("good")
    server = StdioServer(command=program, args=tuple(args))
    failures = []
    with SyncHub(Settings(servers={"zoo": server}, state_dir=tmp_path)) as hub:
        hub.settled()

        def call():
            try:
                hub.call("zoo_sleep", {"seconds": 60})
            except MultitapError as exc:
                failures.append(exc)

        thread = threading.Thread(target=call)
        thread.start()
        while not hub.snapshot().server("zoo").in_flight:
            pass
    thread.join(10)

    assert len(failures) == 1


FORKED = """
import asyncio, os, sys
from pathlib import Path
from multitap import Settings, SyncHub
from multitap.errors import MultitapError

with SyncHub(Settings(state_dir=Path(sys.argv[1]))) as hub:
    inner = hub.submit(lambda inner: asyncio.sleep(0, inner)).result()
    pid = os.fork()
    if not pid:
        try:
            asyncio.run(inner.call("anything"))
        except MultitapError as exc:
            print(exc, flush=True)
        try:
            hub.settled()
        except MultitapError as exc:
            print(exc, exc.hint, sep="; ", flush=True)
            hub.__exit__(None, None, None)
            os._exit(3)
        os._exit(4)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(hub.tools), flush=True)
"""


def test_a_hub_says_what_to_do_in_a_forked_process(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, tmp_path],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )

    inner, words, parent = ended.stdout.splitlines()
    assert "before a fork" in inner
    assert "before a fork" in words
    assert "after the fork" in words
    assert parent == "3 0"
