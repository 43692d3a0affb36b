"""Resources and prompts: listed, read, filled in."""

import pytest

from multitap.cli.app import run
from tests.cli.conftest import zoo
from tests.zoo.ledger import Ledger


@pytest.fixture(autouse=True)
def good(configure):
    configure(zoo="good")


def test_resources_and_templates_are_listed(multitap):
    ended = multitap("resources")

    assert [line.split() for line in ended.lines] == [
        ["URI", "SERVER", "TYPE", "DESCRIPTION"],
        ["zoo://text", "zoo", "text/plain", "text"],
        ["zoo://blob", "zoo", "image/png", "blob"],
        ["zoo://item/{id}", "zoo", "text/plain", "item"],
    ]


def test_resources_are_listed_as_json(multitap):
    (found,) = multitap("resources zoo://text --json").json

    assert found == {
        "server": "zoo",
        "uri": "zoo://text",
        "name": "text",
        "mimeType": "text/plain",
    }


def test_resources_of_a_lazy_server_are_known_from_the_last_time(multitap, configure, tmp_path):
    ledger = Ledger(tmp_path)
    configure(lazy=zoo("good", start="lazy", env=ledger.env))
    multitap("call lazy_echo text=hi")

    assert len(multitap("resources").lines) == 4
    assert len(multitap("prompts").lines) == 3
    assert len(ledger.starts) == 1


@pytest.mark.parametrize(
    ("uri", "text"), [("zoo://text", "the text\n"), ("zoo://item/seven", "seven\n")]
)
def test_a_resource_is_printed(multitap, uri, text):
    ended = multitap("read", uri)

    assert (ended.code, ended.out) == (0, text)


def test_bytes_go_into_a_pipe_as_they_are(capfdbinary):
    run(["read", "zoo://blob"])

    assert capfdbinary.readouterr().out.startswith(b"\x89PNG\r\n")


def test_a_resource_is_saved(multitap, home):
    ended = multitap("read zoo://blob --save here")

    assert ended.out == ""
    assert (home / "here" / "blob-1.png").read_bytes().startswith(b"\x89PNG")


def test_a_resource_as_json(multitap):
    (content,) = multitap("read zoo://text --json").json["contents"]

    assert content == {"uri": "zoo://text", "mimeType": "text/plain", "text": "the text"}


def test_a_misspelt_resource_gets_a_suggestion(multitap):
    ended = multitap("read zoo://texd")

    assert ended.code == 2
    assert ended.err == (
        "error: no server has a resource 'zoo://texd'\n"
        "hint: did you mean 'zoo://text'? `multitap resources` lists all resources\n"
    )


def test_a_resource_of_a_server_that_is_down_cannot_be_read(multitap, configure):
    configure(zoo="good", bad="exit_at_start")

    anywhere = multitap("read other://x")
    there = multitap("read zoo://text --server bad")

    assert anywhere.code == 2
    assert anywhere.err.endswith("`multitap resources` lists all resources (not from bad: down)\n")
    assert there.code == 4
    assert there.err.startswith("error: bad: it exited with code 1")


@pytest.mark.parametrize(
    ("line", "method"),
    [("read zoo://item/never", "resources/read"), ("prompt zoo_greet name=never", "prompts/get")],
)
def test_without_an_answer_it_ends_after_the_timeout(multitap, line, method):
    ended = multitap(f"{line} --timeout 1.5")

    assert (ended.code, ended.out) == (4, "")
    assert f"no answer to '{method}' within 1.5 s" in ended.err


def test_prompts_are_listed_with_what_they_take(multitap):
    ended = multitap("prompts")

    assert ended.lines == [
        "PROMPT     ARGUMENTS  DESCRIPTION",
        "zoo_greet  name       Greets somebody",
        "zoo_plain             Takes no arguments",
    ]
    assert [prompt["name"] for prompt in multitap("prompts --json").json] == [
        "zoo_greet",
        "zoo_plain",
    ]


def test_a_prompt_is_filled_in(multitap, home):
    (home / "name.txt").write_text("Grace")

    assert multitap("prompt zoo_greet name=Ada").out == "user: Hello, Ada\n"
    assert multitap("prompt zoo_greet name=@name.txt").out == "user: Hello, Grace\n"
    assert multitap("prompt zoo_plain --json").json["messages"] == [
        {"role": "user", "content": {"type": "text", "text": "Hello"}}
    ]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("prompt zoo_greet", "error: name: it is missing"),
        ("prompt zoo_greet nam=Ada", "hint: did you mean 'name'? it takes name"),
        ("prompt zoo_greet name=A name=B", "error: name: it is given more than once"),
        ("prompt zoo_plain name=Ada", "hint: it takes no arguments"),
        ("prompt zoo_gret", "hint: did you mean 'zoo_greet'?"),
    ],
)
def test_a_prompt_is_not_filled_in_with_what_it_does_not_take(multitap, line, error):
    ended = multitap(line)

    assert ended.code == 2
    assert error in ended.err
