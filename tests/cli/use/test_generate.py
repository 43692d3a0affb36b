"""A typed client, written from what a server offers."""

import ast
import sys

from hypothesis import given
from hypothesis import strategies as st

from multitap import SyncHub
from multitap.cli.use.generate import annotation, client_module
from multitap.control.messages import ToolLine

DEMO = {"command": sys.executable, "args": ["-m", "multitap.demo.servers.calculator"]}


def tool(name, description="", properties=None, required=()):
    schema = {"type": "object", "properties": properties or {}, "required": [*required]}
    return ToolLine(f"s_{name}", "s", name, None, description, schema, None, {})


def test_a_generated_client_calls_the_tools(multitap, configure, home):
    configure(calculator=DEMO)

    ended = multitap("generate calculator -o client.py")
    again = multitap("generate calculator -o client.py")
    foreign = multitap("generate calculator -o multitap.toml")
    space = {}
    exec((home / "client.py").read_text(), space)
    with SyncHub() as hub:
        client = space["Calculator"](hub)
        total, mean = client.add(a=2, b=40), client.mean(numbers=[1, 2, 6])

    assert (ended.code, again.code, foreign.code) == (0, 0, 3)
    assert "nothing to change" in again.err
    assert "was not written by `multitap generate`" in foreign.err
    assert (total.text, mean.text) == ("42.0", "3.0")
    assert space["Calculator"].add.__annotations__["a"] is float


def test_types_are_those_of_the_schema():
    assert annotation({"type": "array", "items": {"type": "integer"}}) == "list[int]"
    assert annotation({"enum": ["a", 1, None]}) == "Literal['a', 1, None]"
    assert annotation({"anyOf": [{"type": "string"}, {"type": "null"}]}) == "str | None"
    assert annotation({"type": ["number", "boolean"]}) == "float | bool"
    assert annotation({"$ref": "#/x"}) == annotation(None) == "Any"


def test_arguments_keep_their_names_and_what_is_not_given_is_left_out():
    properties = {"class": {"type": "string"}, "max-results": {"type": "integer"}}
    text = client_module("s", [tool("find", "Find", properties, ["class"])])
    called = []
    space = {}
    exec(text, space)

    client = space["S"](type("Hub", (), {"call": lambda _, *words: called.append(words)})())
    client.find(class_="x")
    client.find(class_="x", max_results=3)

    assert called == [
        ("s_find", {"class": "x"}),
        ("s_find", {"class": "x", "max-results": 3}),
    ]


TEXTS = st.text() | st.sampled_from(
    ['"""\nimport os\n"""', "\\", "a\\", '"', "def", "1", "_", "'''"]
)


@given(TEXTS, TEXTS, st.dictionaries(TEXTS, st.just({"enum": ['"""', "\\"]}), max_size=4), TEXTS)
def test_whatever_a_server_says_it_writes_no_code(name, description, properties, server):
    tools = [tool(name, description, properties, [*properties][:1]), tool(name)]
    for is_async in (False, True):
        tree = ast.parse(client_module(server, tools, is_async=is_async))

        kinds = [type(node).__name__ for node in tree.body]
        assert kinds == ["Expr", "ImportFrom", "ImportFrom", "ClassDef", "FunctionDef"]
        inside = [type(node).__name__ for node in tree.body[3].body]
        method = "AsyncFunctionDef" if is_async else "FunctionDef"
        assert inside == ["Expr", "FunctionDef", method, method]
        for function in tree.body[3].body[2:]:
            *docstring, last = function.body
            assert isinstance(last, ast.Return)
            assert all(isinstance(one.value.value, str) for one in docstring)
            assert len(docstring) <= 1
