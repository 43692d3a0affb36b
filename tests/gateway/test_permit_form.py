"""Calls that the policy asks a client's person about, in both eras."""

import mcp_types as types
import pytest

from multitap.config import Settings
from multitap.config.policy_rules import PolicyRule
from tests.gateway.talking import MODES, Talker, gate, served_cells

CELLS = [(client, server) for client in MODES for server in MODES]


class Decider(Talker):
    """Answers questions about calls as it is told to, and others as ever."""

    decision = "once"

    async def _elicit(self, context, params):
        if params.mode == "url" or "decision" not in params.requested_schema["properties"]:
            return await super()._elicit(context, params)
        self.asked.append(params)
        if self.decision == "decline":
            return types.ElicitResult(action="decline")
        return types.ElicitResult(action="accept", content={"decision": self.decision})


ASK = PolicyRule(decision="ask", tools=["add", "ask*"], reason="sums are serious")


@pytest.fixture(scope="module")
def servers():
    with served_cells() as found:
        yield found


@pytest.fixture
async def opened(servers, tmp_path):
    async with gate(Settings(servers=servers, policy=(ASK,), state_dir=tmp_path)) as found:
        yield found


@pytest.mark.parametrize(("era", "server"), CELLS)
async def test_the_clients_person_is_asked_and_decides(opened, era, server):
    async with Decider(era, opened.url) as talker:
        result = await talker.client.call_tool(f"{server}_add", {"a": 2, "b": 3})
        talker.decision = "no"
        refused = await talker.client.call_tool(f"{server}_add", {"a": 2, "b": 3})
        talker.decision = "decline"
        declined = await talker.client.call_tool(f"{server}_add", {"a": 2, "b": 3})

    assert result.structured_content == {"sum": 5}
    assert refused.is_error
    assert "a person refused" in refused.content[0].text
    assert declined.is_error
    message = talker.asked[0].message
    assert all(word in message for word in (f"'{server}'", "'add'", '"a": 2', "sums are serious"))
    assert len(talker.asked) == 3


@pytest.mark.parametrize("server", MODES)
async def test_always_lasts_for_the_session(opened, server):
    async with Decider("old", opened.url) as talker:
        talker.decision = "always"
        for _ in range(3):
            await talker.client.call_tool(f"{server}_add", {"a": 2, "b": 3})
    async with Decider("old", opened.url) as other:
        await other.client.call_tool(f"{server}_add", {"a": 2, "b": 3})

    assert len(talker.asked) == 1
    assert len(other.asked) == 1


@pytest.mark.parametrize(("era", "server"), CELLS)
async def test_a_client_that_cannot_be_asked_is_refused_and_told_which_rule(opened, era, server):
    async with Decider(era, opened.url, able=False) as talker:
        result = await talker.client.call_tool(f"{server}_add", {"a": 2, "b": 3})

    assert result.is_error
    assert "needs a person's approval" in result.content[0].text
    assert "policy explain" in result.content[0].text


@pytest.mark.parametrize(("era", "server"), CELLS)
async def test_a_server_that_asks_in_the_same_call_is_answered_too(opened, era, server):
    async with Decider(era, opened.url) as talker:
        result = await talker.client.call_tool(f"{server}_ask", {})

    assert not result.is_error
    assert len(talker.asked) == 2
