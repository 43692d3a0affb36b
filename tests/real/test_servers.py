import os
import re
import signal
import socket
import subprocess
import threading
from contextlib import contextmanager

import anyio
import mcp_types as types
import pytest

from multitap import CallContext, Handlers, HttpServer, Settings, StdioServer, open_hub
from multitap.config import Search, Source, load
from multitap.events import LinkState
from multitap.results import ImageBlock
from tests.processes import descendants
from tests.real.conftest import NPM, PYTHON, program
from tests.waiting import PATIENCE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.usefixtures("fetched"),
]

PROGRAMS = ("everything", "filesystem", "memory", "time", "git")
WEB = {"streamable": "streamableHttp", "sse": "sse"}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A repository with one file."""
    path = tmp_path_factory.mktemp("workplace")
    (path / "note.txt").write_text("remember the milk")
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", path], check=True)
    return path


@pytest.fixture(scope="module")
def web():
    """The everything server behind both HTTP transports, by name of the transport."""
    with listening("streamableHttp") as streamable, listening("sse") as sse:
        yield {"streamable": streamable, "sse": sse}


@contextmanager
def listening(transport):
    port = free_port()
    server = subprocess.Popen(
        [program("npx"), "-y", NPM[0], transport],
        env={**os.environ, "PORT": str(port)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        for line in server.stderr:
            if re.search(rf"port {port}", line):
                break
        drain = threading.Thread(target=server.stderr.read)
        drain.start()
        yield port
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        drain.join()
        server.stderr.close()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
async def hub(workplace, web, tmp_path_factory):
    def npx(name, *args, **env):
        return StdioServer(command=program("npx"), args=("-y", name, *args), env=env)

    def uvx(name):
        return StdioServer(command=program("uvx"), args=(name,))

    servers = {
        "everything": npx(NPM[0]),
        "filesystem": npx(NPM[1], str(workplace)),
        "memory": npx(NPM[2], MEMORY_FILE_PATH=str(workplace / "memory.jsonl")),
        "time": uvx(PYTHON[0]),
        "git": uvx(PYTHON[1]),
        "streamable": HttpServer(url=f"http://127.0.0.1:{web['streamable']}/mcp"),
        "sse": HttpServer(url=f"http://127.0.0.1:{web['sse']}/sse"),
    }
    settings = Settings(
        servers=servers, state_dir=tmp_path_factory.mktemp("state"), health_interval=1.0
    )

    async def roots(_asked):
        return types.ListRootsResult(roots=[types.Root(uri=workplace.as_uri())])

    async with open_hub(settings, handlers=Handlers(elicit=accept, roots=roots)) as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
        yield hub


async def accept(_asked, _params):
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def ask(hub, server):
    """One call of which the answer is known."""
    path = hub.settings.servers["filesystem"].args[-1]
    match server:
        case "filesystem":
            result = await hub.call("filesystem_list_directory", {"path": path})
            return "note.txt" in result.text
        case "memory":
            return "entities" in (await hub.call("memory_read_graph")).text
        case "time":
            arguments = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
            return "21:00" in (await hub.call("time_convert_time", arguments)).text
        case "git":
            return "note.txt" in (await hub.call("git_git_status", {"repo_path": path})).text
        case _:
            return "hello" in (await hub.call(f"{server}_echo", {"message": "hello"})).text


async def until(hub, holds):
    with anyio.fail_after(PATIENCE), hub.events.subscribe() as events:
        if holds():
            return
        async for _ in events:
            if holds():
                return


async def test_all_of_them_connect(hub):
    states = {server.name: server.state for server in hub.snapshot().servers}

    assert states == dict.fromkeys((*PROGRAMS, *WEB), LinkState.CONNECTED)


@pytest.mark.parametrize("server", [*PROGRAMS, *WEB])
async def test_it_answers(hub, server):
    assert await ask(hub, server)


@pytest.mark.parametrize(
    ("server", "transport"),
    [("everything", "stdio"), ("streamable", "streamable-http"), ("sse", "sse")],
)
async def test_the_transport_is_found_out(hub, server, transport):
    assert hub.snapshot().server(server).transport == transport


@pytest.mark.parametrize("server", ["everything", *WEB])
async def test_tools_that_come_late_are_seen(hub, server):
    name = f"{server}_trigger-elicitation-request"

    await until(hub, lambda: name in hub.catalog.tools)

    result = await hub.call(name)
    assert "Ada" in result.text


@pytest.mark.parametrize("server", ["everything", *WEB])
async def test_progress_is_reported_and_gives_more_time(hub, server):
    steps = []
    context = CallContext(timeout=1.5, on_progress=lambda done, *_: steps.append(done))

    result = await hub.call(
        f"{server}_trigger-long-running-operation", {"duration": 2, "steps": 4}, context=context
    )

    assert result.success
    assert steps == [1, 2, 3, 4]


async def test_pictures_data_resources_and_prompts_come_through(hub):
    picture = await hub.call("everything_get-tiny-image")
    weather = await hub.call("everything_get-structured-content", {"location": "Chicago"})
    resource = await hub.read("demo://resource/dynamic/text/1", server="everything")
    prompt = await hub.prompt("everything_args-prompt", {"city": "Paris"})

    assert [block.mime_type for block in picture.blocks if isinstance(block, ImageBlock)]
    assert "temperature" in weather.structured
    assert resource.contents
    assert "Paris" in prompt.messages[0].content.text


@pytest.mark.parametrize(
    ("signal_number", "innermost"),
    [
        pytest.param(signal.SIGKILL, False, id="kill -9 of the launcher"),
        pytest.param(signal.SIGKILL, True, id="kill -9 of the server"),
        pytest.param(signal.SIGSTOP, True, id="kill -STOP of the server"),
    ],
)
async def test_each_comes_back_and_the_others_do_not_notice(hub, signal_number, innermost):
    await until(hub, lambda: all(map(connected, hub.snapshot().servers)))
    starts = {name: hub.snapshot().server(name).starts for name in PROGRAMS}
    untouched = set(PROGRAMS)
    for name in PROGRAMS:
        launcher = hub.snapshot().server(name).pid
        os.kill(innermost_process(launcher) if innermost else launcher, signal_number)
        untouched.remove(name)
        for other in (*untouched, *WEB):
            assert await ask(hub, other)

    for name in PROGRAMS:
        await until(hub, lambda name=name: back(hub.snapshot().server(name), starts[name]))
        assert await ask(hub, name)


def innermost_process(pid):
    """The server itself, below npx or uvx and their shells."""
    while below := descendants(pid):
        pid = max(below)
    return pid


def connected(server):
    return server.state is LinkState.CONNECTED


def back(server, starts):
    return connected(server) and server.starts > starts


async def test_d7_d22_otters_file_brings_up_the_official_filesystem_server(workplace, tmp_path):
    file = tmp_path / "otter.toml"
    file.write_text(
        f"""
        [[mcp.servers]]
        name = "filesystem"
        transport = "stdio"
        command = "{program("npx")}"
        args = ["-y", "{NPM[1]}", "{workplace}"]
        """
    )
    settings = load(Search((Source(path=file, dialect="otter"),))).settings
    async with open_hub(settings.replace(state_dir=tmp_path / "state")) as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
        note, outside = str(workplace / "note.txt"), "/etc/hostname"
        read = await hub.call("filesystem_read_text_file", {"path": note})
        denied = await hub.call("filesystem_read_text_file", {"path": outside})

        assert {"filesystem_list_directory", "filesystem_write_file"} <= hub.catalog.tools.keys()
        assert read.text == "remember the milk"
        assert not denied.success
        assert "outside allowed directories" in denied.error
