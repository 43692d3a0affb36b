"""The messages of a server, followed while it works."""

import mcp_types as types
import pytest

from multitap import Settings, StdioServer, open_hub
from multitap.errors import ServerError
from multitap.upstream.questions import Handlers
from multitap.upstream.tracing import MAX_TEXT
from multitap.wire.request import make_request
from tests.waiting import until
from tests.zoo.modes import command


def zoo(*options, **more):
    program, *args = command("good", *options)
    return StdioServer(command=program, args=tuple(args), **more)


@pytest.fixture
def hub_of(tmp_path):
    async def elicit(_, params):
        return types.ElicitResult(action="accept", content={"name": "Ann"})

    def make(server):
        settings = Settings(servers={"zoo": server}, state_dir=tmp_path)
        return open_hub(settings, handlers=Handlers(elicit=elicit))

    return make


def words(messages):
    return [(one.way, one.kind, one.method) for one in messages]


@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_a_request_and_its_answer_are_traced_as_a_pair(hub_of, era):
    seen = []
    async with hub_of(zoo("--era", era)) as hub:
        await hub.settled()
        with hub.tracings["zoo"].follow(seen.append):
            await hub.call("zoo_add", {"a": 1, "b": 2})

    request, answer = seen
    assert words(seen) == [("out", "request", "tools/call"), ("in", "result", "tools/call")]
    assert request.number == answer.number
    assert answer.seconds > 0
    assert '"arguments":{"a":1,"b":2}' in request.text


async def test_who_follows_from_the_start_hears_the_handshake(hub_of):
    seen = []
    async with hub_of(zoo("--era", "handshake", start="lazy")) as hub:
        await hub.settled()
        with hub.tracings["zoo"].follow(seen.append):
            hub.restart("zoo")
            await until(lambda: any(one.method == "tools/list" for one in seen))

    methods = {one.method for one in seen}
    assert {"initialize", "notifications/initialized", "tools/list"} <= methods


async def test_a_session_has_its_own_wire_back_when_nobody_follows(hub_of):
    async with hub_of(zoo("--era", "handshake")) as hub:
        await hub.settled()
        session = hub.links["zoo"].session
        wire = session.wire
        with hub.tracings["zoo"].follow(lambda _: None):
            with hub.tracings["zoo"].follow(lambda _: None):
                pass
            followed = session.wire

        assert followed is not wire
        assert session.wire is wire
        assert session.request == wire.request
        assert (await hub.call("zoo_ask", {})).success  # what it asks still reaches the host


async def test_requests_and_notifications_of_the_server_are_traced_too(hub_of):
    seen = []
    async with hub_of(zoo("--era", "handshake")) as hub:
        await hub.settled()
        with hub.tracings["zoo"].follow(seen.append):
            await hub.call("zoo_ask", {})
            await hub.call("zoo_progress", {"steps": 2, "interval": 0})

    asked, answered = [one for one in seen if one.method == "elicitation/create"]
    assert (asked.way, answered.way) == ("in", "out")
    assert asked.number == answered.number < 0
    assert "Ann" in answered.text
    assert ("in", "notification", "notifications/progress") in words(seen)


async def test_secrets_do_not_show_and_long_messages_are_cut(hub_of):
    seen = []
    async with hub_of(zoo(env={"API_TOKEN": "sesame-open-123"})) as hub:
        await hub.settled()
        with hub.tracings["zoo"].follow(seen.append):
            await hub.call("zoo_echo", {"text": "sesame-open-123" + "x" * MAX_TEXT})

    assert len(seen) == 2
    for message in seen:
        assert "sesame" not in message.text
        assert len(message.text) <= MAX_TEXT + 1
        assert message.size > MAX_TEXT


async def test_errors_are_traced_as_errors(hub_of):
    seen = []
    async with hub_of(zoo("--era", "handshake")) as hub:
        await hub.settled()
        with (
            hub.tracings["zoo"].follow(seen.append),
            pytest.raises(ServerError),
        ):
            await hub.links["zoo"].request(make_request("nonsense/method", {}, 30))

    assert words(seen)[-1] == ("in", "error", "nonsense/method")
