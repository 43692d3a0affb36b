import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap import ToolResult
from multitap.agent.conversation import (
    Assistant,
    Call,
    Conversation,
    Picture,
    ToolAnswer,
    ToolAnswers,
    mend,
    user,
)
from multitap.errors import MultitapError
from multitap.results import KeptResults
from multitap.tools.tool import text_result

IDS = st.sampled_from("abc")
MESSAGES = st.one_of(
    st.just(user("hi")),
    st.builds(
        lambda ids: Assistant("", tuple(Call(one, "tool", {}, "tool") for one in ids)),
        st.lists(IDS, unique=True, max_size=3),
    ),
    st.builds(
        lambda ids: ToolAnswers(tuple(ToolAnswer.of(one, text_result("done")) for one in ids)),
        st.lists(IDS),
    ),
)


@given(st.lists(MESSAGES, max_size=8))
def test_every_call_has_an_answer_and_every_answer_a_call(messages):
    whole = mend(messages)

    assert [one for one in whole if not isinstance(one, ToolAnswers)] == [
        one for one in messages if not isinstance(one, ToolAnswers)
    ]
    for before, message in zip((None, *whole), (*whole, None), strict=True):
        calls = before.calls if isinstance(before, Assistant) else ()
        answers = message.answers if isinstance(message, ToolAnswers) else ()
        assert [call.id for call in calls] == [answer.id for answer in answers]
    assert mend(whole) == whole


@given(st.lists(MESSAGES, max_size=8))
def test_a_conversation_can_be_stored(messages):
    conversation = Conversation(messages)

    assert Conversation.from_json(conversation.to_json()) == conversation


def test_a_picture_can_be_stored():
    conversation = Conversation([user("look", Picture("image/png", "aGk="))])

    assert Conversation.from_json(conversation.to_json()) == conversation


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 2, "messages": []}', b"\xff"])
def test_what_is_no_conversation_is_refused(text):
    with pytest.raises(MultitapError, match="conversation"):
        Conversation.from_json(text)


def test_of_a_long_result_only_what_the_model_may_see_is_kept():
    image = '{"type": "image", "mimeType": "image/png", "data": "aGk="}'
    raw = b'{"content": [{"type": "text", "text": "%s"}, %s]}' % (b"word " * 99, image.encode())
    answer = ToolAnswer.of("a", ToolResult(raw).capped(100, KeptResults()))
    seen = ToolResult(answer.result)

    assert len(seen.blocks[0].text) <= 100
    assert seen.blocks[1].encoded == "aGk="
