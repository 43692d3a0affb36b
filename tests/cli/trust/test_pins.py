"""What a person sees of tools that changed, and how they accept them."""

import json

import pytest

from tests.cli.conftest import toml, zoo
from tests.waiting import wait_for


@pytest.fixture
def registry(home, tmp_path):
    """A server that came from a registry, in the user's own configuration."""

    def write(mode):
        ledger = tmp_path / "ledger"
        ledger.mkdir(exist_ok=True)
        table = zoo(mode, env={"ZOO_DIR": str(ledger)}, provenance="registry")
        lines = ["[servers.zoo]", *(f"{key} = {toml(value)}" for key, value in table.items())]
        (home / "registry.toml").write_text("\n".join(lines))
        return "-c registry.toml"

    return write


@pytest.fixture
def pulled(multitap, registry):
    """The same after its tool `echo` was pinned and has changed."""
    chosen = registry("rug_pull_silent")
    assert multitap(f"status {chosen}").code == 0
    assert multitap(f"call {chosen} zoo_fault").code == 0
    return chosen


def test_a_change_is_told_shown_and_accepted(multitap, pulled):
    status = multitap(f"status {pulled}")
    assert "1 tool changed and withheld: 'echo'" in status.out
    assert "zoo_echo " not in multitap(f"tools {pulled}").out
    called = multitap(f"call {pulled} zoo_echo text=x")
    assert called.code == 2
    assert "is withheld" in called.err
    assert "multitap pins review zoo" in called.err

    shown = multitap(f"pins review {pulled}")
    assert shown.code == 1  # it only shows: nobody is there to ask
    assert "zoo: echo (changed)" in shown.out
    assert any(line.startswith("  +") and "<IMPORTANT>" in line for line in shown.lines)
    assert any(line.startswith("  -") for line in shown.lines)
    assert "  ! instructions: " in shown.out

    accepted = multitap(f"pins review {pulled} --accept")
    assert accepted.code == 0
    assert "accepted 1 change of 'zoo'" in accepted.err
    assert "zoo_echo " in multitap(f"tools {pulled}").out
    assert multitap(f"pins review {pulled}").code == 0


def test_a_server_that_could_not_be_compared_is_named(multitap, configure):
    configure(zoo=zoo("good"), gone={"command": "/nowhere/server"})

    every, one = multitap("pins review"), multitap("pins review gone")

    assert "gone is not compared: " in every.err
    assert one.code == 4
    assert "everything" not in one.err


def test_differences_are_there_for_programs(multitap, pulled):
    [found] = multitap(f"pins review {pulled} --json").json

    assert (found["server"], found["tool"], found["change"]) == ("zoo", "echo", "changed")
    assert found["before"]["name"] == found["after"]["name"] == "echo"
    assert found["findings"]


def test_what_is_pinned_is_listed_without_starting_a_server(multitap, registry):
    chosen = registry("good")
    before = multitap(f"pins list {chosen}")
    multitap(f"status {chosen}")
    listed = multitap(f"pins list {chosen}")
    [data] = multitap(f"pins list {chosen} --json").json

    assert before.lines[1].split()[:3] == ["zoo", "enforce", "-"]
    assert listed.lines[1].split()[:3] == ["zoo", "enforce", "26"]
    assert listed.lines[1].endswith("as pinned")
    assert set(data) == {"server", "pin", "lock", "package", "tools", "pending"}
    assert len(data["tools"]["echo"]) == 64


def test_pins_are_forgotten_on_request(multitap, pulled):
    assert multitap(f"pins reset zoo {pulled}").code == 0
    assert "zoo_echo " in multitap(f"tools {pulled}").out
    assert multitap(f"pins reset nobody {pulled}").code == 2


def test_the_servers_of_a_project_are_pinned_in_a_lock_beside_its_file(
    multitap, configure, trusted, home
):
    configure(zoo="good")
    trusted()
    multitap("status")

    lock = wait_for(lambda: (home / "multitap.lock").exists() and home / "multitap.lock")
    assert json.loads(lock.read_text())["servers"]["zoo"]["tools"]["echo"]["sha256"]


def test_a_lock_with_a_conflict_is_reported_and_kept(multitap, configure, trusted, home):
    configure(zoo="good")
    trusted()
    (home / "multitap.lock").write_text('{\n<<<<<<< HEAD\n "servers": {}\n}')

    status, doctor = multitap("status"), multitap("doctor")

    assert "multitap.lock:2" in status.out
    assert "multitap.lock:2" in doctor.out
    assert multitap("pins list").code == 1
    assert "<<<<<<<" in (home / "multitap.lock").read_text()


def test_doctor_names_findings_and_packages_without_a_version(multitap, home):
    poison = zoo("poison")
    newest = {"command": "npx", "args": ["-y", "no-such-package"]}
    servers = {"zoo": poison, "newest": newest}
    (home / "servers.json").write_text(json.dumps({"mcpServers": servers}))

    ended = multitap("doctor -c servers.json --timeout 5")

    assert "warn    scan       tool 'echo': instructions: " in ended.out
    assert "no exact version of no-such-package" in ended.out


def test_a_project_that_wants_its_pins_off_is_told_that_they_are_not(multitap, configure, trusted):
    configure(zoo=zoo("good", pin="off", scan="off"))
    trusted()

    ended = multitap("doctor")

    assert 'a project cannot relax `pin`: "enforce" is used, not "off"' in ended.out
    assert 'a project cannot relax `scan`: "report" is used, not "off"' in ended.out


@pytest.mark.parametrize("line", ["tools -c servers.json", "status -c servers.json"])
def test_escape_sequences_of_a_server_do_not_reach_the_terminal(multitap, home, line):
    (home / "servers.json").write_text(json.dumps({"mcpServers": {"zoo": zoo("ansi_escapes")}}))
    ended = multitap(line)

    assert not {*"\x1b\x07\x08\x9b\u202e"} & {*ended.out, *ended.err}
