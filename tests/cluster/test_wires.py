"""A server that one replica runs, used through another one as if it ran there."""

import asyncio
import socket
import tracemalloc
from contextlib import asynccontextmanager

import anyio
import mcp_types as types
import pytest

from multitap import CallContext, Handlers, StdioServer
from multitap.cluster import peer_messages as say
from multitap.cluster import replica
from multitap.cluster.leases import Owner, Ownership
from multitap.cluster.local_coordinator import LocalCoordinator
from multitap.cluster.peers import PeerConnection, open_peers
from multitap.errors import CallTimeout, OwnerUnreachable, ServerError, UpstreamError
from multitap.events import LinkState, ResourceUpdated
from multitap.wire.request import make_request
from tests.cluster.hubs import open_node, pair, zoo
from tests.gateway.test_odd_calls import COMMAND
from tests.hub.test_calls import Begun
from tests.waiting import PATIENCE, until
from tests.zoo.ledger import Ledger

ERAS = ["handshake", "stateless"]


@asynccontextmanager
async def two_nodes(folder, handlers=Handlers(), **servers):
    coordinator = LocalCoordinator()
    async with (
        open_node(coordinator, folder, name="a", servers=servers, handlers=handlers) as first,
        open_node(coordinator, folder, name="b", servers=servers, handlers=handlers) as second,
    ):
        yield [first, second]


@pytest.mark.parametrize("era", ERAS)
async def test_one_process_serves_all_replicas(tmp_path, era):
    ledger = Ledger(tmp_path)
    async with two_nodes(tmp_path, zoo=zoo("good", "--era", era, env=ledger.env)) as nodes:
        owner, other = await pair(nodes, "zoo")
        here = await owner.hub.call("zoo_pid")
        there = await other.hub.call("zoo_pid")

        assert here.text == there.text
        assert len(ledger.pids) == 1
        assert other.hub.catalog.tools.keys() == owner.hub.catalog.tools.keys()
        assert other.hub.snapshot().servers[0].transport == "cluster"
        read = await other.hub.read("zoo://text")
        prompt = await other.hub.prompt("zoo_greet", {"name": "Ada"})
    assert read.contents
    assert "Ada" in prompt.model_dump_json()


@pytest.mark.parametrize("era", ERAS)
async def test_questions_reach_the_replica_whose_client_called(tmp_path, era):
    asked = []

    def handlers_of(name):
        async def elicit(origin, params):
            asked.append((name, origin.call.agent_id, params.message))
            return types.ElicitResult(action="accept", content={"name": name})

        return Handlers(elicit=elicit)

    coordinator, servers = LocalCoordinator(), {"zoo": zoo("good", "--era", era)}
    async with (
        open_node(
            coordinator, tmp_path, name="a", servers=servers, handlers=handlers_of("a")
        ) as one,
        open_node(
            coordinator, tmp_path, name="b", servers=servers, handlers=handlers_of("b")
        ) as two,
    ):
        for node in await pair([one, two], "zoo"):
            answer = await node.hub.call("zoo_ask", context=CallContext(agent_id="me"))

            assert node.replica.id in answer.text
            assert asked[-1][:2] == (node.replica.id, "me")


@pytest.mark.parametrize("era", ERAS)
async def test_progress_travels_and_restarts_the_time(tmp_path, era):
    seen = []
    async with two_nodes(tmp_path, zoo=zoo("good", "--era", era)) as nodes:
        _, other = await pair(nodes, "zoo")
        context = CallContext(on_progress=lambda *one: seen.append(one), timeout=PATIENCE)
        result = await other.hub.call(
            "zoo_progress", {"steps": 3, "interval": 0.01}, context=context
        )

    assert result.success
    assert [one[0] for one in seen] == [1, 2, 3]


@pytest.mark.parametrize("era", ERAS)
async def test_a_deadline_travels_and_the_server_is_reported(tmp_path, era):
    ledger = Ledger(tmp_path)
    async with two_nodes(tmp_path, zoo=zoo("good", "--era", era, env=ledger.env)) as nodes:
        _, other = await pair(nodes, "zoo")
        with pytest.raises(CallTimeout):
            await other.hub.call("zoo_sleep", {"seconds": 30}, context=CallContext(timeout=0.3))
        await until(lambda: ledger.cancelled)
        with anyio.move_on_after(0.2):
            await other.hub.call("zoo_sleep", {"seconds": 30})
        await until(lambda: len(ledger.cancelled) > 1)


async def test_errors_of_tools_and_servers_are_the_servers_own_words(tmp_path):
    async with two_nodes(tmp_path, zoo=zoo()) as nodes:
        owner, other = await pair(nodes, "zoo")
        outcomes = []
        for node in (owner, other):
            failed = await node.hub.call("zoo_fail", {"message": "no luck"})
            with pytest.raises(ServerError) as refused:
                await node.hub.links["zoo"].request(make_request("zoo/nothing", {}, 5))
            outcomes.append((failed.success, failed.text, refused.value.code, str(refused.value)))

    assert outcomes[0] == outcomes[1]


async def test_changed_lists_and_resources_are_told_everywhere(tmp_path):
    async with two_nodes(tmp_path, zoo=zoo("good", "--era", "handshake")) as nodes:
        owner, other = await pair(nodes, "zoo")
        before = other.hub.catalog.tools.keys()
        with other.hub.events.subscribe() as events:
            await other.hub.subscribe("zoo://text")
            await owner.hub.call("zoo_change_tools")
            await until(lambda: other.hub.catalog.tools.keys() != before)
            await owner.hub.call("zoo_touch", {"uri": "zoo://text"})
            with anyio.fail_after(PATIENCE):
                async for event in events:
                    if isinstance(event, ResourceUpdated):
                        break

        assert other.hub.catalog.tools.keys() == owner.hub.catalog.tools.keys()


async def test_a_server_that_crashes_is_back_for_all_without_a_second_run(tmp_path):
    ledger = Ledger(tmp_path)
    async with two_nodes(tmp_path, zoo=zoo(env=ledger.env)) as nodes:
        _, other = await pair(nodes, "zoo")
        with pytest.raises(UpstreamError):
            await other.hub.call("zoo_crash")
        with anyio.fail_after(PATIENCE):
            assert (await other.hub.call("zoo_echo", {"text": "again"})).text == "again"

        assert ledger.calls.count("crash") == 1
        assert len(ledger.pids) == 2


async def test_many_calls_at_once_each_get_their_own_answer(tmp_path):
    got = {}
    async with two_nodes(tmp_path, zoo=zoo()) as nodes:
        owner, other = await pair(nodes, "zoo")

        async def call(node, n):
            got[n] = (await node.hub.call("zoo_echo", {"text": f"{n} " * 200})).text

        async with anyio.create_task_group() as tasks:
            for n in range(100):
                tasks.start_soon(call, (owner, other)[n % 2], n)

    assert got == {n: f"{n} " * 200 for n in range(100)}


async def test_a_replica_that_leaves_hands_over_and_loses_no_call(tmp_path):
    ledger = Ledger(tmp_path)
    async with two_nodes(tmp_path, zoo=zoo(env=ledger.env)) as nodes:
        owner, other = await pair(nodes, "zoo")
        results = []

        async def call(node, seconds):
            results.append((await node.hub.call("zoo_sleep", {"seconds": seconds})).success)

        async with anyio.create_task_group() as tasks:
            for node in (owner, other):
                tasks.start_soon(call, node, 0.5)
            await until(lambda: ledger.calls.count("sleep") == 2)
            tasks.start_soon(owner.replica.drain, 5)
            await until(lambda: owner.replica.ownership.is_draining)
            for node in (owner, other):  # what comes meanwhile waits for the next owner
                tasks.start_soon(call, node, 0)

        assert results == [True] * 4
        assert ledger.calls.count("sleep") == 4
        await until(lambda: other.owns("zoo"))
        assert len(ledger.pids) == 2


@pytest.mark.parametrize("era", ERAS)
async def test_calls_without_a_task_end_before_their_server_is_handed_over(tmp_path, era):
    ledger = Ledger(tmp_path)
    async with (
        two_nodes(tmp_path, zoo=zoo("good", "--era", era, env=ledger.env)) as nodes,
        anyio.create_task_group() as tasks,
    ):
        owner, other = await pair(nodes, "zoo")
        begun, given_up = (Begun(owner.hub, "sleep", b'{"seconds": 0.5}') for _ in range(2))
        async with anyio.create_task_group() as leaving:
            leaving.start_soon(owner.hub.calls.finish, given_up.call)
            await anyio.lowlevel.checkpoint()
            leaving.cancel_scope.cancel()
        tasks.start_soon(owner.replica.drain, 5)

        assert (await begun.end()).success
        assert not other.owns("zoo")
        await until(lambda: other.owns("zoo"))

    assert ledger.calls.count("sleep") == 2


async def test_a_server_goes_only_where_its_labels_are(tmp_path):
    coordinator = LocalCoordinator()
    servers = {"zoo": zoo(placement={"zone": "b"})}
    async with (
        open_node(coordinator, tmp_path, name="a", servers=servers, labels={"zone": "a"}) as first,
        open_node(coordinator, tmp_path, name="b", servers=servers, labels={"zone": "b"}) as second,
    ):
        owner, other = await pair([first, second], "zoo")

        assert (owner, other) == (second, first)
        assert (await other.hub.call("zoo_echo", {"text": "x"})).text == "x"


async def test_a_pool_runs_on_as_many_replicas_as_it_says(tmp_path):
    ledger, coordinator = Ledger(tmp_path), LocalCoordinator()
    servers = {"zoo": zoo(env=ledger.env, replicas=2)}
    async with (
        open_node(coordinator, tmp_path, name="a", servers=servers) as first,
        open_node(coordinator, tmp_path, name="b", servers=servers) as second,
        open_node(coordinator, tmp_path, name="c", servers=servers) as third,
    ):
        nodes = [first, second, third]
        await until(lambda: sum(node.owns("zoo") for node in nodes) == 2)
        for node in nodes:
            await until(lambda node=node: node.hub.links["zoo"].state is LinkState.CONNECTED)
            assert (await node.hub.call("zoo_echo", {"text": "x"})).text == "x"

        assert len(ledger.pids) == 2


async def test_a_replica_with_another_key_is_not_let_in(tmp_path):
    async with (
        open_peers(b"a" * 32, "a", lambda _: None, listen=f"unix:{tmp_path}/a.sock") as ours,
        open_peers(b"b" * 32, "b", lambda _: None, listen=f"unix:{tmp_path}/b.sock") as theirs,
    ):
        with pytest.raises(OwnerUnreachable):
            await ours.line_to(theirs.address)


async def test_an_owner_that_is_too_busy_to_answer_is_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(replica, "_UNREACHABLE", 0.0)  # for those behind a network
    coordinator, servers = LocalCoordinator(), {"zoo": zoo()}
    address, away = tmp_path / "a.sock", tmp_path / "away.sock"
    async with open_node(coordinator, tmp_path, name="a", servers=servers) as owner:
        await until(lambda: owner.hub.links["zoo"].state is LinkState.CONNECTED)
        address.rename(away)
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(address))
            silent.listen()
            silent.setblocking(False)
            async with open_node(coordinator, tmp_path, name="b", servers=servers) as other:
                with anyio.fail_after(PATIENCE):
                    connection, _ = await asyncio.get_running_loop().sock_accept(silent)
                away.rename(address)
                connection.close()

                assert (await other.hub.call("zoo_echo", {"text": "x"})).text == "x"
                assert not other.owns("zoo")
                assert other.hub.links["zoo"].starts == 1


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_is_given_up_at_any_point_of_its_way_does_not_run(tmp_path, era):
    ledger = Ledger(tmp_path)
    server = StdioServer(command=COMMAND[0], args=(*COMMAND[1:], era), env=ledger.env, era=era)
    async with two_nodes(tmp_path, odd=server) as nodes:
        for node in await pair(nodes, "odd"):
            for turns in range(20):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(node.hub.call, "odd_sleep", {"seconds": 600})
                    for _ in range(turns):
                        await anyio.lowlevel.checkpoint()
                    tasks.cancel_scope.cancel()
            await node.hub.call("odd_pid")
            await until(lambda: ledger.calls.count("sleep") == len(ledger.given_up))

    assert ledger.given_up


async def test_requests_that_are_withdrawn_leave_a_connection_that_is_not_read(tmp_path):
    size, received = 2**20, []
    loop, key = asyncio.get_running_loop(), b"k" * 32
    ours, theirs = socket.socketpair()

    def connection(name, *, is_caller):
        return PeerConnection(
            key,
            name,
            is_caller=is_caller,
            on_message=lambda _, message: received.append(message),
            on_close=lambda _: None,
        )

    _, sender = await loop.create_connection(lambda: connection("a", is_caller=True), sock=ours)
    transport, receiver = await loop.create_connection(
        lambda: connection("b", is_caller=False), sock=theirs
    )
    with anyio.fail_after(PATIENCE):
        await sender.ready
        await receiver.ready
    transport.pause_reading()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(100):
            request = make_request("tools/call", {"text": "x" * size}, 60)
            ask = say.Ask.of(1, number, request, now=0.0, owner=-1)
            sender.send(ask)
            await anyio.lowlevel.checkpoint()
            if not sender.withdraw(ask):
                sender.send(say.Cancel(1, number))
        del request, ask
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    transport.resume_reading()
    sender.send(say.Cancel(2, 0))
    await until(lambda: received and received[-1] == say.Cancel(2, 0))

    assert after - before < 4 * size
    arrived = [one.number for one in received if isinstance(one, say.Ask)]
    assert len(arrived) < 5
    assert arrived == [one.number for one in received if isinstance(one, say.Cancel)][:-1]
    sender.close("done")
    receiver.close("done")


@pytest.mark.parametrize("way", ["drain", "lose"])
async def test_calls_that_never_ran_go_to_the_next_owner(tmp_path, way):
    ledger, coordinator = Ledger(tmp_path), LocalCoordinator()
    servers = {"zoo": zoo(env=ledger.env)}
    failures, answers, is_over = [], [], False

    async def call_on(node):
        while not is_over:
            try:
                answers.append(await node.hub.call("zoo_echo", {"text": "x"}))
            except UpstreamError as exc:
                failures.append(str(exc))

    async with (
        open_node(coordinator, tmp_path, name="a", servers=servers) as first,
        open_node(coordinator, tmp_path, name="b", servers=servers) as second,
        open_node(coordinator, tmp_path, name="c", servers=servers) as third,
    ):
        nodes = [first, second, third]
        owner, _ = await pair(nodes, "zoo")
        async with anyio.create_task_group() as tasks:
            for node in nodes:
                for _ in range(10):
                    tasks.start_soon(call_on, node)
            await until(lambda: len(answers) > 100)
            if way == "drain":
                await owner.replica.drain(5)
            else:
                await owner.replica.ownership.hand_over()
            await until(lambda: any(node.owns("zoo") for node in nodes if node is not owner))
            seen = len(answers)
            await until(lambda: len(answers) > seen + 100)
            is_over = True

    # a call may fail only if the server that was lost may have executed it
    assert ledger.calls.count("echo") >= len(answers) + len(failures), failures
    if way == "drain":
        assert not failures


@pytest.mark.parametrize("comes_back", [True, False])
async def test_calls_wait_for_an_owner_that_is_late_with_its_lease_and_lives(
    tmp_path, monkeypatch, comes_back
):
    ledger, coordinator, late = Ledger(tmp_path), LocalCoordinator(), asyncio.Event()
    servers, renew, answers = {"zoo": zoo(env=ledger.env)}, Ownership._renew, []
    late.set()

    async def call(node):
        answers.append(await node.hub.call("zoo_echo", {"text": "x"}))

    async def renew_in_time(ownership):
        if ownership is owner.replica.ownership:
            await late.wait()
        await renew(ownership)

    async with (
        open_node(coordinator, tmp_path, name="a", servers=servers) as first,
        open_node(coordinator, tmp_path, name="b", servers=servers) as second,
        anyio.create_task_group() as tasks,
    ):
        owner, other = await pair([first, second], "zoo")
        await call(other)
        monkeypatch.setattr(Ownership, "_renew", renew_in_time)
        late.clear()
        await until(lambda: other.replica.ownership.owners["zoo"][0].is_late)
        for node in (owner, other):
            tasks.start_soon(call, node)
        if comes_back:
            late.set()
        else:
            await until(lambda: other.owns("zoo"))
            late.set()
        await until(lambda: len(answers) == 3)

        assert len(ledger.pids) == (1 if comes_back else 2)
    assert ledger.calls.count("echo") == 3


async def test_calls_wait_while_it_is_not_clear_which_replica_runs_their_server(
    tmp_path, monkeypatch
):
    coordinator, servers, outcomes = LocalCoordinator(), {"zoo": zoo()}, []
    look = Ownership._look

    async def call_on(node):
        try:
            outcomes.append((await node.hub.call("zoo_echo", {"text": "x"})).text)
        except UpstreamError as exc:
            outcomes.append(str(exc))

    async with (
        open_node(coordinator, tmp_path, name="a", servers=servers) as first,
        open_node(coordinator, tmp_path, name="b", servers=servers) as second,
    ):
        _, wrong = await pair([first, second], "zoo")
        stale = Owner(wrong.replica.id, 1, f"unix:{tmp_path}/{wrong.replica.id}.sock")

        async def look_late(ownership):
            """As it is for a moment after every change, only longer."""
            if ownership._replica != "new":
                await look(ownership)
            elif ownership.owners.get("zoo") != (stale,):
                ownership.owners["zoo"] = (stale,)
                ownership._announce("zoo")

        monkeypatch.setattr(Ownership, "_look", look_late)
        async with (
            open_node(coordinator, tmp_path, name="new", servers=servers) as node,
            anyio.create_task_group() as tasks,
        ):
            for starts in range(1, 5):
                tasks.start_soon(call_on, node)
                await until(lambda starts=starts: node.hub.snapshot().servers[0].starts > starts)
            monkeypatch.undo()
            await until(lambda: len(outcomes) == 4)

    assert outcomes == ["x"] * 4
