import pytest

from multitap import LocalServer, Settings, open_hub
from multitap.config import ToolFilter
from multitap.errors import MultitapError
from multitap.tools import HubTools, ToolDef, ToolRegistry
from tests.hub.test_hub import calculator


def greet(name: str) -> str:
    """Say hello."""
    return f"hello {name}"


def many(count):
    schema = {"type": "object", "properties": {}}
    return ToolRegistry(
        [ToolDef(f"tool{number}", "A tool.", schema, print) for number in range(count)]
    )


@pytest.fixture
async def hub(tmp_path):
    servers = {"calc": LocalServer(server=calculator(), timeout=0.5)}
    async with open_hub(Settings(servers=servers, state_dir=tmp_path)) as hub:
        await hub.settled()
        yield hub


async def test_a_function_can_be_registered_as_it_is():
    registry = ToolRegistry()

    @registry.register
    def double(n: int) -> int:
        return 2 * n

    assert (await registry.execute("double", {"n": 4})).text == "8"
    assert double(4) == 8
    assert "double" in registry
    assert [tool.name for tool in registry] == ["double"]


def test_a_name_that_providers_refuse_has_a_stand_in():
    names = ["files:read", "größe", "1st", "x" * 70, "", "plain-name_1"]
    offer = ToolRegistry(
        [ToolDef(name, "A tool.", {"type": "object"}, print) for name in names]
    ).for_gemini()

    assert list(offer.names.values()) == names
    assert len(offer.names) == len(names)
    assert [sent for sent, name in offer.names.items() if sent == name] == ["plain-name_1"]
    assert next(iter(offer.names)).startswith("files_read_")
    assert [change.tool for change in offer.changes] == names[:-1]


def test_a_provider_gets_no_more_tools_than_it_takes():
    registry = many(130)
    offers = [registry.for_openai(), registry.for_gemini()]
    whole = registry.for_anthropic()

    assert [len(offer.names) for offer in offers] == [128, 128]
    assert [one.tool for one in offers[0].skipped] == ["tool128", "tool129"]
    assert "OpenAI takes 128 tools" in offers[0].skipped[0].why
    assert (len(whole.names), whole.skipped) == (130, ())


@pytest.mark.parametrize(
    ("count", "budget", "searching"),
    [(5, None, False), (5, 100_000, False), (5, 20, True), (130, 100_000, True)],
)
def test_too_many_tools_for_a_budget_are_offered_as_a_search(count, budget, searching):
    offer = many(count).for_openai(budget=budget)

    assert offer.searching is searching
    assert ("call_tool" in offer.names) is searching
    assert len(offer.names) == (3 if searching else count)


async def test_the_search_can_be_used_through_the_offer_and_the_registry():
    registry = ToolRegistry([greet, *many(40)])
    offer = registry.for_anthropic(budget=50)
    found = await offer.execute(offer.call("1", "search_tools", {"query": "say hello"}))
    arguments = {"name": "greet", "arguments": {"name": "Ada"}}
    used = await offer.execute(offer.call("2", "call_tool", arguments))

    assert "greet" in found.text
    assert used.text == "hello Ada"
    assert (await registry.execute("call_tool", arguments)).text == "hello Ada"
    assert "call_tool" not in {tool.name for tool in registry}


def test_the_names_of_the_search_are_taken(caplog):
    registry = ToolRegistry()
    other = ToolDef("call_tool", "Another one.", {"type": "object"}, print)
    registry.attach({"call_tool": other})

    with pytest.raises(MultitapError, match="is taken by a search tool"):
        registry.register(other)
    assert registry.list() == ()
    assert registry.get("call_tool") is not other
    assert [record.args for record in caplog.records] == [("call_tool",)]


async def test_a_narrowed_registry_shows_and_does_what_its_filter_allows(hub):
    hub.tools.register(greet)
    narrow = hub.tools.narrowed(ToolFilter(allow=("calc_a*", "gr*"), deny=("calc_air*",)))
    hidden = await narrow.execute("calc_hang", {})
    unknown = await narrow.execute("calc_nothing", {})

    assert {tool.name for tool in narrow} == {"calc_add", "greet"}
    assert set(narrow.for_openai().names) == {"calc_add", "greet"}
    assert (await narrow.execute("calc_add", {"a": 1, "b": 2})).text == "3"
    assert hidden.error == "the tool 'calc_hang' may not be used here; use another one"
    assert "no tool named 'calc_nothing'" in unknown.error


async def test_a_narrowed_registry_searches_only_what_it_shows(hub):
    narrow = hub.tools.narrowed(ToolFilter(allow=("calc_add",)))
    found = await narrow.execute("search_tools", {"query": "calc"})
    refused = await narrow.execute("call_tool", {"name": "calc_hang"})

    assert "calc_add" in found.text
    assert "calc_hang" not in found.text
    assert refused.is_error


async def test_a_narrowed_registry_follows_the_whole_one(hub):
    narrow = hub.tools.narrowed(ToolFilter(allow=("greet",)))
    before = list(narrow)
    hub.tools.register(greet)

    assert before == []
    assert [tool.name for tool in narrow] == ["greet"]


async def test_a_hub_has_one_registry_that_follows_its_catalog(hub):
    hub.tools.register(greet)
    names = set(hub.tools.for_anthropic().names.values())
    hub.apply(hub.settings.replace(servers={}))

    assert hub.tools is hub.tools
    assert {"greet", "calc_add"} <= names
    assert set(hub.tools.for_anthropic().names.values()) == {"greet"}


async def test_costs_are_reported_by_tool_and_by_server(hub):
    hub.tools.register(greet)
    cost = hub.tools.tokens()

    assert cost.tools.keys() == {tool.name for tool in hub.tools}
    assert cost.servers.keys() == {"calc", None}
    assert cost.servers[None] == cost.tools["greet"] > 0
    assert sum(cost.servers.values()) == cost.total


def test_all_tools_are_described_for_a_prompt():
    registry = ToolRegistry([greet, *many(1)])

    assert registry.description() == "  - greet: Say hello.\n  - tool0: A tool."


async def test_a_tool_of_a_hub_says_whose_it_is(hub):
    tool = HubTools(hub)["calc_add"]

    assert tool.server == "calc"
    assert tool.title is None
    assert isinstance(tool.annotations, dict)
