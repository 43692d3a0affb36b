"""`remove`, `enable`, `disable`, `rename`, `set`, `export`: changes to what is there."""

import json
import tomllib

import pytest
from ruamel.yaml import YAML

from multitap.cli.set_up.clients import CLIENTS
from multitap.config.dialects import DIALECTS
from tests.trusting import trust

CONFIG = """\
# mine
[servers.gh] # github
command = "x"
env = { A = "1" }

[servers.other]
url = "https://x.io/mcp"

[profiles.p]
servers = ["gh", "oth*"]
allow = ["gh_*", "other_read"]

[agents.a]
deny = ["gh_delete"]
"""


@pytest.fixture
def file(home):
    path = home / "multitap.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def named(file, monkeypatch):
    """What is exported is what is in force: a file of the user's own."""
    monkeypatch.setenv("MULTITAP_CONFIG", "multitap.toml")


def data(file):
    return tomllib.loads(file.read_text())


def test_a_tool_is_renamed_and_described(multitap, configure, home):
    configure(zoo="good")
    multitap("tools")

    renamed = multitap("set zoo tools.echo=say", "--describe", "zoo_add=The sum of two numbers")
    listed = {tool["tool"]: tool for tool in multitap("tools --json").json}
    again = multitap("set zoo tools.zoo_say=zoo_tell")
    back = multitap("set zoo tools.tell= --describe add=")

    assert (renamed.code, again.code, back.code) == (0, 0, 0)
    assert listed["echo"]["name"] == "zoo_say"
    assert listed["add"]["description"] == "The sum of two numbers"
    entry = tomllib.loads((home / "multitap.toml").read_text())["servers"]["zoo"]
    assert not entry.get("tool_names")
    assert not entry.get("tool_descriptions")


def test_a_tool_that_is_not_there_is_not_renamed(multitap, configure):
    configure(zoo="good")
    multitap("tools")

    ended = multitap("set zoo tools.ecko=say")

    assert ended.code == 2
    assert ended.err.startswith("error: zoo has no tool named 'ecko'\nhint: did you mean")


def test_a_renamed_server_keeps_its_profiles_and_agents(multitap, file):
    ended = multitap("rename gh github")

    assert ended.code == 0, ended.err
    assert [*data(file)["servers"]] == ["github", "other"]
    assert data(file)["profiles"]["p"] == {
        "servers": ["github", "oth*"],
        "allow": ["github_*", "other_read"],
    }
    assert data(file)["agents"]["a"] == {"deny": ["github_delete"]}
    assert "[servers.github] # github" in file.read_text()
    multitap("undo")
    assert file.read_text() == CONFIG


def test_a_server_is_switched_off_and_on(multitap, file):
    multitap("disable gh other")
    assert [one["enabled"] for one in data(file)["servers"].values()] == [False, False]

    multitap("enable gh")

    assert data(file)["servers"]["gh"]["enabled"] is True


def test_a_removed_server_leaves_the_rest_as_it_was(multitap, file):
    multitap("remove gh")

    assert [*data(file)["servers"]] == ["other"]
    assert file.read_text().startswith("# mine\n")


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("timeout=1m", "timeout", "1m"),
        ("timeout=5", "timeout", 5),
        ("enabled=no", "enabled", False),
        ("args='-y pkg'", "args", ["-y", "pkg"]),
        ("""args='["a b", "c"]'""", "args", ["a b", "c"]),
        ("env.B=2", "env", {"A": "1", "B": "2"}),
        ("env.A=", "env", None),
        ("limits.queue=7", "limits", {"queue": 7}),
        ("filter.deny='rm_* x'", "filter", {"deny": ["rm_*", "x"]}),
        ("""timeouts='{"slow": "5m"}'""", "timeouts", {"slow": "5m"}),
        ("description='a = b'", "description", "a = b"),
        ("sandbox=true", "sandbox", True),
        ("sandbox=bubblewrap", "sandbox", "bubblewrap"),
    ],
)
def test_settings_get_the_type_they_have(multitap, file, words, key, value):
    ended = multitap(f"set gh {words}")

    assert ended.code == 0, ended.err
    assert data(file)["servers"]["gh"].get(key) in ([value] if value else [{}, None, value])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("enabled=maybe", "`enabled`: expected `true` or `false`"),
        ("limits.queue=x", "`limits.queue`: expected a whole number"),
        ("limits.queue=-1", "at least 0"),
        ("timeout=soon", "expected a number of seconds"),
        ("tiemout=1", "did you mean `timeout`?"),
        ("limits.que=1", "there is no setting `que` in `limits`"),
        ("start=later", "'eager' or 'lazy'"),
        ("command=", "neither `command` nor `url`"),
        ("novalue", "write `key=value`"),
        ("env=x", "expected a JSON object"),
        ("headers.X=1", "`servers.gh.headers.X`: has no effect for a program"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(multitap, file, words, complaint):
    ended = multitap(f"set gh {words}")

    assert ended.code == 3
    assert complaint in ended.err
    assert file.read_text() == CONFIG


def test_a_name_that_no_server_can_have_is_refused(multitap, file):
    ended = multitap("rename gh", "")

    assert ended.code == 3
    assert "a server's name has 1 to" in ended.err
    assert file.read_text() == CONFIG


@pytest.mark.parametrize("url", ["nope", "ftp://example.com"])
def test_the_gateway_is_installed_at_addresses_only(multitap, home, url):
    ended = multitap(f"install cursor --http {url}")

    assert ended.code == 3
    assert f"{url!r} is not the address of a gateway" in ended.err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mcp.json", '{"mcpServers": {"a": {"command": "x"}}}\r\n'),
        ("mcp.toml", '[servers.a]\r\ncommand = "x"\r\n'),
        ("mcp.yaml", "extensions:\r\n  a:\r\n    type: stdio\r\n    cmd: x\r\n    args: []\r\n"),
    ],
)
def test_marks_and_line_ends_of_windows_stay(multitap, home, name, text):
    path = home / name
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    before = path.read_bytes()

    ended = multitap(f"add -c {name} b --no-check -- y")

    after = path.read_bytes()
    assert ended.code == 0, ended.err
    assert after.startswith(b"\xef\xbb\xbf")
    assert after.count(b"\n") == after.count(b"\r\n")
    assert b"y" in after
    multitap("undo")
    assert path.read_bytes() == before


def test_one_client_that_cannot_have_it_keeps_it_from_no_other(multitap, home):
    multitap("install claude cursor")

    ended = multitap("install all --http")
    refused = multitap("install claude --http")

    assert ended.code == 0, ended.err
    assert "claude is left out" in ended.err
    assert "changed" in ended.err
    assert refused.code == 3


def test_an_import_says_where_a_client_would_have_its_file(multitap, home):
    ended = multitap("import cursor")

    assert "Cursor has no servers here: there is no" in ended.err
    assert ".cursor/mcp.json" in ended.err


def test_an_import_makes_a_client_s_servers_the_person_s_own(multitap, home):
    server = {"command": "/opt/x/npx", "args": ["-y", "thing"], "env": {"T": "${env:TOKEN}"}}
    (home.parent / ".cursor").mkdir()
    (home.parent / ".cursor/mcp.json").write_text(json.dumps({"mcpServers": {"thing": server}}))

    ended = multitap("import cursor --yes")

    written = tomllib.loads((home.parent / "config/multitap/multitap.toml").read_text())
    assert "/opt/x/npx -y thing" in ended.out
    assert written["servers"] == {"thing": server}


def test_an_import_writes_no_file_that_could_not_be_read_again(multitap, home):
    many = {f"s{number}": {"command": "x", "args": [str(number)]} for number in range(1000)}
    (home.parent / ".cursor").mkdir()
    (home.parent / ".cursor/mcp.json").write_text(json.dumps({"mcpServers": many}))
    mine = home / "mine.toml"
    mine.write_text('[servers.one]\ncommand = "y"\n')

    ended = multitap("-c mine.toml import cursor --yes")

    assert ended.code == 3
    assert "more than 1,000 servers" in ended.err
    assert "several files" in ended.err
    assert mine.read_text() == '[servers.one]\ncommand = "y"\n'


def test_an_unknown_server_gets_a_suggestion(multitap, file):
    ended = multitap("remove ohter")

    assert ended.code == 2
    assert "did you mean `other`?" in ended.err


def test_a_file_of_another_client_is_changed_in_its_own_words(multitap, home):
    path = home / "cline_mcp_settings.json"
    path.write_text(
        '{\n  // cline\n  "mcpServers": {\n'
        '    "a": {"type": "stdio", "command": "x", "args": [], "autoApprove": ["q"]}\n  }\n}\n'
    )

    for line in ("disable a", "set a timeout=20s", "rename a b"):
        assert multitap(f"-c {path.name} {line}").code == 0

    assert path.read_text() == (
        '{\n  // cline\n  "mcpServers": {\n    "b": {"type": "stdio", "command": "x", "args": [],'
        ' "autoApprove": ["q"], "disabled": true, "timeout": 20}\n  }\n}\n'
    )


def test_a_server_found_in_a_folder_is_switched_off_in_our_file(multitap, home):
    folder = home / "mcpservers" / "found"
    folder.mkdir(parents=True)
    (folder / "server.py").write_text("")

    assert multitap("remove found").code == 3
    assert multitap("disable found --project").code == 0

    assert data(home / "multitap.toml") == {"servers": {"found": {"enabled": False}}}


def test_undo_refuses_where_somebody_wrote_since(multitap, file):
    multitap("disable gh")
    file.write_text(file.read_text() + "# more\n")

    ended = multitap("undo")

    assert (ended.code, "has changed since" in ended.err) == (3, True)
    assert file.read_text().endswith("# more\n")
    assert multitap("undo --list").out.count("disable gh") == 1
    assert multitap("undo --force").code == 0
    assert file.read_text() == CONFIG


@pytest.mark.parametrize("name", ["claude", "claude-desktop", "vscode", "code", "gemini-cli"])
def test_a_client_has_the_same_names_in_every_command(multitap, configure, name):
    configure(zoo="good")

    assert multitap(f"export {name}").code == 0
    assert multitap(f"install {name} --dry-run").code == 0
    assert multitap(f"import {name} --dry-run").code == 0


def test_the_dialect_of_a_client_has_its_name():
    dialects = {name: client.dialect for name, client in CLIENTS.items() if client.dialect}

    assert all(name == dialect in DIALECTS for name, dialect in dialects.items())


@pytest.mark.usefixtures("named")
def test_an_export_says_what_is_lost(multitap, file):
    multitap("set gh env.T='${auth:T}' timeout=5")

    ended = multitap("export cursor")

    assert json.loads(ended.out) == {
        "mcpServers": {
            "gh": {"command": "x", "args": [], "env": {"A": "1"}},
            "other": {"url": "https://x.io/mcp"},
        }
    }
    assert "gh: `env.T`: Cursor cannot express it" in ended.err
    assert "gh: `timeout`: Cursor cannot express it" in ended.err


@pytest.mark.parametrize(("server", "wanted"), [("gh", {"cmd", "args"}), ("other", {"uri"})])
def test_an_export_has_every_key_without_which_goose_skips_an_entry(
    multitap, named, home, server, wanted
):
    multitap("export goose -o goose.yaml")

    entry = YAML(typ="safe").load((home / "goose.yaml").read_text())["extensions"][server]
    assert {"name", "type", "enabled", "description", *wanted} <= entry.keys()


def test_a_new_file_of_continue_has_the_heading_that_it_asks_for(multitap, named, home):
    multitap("export continue -o new.yaml")
    (home / "old.yaml").write_text("name: Mine\nversion: 2.0.0\n")
    multitap("export continue -o old.yaml")

    new, old = (YAML(typ="safe").load((home / f"{one}.yaml").read_text()) for one in ("new", "old"))
    assert new.keys() == {"name", "version", "schema", "mcpServers"}
    assert old.keys() == {"name", "version", "mcpServers"}
    assert old["name"] == "Mine"


@pytest.mark.usefixtures("named")
def test_an_export_to_vs_code_asks_for_the_secret(multitap, file):
    multitap("set gh env.T='${auth:gh/T}'")

    exported = json.loads(multitap("export vscode gh").out)

    assert exported["servers"]["gh"]["env"]["T"] == "${input:gh/T}"
    assert [(one["id"], one["password"]) for one in exported["inputs"]] == [("gh/T", True)]


@pytest.mark.usefixtures("named")
def test_an_export_joins_what_a_file_has(multitap, file, home):
    target = home / "config.yaml"
    target.write_text("# goose\nextensions:\n  dev:\n    type: builtin # b\n")

    multitap("export goose -o config.yaml")

    text = target.read_text()
    assert text.startswith("# goose\nextensions:\n  dev:\n    type: builtin # b\n  gh:\n")
    multitap("undo")
    assert target.read_text() == "# goose\nextensions:\n  dev:\n    type: builtin # b\n"


@pytest.mark.parametrize(
    "line",
    [
        *("set a timeout=5", "enable a", "disable a", "rename a b", "remove a", "secret move"),
        *("add b --no-check -- x", "export vscode", "export vscode -o out.json", "generate a"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_named_and_never_written(multitap, home, line):
    (home / "multitap.toml").write_text("[servers.a\n")
    command, _, more = line.partition(" -- ")
    typed = more and ("--", more)

    ended = multitap(f"{command} -c multitap.toml", *typed)

    assert ended.code == 3
    assert "multitap.toml:1:11: not valid TOML" in ended.err
    assert [path.name for path in home.iterdir()] == ["multitap.toml"]
    assert (home / "multitap.toml").read_text() == "[servers.a\n"


def test_an_edit_of_a_trusted_project_needs_no_further_trust(multitap, file, home, monkeypatch):
    monkeypatch.delenv("MULTITAP_CONFIG", raising=False)
    untouched = multitap("set gh timeout=5")
    assert "not trusted" in multitap("config show gh").err

    trust(home)
    edited = multitap("set gh timeout=6")

    assert (untouched.code, edited.code) == (0, 0)
    assert "trust" not in multitap("config show gh").err
    file.write_text(file.read_text().replace("x", "y"))
    assert "changed since you trusted it" in multitap("config show gh").err
