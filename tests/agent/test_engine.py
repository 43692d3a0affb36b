"""The loop, over both protocols and real sockets."""

from contextlib import asynccontextmanager

import anyio
import mcp_types as types
import pytest
from mcp.server.mcpserver import MCPServer

from multitap import AgentEngine, LocalServer, Settings, ToolDef, ToolRegistry, open_hub
from multitap.agent.conversation import Assistant, Conversation, ToolAnswers, user
from multitap.agent.engine import (
    ALLOW,
    Asked,
    Ending,
    Finished,
    ToolCalled,
    ToolFinished,
    deny,
    unless_read_only,
)
from multitap.agent.models import TextDelta, Usage
from multitap.config import Agent, PromptConfig
from multitap.errors import ConfigError, ModelError, MultitapError, UnknownName
from multitap.tools import HubTools
from tests.agent.models.scripted import (
    PROVIDERS,
    Fail,
    Say,
    Silence,
    Use,
    config,
    opened,
    scripted_model,
    texts,
)
from tests.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("own_executor")
both = pytest.mark.parametrize("provider", PROVIDERS)
ADD = Use("add", {"a": 2, "b": 3})


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def broken() -> str:
    """Never works."""
    raise RuntimeError("out of paper")


def registry(*functions):
    return ToolRegistry([ToolDef.of(one) for one in (add, broken, *functions)])


@asynccontextmanager
async def engine(provider, *script, tools=(), **options):
    async with opened(provider, *script) as (model, server):
        yield AgentEngine(registry(*tools), model=model, **options), server


async def taken(agent, prompt=None, **options):
    """The steps of a turn, the pieces of text left out."""
    with anyio.fail_after(PATIENCE):
        async with agent.run(prompt, **options) as steps:
            return [step async for step in steps if not isinstance(step, TextDelta)]


@both
async def test_a_model_uses_tools_until_it_has_its_answer(provider):
    script = (Say("Let me add.", (ADD,), (50, 5)), Say("It is 5.", usage=(70, 6)))
    async with (
        engine(provider, *script, instructions="Be exact.") as (agent, server),
        agent.run("what is 2 + 3?") as steps,
    ):
        all_steps = [step async for step in steps]

    said = "".join(step.text for step in all_steps if isinstance(step, TextDelta))
    called, finished, end = (step for step in all_steps if not isinstance(step, TextDelta))
    assert said == "Let me add.It is 5."
    assert (called.call.name, called.call.arguments) == ("add", {"a": 2, "b": 3})
    assert finished.result.text == "5"
    assert end == Finished(Ending.DONE, Usage(120, 11), "It is 5.", 2)
    assert texts(server, provider)[-4:] == [
        "user: what is 2 + 3?",
        "assistant: Let me add.",
        'use: add {"a":2,"b":3}',
        "tool: 5",
    ]
    assert "Be exact." in str(server.requests[1])


@both
async def test_a_chat_goes_on_with_what_was_said(provider):
    async with engine(provider, Say("Hello Ann."), Say("You are Ann.")) as (agent, server):
        answers = [await agent.chat("I am Ann."), await agent.chat("Who am I?")]

    assert answers == ["Hello Ann.", "You are Ann."]
    assert texts(server, provider) == [
        "user: I am Ann.",
        "assistant: Hello Ann.",
        "user: Who am I?",
    ]


@both
async def test_calls_are_made_side_by_side(provider):
    together = anyio.Event()
    inside = 0

    async def meet() -> str:
        """Wait for the other one."""
        nonlocal inside
        inside += 1
        if inside == 2:
            together.set()
        await together.wait()
        return "met"

    script = (Say(uses=(Use("meet"), Use("meet"))), Say("Both met."))
    async with engine(provider, *script, tools=[meet]) as (agent, server):
        steps = await taken(agent, "meet")

    assert [type(step) for step in steps[:2]] == [ToolCalled, ToolCalled]
    assert texts(server, provider)[-2:] == ["tool: met", "tool: met"]


async def test_no_more_calls_are_made_at_a_time_than_allowed():
    inside = most = 0

    async def enter() -> str:
        """Come in."""
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await anyio.sleep(0)
        inside -= 1
        return "out"

    script = (Say(uses=(Use("enter"),) * 6), Say("ok"))
    async with engine("openai", *script, tools=[enter], parallel=2) as (agent, _):
        await agent.chat("enter")

    assert most == 2


@both
@pytest.mark.parametrize(
    ("use", "words"),
    [
        pytest.param(Use("add", '{"a": 2, "b"'), "JSON", id="broken JSON"),
        pytest.param(Use("add", "[2, 3]"), "object", id="no object"),
        pytest.param(Use("add", {"a": 2}), '"b" is a required', id="missing argument"),
        pytest.param(Use("ad", {"a": 2, "b": 3}), "did you mean 'add'?", id="unknown tool"),
        pytest.param(Use("broken"), "RuntimeError: out of paper", id="failing tool"),
    ],
)
async def test_the_model_learns_what_goes_wrong_with_a_tool(provider, use, words):
    async with engine(provider, Say(uses=(use,)), Say("I see.")) as (agent, server):
        *_, finished, end = await taken(agent, "try")

    assert finished.result.is_error
    assert words in texts(server, provider)[-1]
    assert end.text == "I see."


@both
async def test_after_the_last_step_the_next_turn_goes_on_from_there(provider):
    script = (Say("First.", (ADD,)), Say("Second.", (ADD,)), Say("Done."))
    async with engine(provider, *script, max_steps=2) as (agent, server):
        first = (await taken(agent, "add"))[-1]
        second = (await taken(agent))[-1]

    assert (first.reason, first.steps, first.text) == (Ending.MAX_STEPS, 2, "Second.")
    assert (second.reason, second.text) == (Ending.DONE, "Done.")
    assert texts(server, provider)[-1] == "tool: 5"


@both
async def test_no_step_is_taken_beyond_the_limit_of_tokens(provider):
    script = (Say(uses=(ADD,), usage=(60, 30)), Say(uses=(ADD,), usage=(5, 5)), Say("Done."))
    async with engine(provider, *script, max_tokens=100) as (agent, server):
        end = (await taken(agent, "add"))[-1]

    assert (end.reason, end.usage) == (Ending.MAX_TOKENS, Usage(65, 35))
    assert len(server.requests) == 2


@both
async def test_an_answer_that_was_cut_says_so(provider):
    async with engine(provider, Say("Once upon", cut_short=True)) as (agent, _):
        [end] = await taken(agent, "tell")

    assert (end.reason, end.text) == (Ending.LENGTH, "Once upon")


@both
async def test_what_is_not_allowed_is_not_done_and_the_model_is_told_why(provider):
    async def approve(call, tool):
        return deny("not on Sundays") if call.name == "add" else ALLOW

    script = (Say(uses=(ADD, Use("broken"))), Say("A pity."))
    async with engine(provider, *script, approve=approve) as (agent, server):
        steps = await taken(agent, "add")

    assert [step.call.name for step in steps if isinstance(step, Asked)] == ["add", "broken"]
    assert [step.call.name for step in steps if isinstance(step, ToolCalled)] == ["broken"]
    assert texts(server, provider)[-2:] == [
        "tool: this was not allowed: not on Sundays",
        "tool: RuntimeError: out of paper",
    ]


@asynccontextmanager
async def box(tmp_path):
    """A hub with one server in this process, and what happens there."""
    server, happened = MCPServer("box"), {name: anyio.Event() for name in ("asleep", "woken")}

    @server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
    def look() -> str:
        return "nothing"

    @server.tool()
    async def sleep() -> str:
        happened["asleep"].set()
        try:
            await anyio.sleep_forever()
        finally:
            happened["woken"].set()

    settings = Settings(servers={"box": LocalServer(server=server)}, state_dir=tmp_path)
    async with open_hub(settings) as hub:
        await hub.settled()
        tools = ToolRegistry([ToolDef.of(add)])
        tools.attach(HubTools(hub))
        yield tools, happened


async def test_only_what_may_change_something_needs_approval(tmp_path):
    asked = []

    async def approve(call, tool):
        asked.append(tool.name)
        return deny()

    script = (Say(uses=(Use("box_look"), Use("box_sleep"), ADD)), Say("ok"))
    async with box(tmp_path) as (tools, _), opened("openai", *script) as (model, server):
        agent = AgentEngine(tools, model=model, approve=unless_read_only(approve))
        await agent.chat("do all")

    assert sorted(asked) == ["add", "box_sleep"]
    assert texts(server, "openai")[-3:] == [
        "tool: nothing",
        "tool: this was not allowed",
        "tool: this was not allowed",
    ]


@both
async def test_a_cancelled_turn_cancels_its_calls_and_can_be_gone_on_with(provider, tmp_path):
    other = PROVIDERS[provider == "openai"]
    script = (Say("Good night.", (Use("box_sleep"), ADD)),)
    async with box(tmp_path) as (tools, happened):
        async with opened(provider, *script) as (model, _):
            agent = AgentEngine(tools, model=model)
            with anyio.fail_after(PATIENCE):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(agent.chat, "sleep")
                    await happened["asleep"].wait()
                    tasks.cancel_scope.cancel()
                await happened["woken"].wait()
        stored = agent.history.to_json()
        async with opened(other, Say("Where were we?")) as (model, server):
            again = AgentEngine(tools, model=model, history=Conversation.from_json(stored))
            answer = await again.chat("wake up")

    assert answer == "Where were we?"
    assert [line for line in texts(server, other) if "use" in line or "tool" in line][:3] == [
        "user: sleep",
        "use: box_sleep {}",
        'use: add {"a":2,"b":3}',
    ]
    assert "tool: cancelled before it was done" in texts(server, other)
    assert texts(server, other)[-1] == "user: wake up"


@both
@pytest.mark.parametrize("turn", [Silence(), Say("Once upon a time", breaks="down")])
async def test_a_turn_that_is_left_while_the_model_speaks_can_be_repeated(provider, turn):
    async with engine(provider, turn, Say("The end.")) as (agent, server):
        with anyio.fail_after(PATIENCE):
            async with agent.run("tell me"):
                await server.reached.wait()
        left = list(agent.history.messages)
        end = (await taken(agent))[-1]

    assert left == [user("tell me")]
    assert end.text == "The end."


@both
async def test_a_model_that_fails_after_some_steps_loses_nothing(provider):
    script = (Say(uses=(ADD,)), Fail(500, "on fire"), Say("It is 5."))
    async with engine(provider, *script) as (agent, server):
        with pytest.raises(ModelError, match="on fire"):
            await agent.chat("add")
        stored = Conversation.from_json(agent.history.to_json())
        end = (await taken(agent, history=stored))[-1]

    assert end.text == "It is 5."
    assert texts(server, provider) == ["user: add", 'use: add {"a":2,"b":3}', "tool: 5"]
    assert [type(one) for one in agent.history.messages[1:]] == [Assistant, ToolAnswers]


async def test_a_failure_is_raised_where_the_steps_are_read():
    async with engine("openai", Fail(500, "on fire")) as (agent, _), agent.run("hi") as steps:
        with pytest.raises(ModelError, match="on fire"):
            await anext(steps)


async def test_an_agent_has_its_own_tools_prompt_model_and_steps():
    async with scripted_model([Say(uses=(Use("broken"), ADD))]) as server:
        settings = Settings(
            agents={
                "clerk": Agent(
                    deny=("broken",),
                    prompt="clerk",
                    model=config(server, "openai", name="small"),
                    max_steps=1,
                )
            },
            prompts={"clerk": PromptConfig(text="You are a clerk.")},
        )
        agent = AgentEngine(registry(), settings=settings, agent="clerk")
        steps = await taken(agent, "add")

    [body] = server.requests
    assert steps[-1].reason is Ending.MAX_STEPS
    assert (body["model"], body["messages"][0]["content"]) == ("small", "You are a clerk.")
    assert [tool["function"]["name"] for tool in body["tools"]] == ["add"]
    results = {step.call.name: step.result for step in steps if isinstance(step, ToolFinished)}
    assert "'broken' may not be used here" in results["broken"].text
    assert results["add"].text == "5"


@both
async def test_where_tools_cost_more_than_allowed_the_model_searches_them(provider):
    script = (
        Say(uses=(Use("search_tools", {"query": "add two numbers"}),)),
        Say(uses=(Use("call_tool", {"name": "add", "arguments": {"a": 2, "b": 3}}),)),
        Say("It is 5."),
    )
    async with engine(provider, *script, tool_budget=1) as (agent, server):
        answer = await agent.chat("what is 2 + 3?")

    assert answer == "It is 5."
    assert "Add two numbers." not in str(server.requests[0]["tools"])
    assert "Add two numbers." in texts(server, provider, at=1)[-1]
    assert texts(server, provider)[-1] == "tool: 5"


async def test_what_is_called_after_a_search_needs_approval_too():
    async def approve(call, tool):
        return deny(f"no {tool.name}")

    found = Use("call_tool", {"name": "add", "arguments": {"a": 2, "b": 3}})
    script = (Say(uses=(found, Use("search_tools", {"query": "add"}))), Say("ok"))
    options = {"tool_budget": 1, "approve": approve}
    async with engine("openai", *script, **options) as (agent, server):
        await agent.chat("add")

    assert texts(server, "openai")[-2] == "tool: this was not allowed: no add"
    assert "Add two numbers." in texts(server, "openai")[-1]


async def test_a_block_keeps_the_model_open():
    async with (
        scripted_model([Say("one"), Say("two")]) as server,
        AgentEngine(model=config(server, "openai")) as agent,
    ):
        answers = [await agent.chat("1"), await agent.chat("2")]

    assert answers == ["one", "two"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ConfigError, "no model is configured"),
        ({"agent": "nobody"}, UnknownName, "no agent named 'nobody'"),
    ],
)
async def test_an_agent_that_cannot_work_says_why(options, error, message):
    agent = AgentEngine(**options)
    with pytest.raises(error, match=message):
        await agent.chat("hi")

    assert not agent.history.messages


async def test_without_a_prompt_there_must_be_something_to_answer():
    async with engine("openai", Say("hi")) as (agent, _):
        with pytest.raises(MultitapError, match="nothing to answer"):
            await taken(agent)
