"""What the configuration says about the world of agents: models, agents, profiles, prompts."""

from pathlib import Path

import pytest

from multitap.config import (
    Agent,
    ModelConfig,
    Profile,
    PromptConfig,
    Scope,
    Settings,
    Severity,
    Unresolved,
    expand_model,
    masked,
)
from multitap.config.secrets import MASK
from multitap.errors import ConfigError

from .reading import errors, merged
from .test_layers import layered

HERE = Path("/etc/multitap")
SCOPE = Scope(
    env={"KEY": "hunter2", "HOST": "http://localhost:1", "WORD": "x"}, folder=HERE, home=HERE
)


def read(text):
    return merged(text, str(HERE / "multitap.toml"), "multitap")


def test_everything_about_the_world_is_read():
    found = read("""
        [environment]
        id = "office"
        tools = ["a.b:c", "tools/dice.py:roll", "~/x.py:f"]
        skills = ["skills", "~/mine"]
        execute_tool = true
        [model]
        provider = "anthropic"
        name = "m"
        temperature = 0
        timeout = "2m"
        [agents.writer]
        allow = ["a_*"]
        prompt = "p"
        max_steps = 3
        model = { name = "other", temperature = 0.5 }
        [agents.guest]
        [profiles.work]
        servers = ["git*"]
        [prompts.p]
        file = "p.md"
        arguments = { name = "Whose." }
    """)
    said = found.settings

    assert found.problems == ()
    assert said.environment.tools == ("a.b:c", "/etc/multitap/tools/dice.py:roll", "~/x.py:f")
    assert said.environment.skills == (HERE / "skills", Path("~/mine"))
    assert (said.environment.execute_tool, said.environment.invoke_llm) == (True, False)
    assert said.model == ModelConfig(provider="anthropic", name="m", temperature=0, timeout=120)
    assert said.agents == {
        "writer": Agent(
            allow=("a_*",),
            prompt="p",
            max_steps=3,
            model=ModelConfig(name="other", temperature=0.5),
        ),
        "guest": Agent(),
    }
    assert said.profiles == {"work": Profile(servers=("git*",))}
    assert said.prompts == {"p": PromptConfig(file=HERE / "p.md", arguments={"name": "Whose."})}


def test_agents_stay_in_the_order_in_which_they_are_written():
    agents = read("[agents.z]\nmax_steps = 2\n[agents.b]\n[agents.a.model]\nname = 'm'\n")

    assert [*agents.settings.agents] == ["z", "b", "a"]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[prompts.good]\ntext = 'x'\n[prompts.bad]\ntext = 'x'\nfile = 'y'\n", "prompts.bad"),
        ("[prompts.good]\ntext = 'x'\n[prompts.bad]\ndescription = 'x'\n", "prompts.bad"),
        ("[prompts.good]\ntext = 'x'\n[prompts.bad]\n", "prompts.bad"),
        ("[prompts.good]\ntext = 'x'\n[agents.a.model]\ntemperature = 1\n", "agents.a.model"),
        (
            "[prompts.good]\ntext = 'x'\n[model]\nname = 'm'\ntemperature = 'hot'\n",
            "model.temperature",
        ),
        ("[prompts.good]\ntext = 'x'\n[agents.a]\nmax_steps = 0\n", "agents.a.max_steps"),
        ("[prompts.good]\ntext = 'x'\n[model]\nname = 'm'\nprovider = 'x'\n", "model.provider"),
    ],
)
def test_what_is_wrong_costs_only_itself(text, key):
    found = read(text)

    assert [problem.key for problem in found.problems] == [key]
    assert found.settings.prompts == {"good": PromptConfig(text="x")}


def test_a_later_layer_replaces_a_model_as_a_whole():
    found = layered(
        "[model]\nname = 'a'\napi_key = 'hunter2'\n[agents.x]\nmax_steps = 2\n",
        "[model]\nname = 'b'\nbase_url = 'http://elsewhere'\n[agents.x]\nallow = ['a']\n",
    )

    assert found.settings.model == ModelConfig(name="b", base_url="http://elsewhere")
    assert found.settings.agents["x"] == Agent(max_steps=2, allow=("a",))


def test_an_empty_table_takes_nothing_away():
    found = layered("[agents.x]\nmax_steps = 2\n[environment]\nid = 'a'\n", "[agents.x]\n")

    assert found.settings.agents == {"x": Agent(max_steps=2)}
    assert found.settings.environment.id == "a"


def test_a_later_layer_replaces_a_prompt_as_a_whole():
    found = layered("[prompts.p]\ntext = 'a'\n", "[prompts.p]\nfile = 'b.md'\n")

    assert found.problems == ()
    assert found.settings.prompts["p"] == PromptConfig(file=Path("/b/b.md"))


def test_a_project_brings_neither_models_nor_powers():
    found = layered(
        "[model]\nname = 'm'\n[agents.a]\nmax_steps = 2\nmodel = { name = 'n' }\n"
        "[environment]\nid = 'x'\ntools = ['a:b']\nexecute_tool = true\ninvoke_llm = true\n",
        trusted=False,
    )

    assert {key for _, _, key, _ in errors(found.problems)} == {
        "model.name",
        "agents.a.model.name",
        "environment.execute_tool",
        "environment.invoke_llm",
    }
    assert found.settings.agents == {"a": Agent(max_steps=2)}
    assert found.settings.environment.id == "x"
    assert all(problem.severity is Severity.ERROR and problem.hint for problem in found.problems)


def test_a_prompt_has_either_a_text_or_a_file():
    for wrong in ({}, {"text": "x", "file": Path("y")}):
        with pytest.raises(ConfigError, match="either `text` or `file`"):
            PromptConfig(**wrong)
    assert PromptConfig(text="").text == ""


def test_the_key_of_a_model_is_put_in_late():
    config = ModelConfig(name="m", base_url="${HOST}/v1", api_key="${KEY}", max_tokens=5)
    expanded = expand_model(config, SCOPE)

    assert (expanded.base_url, expanded.api_key) == ("http://localhost:1/v1", "hunter2")
    assert (expanded.name, expanded.max_tokens) == ("m", 5)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"api_key": "${MISSING}"}, Unresolved, "`model.api_key`: the variable `MISSING` is not"),
        ({"base_url": "${WORD}"}, ConfigError, "`model.base_url` is not an address"),
    ],
)
def test_a_model_that_cannot_be_reached_says_which_key_is_wrong(changes, error, words):
    with pytest.raises(error, match=words):
        expand_model(ModelConfig(name="m", **changes), SCOPE)


def test_the_key_of_a_model_is_shown_to_nobody():
    config = ModelConfig(name="m", api_key="hunter2")

    assert "hunter2" not in repr(Settings(model=config, agents={"a": Agent(model=config)}))
    assert masked("model.api_key", "hunter2") == MASK
    assert masked("agents.a.model.api_key", "hunter2") == MASK
    assert masked("model", {"api_key": "hunter2"}) == {"api_key": MASK}
    assert masked("model.api_key", "${KEY}") == "${KEY}"
    assert masked("model.base_url", "https://me:hunter2@x/v1") == f"https://{MASK}@x/v1"
