"""Real agents with a stand-in for their model, at our gateway."""

import json

import pytest

from tests.agent.models.scripted import Use, scripted_model
from tests.clients.agents import AGENTS, OFFLINE
from tests.clients.models import RESULTS, EveryModel, script
from tests.clients.running import output_of

pytestmark = [
    pytest.mark.wide,
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.timeout(400),
]

WORD = "a word that only the tool gives back"


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_shows_its_model_all_tools_and_goes_on_when_a_server_dies(
    shelf, door, tmp_path, name
):
    agent, home = AGENTS[name], tmp_path / "home"
    home.mkdir()
    steps = script(
        Use(f"{agent.prefix}doomed_crash"),
        Use(f"{agent.prefix}keeper_sleep", {"seconds": 2}),
        Use(f"{agent.prefix}keeper_echo", {"text": WORD}),
    )

    async with scripted_model(steps, EveryModel) as model:
        command, env = agent.prepare(shelf, {"gw": door}, model, home)
        said = await output_of(command, home, HOME=str(home), **OFFLINE, **env)

    working = [body for body in model.requests if shown(body, "keeper_add")]
    assert shown(working[0], "doomed_add")
    assert shown(working[-1], "doomed_add") is not agent.shows_change
    assert any(mark in json.dumps(working[-1]) for mark in RESULTS)
    assert json.dumps(working[-1]).count(WORD) == 2  # what the tool was given, and what it gave
    assert "it is done" in said
    assert door.version == agent.version
    assert ("tools/list" in door.text.partition("doomed_crash")[2]) is agent.lists_again


def shown(body, tool):
    return tool in json.dumps(body.get("tools", []))
