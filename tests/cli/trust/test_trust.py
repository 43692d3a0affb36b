"""A person decides about a project: with `trust`, or in place, where a command needs it."""

import json
import shlex
import sys
from contextlib import contextmanager

import pytest

from multitap.trust.projects import Projects
from tests.cli.conftest import toml, zoo
from tests.terminals import terminal

PROGRAM = (sys.executable, "-P", "-m", "multitap")
QUESTION = r"Trust it\? \[y/N\]:"


@pytest.fixture
def project(home):
    """Writes the file of a project that nobody has trusted."""

    def write(**servers):
        tables = {name: zoo(one) if isinstance(one, str) else one for name, one in servers.items()}
        lines = [
            "\n".join((f"[servers.{name}]", *(f"{key} = {toml(table[key])}" for key in table)))
            for name, table in tables.items()
        ]
        (home / "multitap.toml").write_text("\n".join(lines))
        return home

    return write


@contextmanager
def typed(line):
    with terminal((*PROGRAM, *shlex.split(line)), NO_COLOR="1") as person:
        yield person


def at_a_terminal(line):
    """A command that asks nothing: its exit code and output."""
    with typed(line) as person:
        return person.ends()


def test_a_command_shows_the_review_asks_once_and_goes_on_with_what_is_trusted(project):
    home = project(calm=zoo("good", env={"LEVEL": "high"}))
    with typed("tools") as person:
        review = person.reads(f"(?s)(project .*){QUESTION}").group(1)
        person.type("y")
        code, listed = person.ends()

    assert f"project {home}" in review
    assert "server calm (multitap.toml): new" in review
    assert "env       LEVEL=high" in review
    assert "level     " in review
    assert "Also not watched: " in review
    assert code == 0
    assert "calm_echo" in listed
    assert "Trust it?" not in at_a_terminal("status")[1]


def test_enter_means_no_and_the_same_content_is_not_asked_about_again(project):
    home = project(calm="good")
    with typed("status") as person:
        person.reads(QUESTION)
        person.type("")
        code, shown = person.ends()
    again = at_a_terminal("tools")[1]
    project(calm="good", other="good")
    with typed("status") as person:
        person.reads(QUESTION)  # the content is another one
    project(calm="good")
    with typed("trust") as person:
        person.reads(QUESTION)  # this command is there for that

    assert code == 4
    assert "run `multitap trust`" in shown
    assert "not trusted" in shown
    assert "Trust it?" not in again
    assert f"server calm of {home} is not trusted and is not used: run `multitap trust`" in again
    assert Projects().trusted() == {}


@pytest.mark.parametrize(
    "line", ["status --json", "config show", "trust --list", "set calm.tags=x"]
)
def test_what_programs_read_and_what_uses_no_server_does_not_ask(project, line):
    project(calm="good")

    assert "Trust it?" not in at_a_terminal(line)[1]


def test_without_a_terminal_the_command_is_named_and_nothing_is_remembered(multitap, project):
    project(calm="good")
    ended = multitap("status")
    with typed("status") as person:
        person.reads(QUESTION)

    assert "run `multitap trust`" in ended.err
    assert "Trust it?" not in ended.err


def test_a_gateway_at_a_terminal_asks_and_one_whose_input_is_a_client_does_not(project):
    project(calm="good")
    with typed("serve") as person:
        person.reads("is not trusted and is not used: run `multitap trust`")
        person.reads("waiting for an MCP client")
    with typed("serve --http 127.0.0.1:0") as person:
        person.reads(QUESTION)
        person.type("y")
        person.reads("http://127.0.0.1:")
        with typed("call calm_echo text=hello") as other:
            code, answer = other.ends()
        person.press("\x03")
        person.ends()

    assert code == 0
    assert "hello" in answer


def test_a_running_gateway_has_it_when_the_command_goes_on(project):
    project(calm="good")
    with typed("serve --http 127.0.0.1:0") as person:
        person.reads(QUESTION)
        person.type("")
        person.reads("http://127.0.0.1:")
        project(calm="good", other="good")
        with typed("tools") as other:
            other.reads(QUESTION)
            other.type("y")
            code, listed = other.ends()
        person.press("\x03")
        person.ends()

    assert code == 0
    assert "from the gateway with pid" in listed
    assert "other_echo" in listed


def test_a_followed_project_is_asked_about_until_then_listed_and_no_longer(multitap, project):
    home = project(calm=zoo("good", description="old"))
    with typed("trust --follow") as person:
        words = person.reads(f"(?s)(Following it: .*){QUESTION}").group(1)
        person.type("y")
        assert person.ends()[0] == 0
    listed = multitap("trust --list --json").json
    table = multitap("trust --list").out
    project(calm=zoo("good", description="new"))
    followed = multitap("status").err
    ended = multitap("trust --no-follow", stdin="")
    asks = multitap("status").err

    assert "You are still asked about a lower level of confinement" in words
    assert [(one["project"], one["followed"]) for one in listed] == [(str(home), True)]
    assert "followed" in table
    assert "trust" not in followed
    assert "is no longer followed" in ended.err
    assert "changed since you trusted it: run `multitap trust`" in asks


def test_trusted_again_without_following_a_project_is_not_followed(multitap, project):
    project(calm=zoo("good"))
    multitap("trust --yes --follow")
    project(calm=zoo("good"), other="good")
    again = multitap("trust --yes")

    assert "it is no longer followed" in again.err
    assert [one["followed"] for one in multitap("trust --list --json").json] == [False]


def test_a_folder_that_is_not_there_is_an_error(multitap):
    assert multitap("trust /nonexistent").code != 0
    assert multitap("trust --remove /nonexistent").code != 0


def test_long_lists_say_how_many_are_missing(multitap, project):
    home = project()
    server = home / "mcpservers" / "big"
    server.mkdir(parents=True)
    for name in ("server", *(f"module{number}" for number in range(40))):
        (server / f"{name}.py").write_text("")
    shown = multitap("trust").out

    assert shown.count(".py sha256:") == 20
    assert "and 21 more files" in shown


def test_a_plain_mcp_json_is_reviewed_as_the_prompt_reads_it(multitap, home):
    (home / "mcp.json").write_text('{"mcpServers": {"one": {"command": "true"}}}')

    ended = multitap("trust --yes")

    assert ended.code == 0
    assert "server one (mcp.json): new" in ended.out + ended.err
    assert "transport" not in ended.out + ended.err


def test_a_server_without_transport_is_reviewed_beside_one_that_has_it(multitap, home):
    servers = {"one": {"transport": "stdio", "command": "true"}, "two": {"command": "true"}}
    (home / "mcp.json").write_text(json.dumps({"mcpServers": servers}))

    ended = multitap("trust --yes")

    assert ended.code == 0
    assert all(f"server {name} (mcp.json): new" in ended.out for name in servers)
    assert "missing" not in ended.err
    assert "2 of 2 servers" in multitap("config check").err
