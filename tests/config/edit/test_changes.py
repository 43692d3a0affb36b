"""Files are changed in place: every other character stays."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multitap.config.documents import read_text
from multitap.config.edit.changes import (
    RemoveValue,
    RenameKey,
    SetValue,
    apply_changes,
    apply_edits,
    differences,
)
from multitap.errors import ConfigError

TOML = """\
# my servers
naming = "bare" # short

# about a
[servers.a] # the a
command = "x" # cc
args = ["1", # one
 "2"]

# about b
[servers.b]
command = 'y'
[servers.b.env]
KEY = "v"   # why

# profiles
[profiles.p]
servers = ["a"]
"""
JSONC = """\
{
\t// servers
\t"mcpServers": {
\t\t"a": {"command": "x"}, // first
\t\t"b": {
\t\t\t"command": "y" // yy
\t\t} /* end */
\t},
\t"other": [1,2,],
}
"""
YAML = """\
# goose
MODE: auto   # mode
extensions:
  # dev tools
  a:
    type: builtin   # b

  b:
    args: ["-y", 'x']
    envs: { LOG: "1" }
# end
other: 1
"""
CASES = [
    pytest.param("x.toml", TOML, ("servers",), id="toml"),
    pytest.param("x.json", JSONC, ("mcpServers",), id="json"),
    pytest.param("x.yaml", YAML, ("extensions",), id="yaml"),
]
NEW = {"command": "npx", "args": ["-y", "z"], "env": {"A": "b", "C": "d e"}}


def data(text, name):
    document, problems = read_text(text, Path(name))
    assert document is not None, problems
    return document.data


@pytest.mark.parametrize(("name", "text", "container"), CASES)
def test_a_new_entry_leaves_every_line_as_it_was(name, text, container):
    after = apply_edits(text, Path(name), [SetValue((*container, "new"), NEW)])

    assert data(after, name) == apply_changes(
        data(text, name), [SetValue((*container, "new"), NEW)]
    )
    lost = set(text.splitlines()) - set(after.splitlines())
    assert lost <= {"\t\t} /* end */"}  # a comma stands there now


@pytest.mark.parametrize(("name", "text", "container"), CASES)
@pytest.mark.parametrize("server", ["a", "b"])
def test_an_entry_that_goes_takes_nothing_else_with_it(name, text, container, server):
    after = apply_edits(text, Path(name), [RemoveValue((*container, server))])

    other = ({"a", "b"} - {server}).pop()
    assert [*data(after, name)[container[0]]] == [other]
    assert data(after, name)[container[0]][other] == data(text, name)[container[0]][other]
    for comment in ("# my servers", "# short", "// servers", "# mode", "# end", "# profiles"):
        assert (comment in after) == (comment in text)


@pytest.mark.parametrize(("name", "text", "container"), CASES)
def test_a_renamed_entry_stays_at_its_place(name, text, container):
    after = apply_edits(text, Path(name), [RenameKey((*container, "a"), "new name")])

    assert [*data(after, name)[container[0]]] == ["new name", "b"]
    pairs = zip(text.splitlines(), after.splitlines(), strict=True)
    assert sum(before != now for before, now in pairs) == 1


@pytest.mark.parametrize(("name", "text", "container"), CASES)
def test_a_put_back_entry_gives_the_same_text(name, text, container):
    added = apply_edits(text, Path(name), [SetValue((*container, "new"), NEW)])

    after = apply_edits(added, Path(name), [RemoveValue((*container, "new"))])

    assert after.rstrip() == text.rstrip()


@pytest.mark.parametrize(("name", "text", "container"), CASES)
def test_line_ends_of_windows_stay(name, text, container):
    windows = text.replace("\n", "\r\n")

    after = apply_edits(windows, Path(name), [SetValue((*container, "new"), NEW)])

    if name != "x.yaml":
        assert "\n" not in after.replace("\r\n", "")
    assert data(after, name)[container[0]]["new"] == NEW


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.json", "{"),
        ("x.json", '{"mcpServers": [}'),
        ("x.toml", "[servers.a"),
        ("x.yaml", "a: [1"),
        ("x.toml", "a = 1\na = 2"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_not_written(name, text):
    with pytest.raises(ConfigError) as caught:
        apply_edits(text, Path(name), [SetValue(("servers", "a"), {})])

    assert name in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["x.json", "x.toml", "x.yaml"])
def test_a_file_that_is_not_there_yet_is_made(name):
    after = apply_edits("", Path(name), [SetValue(("servers", "a b"), NEW)])

    assert data(after, name) == {"servers": {"a b": NEW}}


def test_a_comment_behind_the_last_entry_stays_there():
    after = apply_edits(
        "x:\n  a:\n    b: 1 # c\n", Path("x.yaml"), [SetValue(("x", "new"), {"m": 2})]
    )

    assert after == "x:\n  a:\n    b: 1 # c\n  new:\n    m: 2\n"


def test_a_key_that_is_there_twice_goes_twice():
    after = apply_edits('{"a": {"x": 1, "x": 2}}', Path("x.json"), [RemoveValue(("a", "x"))])

    assert json.loads(after) == {"a": {}}


@pytest.mark.parametrize(
    "text",
    [
        "servers.a.command = 'x'\n",
        "servers = { a = { command = 'x' } }\n",
        "[servers]\na = { command = 'x' }\n",
        "[servers]\na.command = 'x'\n",
        "[servers.a]\ncommand = 'x'",
        "[servers.a.env]\nB = 'c'\n[servers.a]\ncommand = 'x'\n",
    ],
)
def test_every_way_to_write_a_table_in_toml_can_be_changed(text):
    path = Path("x.toml")
    before = data(text, "x.toml")

    for change in (
        SetValue(("servers", "a", "enabled"), False),
        SetValue(("servers", "a", "env", "KEY"), "v"),
        SetValue(("servers", "a", "command"), "z"),
        SetValue(("servers", "b"), NEW),
        RenameKey(("servers", "a"), "new"),
        SetValue(("auto_reload",), True),
    ):
        assert data(apply_edits(text, path, [change]), "x.toml") == apply_changes(before, [change])


KEY = st.sampled_from(["a", "b", "c d", "é", "x.y", '"q"'])
LEAF = st.one_of(
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8),
    st.sampled_from(["true", "null", "1.5", "# no", "a: b", "- x", "${x}", "\\", "\t\n", ""]),
    st.lists(st.sampled_from(["x", "y z", "# c"]), max_size=3),
)
TREE = st.dictionaries(
    KEY, st.recursive(LEAF, lambda inner: st.dictionaries(KEY, inner), max_leaves=6)
)


@pytest.mark.parametrize("name", ["x.json", "x.toml", "x.yaml"])
@pytest.mark.parametrize("text", ["", None], ids=["a new file", "a file"])
@settings(max_examples=30)
@given(
    members=TREE.filter(len),
    container=st.sampled_from([(), ("servers",), ("mcpServers",), ("a", "b")]),
)
def test_changes_at_once_write_what_they_would_one_by_one(name, text, members, container):
    path = Path(name)
    start = {"x.json": JSONC, "x.toml": TOML, "x.yaml": YAML}[name] if text is None else text
    changes = [SetValue((*container, key), value) for key, value in members.items()]
    single = start
    for change in changes:
        single = apply_edits(single, path, [change])

    assert apply_edits(start, path, changes) == single


@pytest.mark.parametrize("name", ["x.json", "x.toml", "x.yaml"])
@settings(max_examples=30)
@given(before=TREE, after=TREE)
def test_any_document_can_be_made_into_any_other(name, before, after):
    path = Path(name)
    text = apply_edits("", path, [SetValue((key,), value) for key, value in before.items()])

    result = apply_edits(text, path, differences(data(text, name) if text.strip() else {}, after))

    assert pruned(data(result, name) if result.strip() else {}) == pruned(after)


def pruned(value):
    """Without empty tables, which say nothing."""
    if isinstance(value, dict):
        inner = {key: pruned(one) for key, one in value.items()}
        return {key: one for key, one in inner.items() if one not in ({}, [])}
    return value


@pytest.mark.parametrize("name", ["mcp.json", "multitap.toml", "config.yaml"])
def test_a_file_whose_last_entry_goes_is_not_empty_and_takes_the_next_one(name):
    path = Path(name)
    entry = SetValue(("servers", "one"), {"command": "x"})
    made = apply_edits("", path, [entry])

    gone = apply_edits(made, path, [RemoveValue(("servers",))])

    document, problems = read_text(gone, path)
    assert (document.data, problems) == ({}, ())
    assert apply_edits(gone, path, [entry]) == made
