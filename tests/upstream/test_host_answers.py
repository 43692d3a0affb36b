"""What answers a server's questions is imported ahead, and only for servers that ask."""

import subprocess
import sys

import pytest

from tests.zoo.modes import command

RUN = """
import sys
import anyio
from multitap import Handlers, Settings, StdioServer, open_hub
from tests.waiting import until

async def elicit(asked, params):
    import mcp_types as types
    return types.ElicitResult(action="accept", content={})

async def main(state, tool, program, *args):
    server = StdioServer(command=program, args=args)
    settings = Settings(servers={"zoo": server}, state_dir=state)
    async with open_hub(settings, handlers=Handlers(elicit=elicit)) as hub:
        await hub.settled()
        if tool == "none":
            await until(lambda: "mcp_types" in sys.modules)
        else:
            await hub.call(f"zoo_{tool}", {} if tool == "ask" else {"n": 1})
    print("mcp_types" in sys.modules)

anyio.run(main, *sys.argv[1:])
"""
"""A hub with one server, in an interpreter of its own: calls a tool, or waits for the import."""


@pytest.fixture
def run(tmp_path):
    def run(tool):
        words = [sys.executable, "-c", RUN, tmp_path, tool, *command("good_legacy")]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.strip() == "True"

    return run


def test_a_server_that_asked_in_an_earlier_run_finds_the_answers_loaded(run):
    assert run("ask")

    assert run("none")


def test_a_server_that_never_asks_costs_no_import(run):
    assert not run("nonce")
    assert not run("nonce")
