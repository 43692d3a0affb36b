"""Which phase failed, why, and what to do; also when nothing works at all."""

import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from multitap.cli.problems.checks import check_health, objections
from multitap.events import LinkState, ServerSnapshot
from tests.cli.conftest import zoo


class Locked(BaseHTTPRequestHandler):
    """Lets nobody in."""

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(401)
        self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        self.do_POST()

    def log_message(self, *_):
        pass


@pytest.fixture
def locked():
    """The address of a server that wants a log-in."""
    with HTTPServer(("127.0.0.1", 0), Locked) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/mcp"
        server.shutdown()
        thread.join()


def findings(ended):
    """Subject to phases to (verdict, text)."""
    found = {}
    for line in ended.lines:
        if not line.startswith(" "):
            phases = found[line] = {}
        elif not line.startswith("   "):
            verdict, phase, text = line.split(maxsplit=2)
            phases[phase] = (verdict, text)
    return found


def test_a_good_server_passes_every_phase(multitap, configure):
    configure(zoo="good")

    ended = multitap("doctor")

    phases = findings(ended)["zoo"]
    assert ended.code == 0
    assert {phase: verdict for phase, (verdict, _) in phases.items()} == dict.fromkeys(
        ("config", "program", "spawn", "handshake", "list", "schemas"), "ok"
    )
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    assert python in phases["program"][1]
    assert phases["handshake"][1].startswith("zoo 1.0, protocol 2026-07-28 (stateless), ")
    assert phases["list"][1].startswith("26 tools, 3 resources, 2 prompts, ")


def test_unset_variables_are_named_with_their_places(multitap, configure, monkeypatch):
    monkeypatch.setenv("SET_TOKEN", "x")
    env = {"A": "${NO_SUCH_A}", "B": "${NO_SUCH_B}", "C": "${SET_TOKEN}"}
    configure(zoo=zoo("good", env=env))

    ended = multitap("doctor zoo")

    assert ended.code == 4
    assert "multitap.toml:4:13: `env.A`: the variable `NO_SUCH_A` is not set\n" in ended.out
    assert "the variable `NO_SUCH_B` is not set" in ended.out
    assert "hint: set it, or write `${NO_SUCH_A:-default}`" in ended.out
    assert findings(ended)["zoo"]["spawn"] == ("-", "not tried")


def test_a_file_that_a_variable_needs_is_named(multitap, configure):
    configure(zoo=zoo("good", env_file="nowhere.env"))

    verdict, text = findings(multitap("doctor zoo"))["zoo"]["variables"]

    assert verdict == "failed"
    assert "nowhere.env" in text


def test_a_missing_program_is_reported_with_what_to_install(multitap, configure):
    configure(missing={"command": "uvx-of-another-world"})

    ended = multitap("doctor")

    phases = findings(ended)["missing"]
    assert phases["program"][0] == "failed"
    assert phases["spawn"] == ("-", "not tried")
    assert "hint: install it, or give its full path as `command`" in ended.out


@pytest.mark.parametrize(
    ("mode", "phase", "words"),
    [
        ("exit_at_start", "handshake", "it exited with code 1"),
        ("exit_code_3_with_traceback", "handshake", "it exited with code 3"),
        ("init_error", "handshake", "it refuses the handshake"),
        ("list_error", "list", "it refuses the list"),
        ("crash_on_list", "list", "it exited with code"),
        ("usage_on_stdout", "handshake", "it exited with code 2"),
    ],
)
def test_the_phase_that_failed_is_named(multitap, configure, mode, phase, words):
    configure(bad=mode)

    ended = multitap("doctor bad")

    phases = findings(ended)["bad"]
    assert ended.code == 4
    assert phases[phase][0] == "failed"
    assert phases[phase][1].startswith(words)
    assert phases["spawn"][0] == "ok"
    assert "hint: " in ended.out


def test_a_server_s_last_words_are_quoted(multitap, configure):
    configure(bad="exit_at_start")

    assert "| zoo: cannot open the database\n" in multitap("doctor bad").out


def test_a_server_behind_an_address_that_nobody_answers_is_reported(
    multitap, configure, monkeypatch
):
    monkeypatch.setenv("ZOO_PATH", "mcp")
    configure(gone={"url": "http://user:pw@127.0.0.1:9/${ZOO_PATH}?key=abc"})

    ended = multitap("doctor gone")

    phases = findings(ended)["gone"]
    assert ended.code == 4
    assert phases["address"] == ("ok", "http://********@127.0.0.1:9/${ZOO_PATH}?key=********")
    assert phases["handshake"][0] == "failed"
    assert phases["handshake"][1].endswith(": Connection refused")
    assert "pw" not in ended.out


def test_a_server_that_wants_a_login_is_reported_with_the_command(multitap, configure, locked):
    configure(locked={"url": locked})

    examined, told = multitap("doctor"), multitap("status")
    listed, alone = multitap("tools"), multitap("tools --server locked")

    phases = findings(examined)["locked"]
    assert (examined.code, told.code) == (4, 4)
    assert (phases["handshake"][0], phases["auth"][0]) == ("ok", "failed")
    hint = "run `multitap login locked`, or set its credentials in `headers`"
    assert f"hint: {hint}" in examined.out
    assert told.lines[1].endswith(f"  {hint}")
    assert told.lines[1].startswith("locked  needs auth ")
    assert listed.err.startswith("locked is not listed: it wants a login")
    assert alone.err.startswith("error: locked: it wants a login")
    assert alone.err.endswith(f"\nhint: {hint}\n")


def test_tools_that_cannot_be_used_are_reported(multitap, configure):
    configure(bad="tools_bad_schema")

    ended = multitap("doctor bad")

    assert ended.code == 0
    for words in (
        "tool 'root_array' is skipped: its inputSchema is of type 'array', not 'object'",
        "Gemini refuses `$ref`: bad_dangling_ref",
        """arguments are not checked: it is not a "regex": bad_bad_pattern""",
    ):
        assert f"warn    schemas    {words}\n" in ended.out


def test_tools_whose_names_a_provider_refuses_are_reported(multitap, configure, home):
    configure(zoo="good")
    path = home / "multitap.toml"
    path.write_text('naming = "kode"\n' + path.read_text())

    verdict, text = findings(multitap("doctor zoo"))["zoo"]["schemas"]

    assert verdict == "warn"
    assert text.endswith("_ and -: zoo:echo, zoo:nonce, zoo:add and 23 more")


def test_a_server_that_falls_over_once_it_is_up_is_reported():
    up = ServerSnapshot("shaky", "stdio", LinkState.CONNECTED, starts=3)

    (check,) = check_health(up)

    assert (check.phase, check.verdict) == ("health", "warn")
    assert check.text == "it took 3 starts to connect"


def test_more_tools_than_a_provider_takes_are_reported(multitap, configure):
    configure(many=zoo("tools_10k", "--count", "200"))

    assert "in total; OpenAI accepts 128\n" in multitap("doctor").out


def test_a_broken_entry_is_reported_beside_the_others(multitap, configure):
    configure(typo={"comand": "x"}, good="good", off={"command": "x", "enabled": False})

    ended = multitap("doctor")

    found = findings(ended)
    assert ended.code == 3
    assert found["typo"]["config"][0] == "failed"
    assert found["good"]["list"][0] == "ok"
    assert found["off"]["start"] == ("-", "disabled")
    assert findings(multitap("doctor typo")).keys() == {"multitap", "typo"}


def test_it_works_when_the_file_is_none(multitap, home):
    (home / "folder.json").mkdir()

    ended = multitap("--config folder.json doctor")

    assert ended.code == 3
    assert "failed  config     folder.json: error: is not a file\n" in ended.out


@pytest.mark.parametrize("content", [b"[servers", b"\xff\xfe\x00", b'{"mcpServers": 5}', b""])
def test_it_works_when_the_file_does_not(multitap, home, content):
    (home / "broken.json").write_bytes(content)

    ended = multitap("--config broken.json doctor")

    assert ended.code == 3
    assert ended.lines[0] == "multitap"
    assert "failed  config     " in ended.out


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root")
def test_it_works_when_the_file_may_not_be_read(multitap, home):
    (home / "secret.json").write_text("{}")
    (home / "secret.json").chmod(0)

    ended = multitap("--config secret.json doctor")

    assert ended.code == 3
    assert "cannot be read: Permission denied" in ended.out


def test_it_works_when_nothing_can_be_remembered(multitap, configure, tmp_path):
    (tmp_path / "state").write_text("not a folder")
    configure(zoo="good")

    ended = multitap("doctor")

    assert ended.code == 0
    assert "nothing will be remembered after this run" in ended.out


def test_lazy_servers_are_examined_too(multitap, configure):
    configure(lazy=zoo("good", start="lazy"))

    assert findings(multitap("doctor"))["lazy"]["list"][0] == "ok"


def test_findings_as_json(multitap, configure):
    configure(bad="exit_at_start")

    shared, bad = multitap("doctor --json").json

    assert shared["subject"] == "multitap"
    failed = next(check for check in bad["checks"] if check["verdict"] == "failed")
    assert failed["phase"] == "handshake"
    assert failed["details"] == ["zoo: cannot open the database"]


def test_an_unknown_server_gets_a_suggestion(multitap, configure):
    configure(github="good")

    ended = multitap("doctor githb")

    assert ended.code == 2
    assert "did you mean `github`?" in ended.err


@pytest.mark.parametrize(
    ("name", "schema", "objection"),
    [
        ("files:read", {}, "OpenAI and Anthropic require names of at most 64 letters"),
        ("x" * 65, {}, "OpenAI and Anthropic require names of at most 64 letters"),
        ("a", {"anyOf": []}, "OpenAI and Anthropic refuse `anyOf` at the top of a schema"),
        ("a", {"allOf": []}, "OpenAI and Anthropic refuse `allOf` at the top of a schema"),
        (
            "a",
            {"properties": {"x": {"type": "array"}}},
            "OpenAI refuses an array without `items`",
        ),
        ("a", {"properties": {"x": {"anyOf": [{"$ref": "#/$defs/X"}]}}}, "Gemini refuses `$ref`"),
        ("a", {"properties": {"x": {"if": {}}}}, "Gemini refuses `if`"),
    ],
)
def test_what_providers_refuse_is_known(name, schema, objection):
    (found,) = objections(name, schema)

    assert found.startswith(objection)


def test_what_providers_take_meets_no_objection():
    schema = {
        "type": "object",
        "properties": {
            "$ref": {"type": "string"},
            "items": {"type": "array", "items": {"type": "string"}},
            "x": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": {"$ref": "y"}},
        },
    }

    assert not [*objections("files_read-1", schema)]


def test_the_program_is_found_where_the_server_s_own_path_leads(multitap, configure, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "my-server"
    program.symlink_to(sys.executable)
    server = zoo("good", env={"PATH": str(folder)})
    configure(zoo={**server, "command": "my-server"})

    verdict, text = findings(multitap("doctor zoo"))["zoo"]["program"]

    assert (verdict, Path(text)) == ("ok", program)
