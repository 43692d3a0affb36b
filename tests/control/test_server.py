"""The socket of a running gateway: what it answers, and how it limits its clients."""

import json
import os
import select
import socket
import stat
import time
from contextlib import suppress

import anyio
import pytest
from msgspec import Raw

from multitap import StdioServer
from multitap.control.messages import MAX_BODY
from multitap.control.places import folder, own_socket, prove, sockets
from multitap.control.service import BACKLOG
from multitap.errors import BadArguments, MultitapError, UnknownName
from multitap.events import CallDone, Outcome, ServerLog
from multitap.gateway.readiness import reasons
from multitap.http.server.connections import HttpLimits
from multitap.store.tables import CallRecord
from tests.waiting import PATIENCE, until
from tests.zoo.modes import command

MOST = 33
"""Requests of one user at a time."""


def zoo():
    program, *args = command("good")
    return StdioServer(command=program, args=tuple(args))


def request(path, method, body=b"{}", more=b""):
    head = b"POST /control/%b HTTP/1.1\r\nauthorization: Bearer %b\r\n" % (method, prove(path))
    return head + b"content-length: %d\r\n%b\r\n" % (len(body), more) + body


async def post(state, method, body=b"{}"):
    """Status and body of the response to one request."""
    path = own_socket(state)
    with anyio.fail_after(PATIENCE):
        async with await anyio.connect_unix(path) as stream:
            with suppress(anyio.BrokenResourceError):
                await stream.send(request(path, method, body, b"connection: close\r\n"))
            data = b""
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    data += await stream.receive()
    head, _, content = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), content


async def test_it_says_which_gateway_it_is_and_what_went_through(gateway, client):
    async with gateway() as running:
        running.hub.metrics.record(CallRecord(0.0, "calc", "add", 0.25, Outcome.OK))

        about = await client.about()
        state = await client.state()
        figures = await client.figures()

        assert (about.pid, about.files, about.url) == (os.getpid(), None, None)
        assert (state.snapshot.servers, await client.tools()) == ((), [])
        assert figures.servers["calc"].tools["add"].calls == 1
        assert figures.servers["calc"].total.p50 == pytest.approx(0.25, rel=0.05)
        assert (figures.clients, figures.sessions) == ((), 0)


async def test_a_lazy_server_that_is_known_sleeps(gateway, client):
    lazy = zoo().replace(start="lazy")
    async with gateway(lazy=lazy) as running:
        await running.hub.settled()

    async with gateway(lazy=lazy):
        state = await client.state()

    assert state.asleep == ("lazy",)
    assert state.snapshot.servers[0].tools == 26


async def test_only_its_user_can_reach_the_socket_and_nothing_stays(gateway, state):
    async with gateway():
        (path,) = sockets(state)
        modes = [stat.S_IMODE(place.stat().st_mode) for place in (path, path.parent)]

    assert modes == [0o600, 0o700]
    assert [*folder(state).iterdir()] == []


@pytest.mark.parametrize(
    ("method", "body", "status"),
    [
        (b"secrets", b"{}", 404),
        (b"", b"{}", 404),
        (b"send", b"{}", 404),
        (b"figures_here", b"{}", 404),
        (b"restart", b"{}", 400),
        (b"restart", b"", 400),
        (b"restart", b"nonsense", 400),
        (b"restart", b"[]", 400),
        (b"restart", b'{"server": 1}', 400),
        (b"restart", b"\xff\xfe", 400),
    ],
)
async def test_an_invalid_request_gets_an_error(  # noqa: PLR0917
    gateway, state, client, method, body, status
):
    async with gateway():
        answer = await post(state, method, body)

        assert (answer[0], "error" in json.loads(answer[1])) == (status, True)
        await client.about()


async def test_a_request_that_is_too_long_gets_an_error(gateway, state, client):
    async with gateway():
        status, content = await post(state, b"restart", b"x" * (MAX_BODY + 64 * 1024))
        with pytest.raises(MultitapError, match="at most"):
            await client.restart("x" * MAX_BODY)

    assert status == 413
    assert content == b"a request has at most %d bytes" % MAX_BODY


async def test_what_cannot_be_done_is_raised_with_its_hint(gateway, client):
    async with gateway():
        with pytest.raises(UnknownName, match="no server named 'nope'") as restart:
            await client.restart("nope")
        with pytest.raises(MultitapError, match="the gateway has no files to reload"):
            await client.reload()

    assert restart.value.hint == "`multitap status` lists all servers"


async def test_events_are_sent_until_the_client_leaves(gateway, client):
    async with gateway() as running:
        hub = running.hub
        async with client.events("calc") as events:
            hub.events.publish(ServerLog("other", "info", None, "of another server"))
            hub.events.publish(ServerLog("calc", "warning", "db", "slow"))
            hub.events.publish(CallDone("calc", "add", 0.5, Outcome.ERROR, error="no"))
            with anyio.fail_after(PATIENCE):
                first, second = await anext(events), await anext(events)

        await until(lambda: not hub.events.watched)

    assert (first.kind, first.level, first.text) == ("server", "warning", "db: slow")
    assert (second.kind, second.level, second.text) == ("call", "warning", "add: no")
    assert second.seconds == 0.5


async def test_a_stream_of_an_unknown_server_is_refused(gateway, client):
    async with gateway():
        with pytest.raises(UnknownName, match="no server named 'nope'"):
            async with client.trace("nope"):
                pass


async def test_a_client_that_goes_on_sending_is_not_read(gateway, state):
    async with gateway():
        with anyio.fail_after(PATIENCE):
            async with await anyio.connect_unix(own_socket(state)) as stream:
                await stream.send(request(own_socket(state), b"events"))
                await stream.receive()
                with pytest.raises((TimeoutError, anyio.BrokenResourceError)):
                    await send_for(1, stream)


async def send_for(seconds, stream):
    with anyio.fail_after(seconds):
        while True:
            await stream.send(b"x" * 4096)


async def test_however_many_ask_at_once_one_is_answered_in_a_turn(gateway, state):
    async with gateway():
        plugs = [socket.socket(socket.AF_UNIX) for _ in range(MOST - 3)]
        for plug in plugs:
            plug.connect(str(own_socket(state)))
        await anyio.wait_all_tasks_blocked()
        for plug in plugs:
            plug.sendall(request(own_socket(state), b"state"))
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


async def test_a_client_that_does_not_read_is_dropped(gateway, state, client):
    async with gateway(HttpLimits(write_timeout=0.2)) as running:
        events = running.hub.events
        async with await anyio.connect_unix(own_socket(state)) as stream:
            await stream.send(request(own_socket(state), b"events"))
            await stream.receive()
            for _ in range(BACKLOG):
                events.publish(ServerLog("calc", "info", None, "x" * 4096))

            await until(lambda: not events.watched)

        await client.about()


async def test_a_client_that_sends_nothing_is_dropped(gateway, state):
    async with gateway(HttpLimits(keep_alive=0.1)):
        with anyio.fail_after(PATIENCE):
            async with await anyio.connect_unix(own_socket(state)) as stream:
                with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                    await stream.receive()


async def test_more_requests_than_it_takes_at_once_are_refused(gateway, client):
    async with gateway(), anyio.create_task_group() as tasks:

        async def stay(*, task_status):
            async with client.events():
                task_status.started()
                await anyio.sleep_forever()

        for _ in range(MOST):
            await tasks.start(stay)
        with pytest.raises(MultitapError, match=f"{MOST} of the"):
            await client.about()
        tasks.cancel_scope.cancel()


async def test_a_failure_of_one_request_is_its_own(gateway, client, monkeypatch, caplog):
    async with gateway() as running:
        monkeypatch.setattr(running.hub, "snapshot", lambda: 1 / 0)

        with pytest.raises(MultitapError, match="Internal Server Error"):
            await client.state()
        await client.about()

    assert "a request failed" in caplog.text


async def test_without_a_socket_the_gateway_serves_all_the_same(gateway, state, caplog):
    folder(state).mkdir(parents=True)
    folder(state).chmod(0o755)

    async with gateway() as running:
        assert not running.hub.catalog.tools
        assert sockets(state) == {}

    assert "cannot reach the gateway" in caplog.text


async def test_what_is_degraded_is_reported(gateway, client):
    with anyio.fail_after(PATIENCE):
        async with gateway() as running:
            running.hub.store._troubles.note("the disk is full")
            state = await client.state()
            assert reasons(running.hub) == ("the disk is full",)

    assert state.degraded == ("the disk is full",)


async def test_a_call_whose_client_leaves_is_cancelled(gateway, client):
    async with gateway(zoo=zoo()) as running, anyio.create_task_group() as tasks:
        link = running.hub.links["zoo"]
        tasks.start_soon(client.call, "zoo_sleep", Raw(b'{"seconds": 20}'))
        with anyio.fail_after(PATIENCE):
            await running.hub.settled()
            await until(lambda: link.snapshot(tools=0, warnings=()).in_flight)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await until(lambda: not link.snapshot(tools=0, warnings=()).in_flight)


async def test_past_calls_are_found_by_a_query(gateway, client):
    async with gateway() as running:
        for outcome, seconds in ((Outcome.OK, 0.1), (Outcome.TIMEOUT, 0.9)):
            running.hub.store.log_call(CallRecord(time.time(), "calc", "add", seconds, outcome))

        slow = await client.calls("status:error >500ms")
        log = await client.log("kind:call tool:add")
        with pytest.raises(MultitapError, match="no key 'colour'"):
            await client.calls("colour:red")

    assert [record.outcome for record in slow.records] == ["timeout"]
    assert len(log.records) == 2


async def test_a_recorded_call_has_its_request_and_response(gateway, client):
    async with gateway(record="all", calc=zoo()) as running:
        await running.hub.call("calc_add", {"a": 1, "b": 2})

        (record,) = (await client.calls()).records
        exchange = await client.exchange(record.exchange)
        stderr = await client.stderr("calc")

    assert json.loads(exchange.arguments) == {"a": 1, "b": 2}
    assert "content" in json.loads(exchange.result)
    assert record.seconds >= record.encoding > 0
    assert isinstance(stderr, str)


async def test_wrong_arguments_are_raised_as_such(gateway, client):
    async with gateway(calc=zoo()):
        with pytest.raises(BadArguments):
            await client.call("calc_add", Raw(b'{"a": "x"}'))
