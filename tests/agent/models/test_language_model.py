"""Both protocols, as the providers' own client libraries read them from a socket."""

import sys

import anyio
import pytest

from multitap import ToolDef, ToolRegistry
from multitap.agent.conversation import Picture, user
from multitap.agent.models import (
    ModelRequest,
    Reply,
    StopReason,
    TextDelta,
    Usage,
    open_model,
)
from multitap.agent.models.language_model import distinct
from multitap.config import ModelConfig, Scope
from multitap.errors import ConfigError, ModelError
from multitap.installation import extra_hint
from tests.agent.models.scripted import (
    KEY,
    PROVIDERS,
    Fail,
    Garbage,
    Pings,
    Say,
    Silence,
    Use,
    config,
    opened,
    scripted_model,
)
from tests.waiting import PATIENCE

HELLO = ModelRequest(messages=[user("hello")])
pytestmark = pytest.mark.usefixtures("own_executor")
both = pytest.mark.parametrize("provider", PROVIDERS)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def tools():
    return ToolRegistry([ToolDef.of(add)])


async def problem(provider, *script, **changes):
    async with opened(provider, *script, **changes) as (model, _):
        with pytest.raises(ModelError) as caught, anyio.fail_after(PATIENCE):
            await model.complete(HELLO)
    return caught.value


@both
async def test_text_comes_in_pieces_and_then_as_a_whole(provider):
    async with opened(provider, Say("Hello, who are you?", usage=(12, 7))) as (model, _):
        pieces = [piece async for piece in model.stream(HELLO)]

    *deltas, reply = pieces
    assert len(deltas) > 1
    assert "".join(delta.text for delta in deltas) == "Hello, who are you?" == reply.text
    assert {type(piece) for piece in deltas} == {TextDelta}
    assert (reply.stop, reply.usage, reply.calls) == (StopReason.END, Usage(12, 7), ())
    assert reply.model == "scripted"


@both
async def test_parallel_calls_are_put_together_from_their_pieces(provider):
    uses = (Use("add", {"a": 1, "b": 2}), Use("add", {"a": 30, "b": 40}))
    async with opened(provider, Say("Let me see.", uses)) as (model, server):
        reply = await model.complete(
            ModelRequest(messages=[user("add")], offer=model.offer(tools()))
        )

    assert [(call.name, call.arguments) for call in reply.calls] == [
        ("add", {"a": 1, "b": 2}),
        ("add", {"a": 30, "b": 40}),
    ]
    assert len({call.id for call in reply.calls}) == 2
    assert (reply.text, reply.stop) == ("Let me see.", StopReason.TOOLS)
    assert "Add two numbers." in str(server.requests[0]["tools"])


@both
async def test_a_request_says_all_that_was_asked_for(provider):
    request = ModelRequest(
        messages=[user("what is this?", Picture("image/png", "aGk="))],
        system="Be brief.",
        offer=None,
        max_tokens=11,
        temperature=0.5,
        stop=("END",),
    )
    async with opened(provider, Say("A dot."), temperature=1.0) as (model, server):
        await model.complete(request)

    [body] = server.requests
    assert "Be brief." in str(body)
    assert "aGk=" in str(body["messages"])
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("scripted", 0.5, 11)
    assert body["stop" if provider == "openai" else "stop_sequences"] == ["END"]
    assert KEY in str(server.headers)


@pytest.mark.parametrize(
    ("provider", "choice", "sent"),
    [
        ("openai", "required", "required"),
        ("openai", "none", "none"),
        ("anthropic", "required", {"type": "any"}),
        ("anthropic", "none", {"type": "none"}),
    ],
)
async def test_a_model_can_be_made_to_use_a_tool_or_to_use_none(provider, choice, sent):
    async with opened(provider, Say("ok")) as (model, server):
        await model.complete(
            ModelRequest(messages=[user("hi")], offer=model.offer(tools()), tool_choice=choice)
        )

    assert server.requests[0]["tool_choice"] == sent


@both
async def test_an_answer_that_was_cut_at_its_limit_says_so(provider):
    async with opened(provider, Say("Once upon a", cut_short=True)) as (model, _):
        assert (await model.complete(HELLO)).stop is StopReason.LENGTH


async def test_a_refusal_is_an_answer_and_says_so():
    refusal = (
        'data: {"choices": [{"delta": {"refusal": "No."}}]}\n\n'
        'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    )
    async with opened("openai", Garbage(refusal)) as (model, _):
        reply = await model.complete(HELLO)

    assert (reply.text, reply.stop) == ("No.", StopReason.REFUSED)


@both
async def test_what_comes_too_often_or_too_early_is_asked_again(provider):
    later = {"retry-after-ms": "1"}
    script = (Fail(429, headers=later), Fail(503, headers=later), Say("now"))
    async with opened(provider, *script, retries=2) as (model, server):
        reply = await model.complete(HELLO)

    assert reply.text == "now"
    assert len(server.requests) == 3


@both
@pytest.mark.parametrize(
    ("turn", "message", "hint"),
    [
        pytest.param(
            Fail(401, f"wrong key: {KEY}"), "the API key is not accepted", "_API_KEY", id="key"
        ),
        pytest.param(
            Fail(404, "no model 'x'"), "not found: no model 'x'", "the model's `name`", id="model"
        ),
        pytest.param(Fail(429, "slow down"), "slow down", "wait a while", id="limit"),
        pytest.param(Fail(500, "on fire"), "on fire", "ask again later", id="server"),
        pytest.param(Fail(400, f"bad {KEY}"), "refuses the request: bad ***", None, id="request"),
        pytest.param(
            Say("Once upon a time there was", breaks="off"), "in the middle", "again", id="cut"
        ),
        pytest.param(Garbage("data: {nonsense\n\n"), "the", "", id="no JSON"),
        pytest.param(Garbage("<html>", "text/html"), "in the middle", "again", id="no stream"),
    ],
)
async def test_what_goes_wrong_is_said_in_words(provider, turn, message, hint):
    error = await problem(provider, turn)

    assert str(error).startswith("scripted: ")
    assert message in str(error)
    assert error.hint is hint is None or hint in error.hint
    assert KEY not in f"{error} {error.hint} {error.__cause__}"
    assert error.status == getattr(turn, "status", None)


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("openai", 'data: {"error": {"message": "too busy"}}\n\n'),
        (
            "anthropic",
            (
                'event: error\ndata: {"type": "error", "error": '
                '{"type": "overloaded_error", "message": "too busy"}}\n\n'
            ),
        ),
    ],
)
async def test_an_error_in_the_middle_of_a_stream_is_said_in_words(provider, body):
    error = await problem(provider, Garbage(body))

    assert "too busy" in str(error)


@pytest.mark.parametrize(
    ("provider", "body"),
    [
        ("openai", 'data: {"choices": [{"delta": {"tool_calls": [1]}}]}\n\n'),
        ("openai", 'data: {"choices": 5}\n\n'),
        ("openai", "data: 7\n\n"),
        ("anthropic", 'event: content_block_delta\ndata: {"type": "content_block_delta"}\n\n'),
        ("anthropic", 'event: message_start\ndata: {"type": "message_start"}\n\n'),
        ("anthropic", "event: message_start\ndata: []\n\n"),
    ],
)
async def test_an_answer_of_another_shape_is_no_crash(provider, body):
    error = await problem(provider, Garbage(body))

    assert "scripted: " in str(error)


@both
@pytest.mark.parametrize("turn", [Silence(), Say("Once upon a time", breaks="down")])
async def test_nobody_waits_forever_for_an_answer_or_its_end(provider, turn):
    error = await problem(provider, turn, timeout=0.2)

    assert str(error) == "scripted: no data for 0.2 s"


async def test_pings_alone_are_no_answer():
    error = await problem("anthropic", Pings(), timeout=0.3)

    assert str(error) == "scripted: no data for 0.3 s"


@both
async def test_an_address_where_nobody_listens_is_said(provider):
    async with scripted_model([]) as server:
        gone = config(server, provider)
    async with open_model(gone, retries=0) as model:
        with pytest.raises(ModelError, match="cannot be reached") as caught:
            await model.complete(HELLO)

    assert gone.base_url in str(caught.value)


@both
async def test_a_key_is_put_in_late_and_a_missing_variable_is_named(provider, tmp_path):
    settings = ModelConfig(
        provider=provider, name="x", base_url="http://127.0.0.1:1", api_key="${MY_KEY}"
    )
    with pytest.raises(ConfigError, match="MY_KEY"):
        async with open_model(settings, scope=Scope(env={}, folder=tmp_path, home=tmp_path)):
            pass
    async with opened(provider, Say("hi"), api_key="${MY_KEY:-sk-late}") as (model, server):
        await model.complete(HELLO)

    assert "sk-late" in str(server.headers)


@both
async def test_another_endpoint_never_sees_the_key_of_the_provider(provider, monkeypatch):
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", "sk-private")
    async with opened(provider, Say("hi"), api_key=None) as (model, server):
        await model.complete(HELLO)

    assert "sk-private" not in str(server.headers)


@both
async def test_a_provider_without_a_key_says_how_to_give_one(provider, monkeypatch, tmp_path):
    monkeypatch.delenv(f"{provider.upper()}_API_KEY", raising=False)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    with pytest.raises(ModelError, match="there is no API key") as caught:
        async with open_model(ModelConfig(provider=provider, name="x")):
            pass

    assert f"{provider.upper()}_API_KEY" in caught.value.hint


@both
async def test_a_missing_library_is_named_with_the_way_to_get_it(provider, monkeypatch):
    monkeypatch.setitem(sys.modules, provider, None)
    with pytest.raises(ModelError) as caught:
        async with open_model(ModelConfig(provider=provider, name="x")):
            pass

    assert caught.value.hint == extra_hint("chat")
    assert "[chat]" in caught.value.hint


async def test_calls_that_all_have_the_number_0_are_told_apart_by_their_ids():
    fragments = "".join(
        f'data: {{"choices": [{{"delta": {{"tool_calls": [{call}]}}}}]}}\n\n'
        for call in (
            '{"index": 0, "id": "x", "function": {"name": "add", "arguments": "{\\"a\\": 1,"}}',
            '{"index": 0, "function": {"arguments": " \\"b\\": 2}"}}',
            '{"index": 0, "id": "y", "function": {"name": "add", "arguments": "{}"}}',
        )
    )
    end = 'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
    async with opened("openai", Garbage(fragments + end)) as (model, _):
        reply = await model.complete(
            ModelRequest(messages=[user("add")], offer=model.offer(tools()))
        )

    assert [(call.id, call.arguments) for call in reply.calls] == [
        ("x", {"a": 1, "b": 2}),
        ("y", {}),
    ]
    assert reply.stop is StopReason.TOOLS


async def test_calls_without_ids_get_some():
    ids = distinct(["", "a", "a", ""])

    assert ids[1] == "a"
    assert len({*ids, ""}) == 5


async def test_thoughts_go_back_to_who_thought_them_and_to_nobody_else():
    thinking = "".join(
        f"event: {kind}\ndata: {data}\n\n"
        for kind, data in (
            ("message_start", '{"type": "message_start", "message": {"model": "m", "usage": {}}}'),
            (
                "content_block_start",
                (
                    '{"type": "content_block_start", "index": 0, "content_block": '
                    '{"type": "thinking", "thinking": "", "signature": ""}}'
                ),
            ),
            (
                "content_block_delta",
                (
                    '{"type": "content_block_delta", "index": 0, "delta": '
                    '{"type": "thinking_delta", "thinking": "hm"}}'
                ),
            ),
            (
                "content_block_delta",
                (
                    '{"type": "content_block_delta", "index": 0, "delta": '
                    '{"type": "signature_delta", "signature": "s1"}}'
                ),
            ),
            (
                "message_delta",
                '{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}',
            ),
        )
    )
    async with opened("anthropic", Garbage(thinking), Say("ok")) as (model, server):
        reply = await model.complete(HELLO)
        following = ModelRequest(messages=[user("hello"), reply.message, user("and?")])
        await model.complete(following)
    async with opened("openai", Say("ok")) as (other, other_server):
        await other.complete(following)

    assert server.requests[1]["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "s1"}
    ]
    assert "hm" not in str(other_server.requests)
    assert isinstance(reply, Reply)
