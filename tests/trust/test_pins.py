"""Pins in their files: what is seen first counts, and who may change it."""

import pytest

from multitap.config import StdioServer, Surroundings, native
from multitap.trust.lock_file import LockedPackage, LockFile, ServerPins
from multitap.trust.pin_review import accept, reset, reviews
from multitap.trust.pins import (
    LockPlaces,
    Pins,
    pin_mode,
    pins_of,
    places_of,
    read,
    save,
)


@pytest.fixture
def where(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("MULTITAP_CONFIG", raising=False)
    (tmp_path / "project").mkdir()
    return Surroundings.here(tmp_path / "project")


def test_pins_are_beside_the_user_s_file_and_the_project_s(where, tmp_path):
    places = places_of(native(where))

    assert places.own.path == tmp_path / "config/multitap/multitap.lock"
    assert places.project.path == tmp_path / "project/multitap.lock"
    assert places.private.path.parent == tmp_path / "data/multitap/pins"


def test_a_file_that_is_named_has_one_set_of_pins_however_it_is_reached(where, tmp_path):
    (where.folder / "a.toml").write_text("# no servers\n")
    (where.folder / "link.toml").symlink_to("a.toml")
    found = {
        places_of(native(where, [path])).own.path
        for path in (
            where.folder / "a.toml",
            where.folder / "../project/a.toml",
            where.folder / "link.toml",
        )
    }

    assert len(found) == 1
    assert found.pop().parent == tmp_path / "data/multitap/pins"


USER = StdioServer(command="x")
REGISTRY = StdioServer(command="x", provenance="registry")
PROJECT = StdioServer(command="x", provenance="project")


@pytest.fixture
def places(tmp_path):
    names = ("own", "private", "project")
    return LockPlaces(*(LockFile(tmp_path / name / "multitap.lock") for name in names))


def opened(places):
    pins = Pins(places, "{server}_{tool}")
    pins.settle(read(pins.files))
    return pins


def written(pins):
    unsaved = pins.unsaved_pins()
    return pins.settle(save(unsaved), unsaved)


def tools(**descriptions):
    return pins_of(
        (f"s_{name}", {"name": name, "description": text, "inputSchema": {}})
        for name, text in descriptions.items()
    )


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        (USER, "report"),
        (REGISTRY, "enforce"),
        (PROJECT, "enforce"),
        (USER.replace(pin="enforce"), "enforce"),
        (REGISTRY.replace(pin="off"), "off"),
        (PROJECT.replace(pin="off"), "enforce"),
    ],
)
def test_who_described_a_server_decides_how_strict_its_pins_are(config, mode):
    assert pin_mode(config) == mode


def test_what_is_seen_first_is_pinned_and_what_changes_later_is_reported(places):
    pins = opened(places)
    assert not pins.judge("s", USER, "id", tools(a="one", b="two"))
    assert not written(pins)

    drift = opened(places).judge("s", USER, "id", tools(a="other", b="two", c="three"))
    assert (drift.changed, drift.new) == (("a",), ("c",))


def test_a_tool_that_is_gone_is_still_pinned_when_it_comes_back(places):
    pins = opened(places)
    pins.judge("s", USER, "id", tools(a="one", b="two"))
    pins.judge("s", USER, "id", tools(b="two"))
    written(pins)

    assert opened(places).judge("s", USER, "id", tools(a="other", b="two")).changed == ("a",)


def test_definitions_stay_in_the_file_though_only_digests_are_in_memory(places):
    first = opened(places)
    first.judge("s", USER, "id", tools(a="one", b="two"))
    written(first)
    later = opened(places)
    later.judge("s", USER, "id", tools(a="other", c="three"))
    written(later)
    later.judge("s", USER, "id", tools(a="other", b="two", c="three", d="four"))
    written(later)

    pins = places.own.read().servers["s"]
    assert {raw: pin.definition["description"] for raw, pin in pins.tools.items()} == {
        "a": "one",
        "b": "two",
    }
    assert {raw: pin.definition["description"] for raw, pin in pins.pending.items()} == {
        "a": "other",
        "c": "three",
        "d": "four",
    }


def test_what_is_written_is_no_surprise_unless_by_somebody_else(places):
    pins = opened(places)
    pins.judge("s", USER, "id", tools(a="one"))
    written(pins)
    assert not pins.settle(read(pins.files))

    assert reset(places, "s", USER)  # by the same object, as a screen of the gateway does
    assert pins.settle(read(pins.files))


def test_a_server_without_tools_is_not_pinned_yet(places):
    pins = opened(places)
    pins.judge("s", USER, "id", {})

    assert not pins.judge("s", USER, "id", tools(a="one"))


def test_another_server_under_the_same_name_of_the_user_is_pinned_again(places):
    pins = opened(places)
    pins.judge("s", USER, "id", tools(a="one"))

    assert not pins.judge("s", USER, "other", tools(a="two"))


def test_another_command_in_a_project_does_not_excuse_other_tools(places):
    pins = opened(places)
    pins.judge("s", PROJECT, "id", tools(a="one"))

    assert pins.judge("s", PROJECT, "other", tools(a="two")).changed == ("a",)


def test_a_project_pins_its_servers_beside_its_own_file(places):
    pins = opened(places)
    pins.judge("s", PROJECT, "id", tools(a="one"))
    written(pins)

    assert [*places.project.read().servers] == ["s"]
    assert places.project.read().servers["s"].identity == ""
    assert places.own.read().servers == {}


def test_the_lock_of_a_project_withholds_and_never_grants(places):
    with places.project.changing() as content:
        content.servers["s"] = ServerPins(tools=tools(a="one"))
    first = opened(places)
    drift = first.judge("s", PROJECT, "id", tools(a="other", b="two"))
    assert set(drift.unlocked) == {"a", "b"}

    fresh = opened(places)
    fresh.judge("s", PROJECT, "id", tools(a="one"))
    written(fresh)
    with places.project.changing() as content:  # the project comes with another tool by now
        content.servers["s"] = ServerPins(tools=tools(a="evil"))

    assert opened(places).judge("s", PROJECT, "id", tools(a="evil")).changed == ("a",)


def test_what_two_processes_see_first_is_decided_by_the_one_that_writes_first(places):
    one, two = opened(places), opened(places)
    one.judge("s", USER, "id", tools(a="one"))
    two.judge("s", USER, "id", tools(a="two"))

    assert not written(one)
    assert written(two)
    assert two.judge("s", USER, "id", tools(a="two")).changed == ("a",)


def test_what_is_seen_during_a_write_is_not_lost(places):
    pins = opened(places)
    pins.judge("s", USER, "id", tools(a="one"))
    unsaved = pins.unsaved_pins()
    readings = save(unsaved)
    pins.judge("s", USER, "id", tools(a="two"))
    pins.settle(readings, unsaved)
    written(pins)

    assert [*places.own.read().servers["s"].pending] == ["a"]


def test_a_damaged_lock_says_so_in_place_of_a_verdict(places):
    places.own.path.parent.mkdir()
    places.own.path.write_text("{")
    pins = opened(places)

    assert "multitap.lock:1" in pins.judge("s", USER, "id", tools(a="one")).damage
    assert pins.warnings
    assert not pins.unsaved_pins()


def test_accepting_pins_what_was_shown_and_nothing_that_came_since(places):
    pins = opened(places)
    pins.judge("s", PROJECT, "id", tools(a="one"))
    written(pins)
    pins.judge("s", PROJECT, "id", tools(a="two", b="new"))
    written(pins)
    [review] = reviews(places, {"s": PROJECT})
    pins.judge("s", PROJECT, "id", tools(a="three", b="new"))
    written(pins)
    accept(places, review)

    fresh = opened(places)
    assert fresh.judge("s", PROJECT, "id", tools(a="three", b="new")).changed == ("a",)
    assert not fresh.judge("s", PROJECT, "id", tools(a="two", b="new"))
    assert [*places.project.read().servers["s"].tools] == ["a", "b"]


def test_after_a_reset_the_next_list_is_the_first(places):
    pins = opened(places)
    pins.judge("s", PROJECT, "id", tools(a="one"))
    written(pins)

    assert reset(places, "s", PROJECT)
    assert not reset(places, "s", PROJECT)
    assert not opened(places).judge("s", PROJECT, "id", tools(a="two"))


def test_another_version_of_a_package_is_reported(places):
    pins = opened(places)
    package = LockedPackage("npm", "pkg", "1.0.0", "sha512-a")
    assert pins.note_package("s", USER, package)
    pins.judge("s", USER, "id", tools(a="one"))
    assert not pins.note_package("s", USER, package)
    assert pins.note_package("s", USER, LockedPackage("npm", "pkg", "1.0.1"))

    drift = pins.judge("s", USER, "id", tools(a="one"))
    assert drift.package == "its package is pkg@1.0.1, and was pkg@1.0.0"


def test_exposed_names_are_remembered_but_not_those_of_a_projects_own_lock(places):
    pins = opened(places)
    pins.judge("s", USER, "id", tools(a="one"))
    with places.project.changing() as content:
        content.servers["p"] = ServerPins(tools=tools(z="x"), naming="{server}_{tool}")
    written(pins)

    assert opened(places).exposed_names({"s": USER, "p": PROJECT}) == {("s", "a"): "s_a"}


def test_a_definition_that_is_too_long_is_pinned_by_its_digest(places):
    pins = opened(places)
    pins.judge("s", USER, "id", tools(a="x" * 100_000))
    written(pins)

    assert places.own.path.stat().st_size < 1000
    assert opened(places).judge("s", USER, "id", tools(a="x" * 100_000 + "y")).changed == ("a",)


def test_a_file_for_which_there_is_no_memory_ends_nothing(places, monkeypatch):
    def fail(self):
        raise MemoryError

    monkeypatch.setattr(LockFile, "read_digests", fail)

    (reading,) = read([places.own]).values()

    assert str(reading) == "there is not enough memory for the pins"
