"""Tools, calls and results in each provider's format."""

import base64
from types import SimpleNamespace

import msgspec
import pytest

from multitap.results import KeptResults, ToolResult
from multitap.tools import ToolDef, ToolRegistry
from multitap.tools.tool import text_result

PNG = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x02\x00\x00\x00\x03"
).decode()
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def result(*blocks, is_error=False):
    return ToolResult(msgspec.json.encode({"content": blocks, "isError": is_error}))


def text(words):
    return {"type": "text", "text": words}


def image(mime_type="image/png", data=PNG):
    return {"type": "image", "mimeType": mime_type, "data": data}


@pytest.fixture
def registry():
    return ToolRegistry([ToolDef("add one", "Adds one.", SCHEMA, lambda a: a + 1)])


@pytest.fixture(params=["openai", "responses", "anthropic", "gemini"])
def offer(registry, request):
    match request.param:
        case "openai":
            return registry.for_openai()
        case "responses":
            return registry.for_openai(api="responses")
        case "anthropic":
            return registry.for_anthropic()
        case _:
            return registry.for_gemini()


def sent_name(offer):
    (name,) = offer.names
    return name


def answer(offer, name, arguments):
    """One call as each provider writes it."""
    encoded = msgspec.json.encode(arguments).decode()
    match type(offer._shape).__name__:
        case "ChatCompletions":
            call = {
                "id": "c1",
                "type": "function",
                "function": {"name": name, "arguments": encoded},
            }
            return {"choices": [{"message": {"role": "assistant", "tool_calls": [call]}}]}
        case "Responses":
            call = {"type": "function_call", "call_id": "c1", "name": name, "arguments": encoded}
            return {"output": [{"type": "message", "content": []}, call]}
        case "AnthropicMessages":
            call = {"type": "tool_use", "id": "c1", "name": name, "input": arguments}
            return {"role": "assistant", "content": [{"type": "text", "text": "So."}, call]}
        case "GenerateContent":
            call = {"functionCall": {"id": "c1", "name": name, "args": arguments}}
            return {"candidates": [{"content": {"parts": [{"text": "So."}, call]}}]}


def objects(value):
    """Plain data as the objects of a client library."""
    if isinstance(value, dict) and "input" not in value and "args" not in value:
        return SimpleNamespace(**{name: objects(part) for name, part in value.items()})
    if isinstance(value, dict):
        return SimpleNamespace(**value)
    return [objects(part) for part in value] if isinstance(value, list) else value


async def test_a_call_is_read_done_and_answered(offer):
    name = sent_name(offer)
    (call,) = offer.calls(answer(offer, name, {"a": 1}))
    done = await offer.execute(call)

    assert (call.id, call.name, call.sent) == ("c1", "add one", name)
    assert call.arguments == {"a": 1}
    assert done.text == "2"
    assert "2" in msgspec.json.encode(offer.messages([(call, done)])).decode()


def test_objects_of_a_client_library_are_read_like_plain_data(offer):
    plain = answer(offer, sent_name(offer), {"a": 1})

    assert offer.calls(objects(plain)) == offer.calls(plain) != ()


def test_an_answer_without_calls_has_none(offer):
    for nothing in ({}, [], None, {"content": "So."}, {"choices": []}, {"output": None}):
        assert offer.calls(nothing) == ()


def test_no_results_are_no_message(offer):
    assert offer.messages([]) == []


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ('{"a": 1}', {"a": 1}),
        (b'{"a": 1}', {"a": 1}),
        ("", {}),
        (None, {}),
        ("null", {}),
        ({"a": 1}, {"a": 1}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
    ],
)
def test_arguments_are_read_as_models_write_them(offer, raw, arguments):
    call = offer.call("1", sent_name(offer), raw)

    assert (call.arguments, call.problem) == (arguments, None)


@pytest.mark.parametrize("raw", ['{"a": 1', "a=1", "[1]", "7", '{"a": NaN}', "[" * 100_000])
async def test_the_model_learns_which_arguments_cannot_be_read(offer, raw):
    call = offer.call("1", sent_name(offer), raw)
    done = await offer.execute(call)

    assert done is call.problem
    assert done.is_error
    assert "send them again as one" in done.text


async def test_the_model_learns_that_a_tool_does_not_exist(offer):
    done = await offer.execute(offer.call("1", "add_two", {}))

    assert done.is_error
    assert "no tool named 'add_two'" in done.text


def answered(registry_offer, *results):
    calls = [
        registry_offer.call(f"c{at}", sent_name(registry_offer), {}) for at, _ in enumerate(results)
    ]
    return registry_offer.messages(zip(calls, results, strict=True))


def test_chat_completions_see_images_in_a_message_of_their_own(registry):
    offer = registry.for_openai()
    messages = answered(offer, result(text("Look:"), image()), text_result("no", is_error=True))

    assert messages == [
        {
            "role": "tool",
            "tool_call_id": "c0",
            "content": "Look:\n[image: image/png, 0.0 KB, 2x3 pixels]",
        },
        {"role": "tool", "tool_call_id": "c1", "content": "error: no"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": f"From {sent_name(offer)} (c0):"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
            ],
        },
    ]


def test_responses_see_images_in_the_output(registry):
    offer = registry.for_openai(api="responses")
    messages = answered(offer, result(image()), result(text("Fine.")))

    assert messages == [
        {
            "type": "function_call_output",
            "call_id": "c0",
            "output": [
                {"type": "input_text", "text": "[image: image/png, 0.0 KB, 2x3 pixels]"},
                {
                    "type": "input_image",
                    "image_url": f"data:image/png;base64,{PNG}",
                    "detail": "auto",
                },
            ],
        },
        {"type": "function_call_output", "call_id": "c1", "output": "Fine."},
    ]


def test_anthropic_sees_text_and_images_in_one_message(registry):
    messages = answered(
        registry.for_anthropic(),
        result(text("Look:"), image("image/jpeg")),
        result(text("no"), image(), is_error=True),
        result(text("  ")),
    )

    assert messages == [
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c0",
                    "content": [
                        {"type": "text", "text": "Look:\n[image: image/jpeg, 0.0 KB, 2x3 pixels]"},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": PNG},
                        },
                    ],
                },
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [
                        {"type": "text", "text": "no\n[image: image/png, 0.0 KB, 2x3 pixels]"}
                    ],
                    "is_error": True,
                },
                {
                    "type": "tool_result",
                    "tool_use_id": "c2",
                    "content": [{"type": "text", "text": "(no output)"}],
                },
            ],
        }
    ]


def test_gemini_sees_images_within_the_response(registry):
    offer = registry.for_gemini()
    (message,) = answered(offer, result(text("Look:"), image()), text_result("no", is_error=True))
    (before,) = answered(registry.for_gemini(images=False), result(image()))

    assert message["role"] == "user"
    assert [part["functionResponse"] for part in message["parts"]] == [
        {
            "id": "c0",
            "name": sent_name(offer),
            "response": {"output": "Look:\n[image: image/png, 0.0 KB, 2x3 pixels]"},
            "parts": [{"inlineData": {"mimeType": "image/png", "data": PNG}}],
        },
        {"id": "c1", "name": sent_name(offer), "response": {"error": "no"}},
    ]
    assert "parts" not in before["parts"][0]["functionResponse"]


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(image("image/svg+xml", base64.b64encode(b"<svg/>").decode()), id="svg"),
        pytest.param(image(data=base64.b64encode(bytes(16 * 2**20)).decode()), id="too large"),
        pytest.param({"type": "audio", "mimeType": "audio/wav", "data": PNG}, id="audio"),
        pytest.param({"type": "resource_link", "uri": "file:///a", "name": "a"}, id="a link"),
        pytest.param(
            {"type": "resource", "resource": {"uri": "file:///a", "text": "A"}}, id="a resource"
        ),
    ],
)
def test_what_a_provider_does_not_take_is_described(offer, block):
    one = result(block)
    sent = msgspec.json.encode(answered(offer, one)).decode()

    assert msgspec.json.encode(str(one.blocks[0])).decode()[1:-1] in sent
    assert "base64" not in sent
    assert "inlineData" not in sent


def test_base64_is_written_as_providers_want_it(registry):
    loose = PNG.replace("+", "-").replace("/", "_").rstrip("=") + "\n"
    (message,) = answered(registry.for_anthropic(), result(image(data=loose)))

    assert message["content"][0]["content"][1]["source"]["data"] == PNG


def test_a_cut_result_is_sent_cut(registry):
    long = result(text("word " * 2_000)).capped(100, KeptResults())
    (message,) = answered(registry.for_anthropic(), long)

    assert message["content"][0]["content"] == [{"type": "text", "text": long.text}]
    assert len(long.text) < 1_000
