"""Tools are found by what they do."""

import re
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from bench.search import corpus, measure, page
from hypothesis import given
from hypothesis import strategies as st
from mcp.server import MCPServer

from multitap import LocalServer, Settings, ToolRegistry, open_hub
from multitap.config import ToolFilter
from multitap.demo.demo_settings import bundled_server
from multitap.demo.servers import calculator, notebook
from multitap.tools import HubTools, ToolDef
from multitap.tools.search import Index, search_mode
from multitap.tools.search.finder import outline
from multitap.tools.search.index import summary
from multitap.tools.search.words import words_of_name, words_of_prose
from tests.waiting import PATIENCE


def tool(name, description="", **properties):
    return ToolDef(name, description, {"type": "object", "properties": properties}, print)


def found(index, query, limit=5):
    return [hit.tool.name for hit in index.search(query, limit)]


KITCHEN = (
    tool("bake_bread", "Bake a loaf of bread.", flour={"description": "Grams of flour."}),
    tool("boil_eggs", "Boil eggs until they are hard.", minutes={"type": "integer"}),
    tool("list_recipes", "All recipes in the book.", course={"enum": ["starter", "dessert"]}),
    tool("delete_recipe", "Remove one of the recipes from the book."),
    tool("getRepositoryOwner", "Who owns a code repository."),
)


EVERYTHING = Index(KITCHEN)


@pytest.fixture
def kitchen():
    return EVERYTHING


@pytest.mark.parametrize("one", KITCHEN, ids=lambda one: one.name)
def test_the_exact_name_comes_first(kitchen, one):
    assert found(kitchen, one.name)[0] == one.name
    assert found(kitchen, f"please use `{one.name}` with eggs, bread and recipes")[0] == one.name


@pytest.mark.parametrize(
    ("query", "name"),
    [
        pytest.param("baking", "bake_bread", id="stem"),
        pytest.param("EGG", "boil_eggs", id="case and plural"),
        pytest.param("flour", "bake_bread", id="argument"),
        pytest.param("desserts", "list_recipes", id="choice"),
        pytest.param("repo", "getRepositoryOwner", id="abbreviation"),
        pytest.param("owner", "getRepositoryOwner", id="hump"),
        pytest.param("get rid of a recipe", "delete_recipe", id="phrase"),
        pytest.param("erase a recipe", "delete_recipe", id="meaning"),
        pytest.param("which recipes are there?", "list_recipes", id="question"),
    ],
)
def test_a_tool_is_found_by_other_words(kitchen, query, name):
    assert found(kitchen, query)[0] == name


@pytest.mark.parametrize("query", ["", "  \n", "the of and", "!?", "xylophone", "\ud800"])
def test_what_says_nothing_finds_nothing(kitchen, query):
    assert kitchen.search(query) == []


def test_an_empty_index_finds_nothing():
    assert Index().search("bread") == []


def test_other_scripts_are_found_too():
    index = Index([tool("bäckerei", "Brötchen für alle"), tool("tianqi", "查询城市的天气预报")])

    assert found(index, "BROTCHEN") == found(index, "brötchen") == ["bäckerei"]
    assert found(index, "今天天气怎么样") == ["tianqi"]


def test_results_are_limited_and_ordered(kitchen):
    hits = kitchen.search("bread eggs recipes", 2)

    assert len(hits) == 2
    assert hits[0].score >= hits[1].score > 0
    assert kitchen.search("bread", 0) == []


@given(st.text(max_size=80))
def test_any_text_can_be_asked_for(query):
    names = found(EVERYTHING, query, 3)

    assert len(names) <= 3
    assert len(names) == len({*names})


def test_a_server_that_is_named_is_meant():
    index = Index(corpus.tools())

    servers = {hit.tool.server for hit in index.search("add a comment in trello", 5)}

    assert servers == {"trello"}


def test_what_is_known_is_not_read_again():
    looks = []

    class Watched(ToolDef):
        @property
        def parameters(self):
            looks.append(self.name)
            return self.input_schema

    tools = [Watched(f"tool_{n}", "Bread.", {"type": "object"}, print) for n in range(3)]
    index = Index(tools)
    first = len(looks)
    index.update([*tools, tool("new_one", "Fresh bread.")])

    assert len(looks) == first + len(tools)  # one look each says that nothing has changed
    assert first > len(tools)
    assert found(index, "fresh") == ["new_one"]


def test_a_changed_definition_is_noticed():
    index = Index([tool("bake", "Bread.")])
    index.update([tool("bake", "Cake.")])

    assert found(index, "cake") == ["bake"]
    assert found(index, "bread") == []
    index.update([])
    assert found(index, "cake") == []


def test_ten_thousand_tools_stay_few_words_and_few_hits():
    long = "word " * 20_000
    index = Index(
        [tool(f"tool_{n}", f"Number {n}.") for n in range(9_999)] + [tool("long", long + "needle")]
    )

    assert found(index, "tool number 4711", 3)[0] == "tool_4711"
    assert len(index.search("tool", 20)) == 20
    assert found(index, "needle") == []  # what nobody would read is not read
    assert len(index.search("tool " * 100_000)) == 5


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("list_issues", ["list", "issues"]),
        ("getHTTPStatus2", ["get", "http", "status2", "status"]),
        ("API-post-page", ["api", "post", "page"]),
        ("k8s_get", ["k8s", "get"]),
    ],
)
def test_a_name_falls_apart_into_words(name, words):
    assert words_of_name(name) == words


def test_prose_keeps_names_of_products_whole():
    assert words_of_prose("Open the GitHub issueNumber") == ["open", "github", "issue", "number"]


def test_the_first_sentence_is_the_summary():
    assert summary(tool("a", "Bakes a good bread. Needs flour.")) == "Bakes a good bread."
    assert (
        summary(tool("a", "Purpose:\nBake bread at home.\nMore")) == "Purpose:\nBake bread at home."
    )


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        ({}, "()"),
        (
            {
                "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
                "required": ["b"],
            },
            "(b: integer, a?: string)",
        ),
        (
            {"properties": {"state": {"enum": ["open", "closed"]}, "one": {"const": 1}}},
            '(state?: "open" | "closed", one?: 1)',
        ),
        (
            {
                "properties": {
                    "tags": {"type": "array", "items": {"type": ["string", "null"]}},
                    "ids": {
                        "type": "array",
                        "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                    },
                }
            },
            "(tags?: string[], ids?: (string | integer)[])",
        ),
        (
            {
                "$defs": {"p": {"type": "object", "properties": {"x": {"type": "number"}}}},
                "properties": {"at": {"$ref": "#/$defs/p"}, "gone": {"$ref": "#/$defs/q"}},
            },
            "(at?: {x?: number}, gone?: any)",
        ),
        (
            {"$defs": {"n": {"$ref": "#/$defs/n"}}, "properties": {"n": {"$ref": "#/$defs/n"}}},
            "(n?: any)",
        ),
        (
            {"properties": {f"p{n}": {"type": "string"} for n in range(14)}},
            f"({', '.join(f'p{n}?: string' for n in range(12))}, …)",
        ),
    ],
)
def test_arguments_are_described_on_one_line(schema, line):
    assert outline(schema) == line


def test_every_real_schema_has_an_outline():
    lines = [outline(one.parameters) for one in corpus.tools()]

    assert all("\n" not in line for line in lines)
    assert sum(map(len, lines)) < 0.15 * sum(len(str(one.parameters)) for one in corpus.tools())


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@asynccontextmanager
async def registry_of(servers, state_dir):
    """A function, and the tools of servers."""
    async with open_hub(Settings(servers=servers, state_dir=state_dir)) as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
        registry = ToolRegistry([add])
        registry.attach(HubTools(hub))
        yield registry


@pytest.fixture
async def registry(tmp_path):
    servers = {one.server.name: LocalServer(server=one.server) for one in (calculator, notebook)}
    async with registry_of(servers, tmp_path) as registry:
        yield registry


async def test_tools_of_real_programs_are_found_and_called(tmp_path):
    servers = {name: bundled_server(name) for name in ("calculator", "clock")}
    async with registry_of(servers, tmp_path) as registry:
        search, _, call = search_mode(registry)
        found = await search.execute({"query": "what time is it"})
        told = await call.execute({"name": "clock_now", "arguments": {"hours_east": 2}})
        total = await call.execute({"name": "calculator_add", "arguments": {"a": 2, "b": 3}})

    assert found.text.startswith("clock_now(hours_east?: number)\n")
    assert told.text.endswith("+02:00")
    assert total.structured == {"result": 5}


async def test_a_tool_is_found_described_and_called(registry):
    search, describe, call = search_mode(registry)

    shown = await search.execute({"query": "keep a note", "limit": 1})
    described = await describe.execute({"name": "notebook_write"})
    written = await call.execute(
        {"name": "notebook_write", "arguments": {"title": "milk", "text": "buy some"}}
    )
    titles = await call.execute({"name": "notebook_search", "arguments": {"word": "buy"}})
    total = await call.execute({"name": "add", "arguments": {"a": 2}})

    assert shown.text == (
        "notebook_write(title: string, text: string)\n"
        "Save a note; an existing note with this title is replaced."
    )
    assert '"required":["title","text"]' in described.text
    assert written.text == "note://milk"
    assert titles.structured == {"result": ["milk"]}
    assert (total.success, total.text) == (True, "3")


async def test_a_wrong_call_is_told_what_would_be_right(registry):
    _, describe, call = search_mode(registry)

    misnamed = await call.execute({"name": "calculator_ad", "arguments": {}})
    turned = await describe.execute({"name": "mean_calculator"})
    misfit = await call.execute({"name": "calculator_add", "arguments": {"a": "two"}})
    refused = await call.execute({"name": "calculator_divide", "arguments": {"a": 1, "b": 0}})
    nameless = await call.execute({"arguments": {}})

    assert not any(one.success for one in (misnamed, turned, misfit, refused, nameless))
    assert "no tool named 'calculator_ad'" in misnamed.error
    assert "'calculator_add'" in misnamed.error
    assert "'calculator_mean'" in turned.error
    assert '/a is not of type "number"' in misfit.error
    assert '"required":["a","b"]' in misfit.error
    assert refused.error.endswith("1 cannot be divided by zero")
    assert '"name" is a required property' in nameless.error


async def test_who_finds_nothing_learns_what_there_is(registry):
    search, _, _ = search_mode(registry)
    narrow, _, _ = search_mode(registry.narrowed(ToolFilter(allow=("notebook_*",))))
    empty, _, _ = search_mode(ToolRegistry())

    everything = await search.execute({"query": ""})
    nothing = await narrow.execute({"query": "xylophone"})

    assert everything.text == "6 tools available: built in (1), calculator (3), notebook (2)"
    assert nothing.text == "nothing matches 'xylophone'; 2 tools available: notebook (2)"
    assert (await empty.execute({"query": "x"})).text == "there are no tools"


async def test_what_a_filter_hides_is_neither_found_nor_called(registry):
    search, _, call = search_mode(registry.narrowed(ToolFilter(allow=("*",), deny=("*_divide",))))

    found = await search.execute({"query": "divide a number by another"})
    called = await call.execute({"name": "calculator_divide", "arguments": {"a": 1, "b": 2}})

    assert "divide" not in found.text
    assert called.error.startswith("the tool 'calculator_divide' may not be used here")


async def test_the_search_knows_what_a_server_has_now(tmp_path):
    server = MCPServer("kitchen")
    server.add_tool(add, name="bake", description="Bake bread.")
    servers = {"kitchen": LocalServer(server=server)}
    async with open_hub(Settings(servers=servers, state_dir=tmp_path)) as hub:
        await hub.settled()
        registry = ToolRegistry()
        registry.attach(HubTools(hub))
        search, _, _ = search_mode(registry)
        before = await search.execute({"query": "bread"})
        hub.apply(Settings(servers={}, state_dir=tmp_path))
        with anyio.fail_after(PATIENCE):
            await hub.settled()
        after = await search.execute({"query": "bread"})

    assert before.text.startswith("kitchen_bake(")
    assert after.text == "there are no tools"


@pytest.fixture(scope="module")
def recalls():
    return {one.part: one for one in measure.recalls()}


def test_the_right_tool_is_among_the_first_five(recalls):
    at_five = {part: one.ours[1] for part, one in recalls.items()}

    assert at_five["everyday"] >= 0.95
    assert at_five["drawn"] >= 0.89
    assert at_five["held out"] >= 0.74
    assert at_five["searches"] >= 0.65
    assert all(one.ours[1] > one.plain[1] for one in recalls.values())


async def test_the_page_has_the_measured_numbers(recalls):
    assert page.written() == page.render([*recalls.values()], await measure.tokens())


def test_the_corpus_is_large_and_the_requests_can_be_met():
    labels = [corpus.label(one) for one in corpus.tools()]
    requests = corpus.requests()

    assert len(labels) == len({*labels}) >= 500
    assert {name for request in requests for name in request.right} <= {*labels}
    assert {request.part for request in requests} == {*corpus.PARTS}


def test_the_example_of_the_page_runs(capsys):
    text = Path(page.PAGE).read_text()
    for code in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(compile(code, "search.md", "exec"), {})

    assert capsys.readouterr().out == "add\n"
