import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.catalog.naming import NameRegistries
from multitap.names import (
    MAX_LENGTH,
    Naming,
    ToolNames,
    _mark,
    choose_names,
    likely_owners,
    prefix_description,
    slug,
)

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


def exposed(configuration, naming, *, lasting=True, remembered=None):
    """(server, tool) -> name over the whole configuration, in its order."""
    books = NameRegistries(configuration, naming, remembered or {}, lasting=lasting)
    return {
        (server, tool): name
        for server, tools in configuration.items()
        for tool, name in books.tools.give(server, tools).items()
    }


@given(configurations, namings, st.booleans())
def test_e15_every_name_leads_back_to_its_server_and_tool(configuration, naming, lasting):
    names = exposed(configuration, naming, lasting=lasting)

    back = {name: pair for pair, name in names.items()}

    assert all(back[names[pair]] == pair for pair in names)


@given(configurations, namings, st.booleans())
def test_two_different_tools_never_share_a_name(configuration, naming, lasting):
    names = exposed(configuration, naming, lasting=lasting)

    assert len(names) == sum(len(tools) for tools in configuration.values())
    assert len(set(names.values())) == len(names)


@given(configurations, slugged)
def test_every_name_but_kodes_is_acceptable_to_model_providers(configuration, naming):
    assert all(ACCEPTABLE.fullmatch(name) for name in exposed(configuration, naming).values())


@given(configurations)
def test_a_kode_name_is_never_empty_and_can_be_encoded(configuration):
    names = exposed(configuration, Naming.KODE).values()

    assert all(name.encode() for name in names)


@given(configurations, namings, st.randoms())
def test_a_name_stays_the_same_with_servers_that_come_later(configuration, naming, random):
    books = NameRegistries(configuration, naming, {}, lasting=True)
    servers = [*configuration]
    random.shuffle(servers)
    first = {server: books.tools.give(server, configuration[server][:3]) for server in servers}
    random.shuffle(servers)
    later = {server: books.tools.give(server, configuration[server]) for server in servers}

    assert all(first[server].items() <= later[server].items() for server in servers)


@given(configurations, namings, st.randoms())
def test_names_are_the_same_next_time_in_any_order_of_servers(configuration, naming, random):
    books = NameRegistries(configuration, naming, {}, lasting=True)
    servers = [*configuration]
    random.shuffle(servers)
    names = {server: books.tools.give(server, configuration[server]) for server in servers}
    remembered = books.take_unsaved()
    random.shuffle(servers)
    again = NameRegistries(configuration, naming, remembered, lasting=True)

    assert {server: again.tools.give(server, configuration[server]) for server in servers} == names


@given(configurations, st.sampled_from([one for one in Naming if one is not Naming.BARE]))
def test_where_nothing_is_remembered_a_name_only_depends_on_what_is_configured(
    configuration, naming
):
    backwards = dict(reversed(configuration.items()))

    names = exposed(configuration, naming, lasting=False)

    assert names == exposed(backwards, naming, lasting=False)


@given(words, st.lists(words, unique=True), st.lists(words), namings, st.randoms())
def test_a_name_does_not_depend_on_the_order_of_tools_or_servers(
    server, tools, servers, naming, random
):
    shuffled_tools, shuffled_servers = tools[:], servers[:]
    random.shuffle(shuffled_tools)
    random.shuffle(shuffled_servers)

    first = choose_names(server, tools, servers=servers, naming=naming)
    second = choose_names(server, shuffled_tools, servers=shuffled_servers, naming=naming)

    assert first == second


@given(st.text(string.ascii_letters, min_size=1, max_size=20), st.text("xyz-", max_size=20))
def test_a_name_without_doubt_is_just_server_and_tool(server, tool):
    assert choose_names(server, [tool], servers=[server]) == {tool: f"{server}_{tool}"}


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
    names = choose_names("my-git", ["list_issues"], servers=["my-git", "other"], naming=naming)

    assert names == {"list_issues": name}


def test_a_bare_name_that_another_server_has_is_prefixed():
    names = exposed({"web": ["search"], "git": ["search", "log"]}, Naming.BARE)

    assert [*names.values()] == ["search", "git_search", "log"]


@pytest.mark.parametrize("naming", Naming)
def test_a_server_whose_name_begins_like_anothers_renames_nothing(naming):
    alone = exposed({"web-search": ["search", "images"]}, naming)
    both = exposed({"web": ["find", "search"], "web-search": ["images"]}, naming)

    assert both["web-search", "images"] == alone["web-search", "images"]
    assert not any(SUFFIX.search(name) for name in both.values())


def test_of_two_equal_names_the_newcomer_carries_a_suffix():
    names = exposed({"a": ["b_c", "c"], "a_b": ["c", "d"]}, Naming.SERVER_TOOL)

    assert names["a", "b_c"] == "a_b_c"
    assert re.fullmatch(r"a_b_c_[0-9a-f]{8}", names["a_b", "c"])
    assert names["a", "c"] == "a_c"
    assert names["a_b", "d"] == "a_b_d"


def test_where_nothing_is_remembered_the_server_with_the_longer_name_keeps_its_names():
    names = exposed({"a": ["b_c", "c"], "a_b": ["c", "d"]}, Naming.SERVER_TOOL, lasting=False)

    assert SUFFIX.search(names["a", "b_c"])
    assert names["a_b", "c"] == "a_b_c"


def test_a_name_of_a_server_that_is_not_configured_any_more_is_free():
    remembered = {f"tools {Naming.BARE}": {("git", "log"): "log"}}

    assert exposed({"github": ["log"]}, Naming.BARE, remembered=remembered) == {
        ("github", "log"): "log"
    }


@pytest.mark.parametrize(
    ("name", "owners"),
    [("mcp_web_search_images", ["web-search", "web"]), ("mcp_web_find", ["web"]), ("x", [])],
)
def test_a_name_most_likely_belongs_to_the_server_with_the_longest_name_that_fits(name, owners):
    assert likely_owners(name, ["web", "web-search"], Naming.EXCELMANUS) == owners


def test_two_tools_with_the_same_slug_both_carry_a_suffix():
    names = choose_names("s", ["x.y", "x/y", "z"], servers=["s"])

    assert SUFFIX.search(names["x.y"])
    assert SUFFIX.search(names["x/y"])
    assert names["z"] == "s_z"


def test_a_tool_named_like_another_tools_suffixed_name_shares_none():
    taken = choose_names("s", ["x.y", "x/y"], servers=["s"])["x.y"].removeprefix("s_")

    names = choose_names("s", ["x.y", "x/y", taken], servers=["s"])

    assert len({*names.values()}) == 3


def test_a_long_name_is_cut_to_a_readable_head_and_a_suffix():
    (name,) = choose_names("server", ["x" * 100], servers=["server"]).values()

    assert len(name) == MAX_LENGTH
    assert name.startswith("server_xxxx")
    assert SUFFIX.search(name)


def test_a_kode_name_is_neither_cut_nor_cleaned():
    tool = "a/b " + "ü" * 100

    assert choose_names("s.1", [tool], servers=["s.1"], naming=Naming.KODE) == {tool: f"s.1:{tool}"}


def test_a_server_cannot_forge_the_suffixed_name_of_another_servers_tool():
    servers = ["bank", "bank_eu"]
    (target,) = choose_names("bank_eu", ["pay"], servers=servers, taken=["bank_eu_pay"]).values()
    forgeries = ["eu_pay" + chr(0x100 + i) for i in range(5000)] + ["eu_pay"]

    assert target not in choose_names("bank", forgeries, servers=servers).values()


def test_servers_are_told_apart_even_where_their_digests_agree():
    servers = [f"server {number}" for number in range(2000)]

    assert len({_mark(server, servers) for server in servers[::50]}) == 40


def test_more_tools_with_one_slug_than_digests_still_get_different_names():
    tools = [chr(0x4E00 + number // 300) + chr(0x4E00 + number % 300) for number in range(66_000)]

    names = choose_names("s", tools, servers=["s"])

    assert len(set(names.values())) == len(tools)
    assert all(ACCEPTABLE.fullmatch(name) for name in names.values())


def test_a_suffix_is_the_same_in_every_process():
    assert choose_names("s", ["x.y", "x/y"], servers=["s"]) == {
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


DELETE = ToolNames("github_delete_repo", "delete_repo", "github")


@pytest.mark.parametrize(
    "glob", ["delete_*", "github_delete_*", "*_delete_*", "Delete-Repo", "github_delete[_]*", "*"]
)
def test_what_forbids_goes_by_any_name_of_a_tool(glob):
    assert DELETE.may_match([glob])


@pytest.mark.parametrize("glob", ["delete", "github_*_issue", "gitlab_delete_*", "mcp_*"])
def test_what_forbids_leaves_other_tools_alone(glob):
    assert not DELETE.may_match([glob])


@pytest.mark.parametrize(
    "own",
    [
        "DELETE_repo",
        "delete_repo ",
        " delete_repo",
        "delete-repo",
        "delete.repo",
        "delete\u200b_repo",
        "de1ete_repo",
        "d\u0435lete_repo",  # Cyrillic
        "\uff44\uff45\uff4c\uff45\uff54\uff45_repo",  # full width
        "de\x07lete_repo",
        "dele\u0301te_repo",
    ],
)
@pytest.mark.parametrize("naming", Naming)
@pytest.mark.parametrize("glob", ["delete_*", "*_delete_*", "github_delete_repo"])
def test_no_spelling_of_a_name_gets_past_what_forbids(own, naming, glob):
    name = choose_names("github", [own], servers=["github"], naming=naming)[own]

    assert ToolNames(name, own, "github").may_match([glob])


@pytest.mark.parametrize("naming", Naming)
def test_a_tool_is_forbidden_by_the_name_that_it_had_before_it_was_renamed(naming):
    before = choose_names("git-hub", ["delete"], servers=["git-hub"], naming=naming)["delete"]
    after = choose_names("git-hub", ["tidy"], servers=["git-hub"], naming=naming)["tidy"]

    assert ToolNames(after, "delete", "git-hub").may_match([before])


def test_a_name_that_is_cut_is_forbidden_by_the_whole_of_it():
    own = "remove_" + "very_" * 12 + "carefully"
    name = choose_names("s", [own], servers=["s"])[own]

    assert ToolNames(name, own, "s").may_match(["*_carefully"])
    assert not name.endswith("_carefully")


def test_what_allows_goes_by_the_name_that_callers_see():
    tool = ToolNames("evil_github_get", "github_get", "evil")

    assert tool.surely_matches(["evil_*"])
    assert tool.surely_matches(["*"])
    assert not tool.surely_matches(["github_*"])
    assert not tool.surely_matches(["Evil_*"])


def test_what_allows_goes_by_the_servers_own_name_beside_that_of_the_server():
    tool = ToolNames("github_get_issue", "get_issue", "github")

    assert tool.surely_matches(["get_*"], servers=["github", "docs"])
    assert tool.surely_matches(["get_*"], servers=["git*"])
    assert not tool.surely_matches(["get_*"], servers=["*"])
    assert not tool.surely_matches(["get_*"], servers=["docs"])


def test_a_server_gets_nothing_allowed_by_the_name_of_another_ones_tool():
    tool = ToolNames("web_git_status", "git_status", "web")

    assert not tool.surely_matches(["git_status"], servers=["git", "web"])
    assert tool.surely_matches(["git_status"], servers=["web"])


def test_a_function_has_one_name():
    assert ToolNames("greet", "greet").may_match(["greet"])
    assert not ToolNames("greet", "greet").may_match(["_greet"])
    assert ToolNames("greet", "greet").surely_matches(["g*"])
    assert not ToolNames("greet", "greet").surely_matches(["h*"], servers=["*"])
