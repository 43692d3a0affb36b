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

    (home / "requests.json").write_text(json.dumps(model.requests))
    sent = [json.dumps(request) for request in model.requests]
    assert "it is done" in said
    assert any(any(mark in text for mark in RESULTS) and WORD in text for text in sent)
    assert all(any(tool in text for text in sent) for tool in ("keeper_add", "doomed_add"))
    assert door.version == agent.version


@pytest.mark.parametrize("name", AGENTS)
async def test_probe(shelf, door, tmp_path, name):
    agent, home = AGENTS[name], tmp_path / "home"
    home.mkdir()
    from tests.clients.models import Say, Use
    pre = agent.tool.removesuffix("keeper_echo")
    script = [Say(uses=(Use(pre + "doomed_crash", {}),)), Say(uses=(Use(pre + "keeper_sleep", {"seconds": 3}),)), Say(uses=(Use(agent.tool, {"text": WORD}),)), Say("it is done")]
    it = iter(script)
    def turn(body):
        if "doomed_crash" not in json.dumps(body) and "keeper_echo" not in json.dumps(body): return Say("title")
        return next(it)

    async with scripted_model(repeat(turn), EveryModel) as model:
        command, env = agent.prepare(shelf, door, model, home)
        said = await output_of(command, home, HOME=str(home), **OFFLINE, **env)
    import re
    for r in model.requests:
        tools = json.dumps(r.get("tools", []))
        print(name, len(re.findall("doomed_[a-z_]+\"", tools)), len(re.findall("keeper_[a-z_]+\"", tools)), json.dumps(r.get("messages") or r.get("input") or r.get("contents"))[-350:])
    print(said)
    print(re.findall("doomed_crash|subscriptions/listen", door.heard.read_text()))
