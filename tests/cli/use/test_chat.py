"""A chat at a real terminal, with a scripted model and a real server."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from multitap.agent.conversation import prompt_messages, resource_message
from multitap.cli.use.chat import model_named
from multitap.cli.use.chat_lines import ChatCommand, PromptUse, TypedMessage, typed_turn
from multitap.config import ModelConfig
from multitap.errors import BadArguments, MultitapError
from tests.cli.conftest import toml, zoo
from tests.processes import descendants
from tests.terminals import Tmux, terminal
from tests.waiting import PATIENCE, wait_for
from tests.zoo.ledger import Ledger

ROOT = Path(__file__).parents[3]
MODEL = """
import sys
import anyio
sys.path.insert(0, sys.argv[1])
from scripted_model import Say, Silence, Use, scripted_model

def script():
    notes = (Use("notebook_write", {"title": title, "text": "two"}) for title in ("milk", "tea"))
    yield Say("Let me see.", (*notes, Use("zoo_ask", {})))
    yield Say("It is done.")
    yield lambda body: (print("asked", flush=True), Silence())[1]
    yield Say("Here I am again.")
    yield lambda body: Say(f"Seen {'two' in str(body)} {'Hello, Ada' in str(body)}")

async def main():
    async with scripted_model(script()) as model:
        print(model.openai_url, model.anthropic_url, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""
MARKDOWN = MODEL.replace(
    '"Let me see.", (*notes, Use("zoo_ask", {}))', repr("Do **this**:\n\n- first\n- second\n")
)


@contextmanager
def chatting(home, *arguments):
    command = [sys.executable, "-m", "multitap", "-c", str(home / "multitap.toml"), "chat"]
    with terminal(
        [*command, *arguments], OPENAI_API_KEY="k", ANTHROPIC_API_KEY="k", NO_COLOR="1"
    ) as person:
        yield person


@contextmanager
def scripted(program=MODEL):
    with subprocess.Popen(
        [sys.executable, "-c", program, ROOT / "examples"], stdout=subprocess.PIPE, text=True
    ) as model:
        try:
            yield model.stdout.readline().split(), model.stdout
        finally:
            model.kill()


def configure(home, provider=None, url=None):
    model = (
        f"""[model]
provider = "{provider}"
name = "scripted"
base_url = "{url}"
input_price = 1000.0
output_price = 5000.0
"""
        if url
        else ""
    )
    (home / "multitap.toml").write_text(
        f"""{model}[servers]
notebook = {{ command = "{sys.executable}", args = ["-m", "multitap.demo.servers.notebook"] }}
zoo = {toml(zoo("good_legacy", env={"ZOO_DIR": str(home)}))}
"""
    )


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_conversation_with_tools_questions_resources_and_prompts(home, provider):
    with scripted() as (urls, told):
        configure(home, provider, urls[provider == "anthropic"])
        with chatting(home) as person:
            person.reads("> ")
            person.type("/tools write")
            person.reads("notebook_write")
            person.type("Keep a note about the milk")
            for _ in range(3):  # what asks at the same time is asked one after the other
                found = person.reads(r"allow (notebook_write) .*: |  name \(.*: ")
                person.type("y" if found[1] else "Ada")
            person.reads("It is done")
            person.reads(r"\[240 tokens, 0.4000; 240, 0.4000 so far\]\s+> ")
            person.type("/show 1")
            person.reads(r"(zoo_ask|notebook_write) \{[^>]*> ")
            os.killpg(person.process.pid, signal.SIGINT)
            person.reads("Ctrl-D or /quit leaves")
            person.type("And now?")
            assert told.readline() == "asked\n"
            os.killpg(person.process.pid, signal.SIGINT)
            person.reads("stopped")
            person.type("@notebook:note://milk what is this?")
            person.reads("Here I am again")
            person.type("/zoo:greet name=Ada")
            person.reads("Seen True True")
            person.type(f"/save {home / 'kept.json'}")
            person.reads("saved in")
            person.type("/quit")
            assert person.process.wait(PATIENCE) == 0
        with chatting(home, "--continue") as person:
            person.reads("continuing .*json")
    assert "Here I am again" in (home / "kept.json").read_text()


@pytest.mark.slow
def test_without_a_model_commands_work_and_it_says_how_to_name_one(home):
    configure(home)
    with chatting(home) as person:
        person.reads("choose one with `/model anthropic/NAME`")
        person.reads("> ")
        person.type("/call notebook_write title=a text=b")
        person.reads("note://a")
        person.type("/call zoo_sleep seconds=1000")
        wait_for(lambda: Ledger(home).calls)
        os.killpg(person.process.pid, signal.SIGINT)
        person.reads("stopped")
        person.type("hello")
        person.reads("no model is configured")
        person.type("/mcp")
        person.reads("notebook +connected")
        person.type("/mcp tools zoo")
        person.reads("zoo_echo")
        person.type("/mcp stats")
        person.reads("notebook: 1 call, 0 errors")
        person.type("/mcp restart zoo")
        person.reads("zoo restarts")
        person.type("/mcp logs zoo")
        person.reads("zoo has not written anything")
        person.type("/mcp reload")
        person.reads("reloaded: keep notebook, zoo")
        person.type("/mcp restart nobody")
        person.reads("no server named 'nobody'")
        person.type("/nothing")
        person.reads("no command '/nothing'")
        person.type("/model openai/some-model")
        person.reads("model: openai/some-model")


WITHOUT_LIBRARY = """
import sys
sys.modules["openai"] = None
from multitap.cli.app import start
start()
"""


@pytest.mark.slow
def test_a_missing_library_is_reported_before_the_first_message(home):
    configure(home, "openai", "http://127.0.0.1:9")
    command = [sys.executable, "-c", WITHOUT_LIBRARY, "-c", str(home / "multitap.toml"), "chat"]
    with terminal(command, NO_COLOR="1") as person:
        person.reads("a model of 'openai' needs its client library")
        person.reads("> ")
        person.type("/call notebook_write title=a text=b")
        person.reads("note://a")


@pytest.mark.slow
def test_an_answer_in_markdown_is_formatted(home, tmp_path_factory):
    with scripted(MARKDOWN) as (urls, _):
        configure(home, "openai", urls[0])
        command = [sys.executable, "-m", "multitap", "-c", str(home / "multitap.toml"), "chat"]
        screen = Tmux(tmp_path_factory.mktemp("t"), command, NO_COLOR="1", OPENAI_API_KEY="k")
        try:
            screen.shows("(?m)^>")
            screen.type("How?")
            screen.press("Enter")
            answer = screen.shows(r"so far\]")
        finally:
            screen.kill()

    assert "**" not in answer
    assert "Do this:" in answer
    assert " • first" in answer


@pytest.mark.slow
def test_a_chat_whose_terminal_is_gone_ends_with_its_servers(home):
    configure(home)
    with chatting(home) as person:
        person.reads("> ")
        person.type("/call zoo_sleep seconds=1000")
        wait_for(lambda: Ledger(home).calls)
        pids = {person.process.pid, *descendants(person.process.pid)}
        person.hang_up()

        wait_for(lambda: not pids & descendants(os.getpid()) and person.process.poll(), 10)


@pytest.mark.parametrize(
    ("line", "turn"),
    [
        ("hello", TypedMessage("hello")),
        (
            "see @docs:file:///a.md",
            TypedMessage("see @docs:file:///a.md", (("docs", "file:///a.md"),)),
        ),
        ("mail me@example.com", TypedMessage("mail me@example.com")),
        ("/git:review pr=7", PromptUse("git", "review", ("pr=7",))),
        ("/model openai/x", ChatCommand("model", ("openai/x",))),
        ("/quit", ChatCommand("quit")),
    ],
)
def test_lines_are_words_prompts_or_commands(line, turn):
    assert typed_turn(line) == turn


@pytest.mark.parametrize("line", ["/nothing", "/call 'open"])
def test_a_line_that_only_looks_like_a_command_is_refused(line):
    with pytest.raises(BadArguments):
        typed_turn(line)


def test_a_model_is_named_with_or_without_its_provider():
    configured = ModelConfig(name="a", base_url="http://127.0.0.1:1/v1")

    assert model_named(None, configured) is None
    assert model_named("b", configured).base_url == configured.base_url
    assert model_named("anthropic/c", configured).base_url is None
    assert model_named("maker/d", configured).name == "maker/d"
    with pytest.raises(MultitapError, match="no provider named 'maker'"):
        model_named("maker/d", None)


def test_resources_and_prompts_become_messages():
    import mcp_types as types  # noqa: PLC0415 - slow

    read = types.ReadResourceResult.model_validate(
        {
            "contents": [
                {"uri": "note://a", "text": "milk"},
                {"uri": "note://b", "mimeType": "image/png", "blob": "aGk="},
            ]
        }
    )
    filled = types.GetPromptResult.model_validate(
        {"messages": [{"role": "assistant", "content": {"type": "text", "text": "Hi"}}]}
    )

    text, picture = resource_message("notes:note://a", read).content

    assert "milk" in text.text
    assert picture.mime_type == "image/png"
    assert [one.text for one in prompt_messages(filled)] == ["Hi"]
