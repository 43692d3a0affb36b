from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.config import Layer, OAuth, Severity, merge
from tests.trusting import Gullible

from .reading import given as said_of
from .reading import reading, said


def layered(*texts, trusted=True):
    layers = [
        Layer(reading(text, f"/{name}/multitap.toml", "multitap"), None if trusted else Path("/a"))
        for name, text in zip("abcdef", texts, strict=False)
    ]
    return merge(layers, approval=Gullible())


def test_servers_of_all_layers_are_there():
    result = layered("[servers.x]\ncommand = '1'\n", "[servers.y]\ncommand = '2'\n")

    assert {name: server.command for name, server in result.settings.servers.items()} == {
        "x": "1",
        "y": "2",
    }


def test_a_complete_entry_replaces_the_lower_one_as_a_whole():
    result = layered(
        "[servers.x]\nurl = 'https://good'\nheaders = { Authorization = 'Bearer ${T}' }\n",
        "[servers.x]\nurl = 'https://evil'\n",
    )

    assert said_of(result.settings.servers["x"]) == {"url": "https://evil"}


def test_c20_an_entry_without_command_and_url_amends_the_lower_one():
    result = layered(
        "[servers.x]\ncommand = 'a'\nargs = ['1']\ntimeout = 5\nenv = { A = '1', B = '2' }\n",
        "[servers.x]\ntimeout = 7\nenv = { B = '3' }\n",
        "[servers.x]\nenabled = false\n",
    )

    assert said_of(result.settings.servers["x"]) == {
        "command": "a",
        "args": ("1",),
        "timeout": 7,
        "env": {"A": "1", "B": "3"},
        "enabled": False,
    }


def test_a_login_is_amended_as_a_whole():
    result = layered(
        "[servers.x]\nurl = 'https://x'\noauth = { client_id = 'a', scope = 's' }\n",
        "[servers.x]\noauth = { client_id = 'b' }\n",
        "[servers.y]\nurl = 'https://x'\noauth = { client_id = 'a' }\n",
        "[servers.y]\noauth = false\n",
    )

    assert result.settings.servers["x"].oauth == OAuth(client_id="b")
    assert result.settings.servers["y"].oauth is False


def test_an_amendment_of_nothing_is_an_error_unless_it_only_switches_off():
    result = layered(
        "[servers.x]\nenabled = false\n[servers.y]\ntimeout = 5\n[servers.z]\nenabled = true\n"
    )

    assert [(problem.server, problem.severity, problem.message) for problem in result.problems] == [
        ("x", Severity.NOTE, "disables a server that no file defines"),
        ("y", Severity.ERROR, "neither `command` nor `url`"),
        ("z", Severity.ERROR, "neither `command` nor `url`"),
    ]
    assert not result.settings.servers


def test_a_broken_entry_does_not_bring_back_the_one_it_was_to_replace():
    result = layered("[servers.db]\ncommand = 'production'\n", "[servers.db]\ncommand = 5\n")

    assert not result.settings.servers
    assert [problem.server for problem in result.problems] == ["db"]


def test_a_good_entry_replaces_a_broken_one():
    result = layered("[servers.db]\ncommand = 5\n", "[servers.db]\ncommand = 'x'\n")

    assert result.settings.servers["db"].command == "x"
    assert len(result.problems) == 1


def test_values_of_the_hub_are_merged_one_by_one():
    result = layered(
        "result_cap = 100\nauto_reload = false\n", "result_cap = 200\n[serve]\nport = 1\n"
    )

    assert said_of(result.settings).keys() == {"result_cap", "auto_reload", "serve", "servers"}
    assert (result.settings.result_cap, result.settings.auto_reload) == (200, False)


def test_a_wrong_value_of_the_hub_leaves_the_lower_one():
    result = layered("result_cap = 100\n", "result_cap = 1\n")

    assert result.settings.result_cap == 100
    assert said(result.problems) == [(1, 14, "result_cap", "expected at least 100")]


def test_d17_the_switch_of_the_hub_disables_every_server():
    result = layered(
        "[servers.x]\ncommand = 'a'\n",
        "enabled = false\n[servers.y]\ncommand = 'b'\nenabled = true\n",
    )

    assert [server.enabled for server in result.settings.servers.values()] == [False, False]
    [switch] = [value for value in result.servers["y"].explain().values if value.key == "enabled"]
    assert (str(switch.place), switch.value) == ("/b/multitap.toml:1:11", False)
    assert [str(lower.place) for lower in switch.overrode] == ["/b/multitap.toml:4:11"]


def test_a_project_cannot_say_where_we_listen_or_write():
    text = "state_dir = '/tmp/x'\nresult_cap = 5000\n[serve]\nenabled = true\nhost = '0.0.0.0'\n"

    result = layered(text, trusted=False)

    assert said(result.problems, Severity.ERROR) == [
        (1, 1, "state_dir", "only your own configuration may set this, not a project's"),
        (4, 1, "serve.enabled", "only your own configuration may set this, not a project's"),
        (5, 1, "serve.host", "only your own configuration may set this, not a project's"),
    ]
    assert (result.settings.state_dir, result.settings.serve.enabled) == (None, False)
    assert layered(text).settings.state_dir == Path("/tmp/x")


@pytest.mark.parametrize("trusted", [True, False])
def test_a_project_cannot_say_that_the_user_described_its_server(trusted):
    result = layered("[servers.x]\ncommand = '1'\nprovenance = 'user'\n", trusted=trusted)

    assert result.settings.servers["x"].provenance == ("user" if trusted else "project")


def test_every_value_knows_its_place_and_what_it_overrode():
    result = layered(
        "[servers.x]\ncommand = 'old'\nenv = { A = '1' }\ntimeout = 1\n",
        "[servers.x]\ncommand = 'new'\ntimeout = 2\n",
        "\n[servers.x]\ntimeout = 3\n",
    )

    explanation = result.servers["x"].explain()

    assert [
        (
            value.key,
            value.value,
            str(value.place),
            [(lower.value, str(lower.place)) for lower in value.overrode],
        )
        for value in explanation.values
    ] == [
        ("command", "new", "/b/multitap.toml:2:11", [("old", "/a/multitap.toml:2:11")]),
        (
            "timeout",
            3,
            "/c/multitap.toml:3:11",
            [(2, "/b/multitap.toml:3:11"), (1, "/a/multitap.toml:4:11")],
        ),
    ]
    assert [(value.key, value.value, str(value.place)) for value in explanation.dropped] == [
        ("env.A", "1", "/a/multitap.toml:3:13")
    ]


def test_a_value_that_is_shown_is_not_in_repr():
    result = layered(
        "[servers.x]\ncommand = 'a'\nenv = { T = 'hunter2' }\n",
        "[servers.x]\nenv = { T = 'hunter2' }\n",
    )

    assert "hunter2" not in repr(result.servers["x"].explain()) + repr(result)


ENTRY = st.dictionaries(
    st.sampled_from(["command", "url", "enabled", "timeout", "args"]), st.just(0)
).map(lambda keys: {key: VALUES[key] for key in keys})
VALUES = {
    "command": "'x'",
    "url": "'https://x'",
    "enabled": "false",
    "timeout": "5",
    "args": "['a']",
}


@given(st.lists(ENTRY, min_size=1, max_size=5))
def test_what_is_in_force_is_always_the_last_said_since_the_last_complete_entry(entries):
    texts = [
        "[servers.x]\n" + "".join(f"{key} = {value}\n" for key, value in entry.items())
        for entry in entries
    ]

    stack = layered(*texts).servers["x"]

    complete = [index for index, entry in enumerate(entries) if {"command", "url"} & entry.keys()]
    since = entries[complete[-1] if complete else 0 :]
    expected = {
        key: max(i for i, entry in enumerate(entries) if key in entry)
        for entry in since
        for key in entry
    }
    found = {value.key: "abcdef".index(str(value.place)[1]) for value in stack.explain().values}
    assert found == expected
    everything = {*found, *(value.key for value in stack.explain().dropped)}
    assert everything == {key for entry in entries for key in entry}


@pytest.mark.parametrize("count", [0, 1])
def test_no_layer_or_an_empty_one_is_an_empty_configuration(count):
    result = layered(*["# no servers"] * count)

    assert (dict(result.settings.servers), result.problems) == ({}, ())
