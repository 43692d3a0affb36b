"""Real agents with a stand-in for their model, at our gateway."""

import json
from itertools import repeat

import pytest

from tests.agent.models.scripted import scripted_model
from tests.clients.agents import AGENTS, OFFLINE
from tests.clients.models import RESULTS, EveryModel, wants
from tests.clients.running import output_of

pytestmark = [
    pytest.mark.clients,
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.timeout(400),
]

WORD = "a word that only the tool gives back"


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_shows_its_model_every_tool_and_calls_one(shelf, door, tmp_path, name):
    agent, home = AGENTS[name], tmp_path / "home"
    home.mkdir()
    script = repeat(wants(agent.tool, {"text": WORD}))

    async with scripted_model(script, EveryModel) as model:
        command, env = agent.prepare(shelf, door, model, home)
        said = await output_of(command, home, HOME=str(home), **OFFLINE, **env)

    sent = [json.dumps(request) for request in model.requests]
    assert "it is done" in said
    assert any(any(mark in text for mark in RESULTS) and WORD in text for text in sent)
    assert all(any(tool in text for text in sent) for tool in ("keeper_add", "doomed_add"))
    print(name, door.version)
