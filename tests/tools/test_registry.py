import anyio
import pytest

from multitap import LocalServer, Settings, open_hub
from multitap.errors import BadArguments, MultitapError, UnknownName
from multitap.tools import HubTools, ToolDef, ToolRegistry
from tests.hub.test_hub import calculator


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


async def later(words: list[str]) -> dict[str, int]:
    await anyio.lowlevel.checkpoint()
    return {word: len(word) for word in words}


def boom() -> None:
    raise RuntimeError("out of luck")


@pytest.fixture
def registry():
    return ToolRegistry([ToolDef.of(function) for function in (add, later, boom)])


@pytest.fixture
async def hub(tmp_path):
    servers = {"calc": LocalServer(server=calculator(), timeout=0.5)}
    async with open_hub(Settings(servers=servers, state_dir=tmp_path)) as hub:
        await hub.settled()
        yield hub


def test_a_function_says_by_itself_what_it_takes():
    tool = ToolDef.of(add)

    assert (tool.name, tool.description) == ("add", "Add two numbers.")
    assert tool.parameters["required"] == ["a"]
    assert tool.parameters["properties"]["b"]["default"] == 1


async def test_functions_run_awaited_or_not(registry):
    plain = await registry.execute("add", {"a": 2})
    awaited = await registry.execute("later", {"words": ["one", "three"]})

    assert (plain.success, plain.output) == (True, "3")
    assert awaited.output == '{"one":3,"three":5}'
    assert registry.call_tool("add", {"a": 2, "b": 3}) == "5"


async def test_whatever_goes_wrong_is_said_in_the_result(registry):
    results = [
        await registry.execute("boom", {}),
        await registry.execute("add", {"a": "two"}),
        await registry.execute("ad", {}),
    ]

    assert not any(result.success for result in results)
    assert [result.error for result in results] == [
        "RuntimeError: out of luck",
        '/a is not of type "integer"',
        "no tool named 'ad'; did you mean 'add'?",
    ]


def test_without_await_it_is_raised(registry):
    with pytest.raises(RuntimeError, match="out of luck"):
        registry.call_tool("boom", {})
    with pytest.raises(BadArguments):
        registry.call_tool("add", {"a": "two"})
    with pytest.raises(UnknownName):
        registry.call_tool("ad", {})
    with pytest.raises(MultitapError, match="must be awaited"):
        registry.call_tool("later", {"words": []})


def test_a_long_text_is_cut():
    tools = [
        ToolDef("cut", "", {"type": "object"}, lambda: "x" * 9000),
        ToolDef("whole", "", {"type": "object"}, lambda: "x" * 9000, max_result_chars=0),
    ]
    cut, whole = (tool.call({}) for tool in tools)

    assert len(cut) <= 5000
    assert "more characters" in cut
    assert len(whole) == 9000


def test_a_name_is_given_once(registry):
    with pytest.raises(MultitapError, match="registered already"):
        registry.register(ToolDef.of(add))
    registry.unregister("add")
    registry.unregister("add")
    registry.register(ToolDef.of(add, name="plus"))

    assert [tool.name for tool in registry.list()] == ["later", "boom", "plus"]
    assert registry.get("add") is None


def test_what_is_registered_wins_over_what_is_attached(registry, caplog):
    other, another = (ToolDef("add", words, {}, add) for words in ("One", "Another"))
    first, second = {"add": other, "one": other}, {"one": another, "two": another}
    registry.attach(first)
    registry.attach(second)
    registry.list()

    assert registry.get("add").description == "Add two numbers."
    assert registry.get("one") is other
    assert [record.args for record in caplog.records] == [("add",), ("one",)]
    registry.detach(first)
    assert registry.get("one") is another


async def test_a_hubs_tools_are_there_while_their_server_is(hub, registry):
    tools = HubTools(hub)
    registry.attach(tools)
    before = len(tools)
    result = await registry.execute("calc_add", {"a": 1, "b": 2})
    hub.apply(hub.settings.replace(servers={}))

    assert before > 1
    assert result.output == "3"
    assert len(tools) == 0
    assert registry.get("calc_add") is None


async def test_a_hubs_tool_never_raises(hub):
    tools = HubTools(hub)
    slow = await tools["calc_hang"].execute({})
    wrong = await tools["calc_add"].execute({"a": "two", "b": 1})

    assert "no answer to 'tools/call' within" in slow.error
    assert wrong.error.startswith("/a is not")


async def test_a_hubs_tool_has_to_be_awaited(hub, registry):
    registry.attach(HubTools(hub))

    with pytest.raises(MultitapError, match="must be awaited"):
        registry.call_tool("calc_add", {"a": 1, "b": 2})


async def test_a_function_narrows_a_registry_too_and_the_part_stays_up_to_date(registry):
    described = registry.narrowed(lambda tool: bool(tool.description))
    before = [tool.name for tool in described]
    registry.register(ToolDef("greet", "Say hello.", {"type": "object"}, lambda: "hello"))

    hidden = await described.execute("boom", {})

    assert before == ["add"]
    assert [tool.name for tool in described] == ["add", "greet"]
    assert "'boom' may not be used here" in hidden.error
