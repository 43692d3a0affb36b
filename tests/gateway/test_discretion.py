"""What a profile hides can neither be called nor speak."""

import json
import sys

import anyio
import pytest
from mcp import MCPError
from mcp.client.sse import sse_client
from mcp.server.subscriptions import ResourceUpdated

from multitap import Settings
from multitap.config import Profile, StdioServer
from multitap.config.policy_rules import PolicyRule
from tests.gateway import gossip
from tests.gateway.talking import PATIENCE, Talker, gate
from tests.waiting import until

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

UNASKED = (
    "notifications/message",
    "notifications/progress",
    "notifications/resources/updated",
    "notifications/tools/list_changed",
)
REFUSED = {"elicitation/create": -32601, "sampling/createMessage": -32601, "roots/list": "result"}
ANSWERED = dict.fromkeys(gossip.QUESTIONS, "result")


@pytest.fixture
def world(tmp_path):
    """Two servers that speak unasked, and a profile that shows but one of them."""

    def make(shown="loud"):
        servers = {
            name: StdioServer(
                command=sys.executable, args=(gossip.__file__, name, str(tmp_path / name))
            )
            for name in ("loud", "hidden")
        }
        profiles = {"some": Profile(servers=(shown,))}
        return Settings(state_dir=tmp_path / "state", servers=servers, profiles=profiles)

    return make


def streamable(opened):
    return f"{opened.url}?profile=some"


def legacy(opened):
    return sse_client(f"{opened.url.removesuffix('/mcp')}/sse?profile=some")


async def speak(opened, server):
    """Have a server send messages outside calls; returns the answers to its questions."""
    path = opened.hub.settings.state_dir.with_name(server)
    with anyio.fail_after(PATIENCE):
        await opened.hub.call(f"{server}_speak")
        await until(path.exists)
    return json.loads(path.read_text())


async def joined(opened, count):
    await until(lambda: len(opened.gateway.subscriptions.clients) >= count)


@pytest.mark.parametrize("front", [streamable, legacy])
async def test_an_old_client_hears_nothing_of_a_hidden_server(world, front):
    async with gate(world()) as opened, Talker("old", front(opened)) as talker:
        await talker.client.subscribe_resource("loud://thing")
        answers = await speak(opened, "hidden")
        asked, logs = [*talker.asked], [*talker.logs]
        told = [one for method in UNASKED for one in talker.hearsay(method)]
        with pytest.raises(MCPError):
            await talker.client.call_tool("hidden_speak", {})
        loud = await speak(opened, "loud")
        await talker.heard("notifications/tools/list_changed")
        updates = talker.hearsay("notifications/resources/updated")

    assert (asked, logs, told) == ([], [], [])
    assert answers == REFUSED
    assert loud == ANSWERED
    assert len(talker.asked) == len(gossip.QUESTIONS)
    assert talker.logs == [("error", "loud", "psst")]
    assert [str(one.params.uri) for one in updates] == ["loud://thing"]


async def test_a_new_client_hears_nothing_of_a_hidden_server(world):
    async with gate(world()) as opened, Talker("new", streamable(opened)) as talker:
        watched = ["hidden://thing", "loud://thing"]
        async with talker.client.listen(
            resource_subscriptions=watched, tools_list_changed=True
        ) as stream:
            answers = await speak(opened, "hidden")
            await speak(opened, "loud")
            with anyio.fail_after(PATIENCE):
                first = await anext(aiter(stream))

    assert first == ResourceUpdated(uri="loud://thing")
    assert answers == REFUSED
    assert (talker.asked, talker.logs) == ([], [])


async def test_what_is_for_nobody_s_call_is_for_the_only_client_that_sees_the_server(world):
    async with (
        gate(world()) as opened,
        Talker("old", streamable(opened)) as some,
        Talker("old", opened.url) as everything,
    ):
        await joined(opened, 2)
        answers = await speak(opened, "hidden")
        await everything.heard("notifications/tools/list_changed")

    assert answers == ANSWERED
    assert len(everything.asked) == len(gossip.QUESTIONS)
    assert everything.logs == [("error", "hidden", "psst")]
    assert (some.asked, some.logs) == ([], [])


async def test_a_server_that_is_hidden_from_now_on_is_silent_from_now_on(world):
    async with gate(world(shown="*")) as opened, Talker("old", streamable(opened)) as talker:
        for server in ("hidden", "loud"):
            await talker.client.subscribe_resource(f"{server}://thing")
        opened.hub.apply(world())
        answers = await speak(opened, "hidden")
        await speak(opened, "loud")
        await talker.heard("notifications/resources/updated")
        updates = talker.hearsay("notifications/resources/updated")

    assert answers == REFUSED
    assert [str(one.params.uri) for one in updates] == ["loud://thing"]
    assert talker.logs == [("error", "loud", "psst")]


async def test_a_name_that_is_not_there_brings_no_hidden_one_to_light(world):
    async with gate(world()) as opened, Talker("old", streamable(opened)) as talker:
        with pytest.raises(MCPError) as caught:
            await talker.client.call_tool("hidden_speek", {})

    assert "hidden_speak" not in caught.value.error.message


async def test_a_rule_about_a_hidden_tool_is_not_explained(world):
    rules = (PolicyRule(decision="deny", tools=("speak",), reason="a secret plan"),)
    settings = world().replace(policy=rules)
    async with gate(settings) as opened, Talker("old", streamable(opened)) as talker:
        told = []
        for name in ("hidden_speak", "loud_speak"):
            with pytest.raises(MCPError) as caught:
                await talker.client.call_tool(name, {})
            told.append(caught.value.error.message)

    assert told[0] == "the tool 'hidden_speak' is hidden from this client"
    assert "a secret plan" in told[1]
