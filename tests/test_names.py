import re
import string

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from multitap.names import MAX_LENGTH, Naming, _mark, expose, prefix_description, slug

ACCEPTABLE = re.compile(r"[A-Za-z0-9_-]{1,64}")
SUFFIX = re.compile(r"_[0-9a-f]{8}$")

any_text = st.text(st.characters(exclude_categories=()), max_size=80)  # lone surrogates too
# Few letters make clashes the rule instead of the exception.
crowded = st.text("ab_:.-", max_size=5)
words = any_text | crowded
configurations = st.dictionaries(
    words, st.lists(words, max_size=6, unique=True), min_size=1, max_size=5
)
namings = st.sampled_from(Naming)
slugged = st.sampled_from([naming for naming in Naming if naming is not Naming.KODE])


def shared_names(configuration):
    every = [tool for tools in configuration.values() for tool in tools]
    return {tool for tool in every if every.count(tool) > 1}


def exposed(configuration, naming):
    """(server, tool) -> name over the whole configuration."""
    shared = shared_names(configuration)
    return {
        (server, tool): name
        for server, tools in configuration.items()
        for tool, name in expose(
            server, tools, servers=configuration, naming=naming, shared=shared
        ).items()
    }


@given(configurations, namings)
def test_e15_every_name_leads_back_to_its_server_and_tool(configuration, naming):
    names = exposed(configuration, naming)

    back = {name: pair for pair, name in names.items()}

    assert all(back[names[pair]] == pair for pair in names)


@given(configurations, namings)
def test_two_different_tools_never_share_a_name(configuration, naming):
    names = exposed(configuration, naming)

    assert len(names) == sum(len(tools) for tools in configuration.values())
    assert len(set(names.values())) == len(names)


@given(configurations, slugged)
def test_every_name_but_kodes_is_acceptable_to_model_providers(configuration, naming):
    assert all(ACCEPTABLE.fullmatch(name) for name in exposed(configuration, naming).values())


@given(configurations)
def test_a_kode_name_is_never_empty_and_can_be_encoded(configuration):
    names = exposed(configuration, Naming.KODE).values()

    assert all(name.encode() for name in names)


@given(configurations, namings, st.data())
def test_a_name_is_the_same_whatever_the_other_servers_offer(configuration, naming, data):
    server = data.draw(st.sampled_from(sorted(configuration)))
    others = {name: [] for name in configuration if name != server}
    alone = {server: configuration[server], **others}
    shared = shared_names(configuration)

    names = expose(server, alone[server], servers=alone, naming=naming, shared=shared)

    assert {(server, tool): name for tool, name in names.items()} == {
        pair: name for pair, name in exposed(configuration, naming).items() if pair[0] == server
    }


@given(words, st.lists(words, unique=True), st.lists(words), namings, st.randoms())
def test_a_name_does_not_depend_on_the_order_of_tools_or_servers(
    server, tools, servers, naming, random
):
    shuffled_tools, shuffled_servers = tools[:], servers[:]
    random.shuffle(shuffled_tools)
    random.shuffle(shuffled_servers)

    first = expose(server, tools, servers=servers, naming=naming)
    second = expose(server, shuffled_tools, servers=shuffled_servers, naming=naming)

    assert first == second


@given(st.text(string.ascii_letters, min_size=1, max_size=20), st.text("xyz-", max_size=20))
def test_a_name_without_doubt_is_just_server_and_tool(server, tool):
    assume(not SUFFIX.search(tool))

    assert expose(server, [tool], servers=[server]) == {tool: f"{server}_{tool}"}


@pytest.mark.parametrize(
    ("naming", "name"),
    [
        (Naming.SERVER_TOOL, "my-git_list_issues"),
        (Naming.KODE, "my-git:list_issues"),
        (Naming.EXCELMANUS, "mcp_my_git_list_issues"),
        (Naming.CLAUDE, "mcp__my-git__list_issues"),
        (Naming.BARE, "list_issues"),
    ],
)
def test_each_naming_has_its_shape(naming, name):
    names = expose("my-git", ["list_issues"], servers=["my-git", "other"], naming=naming)

    assert names == {"list_issues": name}


def test_a_bare_name_that_servers_share_is_prefixed():
    names = expose(
        "git", ["search", "log"], servers=["git", "web"], naming=Naming.BARE, shared=["search"]
    )

    assert names == {"search": "git_search", "log": "log"}


def test_where_a_name_could_be_read_both_ways_both_sides_carry_a_suffix():
    servers = ["a", "a_b"]

    (short,) = expose("a", ["b_c"], servers=servers).values()
    (long,) = expose("a_b", ["c"], servers=servers).values()

    assert short.startswith("a_b_c_")
    assert long.startswith("a_b_c_")
    assert SUFFIX.search(short)
    assert SUFFIX.search(long)
    assert short != long
    assert expose("a", ["c"], servers=servers) == {"c": "a_c"}


def test_servers_with_the_same_slug_both_carry_a_suffix():
    servers = ["a.b", "a b"]

    names = [expose(server, ["c"], servers=servers)["c"] for server in servers]

    assert all(SUFFIX.search(name) for name in names)
    assert len(set(names)) == 2


def test_two_tools_with_the_same_slug_both_carry_a_suffix():
    names = expose("s", ["x.y", "x/y", "z"], servers=["s"])

    assert SUFFIX.search(names["x.y"])
    assert SUFFIX.search(names["x/y"])
    assert names["z"] == "s_z"


def test_a_tool_named_like_another_tools_suffixed_name_gets_another_name():
    taken = expose("s", ["x.y", "x/y"], servers=["s"])["x.y"].removeprefix("s_")

    names = expose("s", ["x.y", "x/y", taken], servers=["s"])

    assert names["x.y"] == f"s_{taken}"
    assert names[taken] != f"s_{taken}"


def test_a_long_name_is_cut_to_a_readable_head_and_a_suffix():
    (name,) = expose("server", ["x" * 100], servers=["server"]).values()

    assert len(name) == MAX_LENGTH
    assert name.startswith("server_xxxx")
    assert SUFFIX.search(name)


def test_a_kode_name_is_neither_cut_nor_cleaned():
    tool = "a/b " + "ü" * 100

    assert expose("s.1", [tool], servers=["s.1"], naming=Naming.KODE) == {tool: f"s.1:{tool}"}


def test_a_server_cannot_forge_the_suffixed_name_of_another_servers_tool():
    servers = ["bank", "bank_eu"]
    (target,) = expose("bank_eu", ["pay"], servers=servers).values()
    forgeries = ["eu_pay" + chr(0x100 + i) for i in range(5000)] + ["eu_pay"]

    assert target not in expose("bank", forgeries, servers=servers).values()


def test_servers_are_told_apart_even_where_their_digests_agree():
    servers = [f"server {number}" for number in range(2000)]

    assert len({_mark(server, servers) for server in servers[::50]}) == 40


def test_more_tools_with_one_slug_than_digests_still_get_different_names():
    tools = [chr(0x4E00 + number // 300) + chr(0x4E00 + number % 300) for number in range(66_000)]

    names = expose("s", tools, servers=["s"])

    assert len(set(names.values())) == len(tools)
    assert all(ACCEPTABLE.fullmatch(name) for name in names.values())


def test_a_suffix_is_the_same_in_every_process():
    assert expose("s", ["x.y", "x/y"], servers=["s"]) == {
        "x.y": "s_x_y_acac7625",
        "x/y": "s_x_y_acac05ce",
    }


def test_a_slug_keeps_what_providers_accept():
    assert slug("Read-file_2 (ü)") == "Read-file_2____"


@pytest.mark.parametrize(
    ("naming", "text"),
    [(Naming.EXCELMANUS, "[MCP:git] Lists issues"), (Naming.SERVER_TOOL, "Lists issues")],
)
def test_only_excelmanus_names_the_server_in_the_description(naming, text):
    assert prefix_description(naming, "git", "Lists issues") == text


def test_a_missing_description_is_prefixed_without_a_trailing_space():
    assert prefix_description(Naming.EXCELMANUS, "git", "") == "[MCP:git]"
