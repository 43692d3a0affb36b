"""Calls that the policy asks a client's person about, in both eras."""

import mcp_types as types
import pytest

from multitap.config import Settings
from multitap.config.policy_rules import PolicyRule
from multitap.gateway.fronts.tokens import Token
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


ADA, BOB = (Token(f"{name}-0123456789abcdef".encode(), name) for name in ("ada", "bob"))
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


ALLOWED = types.ElicitResult(action="accept", content={"decision": "once"})
NAMED = types.ElicitResult(action="accept", content={"name": "Ada"})


async def call_once(talker, tool, arguments=None, *, answers=None, state=None):
    """One round of a call, as a client sends it that keeps its own books."""
    return await talker.client.session.call_tool(
        tool,
        arguments or {},
        input_responses=answers,
        request_state=state,
        allow_input_required=True,
    )


def is_permit(result):
    """Whether a result is our question, rather than a server's or an answer."""
    if not isinstance(result, types.InputRequiredResult):
        return False
    return any("Multitap asks" in one.params.message for one in result.input_requests.values())


async def allow(talker, tool, arguments=None):
    """What the server says after the person allows a call."""
    question = await call_once(talker, tool, arguments)
    assert is_permit(question)
    answers = dict.fromkeys(question.input_requests, ALLOWED)
    return await call_once(talker, tool, arguments, answers=answers, state=question.request_state)


async def test_a_made_up_state_or_answer_does_not_stand_for_a_permission(opened):
    async with Decider("new", opened.url) as talker:
        done = await allow(talker, "new_add", {"a": 2, "b": 3})
        tries = [
            {"state": "made up"},
            {"state": ""},
            {"answers": {"who": NAMED}},
            {"answers": {}, "state": "made up"},
        ]
        again = [await call_once(talker, "new_add", {"a": 2, "b": 3}, **more) for more in tries]

    assert done.structured_content == {"sum": 5}
    assert [is_permit(result) for result in again] == [True] * len(tries)


async def test_an_answer_to_the_servers_question_continues_the_call_once(opened):
    async with Decider("new", opened.url) as talker:
        question = await allow(talker, "new_ask_twice")
        first = await call_once(talker, "new_ask_twice", answers={"first": NAMED})
        state = first.request_state
        wrong = await call_once(talker, "new_ask_twice", answers={"second": NAMED}, state="Eve")
        done = await call_once(talker, "new_ask_twice", answers={"second": NAMED}, state=state)
        replays = [
            await call_once(talker, "new_ask_twice", answers={"second": NAMED}, state=state),
            await call_once(talker, "new_ask_twice", answers={"first": NAMED}),
        ]

    assert [*question.input_requests] == ["first"]
    assert [*first.input_requests] == ["second"]
    assert is_permit(wrong)
    assert done.content[0].text == "{'name': 'Ada'} {'name': 'Ada'}"
    assert all(map(is_permit, replays))


async def test_the_answer_of_another_client_tool_or_argument_is_asked_about(servers, tmp_path):
    settings = Settings(servers=servers, policy=(ASK,), state_dir=tmp_path)
    async with (
        gate(settings, tokens=(ADA, BOB)) as opened,
        Decider("new", opened.url, token=ADA.secret.decode()) as ada,
        Decider("new", opened.url, token=BOB.secret.decode()) as bob,
    ):
        await allow(ada, "new_ask")
        stolen = await call_once(bob, "new_ask", answers={"who": NAMED})
        swapped = await call_once(ada, "new_ask_both", answers={"who": NAMED})
        changed = await call_once(ada, "new_ask", {"more": 1}, answers={"who": NAMED})
        done = await call_once(ada, "new_ask", answers={"who": NAMED})

    assert all(map(is_permit, (stolen, swapped, changed)))
    assert "Ada" in done.content[0].text
