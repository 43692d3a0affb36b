"""A client of the handshake era whose requests reach one replica after the other."""

import itertools
import json
from contextlib import AsyncExitStack
from types import SimpleNamespace

import anyio
import pytest

from multitap import Settings
from multitap.gateway.fronts.sessions import SessionLimits
from multitap.gateway.fronts.tokens import Token, TokenSources
from multitap.trust.tokens import AccessTokens
from tests.cluster.cut_line import CutLine
from tests.cluster.redis_server import needs_redis, running_redis
from tests.cluster.staging import replicas
from tests.gateway.hostile.raw import dial, hello, http, message, stateless
from tests.gateway.session_client import SessionClient, Stream
from tests.gateway.talking import zoo
from tests.waiting import until, until_told

pytestmark = needs_redis

ANN, BOB = Token(b"the-token-of-ann-1", "ann"), Token(b"the-token-of-bob-1", "bob")


def bearer(token):
    return {"authorization": f"Bearer {token.secret.decode()}"}


@pytest.fixture
def two(tmp_path):
    """The settings of two replicas with the same server."""

    def make(mode="good_legacy", **fields):
        return [
            Settings(state_dir=tmp_path / str(number), servers={"zoo": zoo(mode, **fields)})
            for number in range(2)
        ]

    return make


def tool(request_id, name, _meta=None, **arguments):
    more = {"_meta": _meta} if _meta else {}
    return message(request_id, "tools/call", name=f"zoo_{name}", arguments=arguments, **more)


def progress(request_id, steps, interval=0.02):
    meta = {"progressToken": "t"}
    return tool(request_id, "progress", _meta=meta, steps=steps, interval=interval)


async def test_a_session_works_on_every_replica_until_it_is_deleted_on_one(redis_server, two):
    async with replicas(redis_server, *two(), tokens=(ANN, BOB)) as opened:
        client = await SessionClient(opened.port(0), bearer(ANN)).shake_hands()
        answers = []
        for number in (1, 0, 1):
            client.port = opened.port(number)
            answers.append(await client.post(tool(number, "echo", text="hi")))

        thief = SessionClient(opened.port(1), bearer(BOB))
        thief.session = client.session
        stolen = await thief.post(message(1, "ping"))
        client.port = opened.port(1)
        deleted = await client.delete()
        client.port = opened.port(0)
        await until(lambda: not len(opened[0].front.sessions))
        gone = await client.post(message(9, "ping"))
        redis_keys = redis_server.ask("KEYS", "*")

    assert [one.text for one in answers] == ["hi"] * 3
    assert stolen.status == 404
    assert deleted.status == 200
    assert gone.status == 404
    assert client.session not in redis_keys


async def test_a_thief_is_refused_by_a_replica_that_never_saw_the_session(redis_server, two):
    async with replicas(redis_server, *two(), tokens=(ANN, BOB)) as opened:
        client = await SessionClient(opened.port(0), bearer(ANN)).shake_hands()
        thief = SessionClient(opened.port(1), bearer(BOB))
        thief.session = client.session
        made_up = SessionClient(opened.port(1), bearer(ANN))
        made_up.session = "x" * 32

        assert (await thief.post(message(1, "ping"))).status == 404
        assert (await made_up.post(message(1, "ping"))).status == 404
        assert not len(opened[1].front.sessions)


async def test_a_replica_without_room_for_a_session_does_not_say_that_it_has_ended(
    redis_server, two
):
    limits = SessionLimits(most=4)
    async with replicas(redis_server, *two(), limits=limits) as opened, AsyncExitStack() as stack:
        client = await SessionClient(opened.port(0)).shake_hands()
        client.port = opened.port(1)
        for _ in range(3):
            line = await stack.enter_async_context(dial(client.port))
            await line.send(http("GET", "/sse"))
            assert (await line.head())[0] == 200
        refused = await client.post(tool(1, "echo", text="hi"))
        await stack.aclose()
        await until(lambda: not len(opened[1].front.sessions))
        answered = await client.post(tool(2, "echo", text="hi"))

    assert (refused.status, answered.text) == (503, "hi")


async def test_a_question_is_answered_through_another_replica(redis_server, two):
    async with replicas(redis_server, *two()) as opened:
        client = await SessionClient(opened.port(0)).shake_hands(elicitation={})
        async with client.streams(tool(5, "ask")) as stream:
            question = await stream.event()
            reply = {"action": "accept", "content": {"name": "Ada"}}
            client.port = opened.port(1)
            said = {"jsonrpc": "2.0", "id": question["id"], "result": reply}
            taken = await client.post(said)
            answer = await stream.event()

    assert taken.status == 202
    assert "Ada" in answer["result"]["content"][0]["text"]


async def test_a_call_is_cancelled_through_another_replica(redis_server, two):
    async with replicas(redis_server, *two()) as opened:
        client = await SessionClient(opened.port(0)).shake_hands()
        async with client.streams(progress(7, 100_000)) as stream:
            await stream.event()
            client.port = opened.port(1)
            gives_up = {"requestId": 7}
            said = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": gives_up}
            await client.post(said)
            *_, last = await stream.rest()

    assert last["error"]["code"] == -32800


async def test_a_call_is_cancelled_though_its_cancellation_is_elsewhere_first(redis_server, two):
    async with replicas(redis_server, *two()) as opened:
        client = await SessionClient(opened.port(0)).shake_hands()
        said = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
        await client.post(said)
        await until(lambda: opened[1].front.shared.sessions._early)
        client.port = opened.port(1)
        cancelled = await client.post(tool(7, "sleep", seconds=10))
        answered = await client.post(tool(8, "echo", text="hi"))

    assert json.loads(cancelled.body)["error"]["code"] == -32800
    assert answered.text == "hi"


async def test_a_stream_is_resumed_on_another_replica(redis_server, two):
    async with replicas(redis_server, *two()) as opened:
        client = await SessionClient(opened.port(0)).shake_hands()
        steps = []
        async with client.streams(progress(7, 40)) as stream:
            while len(steps) < 3:
                steps.append((await stream.event())["params"]["progress"])
        client.port = opened.port(1)
        async with client.listens(stream.last_id) as stream:
            *told, answer = await stream.rest()

    assert steps + [one["params"]["progress"] for one in told] == [*range(1, 41)]
    assert answer["result"]["content"][0]["text"] == "40 steps"


async def test_a_stream_that_breaks_again_and_again_loses_nothing(redis_server, two):
    async with replicas(redis_server, *two()) as opened:
        client = await SessionClient(opened.port(0)).shake_hands()
        told = []
        async with client.streams(progress(7, 300, interval=0.005)) as stream:
            told += [await stream.event() for _ in range(20)]
        for turn in itertools.count(1):
            client.port = opened.port(turn % 2)
            async with client.listens(stream.last_id) as stream:
                while "result" not in told[-1] and len(told) < 20 * (turn + 1):
                    told.append(await stream.event())
            if "result" in told[-1]:
                break
    *steps, answer = told

    assert [one["params"]["progress"] for one in steps] == [*range(1, 301)]
    assert answer["result"]["content"][0]["text"] == "300 steps"


async def test_progress_of_a_relayed_call_comes_before_its_answer(redis_server, two):
    async with replicas(redis_server, *two(session="per-client")) as opened:
        client = await SessionClient(opened.port(0)).shake_hands()
        await client.post(tool(1, "pid"))
        client.port = opened.port(1)
        told = []
        for request_id in range(2, 12):
            async with client.streams(progress(request_id, 20, interval=0)) as stream:
                told.append(await stream.rest())

    for *steps, answer in told:
        assert [one["params"]["progress"] for one in steps] == [*range(1, 21)]
        assert answer["result"]["content"][0]["text"] == "20 steps"


async def test_the_client_of_a_call_whose_replica_dies_is_told_so(redis_server, two):
    async with replicas(redis_server, *two()) as opened:
        client = await SessionClient(opened.port(0)).shake_hands()
        async with client.streams(progress(7, 100_000, interval=10)) as stream:
            await stream.event()
            await opened[0].front.shared.sessions.events.flush(5)
            opened.alive.discard("r0")
        client.port = opened.port(1)
        async with client.listens(stream.last_id) as resumed:
            *_, answer = await resumed.rest()
        await opened[1].front.shared.sessions.events.flush(5)
        async with client.listens(stream.last_id) as resumed:
            *_, again = await resumed.rest()
        alive = await client.post(tool(8, "echo", text="hi"))

    assert answer["id"] == 7
    assert "replica" in answer["error"]["message"]
    assert again == answer
    assert alive.text == "hi"


async def test_changes_are_reported_once_wherever_the_client_listens(redis_server, two):
    settings = two()
    more = [one.replace(servers={**one.servers, "more": zoo("good")}) for one in settings]
    async with replicas(redis_server, *settings) as opened:
        client = await SessionClient(opened.port(0)).shake_hands()
        client.port = opened.port(1)
        async with client.listens() as stream:
            await until(lambda: _replicas(opened, 1) and not _replicas(opened, 1).is_remote)
            await until(lambda: _replicas(opened, 0).is_remote)
            for number in (0, 1):
                opened[number].hub.apply(more[number])
            told = [(await stream.event())["method"]]
            for number in (0, 1):
                await opened[number].hub.settled()
            # what is said on the way is sent before the answer to what follows
            await client.post(message(2, "logging/setLevel", level="error"))
            session = next(iter(opened[1].front.sessions))
            while len(told) < session.streams.mailbox.number:
                told.append((await stream.event())["method"])

    assert told.count("notifications/tools/list_changed") == 1


def _replicas(opened, number):
    sessions = list(opened[number].front.sessions)
    return sessions[0].client.replicas if sessions else None


def followed_at(opened, number):
    """The resources that a replica follows for its clients."""
    listeners = opened[number].gateway.subscriptions._clients.values()
    return [uri for one in listeners for uri in one.uris]


async def test_a_gateway_is_open_once_others_can_reach_it(redis_server, tmp_path):
    async with replicas(redis_server, Settings(state_dir=tmp_path)):
        assert redis_server.ask("PUBSUB", "CHANNELS", "*replica:r0").startswith("*1")


async def test_a_log_level_and_followed_resources_hold_on_every_replica(redis_server, two):
    async with replicas(redis_server, *two()) as opened:
        client = await SessionClient(opened.port(0)).shake_hands()
        client.port = opened.port(1)
        level = await client.post(message(2, "logging/setLevel", level="error"))
        followed = await client.post(message(3, "resources/subscribe", uri="zoo://watched"))
        sessions = [next(iter(one.front.sessions)) for one in opened.gates]
        await until(lambda: sessions[1].client.log_level == "error")
        at_home = followed_at(opened, 0)
        async with client.listens():
            await until(lambda: not sessions[1].client.replicas.is_remote)
            await until(lambda: followed_at(opened, 1) == at_home)
            await until(lambda: not followed_at(opened, 0))

    assert level.message["result"] == {}
    assert followed.message["result"] == {}
    assert sessions[0].client.log_level == "error"
    assert at_home == ["zoo://watched"]


async def test_a_session_of_the_clients_own_with_a_server_stays_where_it_is(redis_server, two):
    async with replicas(redis_server, *two(session="per-client")) as opened:
        client = await SessionClient(opened.port(0)).shake_hands()
        pids = []
        for number in (0, 1, 1, 0):
            client.port = opened.port(number)
            pids.append((await client.post(tool(1, "pid"))).text)
        client.port = opened.port(1)
        async with client.streams(progress(2, 3)) as stream:
            told = await stream.rest()

    assert len(set(pids)) == 1
    assert [one["params"]["progress"] for one in told[:-1]] == [1, 2, 3]


async def test_a_flushed_redis_ends_sessions_and_nothing_else(redis_server, two):
    limits = SessionLimits(look=0.05)
    async with replicas(redis_server, *two(), limits=limits) as opened:
        client = await SessionClient(opened.port(0)).shake_hands()
        redis_server.ask("FLUSHALL")
        client.port = opened.port(1)
        unknown = await client.post(message(1, "ping"))
        await until(lambda: not len(opened[0].front.sessions))
        client.port = opened.port(0)
        ended = await client.post(message(1, "ping"))
        again = await SessionClient(opened.port(0)).shake_hands()
        again.port = opened.port(1)
        works = await again.post(tool(1, "echo", text="hi"))

    assert (unknown.status, ended.status) == (404, 404)
    assert "initialize again" in json.loads(ended.body)["error"]["message"]
    assert works.text == "hi"


async def test_a_session_nobody_uses_ends_everywhere(redis_server, two):
    limits = SessionLimits(idle=0.4, look=0.1)
    async with replicas(redis_server, *two(), limits=limits) as opened:
        client = await SessionClient(opened.port(0)).shake_hands()
        await until(lambda: not len(opened[0].front.sessions))

        async def is_gone():
            records = opened[1].front.shared.sessions.records
            return await records.read(client.session) is None

        await until_told(is_gone)
        client.port = opened.port(1)

        assert (await client.post(message(1, "ping"))).status == 404


async def test_a_stateless_client_answers_through_another_replica(redis_server, two):
    able = {"elicitation": {}}
    async with replicas(redis_server, *two(), tokens=(ANN, BOB)) as opened:
        asks = {"name": "zoo_ask", "arguments": {}, "able": able}
        async with dial(opened.port(0)) as line:
            asked = await line.asks(stateless(1, "tools/call", headers=bearer(ANN), **asks))
        result = asked.message["result"]
        reply = {"action": "accept", "content": {"name": "Ada"}}
        asks["inputResponses"] = dict.fromkeys(result["inputRequests"], reply)
        asks["requestState"] = result["requestState"]
        async with dial(opened.port(1)) as line:
            stolen = await line.asks(stateless(2, "tools/call", headers=bearer(BOB), **asks))
            answer = await line.asks(stateless(3, "tools/call", headers=bearer(ANN), **asks))
        await until(lambda: not len(opened[0].gateway.parked_calls))
        async with dial(opened.port(1)) as line:
            late = await line.asks(stateless(4, "tools/call", headers=bearer(ANN), **asks))

    assert stolen.message["error"]["data"]["reason"] == "invalid_request_state"
    assert "Ada" in answer.text
    assert late.message["error"]["data"]["reason"] == "expired"


async def test_an_older_client_posts_to_any_replica(redis_server, two):
    async with replicas(redis_server, *two()) as opened, dial(opened.port(0)) as line:
        await line.send(http("GET", "/sse", content_type=None, content_length=None))
        await line.head()
        endpoint = (await line.chunk()).split(b"data: ")[1].split(b"\r\n")[0].decode()
        async with dial(opened.port(1)) as other:
            posted = await other.asks(http(path=endpoint, body=hello()))
        answer = await Stream(line).event()
        async with dial(opened.port(1)) as other:
            unknown = await other.asks(http(path="/messages?session_id=x", body=hello()))

    assert posted.status == 202
    assert answer["result"]["serverInfo"]["name"] == "multitap"
    assert unknown.status == 404


async def _call(client):
    return (await client.post(tool(1, "echo", text="hi"))).status


async def _begin(client):
    return (await (await SessionClient(client.port, client.headers).shake_hands()).delete()).status


async def _end(client):
    return (await client.delete()).status


@pytest.mark.parametrize("rate", [None, "1000/min"], ids=["free", "counted"])
@pytest.mark.parametrize("ask", [_call, _begin, _end])
async def test_what_needs_redis_waits_while_it_is_away_for_a_moment(
    redis_server, two, tmp_path, ask, rate
):
    store = AccessTokens(tmp_path / "tokens")
    text, _ = store.create("ann", rate=rate)
    sources = [TokenSources(store) for _ in range(2)]
    async with CutLine(redis_server.port) as line:
        way = SimpleNamespace(url=f"redis://127.0.0.1:{line.port}/0")
        async with (
            replicas(way, *two(), sources=sources) as opened,
            anyio.create_task_group() as tasks,
        ):
            headers = {"authorization": f"Bearer {text}"}
            client = await SessionClient(opened.port(0), headers).shake_hands()
            client.port = opened.port(1)
            coordinator = opened[1].front.shared.sessions.bus.coordinator

            async def mend():
                while coordinator.health.is_up:
                    await coordinator.health_changed.wait()
                line.mend()

            tasks.start_soon(mend)
            line.reset()

            assert await ask(client) == 200


async def test_without_redis_calls_go_on_and_what_needs_it_is_refused_clearly(two):
    with running_redis() as redis_server:
        async with replicas(redis_server, *two()) as opened:
            client = await SessionClient(opened.port(0)).shake_hands()
            redis_server.stop()
            here = await client.post(tool(1, "echo", text="hi"))
            client.port = opened.port(1)
            refused = []

            async def begin():
                async with dial(opened.port(1)) as line:
                    refused.append(await line.asks(http(body=hello())))

            async with anyio.create_task_group() as tasks, dial(opened.port(1)) as line:
                tasks.start_soon(begin)
                asked = stateless(1, "tools/call", name="zoo_echo", arguments={"text": "hi"})
                without_session = await line.asks(asked)
                elsewhere = await client.post(tool(2, "echo", text="hi"))
            redis_server.start()
            await until(lambda: opened[0].front.shared.sessions.bus.coordinator.health.is_up)
            await until(lambda: opened[1].front.shared.sessions.bus.coordinator.health.is_up)
            again = await SessionClient(opened.port(0)).shake_hands()
            again.port = opened.port(1)
            works = await again.post(tool(3, "echo", text="hi"))

    assert here.text == without_session.text == works.text == "hi"
    assert "does not answer" in refused[0].message["error"]["message"]
    assert elsewhere.status == 503
    assert b"cannot be looked up" in elsewhere.body
