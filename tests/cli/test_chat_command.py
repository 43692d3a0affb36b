"""A chat at a real terminal, with a scripted model and a real server."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from multitap.agent.given_context import prompt_messages, resource_message
from multitap.cli.chat.chat_command import model_named
from multitap.cli.chat.typed_turns import ChatCommand, PromptUse, Spoken, typed_turn
from multitap.config import ModelConfig
from multitap.errors import BadArguments, MultitapError
from tests.terminals import terminal
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
MODEL = """
import sys
import anyio
sys.path.insert(0, sys.argv[1])
from scripted_model import Say, Silence, Use, scripted_model

def script():
    yield Say("Let me see.", (Use("notebook_write", {"title": "milk", "text": "two"}),))
    yield Say("It is done.")
    yield lambda body: (print("asked", flush=True), Silence())[1]
    yield Say("Here I am again.")

async def main():
    async with scripted_model(script()) as model:
        print(model.openai_url, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@contextmanager
def chatting(home, *arguments):
    command = [sys.executable, "-m", "multitap", "-c", str(home / "multitap.toml"), "chat"]
    with terminal([*command, *arguments], OPENAI_API_KEY="sk-test", NO_COLOR="1") as person:
        yield person


@contextmanager
def scripted():
    with subprocess.Popen(
        [sys.executable, "-c", MODEL, ROOT / "examples"], stdout=subprocess.PIPE, text=True
    ) as model:
        try:
            yield model.stdout.readline().strip(), model.stdout
        finally:
            model.kill()


def configure(home, url=None):
    model = f'[model]\nname = "scripted"\nbase_url = "{url}"\n' if url else ""
    (home / "multitap.toml").write_text(
        f'{model}[servers.notebook]\ncommand = "{sys.executable}"\n'
        'args = ["-m", "multitap.demo.servers.notebook"]\n'
    )


@pytest.mark.slow
def test_tools_are_approved_used_and_shown_and_an_answer_can_be_stopped_and_resumed(home):
    with scripted() as (url, told):
        configure(home, url)
        with chatting(home) as person:
            person.reads("> ")
            person.type("/tools")
            person.reads("notebook_write")
            person.type("Keep a note about the milk")
            person.reads(r"allow notebook_write .*\? ")
            person.type("y")
            person.reads("← notebook_write")
            person.reads("It is done")
            person.reads(r"\[\d+ tokens; \d+ so far\]\s+> ")
            os.killpg(person.process.pid, signal.SIGINT)
            person.reads("Ctrl-D or /quit leaves")
            person.type("And now?")
            assert told.readline() == "asked\n"
            os.killpg(person.process.pid, signal.SIGINT)
            person.reads("stopped")
            person.type("@notebook:note://milk what is this?")
            person.reads("Here I am again")
            person.type("/quit")
            assert person.process.wait(PATIENCE) == 0
        with chatting(home, "--continue") as person:
            person.reads("continuing .*json")


@pytest.mark.slow
def test_without_a_model_tools_can_still_be_called(home):
    configure(home)
    with chatting(home) as person:
        person.reads("no model is configured")
        person.type("/call notebook_write title=a text=b")
        person.reads("\n")
        person.type("/call notebook_search word=b")
        person.reads("a")
        person.type("hello")
        person.reads("no model is configured")
        person.type("/mcp")
        person.reads("notebook +connected")
        person.type("/nothing")
        person.reads("no command '/nothing'")


@pytest.mark.parametrize(
    ("line", "turn"),
    [
        ("hello", Spoken("hello")),
        ("see @docs:file:///a.md", Spoken("see @docs:file:///a.md", (("docs", "file:///a.md"),))),
        ("mail me@example.com", Spoken("mail me@example.com")),
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
