"""The hub and servers behind a URL: every kind, both eras, restarts and faults."""

import contextlib
import socket
import threading
import time

import anyio
import mcp_types as types
import pytest
import uvicorn
from mcp.server.lowlevel import Server

from multitap import Handlers, HttpServer, LocalServer, Settings, open_hub
from multitap.config.models import Limits
from multitap.errors import MultitapError
from multitap.events import FailureCode, LinkState
from tests.http.http_floods import flooding, path
from tests.waiting import PATIENCE, until
from tests.wire import http_zoo
from tests.wire.sdk_web import served, toolbox


@pytest.fixture
def hub_of(tmp_path):
    def make(handlers=Handlers(), **servers):
        return open_hub(Settings(servers=servers, state_dir=tmp_path), handlers=handlers)

    return make


@pytest.mark.parametrize(
    ("config", "kind", "era"),
    [
        pytest.param({}, "streamable-http", "stateless", id="undecided"),
        pytest.param(
            {"transport": "streamable-http", "era": "handshake"},
            "streamable-http",
            "handshake",
            id="old-era",
        ),
        pytest.param({"era": "stateless"}, "streamable-http", "stateless", id="new-era"),
    ],
)
async def test_streamable_http(hub_of, config, kind, era):
    with served(toolbox().streamable_http_app()) as url:
        async with hub_of(web=HttpServer(url=f"{url}/mcp", **config)) as hub:
            await hub.settled()
            snapshot = hub.snapshot().server("web")

            assert (snapshot.transport, snapshot.era) == (kind, era)
            assert (await hub.call("web_add", {"a": 1, "b": 2})).text == "3"


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_server_of_2024_is_found_behind_its_event_stream(hub_of, transport):
    with served(toolbox().sse_app()) as url:
        async with hub_of(web=HttpServer(url=f"{url}/sse", transport=transport)) as hub:
            await hub.settled()

            assert hub.snapshot().server("web").transport == "sse"
            assert (await hub.call("web_add", {"a": 1, "b": 2})).text == "3"


async def test_an_old_era_server_asks_the_host(hub_of):
    async def elicit(origin, params):
        return types.ElicitResult(action="accept", content={"name": f"{origin.server}'s friend"})

    with served(toolbox().streamable_http_app()) as url:
        server = HttpServer(url=f"{url}/mcp", era="handshake")
        async with hub_of(Handlers(elicit=elicit), web=server) as hub:
            await hub.settled()

            assert (await hub.call("web_ask")).text == "web's friend"


@contextlib.contextmanager
def running(app, port):
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(app, log_level="error", loop="asyncio", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_a_server_that_was_restarted_is_used_again(hub_of, era):
    with running(toolbox().streamable_http_app(), 0) as port:
        server = HttpServer(url=f"http://127.0.0.1:{port}/mcp", era=era, health_interval=0.2)
        context = hub_of(web=server)
        hub = await context.__aenter__()
        await hub.settled()
        assert (await hub.call("web_add", {"a": 1, "b": 1})).text == "2"
    try:
        await until(lambda: hub.links["web"].state is not LinkState.CONNECTED)
        failure = hub.links["web"].failure
        with running(toolbox().streamable_http_app(), port):
            hub.restart("web")
            await until(lambda: hub.links["web"].state is LinkState.CONNECTED)

            assert (await hub.call("web_add", {"a": 2, "b": 2})).text == "4"
            await context.__aexit__(None, None, None)
    except BaseException as exc:
        await context.__aexit__(type(exc), exc, exc.__traceback__)
        raise

    assert failure.code is FailureCode.UNREACHABLE


async def test_a_forgotten_session_is_quietly_opened_again(hub_of):
    with running(toolbox().streamable_http_app(), 0) as port:
        server = HttpServer(url=f"http://127.0.0.1:{port}/mcp", era="handshake")
        context = hub_of(web=server)
        hub = await context.__aenter__()
        await hub.settled()
    try:
        await anyio.sleep(0.05)  # the end of the old connections is noticed
        with running(toolbox().streamable_http_app(), port):
            result = await hub.call("web_add", {"a": 2, "b": 2})
            await context.__aexit__(None, None, None)
    except BaseException as exc:
        await context.__aexit__(type(exc), exc, exc.__traceback__)
        raise

    assert result.text == "4"


FAULTS = [
    http_zoo.gzip_bomb,
    http_zoo.endless_body,
    http_zoo.endless_event,
    http_zoo.flood,
    http_zoo.silent,
    http_zoo.half_an_answer,
    http_zoo.half_a_stream,
    http_zoo.resetting,
    http_zoo.hanging_up,
    http_zoo.broken_chunk,
    http_zoo.no_http,
    http_zoo.stuck_error_page,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_a_fault_stays_its_servers_own_problem(hub_of, fault):
    async with http_zoo.serve(fault) as web:
        bad = HttpServer(url=web.url, timeout=1, connect_timeout=2)
        good = LocalServer(server=toolbox())
        async with hub_of(bad=bad, good=good) as hub, anyio.create_task_group() as tasks:
            waits = []  # in seconds of our own work: the machine may have other things to do

            async def neighbour():
                while True:
                    worked = time.thread_time()
                    await hub.call("good_add", {"a": 1, "b": 1})
                    waits.append(time.thread_time() - worked)
                    await anyio.sleep(0.05)  # its pace

            await until(lambda: "good_add" in hub.catalog.tools)
            tasks.start_soon(neighbour)
            await until(lambda: hub.links["bad"].failure is not None)
            failure = hub.links["bad"].failure
            with anyio.fail_after(PATIENCE), pytest.raises(MultitapError):
                await hub.call("bad_anything")
            await until(lambda: len(waits) > 1)
            tasks.cancel_scope.cancel()

    assert failure.hint
    assert max(waits) <= 0.5  # of which half is the faulty server's, which runs in this thread too


@pytest.mark.parametrize("place", ["listen", "sse"])
async def test_a_server_that_sends_nothing_but_junk_is_stopped_with_that_reason(hub_of, place):
    with flooding() as web:
        transport = "sse" if place == "sse" else "streamable-http"
        url = web + path(place, "comments")
        limits = Limits(junk=64 * 1024)
        bad = HttpServer(url=url, transport=transport, era="handshake", limits=limits)
        async with hub_of(bad=bad, good=LocalServer(server=toolbox())) as hub:
            await until(lambda: hub.links["bad"].failure is not None)
            failure = hub.links["bad"].failure
            await until(lambda: "good_add" in hub.catalog.tools)
            result = await hub.call("good_add", {"a": 1, "b": 2})

    assert failure.code is FailureCode.FLOOD
    assert "65,536 bytes of junk" in failure.message
    assert result.text == "3"


def marked() -> Server:
    """A server whose tools want arguments as headers too: one says so rightly, one wrongly."""

    def tool(name, mark):
        region = {"type": "string", "x-mcp-header": mark}
        return types.Tool(
            name=name, input_schema={"type": "object", "properties": {"region": region}}
        )

    async def list_tools(context, params):
        return types.ListToolsResult(tools=[tool("good", "Region"), tool("bad", "no header!")])

    async def call_tool(context, params):
        text = context.request.headers["mcp-param-region"]
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    return Server("marked", on_list_tools=list_tools, on_call_tool=call_tool)


async def test_arguments_travel_as_headers_where_a_tool_asks_for_it(hub_of):
    with served(marked().streamable_http_app()) as url:
        async with hub_of(web=HttpServer(url=f"{url}/mcp", era="stateless")) as hub:
            await hub.settled()
            result = await hub.call("web_good", {"region": "north"})

            assert result.text == "north"
            assert set(hub.catalog.tools) == {"web_good"}
            assert "x-mcp-header" in hub.snapshot().server("web").warnings[0]
