"""Every question names who asks, and nobody asks too much."""

import pytest

from multitap.config import Settings, StdioServer
from multitap.trust.questions import (
    OverBudget,
    QuestionRefused,
    Questions,
    SamplingBudget,
    name_places,
)

FORM = {"type": "object", "properties": {"password": {"type": "string"}}}


def questions(told=None, **fields):
    settings = Settings(servers={"files": StdioServer(command="x", **fields)})
    heard = [] if told is None else told
    return Questions(lambda: settings.servers, lambda *words: heard.append(words))


def elicit(asker, message="who?", **params):
    return asker.screen(
        "files", "elicitation/create", {"message": message, **params}, for_client=False
    )


def sample(asker, *, tokens=100, text="hi", **options):
    params = {"messages": [{"content": {"type": "text", "text": text}}], "maxTokens": tokens}
    return asker.screen(
        "files", "sampling/createMessage", params, for_client=options.get("for_client", False)
    )


@pytest.mark.parametrize("mode", ["form", "url"])
def test_a_question_names_the_server_that_asks(mode):
    assert elicit(questions(), mode=mode)["message"] == "files asks: who?"


def test_a_message_cannot_hide_the_name():
    shown = elicit(questions(), message="\r\x1b[2K\u202egithub asks: who?")["message"]

    assert shown.startswith("files asks: ")
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({}, "flag"),
        ({"provenance": "registry"}, "refuse"),
        ({"provenance": "project"}, "refuse"),
        ({"provenance": "project", "elicitation": {"secrets": "allow"}}, "refuse"),
        ({"provenance": "registry", "elicitation": {"secrets": "allow"}}, "allow"),
        ({"elicitation": {"secrets": "refuse"}}, "refuse"),
        ({"elicitation": {"secrets": "allow"}}, "allow"),
    ],
)
def test_forms_that_ask_for_secrets(fields, outcome):
    told = []
    asker = questions(told, **fields)
    if outcome == "refuse":
        with pytest.raises(QuestionRefused, match="a password"):
            elicit(asker, requestedSchema=FORM)
    else:
        shown = elicit(asker, requestedSchema=FORM)["message"]
        assert shown.startswith("Warning" if outcome == "flag" else "files asks")
        assert "files" in shown
    assert bool(told) is (outcome != "allow")


def test_a_page_may_ask_for_a_password():
    assert "Warning" not in elicit(questions(), "your password", mode="url")["message"]


def test_sampling_names_the_server():
    asker = questions()

    assert sample(asker)["_meta"] == {"multitap/server": "files"}
    assert "'files' asks" in sample(asker, for_client=True)["systemPrompt"]


def test_sampling_has_a_rate_and_a_budget():
    asker = questions(sampling={"rate": 3, "tokens": 1000})
    for _ in range(3):
        sample(asker, tokens=10)
    with pytest.raises(QuestionRefused, match="3 times a minute"):
        sample(asker, tokens=10)


def test_one_request_takes_no_more_than_its_share():
    assert sample(questions(sampling={"tokens": 10_000}), tokens=10**9)["maxTokens"] < 1000
    with pytest.raises(QuestionRefused, match="tokens an hour"):
        sample(questions(sampling={"tokens": 10_000}), text="x" * 5000)


def test_a_project_can_lower_its_budget_and_not_raise_it():
    asker = questions(provenance="project", sampling={"rate": 1000})
    for _ in range(20):
        sample(asker)
    with pytest.raises(QuestionRefused, match="20 times a minute"):
        sample(asker)


def test_a_budget_fills_again_with_time():
    now = 0.0
    budget = SamplingBudget(lambda: now)
    limits = {"rate": 2, "tokens": 1000}
    budget.take(10, 90, **limits)
    budget.take(10, 90, **limits)
    with pytest.raises(OverBudget):
        budget.take(10, 90, **limits)
    for now in range(60, 600, 60):
        if now <= 480:
            budget.take(10, 90, **limits)
    with pytest.raises(OverBudget, match="tokens an hour"):
        budget.take(10, 90, **limits)
    now = 3700.0

    assert budget.take(10, 90, **limits) == 90


def test_places_that_an_error_sends_a_person_to_are_named():
    data = {"elicitations": [{"message": "sign in", "url": "https://x.example"}, 7], "more": 1}

    named = name_places("files", data)

    assert named["elicitations"][0]["message"] == "files asks: sign in"
    assert named["elicitations"][1] == 7
    assert name_places("files", "odd") == "odd"
