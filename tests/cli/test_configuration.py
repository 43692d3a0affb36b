"""Servers that no file names: their command or address is typed."""

import os
import shlex
import subprocess
import sys

import pytest

from multitap.cli.configuration import typed_name
from multitap.cli.options import TypedServer
from multitap.cli.use.watch import folders
from tests.terminals import terminal
from tests.zoo.modes import command

GOOD = shlex.join(command("good"))
SERVER = """
import sys
sys.path.insert(0, {root!r})
from tests.zoo.honest import Honest
from tests.zoo.tools import echo
server = Honest({{}})
server.tools = {{{tool!r}: echo.renamed({tool!r})}}
server.main()
"""
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120


@pytest.mark.parametrize(
    "line",
    [
        f"call add a=2 b=40 -- {GOOD}",
        f"call -- {GOOD} add a=2 b=40",
        f"call -- {GOOD} -- add a=2 b:=40",
        f"""call -- {GOOD} add '{{"a": 2, "b": 40}}'""",
    ],
)
def test_a_tool_of_a_typed_server_is_called_by_its_own_name(multitap, line):
    ended = multitap(line)

    assert (ended.code, ended.out) == (0, "42\n"), ended.err


def test_only_the_typed_server_is_listed_whatever_files_say(multitap, configure):
    configure(other="good")

    ended = multitap(f"tools echo -- {GOOD}")

    assert [line.split()[0] for line in ended.lines] == ["TOOL", "echo"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tools --", "a command is expected after `--`"),
        (f"call -- {sys.executable}", "missing argument 'NAME'"),
        (f"tools --url http://127.0.0.1:1/ -- {GOOD}", "give a COMMAND or --url, not both"),
        ("tools -H 'A: b'", "--header needs --url"),
        ("tools -e A=b", "--env needs a COMMAND after `--`"),
        ("tools --url ftp://x", "--url 'ftp://x' is not an http:// or https:// address"),
        (f"tools -e nonsense -- {GOOD}", "--env 'nonsense' has no `=`: expected NAME=VALUE"),
        ("tools --watch", "--watch needs the COMMAND of a server after `--`"),
        (
            f"-c x.toml tools -- {GOOD}",
            "a COMMAND or --url cannot be combined with --config or --live",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(multitap, line, words):
    ended = multitap(line)

    assert ended.code == 2
    assert ended.err.startswith(f"error: {words}\n")


def test_a_typed_server_that_does_not_start_is_an_error(multitap):
    ended = multitap("tools -- nonesuch-program --x")

    assert ended.code == 4
    assert "nonesuch-program" in ended.err


def test_variables_are_the_shells_and_reach_the_server_as_typed(multitap):
    script = "import os, sys; sys.stderr.write(os.environ['WORD'] + sys.argv[1]); sys.exit(3)"

    ended = multitap("tools -e 'WORD=${HOME}' --", sys.executable, "-c", script, "${USER}")

    assert "${HOME}${USER}" in ended.err


def test_nothing_is_left_of_a_typed_server(multitap, home):
    multitap(f"tools -- {GOOD}")

    assert not (home.parent / "state").exists()


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        (TypedServer(("python3", "-m", "weather")), "weather"),
        (TypedServer(("/usr/bin/python3.11", "src/my server.py", "--x")), "my-server"),
        (TypedServer(("npx", "-y", "@scope/thing")), "thing"),
        (TypedServer(url="https://mcp.example.com/x"), "mcp-example-com"),
        (TypedServer(("./run",)), "run"),
        (TypedServer(("python3", "-c", "import sys; sys.exit(2)")), "python3"),
    ],
)
def test_a_typed_server_is_called_what_it_runs(typed, name):
    assert typed_name(typed) == name


def test_sources_are_beside_the_files_of_the_command(home):
    (home / "app").mkdir()
    (home / "app" / "server.py").touch()

    assert folders(TypedServer(("python", "app/server.py"))) == (home / "app",)
    assert folders(TypedServer(("npx", "thing"))) == (home,)


def test_the_list_is_printed_again_when_a_source_changes(home):
    script = home / "server.py"
    script.write_text(SERVER.format(root=ROOT, tool="before"))
    watcher = subprocess.Popen(
        [sys.executable, "-m", "multitap", "tools", "--watch", "--", sys.executable, script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert "before" in [watcher.stdout.readline().split()[0] for _ in range(2)]

        script.write_text(SERVER.format(root=ROOT, tool="after"))

        assert "after" in [watcher.stdout.readline().split()[0] for _ in range(2)]
    finally:
        watcher.terminate()
        watcher.communicate()


def test_tokens_are_counted_for_each_tool_and_server(multitap):
    ended = multitap(f"tokens --json -- {GOOD}")
    summary = multitap(f"tokens --summary -- {GOOD}")

    (server,) = ended.json["servers"].values()
    assert server["tokens"] == sum(server["tools"].values()) == ended.json["tokens"]
    assert 10 < server["tools"]["echo"] < 200
    assert [*server["tools"].values()] == sorted(server["tools"].values(), reverse=True)
    assert summary.lines[-1].split() == ["total", "(26", "tools)", f"{ended.json['tokens']:,}"]
    assert len(summary.lines) == 3


def test_a_typed_server_that_fails_shows_what_it_wrote(multitap):
    ended = multitap("tools --", sys.executable, "-c", "raise SystemExit('no key, sorry')")

    assert ended.code == 4
    assert "  | no key, sorry" in ended.err
    assert "multitap logs" not in ended.err


@pytest.mark.parametrize(
    "line",
    ["call x_y", "prompt x", "read x", "tools", "config explain x", "pins list", "logs x"],
)
def test_a_file_that_cannot_be_read_explains_what_is_missing(multitap, line):
    ended = multitap(f"-c missing.toml {line}")

    assert ended.code == 3
    assert "missing.toml: there is no such file" in ended.err
    assert ended.err.count("error:") == 1


@pytest.mark.parametrize("line", ["call x_y", "prompt x", "pins list", "tools x"])
def test_without_servers_it_says_so(multitap, line):
    ended = multitap(line)

    assert "no servers are configured" in ended.err


def test_a_pattern_that_matches_nothing_fails_without_servers_too(multitap):
    ended = multitap("tools nosuch")

    assert ended.code == 1
    assert "nothing matches 'nosuch'" in ended.err


def test_a_conversation_begins_with_the_problems_of_its_configuration(home):
    (home / "broken.toml").write_text("[servers.a")

    line = [sys.executable, "-m", "multitap", "-c", "broken.toml", "chat"]
    ended = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)  # noqa: PLW1510 - see the code below

    assert "broken.toml:1:11: error: not valid TOML" in ended.stderr
    assert ended.returncode == 0


def test_only_files_that_were_read_are_called_read(multitap, home):
    (home / "broken.toml").write_text("[servers.a")

    ended = multitap("-c broken.toml config check")

    assert "read" not in ended.err.replace("broken.toml", "")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[servers.a", "broken.toml:1:11: not valid TOML"),
        ("[servers.a]\n[servers.b]\ncommand = 'true'\nenabled = false", "neither `command`"),
    ],
)
def test_the_screen_says_what_is_wrong_with_a_file(home, text, shown):
    (home / "broken.toml").write_text(text)

    with terminal([sys.executable, "-m", "multitap", "-c", "broken.toml"]) as person:
        person.reads(shown)
        person.press("q")
