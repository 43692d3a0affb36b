import mcp_types as types
import pytest
from mcp.server.mcpserver import Context, MCPServer

from multitap import Handlers, HttpServer, Settings, open_hub
from multitap.agent.sampling import sampler
from multitap.upstream.questions import RequestOrigin
from tests.agent.models.scripted import PROVIDERS, Fail, Say, Use, opened, texts
from tests.seeds.files import program
from tests.wire.sdk_web import served

pytestmark = pytest.mark.usefixtures("own_executor")
both = pytest.mark.parametrize("provider", PROVIDERS)
WEATHER = types.Tool(
    name="weather",
    description="How it is outside.",
    input_schema={"type": "object", "properties": {"city": {"type": "string"}}},
)


def params(*messages, max_tokens=50, **changes):
    return types.CreateMessageRequestParams(
        messages=[types.SamplingMessage(role=role, content=content) for role, content in messages],
        max_tokens=max_tokens,
        **changes,
    )


def text(words):
    return types.TextContent(text=words)


async def sampled(provider, turn, request, **options):
    async with opened(provider, turn) as (model, server):
        return await sampler(model, **options)(RequestOrigin("box"), request), server


@both
async def test_a_server_gets_its_answer_from_the_model(provider):
    request = params(
        ("user", text("what is this?")),
        ("user", types.ImageContent(data="aGk=", mime_type="image/png")),
        ("assistant", text("A dot.")),
        ("user", [text("and"), types.AudioContent(data="aGk=", mime_type="audio/wav")]),
        system_prompt="Be brief.",
        stop_sequences=["END"],
        model_preferences=types.ModelPreferences(hints=[types.ModelHint(name="another")]),
    )
    result, server = await sampled(provider, Say("A sound."), request)

    assert isinstance(result, types.CreateMessageResult)
    assert (result.content.text, result.model, result.stop_reason) == (
        "A sound.",
        "scripted",
        "endTurn",
    )
    [body] = server.requests
    assert "Be brief." in str(body)
    assert "aGk=" in str(body["messages"])
    assert "[audio: audio/wav, 0.0 KB]" in str(body["messages"])
    assert "END" in str(body)
    assert (body["max_tokens"], body["model"]) == (50, "scripted")


@both
async def test_the_model_may_use_tools_of_the_server(provider):
    request = params(("user", text("how is it outside?")), tools=[WEATHER])
    turn = Say("Let me look.", (Use("weather", {"city": "Bern"}),))
    result, server = await sampled(provider, turn, request)

    said, use = result.content
    assert said.text == "Let me look."
    assert (use.name, use.input, result.stop_reason) == ("weather", {"city": "Bern"}, "toolUse")
    assert "How it is outside." in str(server.requests[0]["tools"])


@both
async def test_a_server_goes_on_with_what_its_tools_said(provider):
    request = params(
        ("user", text("how is it outside?")),
        ("assistant", [types.ToolUseContent(id="1", name="weather", input={"city": "Bern"})]),
        ("user", [types.ToolResultContent(tool_use_id="1", content=[text("wet")])]),
        tools=[WEATHER],
        tool_choice=types.ToolChoice(mode="none"),
    )
    result, server = await sampled(provider, Say("Take an umbrella."), request)

    assert [one.text for one in result.content] == ["Take an umbrella."]
    assert texts(server, provider) == [
        "user: how is it outside?",
        'use: weather {"city":"Bern"}',
        "tool: wet",
    ]
    assert "none" in str(server.requests[0]["tool_choice"])


async def test_no_server_gets_more_than_the_host_allows():
    request = params(("user", text("all of it")), max_tokens=10**9)
    result, server = await sampled("openai", Say("Once", cut_short=True), request, max_tokens=7)

    assert server.requests[0]["max_tokens"] == 7
    assert result.stop_reason == "maxTokens"


async def test_a_server_is_told_why_there_is_no_answer():
    result, _ = await sampled("openai", Fail(500, "on fire"), params(("user", text("hi"))))

    assert isinstance(result, types.ErrorData)
    assert "on fire" in result.message


async def test_a_tool_of_a_server_can_ask_the_model(tmp_path):
    settings = Settings(servers={"zoo": program()}, state_dir=tmp_path)
    async with (
        opened("openai", Say("hello there")) as (model, server),
        open_hub(settings, handlers=Handlers(sample=sampler(model))) as hub,
    ):
        await hub.settled()
        result = await hub.call("zoo_sample")

    assert "hello there" in result.text
    assert texts(server, "openai") == ["user: Say hello"]


@pytest.mark.filterwarnings("ignore:The sampling capability is deprecated")
async def test_a_server_learns_that_the_model_may_use_its_tools(tmp_path):
    box = MCPServer("box")

    @box.tool()
    async def think(ctx: Context) -> str:
        messages = [types.SamplingMessage(role="user", content=text("think"))]
        answer = await ctx.session.create_message(
            messages, max_tokens=10, tools=[WEATHER], related_request_id=ctx.request_id
        )
        return answer.content_as_list[0].name

    with served(box.streamable_http_app()) as url:
        server = HttpServer(url=f"{url}/mcp", transport="streamable-http", era="handshake")
        settings = Settings(servers={"box": server}, state_dir=tmp_path)
        async with (
            opened("openai", Say(uses=(Use("weather"),))) as (model, _),
            open_hub(settings, handlers=Handlers(sample=sampler(model), sample_tools=True)) as hub,
        ):
            await hub.settled()
            result = await hub.call("box_think")

    assert result.text == "weather"
