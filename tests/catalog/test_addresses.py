"""Which server an address belongs to, where several list it or have templates for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.catalog.addresses import AddressDirectory, fits, overlap, rename, split
from multitap.catalog.naming import NameRegistries
from multitap.names import Naming

any_text = st.text(st.characters(exclude_categories=()), max_size=30)  # lone surrogates too
crowded = st.text("ab:/~%.{}", max_size=8)
words = any_text | crowded
# Few addresses make clashes the rule instead of the exception.
uris = words | st.sampled_from(
    ["ui://a/x", "ui://x", "ui://a/~/x", "a:x", "a/~/x", "//x", "", "/~/"]
)
configurations = st.dictionaries(
    words | st.sampled_from("ab"), st.lists(uris, max_size=6, unique=True), min_size=1, max_size=4
)


@given(words, uris)
def test_a_renamed_address_leads_back_to_its_server_and_address(server, uri):
    assert split(rename(server, uri)) == (server, uri)


@given(words, uris, words, uris)
def test_two_renamed_addresses_are_never_the_same(server, uri, other, another):
    same = rename(server, uri) == rename(other, another)

    assert same == ((server, uri) == (other, another))


@pytest.mark.parametrize(
    ("uri", "renamed"),
    [
        ("ui://widget/main.html", "ui://my%20calc/~/widget/main.html"),
        ("file:///etc/hosts", "file://my%20calc/~//etc/hosts"),
        ("urn:isbn:1", "urn:my%20calc/~/isbn:1"),
        ("zoo://item/{id}", "zoo://my%20calc/~/item/{id}"),
        ("plain", "my%20calc/~/plain"),
    ],
)
def test_a_renamed_address_keeps_its_scheme(uri, renamed):
    assert rename("my calc", uri) == renamed


@given(configurations, st.randoms())
def test_every_address_leads_back_to_its_server_in_any_order(configuration, random):
    servers = [*configuration]
    random.shuffle(servers)
    books = NameRegistries(servers, Naming.SERVER_TOOL, {}, lasting=True)
    exposed = {server: books.resources.give(server, configuration[server]) for server in servers}
    directory = AddressDirectory(books.servers, books.resources.holders)

    pairs = [(server, uri) for server in servers for uri in configuration[server]]
    addresses = {pair: exposed[pair[0]][pair[1]] for pair in pairs}
    assert len({*addresses.values()}) == len(pairs)
    assert all(directory.find(address) == pair for pair, address in addresses.items())
    assert all(directory.expose(*pair) == address for pair, address in addresses.items())
    random.shuffle(servers)
    again = NameRegistries(servers, Naming.SERVER_TOOL, books.take_unsaved(), lasting=True)
    assert {one: again.resources.give(one, configuration[one]) for one in servers} == exposed


def test_an_address_that_no_other_server_has_is_never_renamed():
    books = NameRegistries(("weather", "other"), Naming.SERVER_TOOL, {}, lasting=True)

    assert books.resources.give("weather", ["ui://weather/x"]) == {
        "ui://weather/x": "ui://weather/x"
    }
    assert books.resources.give("other", ["ui://other/x"]) == {"ui://other/x": "ui://other/x"}


def test_an_address_that_a_server_lists_is_its_own_though_anothers_template_fits():
    books = NameRegistries("ab", Naming.SERVER_TOOL, {}, lasting=True)
    books.templates.give("a", ["x://{name}"])
    books.resources.give("b", ["x://listed"])
    directory = AddressDirectory(books.servers, books.resources.holders, books.templates.holders)

    assert directory.find("x://listed") == ("b", "x://listed")
    assert directory.find("x://other") == ("a", "x://other")


def test_of_two_templates_that_overlap_the_newcomers_is_renamed():
    books = NameRegistries("ab", Naming.SERVER_TOOL, {}, lasting=True)
    books.templates.give("a", ["x://{+path}"])
    names = books.templates.give("b", ["x://item/{id}", "y://{id}"])
    directory = AddressDirectory(books.servers, books.resources.holders, books.templates.holders)

    assert names == {"x://item/{id}": "x://b/~/item/{id}", "y://{id}": "y://{id}"}
    assert directory.find("x://b/~/item/7") == ("b", "x://item/7")
    assert directory.find("x://item/7") == ("a", "x://item/7")
    assert directory.expose("b", "x://item/7") == "x://b/~/item/7"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("x://{a}", "x://{b}", True),
        ("x://{a}", "y://{a}", False),
        ("x://{a}", "x://a/{b}", False),
        ("x://{+a}", "x://a/{b}", True),
        ("x://{a}/end", "x://start/{b}", True),
        ("x://{a}.js", "x://{a}.css", False),
        ("x://{a}" + "a" * 600, "x://{b}", True),
    ],
)
def test_templates_overlap_where_both_stand_for_some_address(one, other, expected):
    assert overlap(one, other) is overlap(other, one) is expected


pieces = st.lists(st.sampled_from(["a", "b", "/", "{x}", "{+x}"]), max_size=5).map(
    lambda parts: "z:" + "".join(part.replace("x", f"x{n}") for n, part in enumerate(parts))
)


@given(pieces, pieces, st.text("ab/", max_size=5))
def test_an_address_that_two_templates_stand_for_makes_them_overlap(one, other, rest):
    if fits(one, "z:" + rest) and fits(other, "z:" + rest):
        assert overlap(one, other)
