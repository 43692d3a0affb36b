"""A project's entry and the user's entry of the same name."""

import json

import pytest

from multitap.config import Severity, Surroundings, native
from multitap.config.models import SandboxRules
from multitap.config.projects import TrustState
from multitap.config.sources import at_prompt
from multitap.trust.project_review import review
from multitap.trust.projects import Projects, expand_trusted, load_trusted
from tests.trusting import trust

OWN = """
policy = [{ decision = "deny", tools = ["a_*"] }]
[servers.a]
command = "mine"
args = ["--mine"]
env = { TOKEN = "${auth:mine}" }
sandbox_rules = { read = ["/etc"] }
tool_names = { x = "y" }
policy = [{ decision = "allow" }]
[profiles.p]
servers = ["a"]
"""
DIALECTS = {
    "multitap": ("multitap.toml", "[servers.a]\n{}", "toml"),
    "kode": (".kode.json", '{{"mcpServers": {{"a": {{{}}}}}}}', "json"),
    "otter": ("otter.toml", '[[mcp.servers]]\nname = "a"\n{}', "toml"),
    "agent-core": ("environments/dev/config.jsonc", '{{"mcp": {{"a": {{{}}}}}}}', "json"),
    "excelmanus": ("mcp.json", '{{"mcpServers": {{"a": {{{}}}}}}}', "json"),
}
THEIRS = {"command": "theirs", "args": ["x"]}
COMMANDS = {
    "agent-core": {"type": "local", "command": ["theirs", "x"]},
    "excelmanus": {"transport": "stdio", **THEIRS},
}


@pytest.fixture(autouse=True)
def project(own_project, tmp_path):
    own = tmp_path / "config" / "multitap" / "multitap.toml"
    own.parent.mkdir(parents=True)
    own.write_text(OWN)
    return own_project


def write(project, dialect, **entry):
    name, frame, kind = DIALECTS[dialect]
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    said = [(key, json.dumps(value)) for key, value in entry.items()]
    if kind == "toml":
        path.write_text(frame.format("\n".join(f"{key} = {value}" for key, value in said)))
    else:
        path.write_text(frame.format(", ".join(f'"{key}": {value}' for key, value in said)))
    return path


def loaded():
    return load_trusted(at_prompt(Surroundings.here())[0])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_b18_a_trusted_entry_replaces_the_users_as_a_whole(project, dialect):
    write(project, dialect, **COMMANDS.get(dialect, THEIRS))
    before = loaded()
    trust(project)
    after = loaded()
    mine, theirs = before.settings.servers["a"], after.settings.servers["a"]

    assert (mine.command, mine.provenance) == ("mine", "user")
    [pending] = before.pending
    assert pending.standing is TrustState.NEW
    assert "would replace yours" in pending.words
    assert "config/multitap/multitap.toml:3" in pending.words
    assert (theirs.command, theirs.args, theirs.provenance) == ("theirs", ("x",), "project")
    assert (theirs.env, theirs.tool_names, theirs.policy) == ({}, {}, ())
    assert theirs.sandbox_rules == SandboxRules()
    assert after.pending == ()
    assert after.project_of("a") == project
    assert after.settings.policy == before.settings.policy != ()
    assert after.settings.profiles == before.settings.profiles


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_review_says_what_an_entry_replaces(project, tmp_path, dialect):
    write(project, dialect, **COMMANDS.get(dialect, THEIRS))
    [found], _ = review(project, Projects())

    [part] = found.news
    place = tmp_path / "config" / "multitap" / "multitap.toml"
    assert part.part.lines[0].startswith(f"replaces  yours ({place}:3:")


def test_what_was_replaced_is_explained_as_dropped(project):
    write(project, "multitap", **THEIRS)
    trust(project)
    explained = loaded().explain("a")

    assert {value.key for value in explained.dropped} == {
        "env.TOKEN",
        "sandbox_rules.read",
        "tool_names.x",
        "policy",
    }
    [command] = [value for value in explained.values if value.key == "command"]
    assert (command.value, [lower.value for lower in command.overrode]) == ("theirs", ["mine"])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_c20_enabled_false_alone_switches_the_users_entry_off_without_trust(project, dialect):
    write(project, dialect, enabled=False)
    here = loaded()
    own = here.settings.servers["a"]

    assert (own.command, own.enabled, own.provenance) == ("mine", False, "user")
    assert (here.pending, here.project_of("a")) == ((), None)
    assert [one for one in here.problems if one.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("trusted", [True, False])
def test_c20_enabled_true_alone_switches_nothing_on_and_says_the_command(
    project, tmp_path, trusted
):
    (tmp_path / "config" / "multitap" / "multitap.toml").write_text(
        OWN + "[servers.b]\ncommand='b'\nenabled=false\n"
    )
    (project / "multitap.toml").write_text(
        "[servers.a]\nenabled = true\n[servers.b]\nenabled = true\n"
    )
    if trusted:
        trust(project)
    here = loaded()
    [problem] = here.problems

    assert not here.settings.servers["b"].enabled
    assert (problem.server, problem.hint) == ("b", "run `multitap enable b`")
    assert here.pending == ()


def test_d17_a_projects_switch_is_for_its_own_servers(project):
    (project / "multitap.toml").write_text(
        "enabled = false\n[servers.a]\ntimeout = 5\n[servers.b]\ncommand = 'b'\n"
    )
    trust(project)
    here = loaded()

    assert {name: one.enabled for name, one in here.settings.servers.items()} == {
        "a": True,
        "b": False,
    }


def test_the_users_switch_is_for_all_servers(project, tmp_path):
    own = tmp_path / "config" / "multitap" / "multitap.toml"
    own.write_text("enabled = false\n" + OWN)
    write(project, "multitap", **THEIRS)
    trust(project)

    assert not loaded().settings.servers["a"].enabled


def test_an_entry_that_cannot_be_used_replaces_nothing(project):
    (project / "multitap.toml").write_text("[servers.a]\ncommand = 5\n")
    trust(project)
    here = loaded()

    assert here.settings.servers["a"].command == "mine"
    assert [problem.server for problem in here.errors] == ["a"]


def test_part_of_an_entry_changes_nothing_of_the_users(project):
    (project / "multitap.toml").write_text(
        "[servers.a]\nenabled = false\nenv = { NODE_OPTIONS = '--require ./x.js' }\n"
    )
    trust(project)
    here = loaded()
    own = here.settings.servers["a"]

    assert (own.env, own.enabled) == ({"TOKEN": "${auth:mine}"}, False)
    assert [one.hint for one in here.problems] == [
        "write the whole entry to replace yours in this project"
    ]


def test_a_changed_entry_gives_way_to_the_users_again(project):
    write(project, "multitap", **THEIRS)
    trust(project)
    write(project, "multitap", command="evil")
    here = loaded()

    assert here.settings.servers["a"].command == "mine"
    [pending] = here.pending
    assert pending.standing is TrustState.CHANGED


def test_a_replacing_server_is_never_expanded_as_the_users(project, monkeypatch):
    """One that still runs while its file has changed, so that the name is the user's again."""
    monkeypatch.setenv("SECRET", "s3cret")
    write(project, "multitap", **THEIRS)
    trust(project)
    running = loaded().settings.servers["a"]
    write(project, "multitap", command="evil")
    here = loaded()

    assert expand_trusted(here, "a", running).command == "theirs"
    changed = running.replace(args=("${SECRET}",))
    with pytest.raises(Exception, match="changed since you trusted it"):
        expand_trusted(here, "a", changed)


def test_the_users_login_is_not_that_of_a_server_that_replaces_it(project, tmp_path):
    own = tmp_path / "config" / "multitap" / "multitap.toml"
    own.write_text("[servers.a]\nurl = 'https://a.example/mcp'\n")
    mine = loaded()
    write(project, "multitap", url="https://a.example/mcp")
    trust(project)
    theirs = loaded()

    names = {
        expand_trusted(one, "a", one.settings.servers["a"]).login_name("a")
        for one in (mine, theirs)
    }
    assert len(names) == 2
    assert "a" in names


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_file_of_a_project_can_claim_to_be_the_users(project, dialect):
    entry = {**COMMANDS.get(dialect, THEIRS), "provenance": "user"}
    path = write(project, dialect, **entry)
    trust(project)

    assert loaded().settings.servers["a"].provenance == "project"
    assert load_trusted(native(Surroundings.here(), [path])).project_of("a") is None
