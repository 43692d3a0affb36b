"""The socket of a running gateway: what it answers, and whom it cannot be hurt by."""

import json
import os
import select
import socket
import stat
import time
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream

from multitap import Settings, StdioServer, open_hub
from multitap.demo.demo_settings import bundled_server
from multitap.events import CallDone, Outcome, ServerLog
from multitap.gateway.degradation import reasons
from multitap.gateway.fronts import control_socket as control_module
from multitap.gateway.fronts.control_messages import MAX_QUESTION
from multitap.gateway.fronts.control_places import (
    folder,
    leave,
    own_socket,
    sockets,
)
from multitap.gateway.fronts.control_secret import prove
from multitap.gateway.fronts.control_service import BACKLOG, ControlService
from multitap.gateway.fronts.control_socket import MOST, open_control
from multitap.gateway.gateway import open_gateway
from multitap.store import CallRecord
from tests.waiting import until
from tests.zoo.modes import command

PATIENCE = 10


@pytest.fixture
def state(tmp_path_factory):
    """A state directory with a short path: its sockets are in it."""
    return tmp_path_factory.mktemp("s") / "state"


@asynccontextmanager
async def gateway(state, **servers):
    settings = Settings(state_dir=state, servers=servers)
    async with (
        open_gateway(lambda host: open_hub(settings, handlers=host, recall=True)) as running,
        open_control(ControlService(running), state),
    ):
        yield running


@asynccontextmanager
async def connected(state):
    with anyio.fail_after(PATIENCE):
        async with await anyio.connect_unix(own_socket(state)) as stream:
            await stream.send(prove(own_socket(state)) + b"\n")
            yield stream, BufferedByteReceiveStream(stream)


async def line(received):
    return json.loads(await received.receive_until(b"\n", 1 << 20))


async def answer(state, question):
    data = question if isinstance(question, bytes) else json.dumps(question).encode()
    async with connected(state) as (stream, received):
        await stream.send(data + b"\n")
        return await line(received)


async def test_it_says_who_it_is_and_what_went_through(state):
    async with gateway(state) as running:
        running.hub.metrics.record(CallRecord(0.0, "calc", "add", 0.25, Outcome.OK))

        about = (await answer(state, {"ask": "about"}))["ok"]
        picture = (await answer(state, {"ask": "snapshot"}))["ok"]
        tools = (await answer(state, {"ask": "tools"}))["ok"]
        figures = (await answer(state, {"ask": "stats"}))["ok"]

    assert (about["pid"], about["files"], about["url"]) == (os.getpid(), None, None)
    assert (picture["snapshot"]["servers"], tools) == ([], [])
    assert figures["servers"]["calc"]["tools"]["add"]["calls"] == 1
    assert figures["servers"]["calc"]["total"]["p50"] == pytest.approx(0.25, rel=0.05)
    assert (figures["clients"], figures["sessions"]) == ([], 0)


async def test_a_lazy_server_that_is_known_sleeps(state):
    program, *args = command("good")
    lazy = StdioServer(command=program, args=tuple(args), start="lazy")
    async with gateway(state, lazy=lazy) as running:
        await running.hub.settled()

    async with gateway(state, lazy=lazy):
        told = (await answer(state, {"ask": "snapshot"}))["ok"]

    assert told["asleep"] == ["lazy"]
    assert told["snapshot"]["servers"][0]["tools"] == 26


async def test_nobody_else_can_reach_it_and_nothing_stays(state):
    async with gateway(state):
        path = sockets(state)[os.getpid()]
        modes = [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent)]

    assert modes == [0o600, 0o700]
    assert [*folder(state).iterdir()] == []


@pytest.mark.parametrize(
    "question",
    [b"", b"nonsense", b"[]", b"{}", b'{"ask": "secrets"}', b'{"ask": "restart"}', b"\xff\xfe"],
)
async def test_garbage_gets_an_error(state, question):
    async with gateway(state):
        told = await answer(state, question)

        assert told["error"].startswith("unknown question: ")
        assert "ok" in await answer(state, {"ask": "about"})


async def test_a_question_without_end_gets_an_error(state):
    async with gateway(state):
        told = await answer(state, b"x" * (MAX_QUESTION + 64 * 1024))

    assert told["error"] == f"a question has at most {MAX_QUESTION} bytes"


async def test_what_can_not_be_done_is_told_with_the_way_out(state):
    async with gateway(state):
        restarted = await answer(state, {"ask": "restart", "server": "nope"})
        reloaded = await answer(state, {"ask": "reload"})

    assert restarted["error"] == "no server named 'nope'"
    assert restarted["hint"] == "`multitap status` lists all servers"
    assert reloaded["error"] == "the gateway has no files to reload"


async def test_what_happens_is_told_until_the_other_side_leaves(state):
    async with gateway(state) as running:
        events = running.hub.events
        async with connected(state) as (stream, received):
            await stream.send(b'{"ask": "events", "server": "calc"}\n')
            await line(received)
            events.publish(ServerLog("other", "info", None, "not asked for"))
            events.publish(ServerLog("calc", "warning", "db", "slow"))
            events.publish(CallDone("calc", "add", 0.5, Outcome.ERROR, error="no"))

            told = [(await line(received))["ok"] for _ in range(2)]

        await until(lambda: not events.watched)

    assert [(one["kind"], one["level"], one["text"]) for one in told] == [
        ("server", "warning", "db: slow"),
        ("call", "warning", "add: no"),
    ]
    assert told[1]["seconds"] == 0.5


async def test_one_that_goes_on_talking_is_dropped(state):
    async with gateway(state), connected(state) as (stream, received):
        await stream.send(b'{"ask":"events"}\n')
        await line(received)
        with pytest.raises(anyio.BrokenResourceError):
            await talk(stream)


async def talk(stream):
    while True:
        await stream.send(b"x" * 4096)


async def test_however_many_ask_at_once_one_is_answered_in_a_turn(state):
    async with gateway(state):
        plugs = [socket.socket(socket.AF_UNIX) for _ in range(MOST - 2)]
        for plug in plugs:
            plug.connect(str(own_socket(state)))
        await anyio.wait_all_tasks_blocked()
        for plug in plugs:
            plug.sendall(prove(own_socket(state)) + b'\n{"ask":"snapshot"}\n')
        unanswered, most = set(plugs), 0
        with anyio.fail_after(PATIENCE):
            while unanswered:
                await anyio.lowlevel.checkpoint()
                answered, _, _ = select.select(unanswered, (), (), 0)
                most = max(most, len(answered))
                unanswered -= {*answered}
        for plug in plugs:
            plug.close()

    assert most == 1


async def test_one_that_does_not_read_is_dropped(state, monkeypatch):
    monkeypatch.setattr(control_module, "PATIENCE", 0.2)
    async with gateway(state) as running:
        events = running.hub.events
        async with connected(state) as (stream, received):
            await stream.send(b'{"ask": "events"}\n')
            await line(received)
            for _ in range(BACKLOG):
                events.publish(ServerLog("calc", "info", None, "x" * 4096))

            await until(lambda: not events.watched)

        assert "ok" in await answer(state, {"ask": "about"})


async def test_one_that_never_asks_is_dropped(state, monkeypatch):
    monkeypatch.setattr(control_module, "PATIENCE", 0.1)
    async with gateway(state), connected(state) as (stream, _):
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()


async def test_more_than_it_can_hear_at_once_are_turned_away(state):
    async with gateway(state), anyio.create_task_group() as tasks:
        waiting = 0

        async def wait(*, task_status):
            nonlocal waiting
            async with connected(state) as (stream, received):
                await stream.send(b'{"ask": "events"}\n')
                await line(received)
                waiting += 1
                task_status.started()
                await anyio.sleep_forever()

        for _ in range(MOST):
            await tasks.start(wait)
        with pytest.raises((anyio.IncompleteRead, anyio.BrokenResourceError)):
            await answer(state, {"ask": "about"})
        tasks.cancel_scope.cancel()

    assert waiting == MOST


async def test_a_failure_of_one_question_is_its_own(state, monkeypatch, caplog):
    async with gateway(state) as running:
        monkeypatch.setattr(running.hub, "snapshot", lambda: 1 / 0)

        with pytest.raises(anyio.IncompleteRead):
            await answer(state, {"ask": "snapshot"})
        about = await answer(state, {"ask": "about"})

    assert "ok" in about
    assert "a command could not be answered" in caplog.text


async def test_without_a_socket_the_gateway_serves_all_the_same(state, caplog):
    folder(state).mkdir(parents=True)
    folder(state).chmod(0o755)

    async with gateway(state) as running:
        assert not running.hub.catalog.tools
        assert sockets(state) == {}

    assert "cannot reach the gateway" in caplog.text


def test_a_long_state_directory_has_its_sockets_elsewhere(tmp_path):
    long = tmp_path / ("x" * 80) / ("y" * 80)

    path = own_socket(long)

    try:
        assert len(os.fsencode(path)) < 100
        assert path.parent == folder(long) != folder(tmp_path)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with socket.socket(socket.AF_UNIX) as ours:
            ours.bind(str(path))
            ours.listen()
            assert sockets(long) == {os.getpid(): path}
    finally:
        leave(path)
    assert not path.parent.exists()


def test_a_folder_of_somebody_else_is_not_looked_into(state, tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    state.mkdir()
    folder(state).symlink_to(tmp_path / "theirs")

    assert sockets(state) == {}
    with pytest.raises(PermissionError):
        own_socket(state)


def test_what_a_dead_gateway_left_is_removed(state):
    path = own_socket(state)
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind(str(path))
    other = Path(path.parent / "notes.txt")
    other.touch()

    assert sockets(state) == {}
    assert [*path.parent.iterdir()] == [other]


async def test_what_is_degraded_is_told(state):
    with anyio.fail_after(PATIENCE):
        async with gateway(state) as running:
            running.hub.store._troubles.note("the disk is full")
            degraded = (await answer(state, {"ask": "snapshot"}))["ok"]["degraded"]
            assert reasons(running.hub) == ("the disk is full",)

    assert degraded == ["the disk is full"]


async def test_a_call_that_its_command_leaves_is_cancelled(state):
    program, *args = command("good")
    async with gateway(state, zoo=StdioServer(command=program, args=tuple(args))) as running:
        async with connected(state) as (stream, _):
            await stream.send(
                b'{"ask": "call", "name": "zoo_sleep", "arguments": {"seconds": 20}}\n'
            )
            with anyio.fail_after(PATIENCE):
                await running.hub.settled()
                await until(
                    lambda: running.hub.links["zoo"].snapshot(tools=0, warnings=()).in_flight
                )
        await until(lambda: not running.hub.links["zoo"].snapshot(tools=0, warnings=()).in_flight)


async def test_past_calls_are_found_by_a_filter(state):
    async with gateway(state) as running:
        for outcome, seconds in ((Outcome.OK, 0.1), (Outcome.TIMEOUT, 0.9)):
            running.hub.store.log_call(CallRecord(time.time(), "calc", "add", seconds, outcome))

        slow = (await answer(state, {"ask": "calls", "filter": "status:error >500ms"}))["ok"]
        log = (await answer(state, {"ask": "log", "filter": "kind:call tool:add"}))["ok"]
        wrong = await answer(state, {"ask": "calls", "filter": "colour:red"})

    assert [record["outcome"] for record in slow["records"]] == ["timeout"]
    assert len(log["records"]) == 2
    assert "no key 'colour'" in wrong["error"]


async def test_a_recorded_call_says_what_it_sent_and_received(state):
    calc = bundled_server("calculator")
    settings = Settings(state_dir=state, servers={"calc": calc}, record="all")
    async with (
        open_gateway(lambda host: open_hub(settings, handlers=host)) as running,
        open_control(ControlService(running), state),
    ):
        await running.hub.call("calc_add", {"a": 1, "b": 2})

        [record] = (await answer(state, {"ask": "calls"}))["ok"]["records"]
        said = (await answer(state, {"ask": "exchange", "id": record["exchange"]}))["ok"]
        stderr = (await answer(state, {"ask": "stderr", "server": "calc"}))["ok"]

    assert json.loads(said["arguments"]) == {"a": 1, "b": 2}
    assert "content" in json.loads(said["result"])
    assert record["seconds"] >= record["encoding"] > 0
    assert isinstance(stderr, str)
