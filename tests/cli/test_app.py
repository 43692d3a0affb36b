"""The program as a whole: how it starts, how it ends, and what it leaves behind."""

import inspect
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from multitap.cli.app import COMMANDS as TABLE
from multitap.cli.app import EVERYDAY
from multitap.cli.app import multitap as program
from tests.cli.conftest import zoo
from tests.processes import descendants
from tests.waiting import PATIENCE, wait_for
from tests.zoo.ledger import Ledger
from tests.zoo.modes import command

HEAVY = ("mcp", "mcp_types", "aiohttp", "pydantic", "textual", "openai", "redis")
WHEN_USED = ("multitap.hub.hub", "anyio", "asyncio", "msgspec")


def _all_commands(group=program, before=""):
    """Every command, by what is typed, a group before what is in it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield f"{before}{name}", command
        if isinstance(command, click.Group):
            yield from _all_commands(command, f"{before}{name} ")


DECLARED = dict(_all_commands())
COMMANDS = (*DECLARED,)
PROGRAM = """
import sys
from multitap.cli.app import run
for line in sys.argv[1:]:
    run(line.split())
sys.stderr.write(" ".join(name for name in sys.modules if "." not in name))
sys.stderr.write(" ".join(name for name in sys.modules if name.startswith("multitap.")))
"""
GOOD = " ".join(command("good"))
INTERRUPTED = """
import os, signal, sys

class Interruption:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

module = sys.argv.pop(1)
sys.meta_path.insert(0, Interruption())
from _multitap import main
if module == "the script":
    os.kill(os.getpid(), signal.SIGINT)
main()
"""
"""A command that gets Ctrl-C when it begins to import a module, or between that and its work."""


SHARED = {
    *("files", "dialect", "trust", "timeout", "wait", "live", "pid", "url", "headers", "variables"),
    *("watch", "scope", "dry_run"),
}
"""What the decorators of `options` may take for themselves, and pass on as one value."""


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_takes_what_it_declares(line):
    command = DECLARED[line]
    declared = {param.name for param in command.params if param.expose_value}
    parameters = inspect.signature(inspect.unwrap(command.callback)).parameters.values()
    fixed = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD}

    assert fixed - {"options", "how"} <= declared
    assert len(fixed) < len(parameters) or declared - SHARED <= fixed


def modules_after(*lines):
    """What is imported after these commands."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *lines], capture_output=True, text=True, check=True
    )
    return {*done.stderr.splitlines()[-1].split()}


@pytest.mark.usefixtures("home")
def test_help_and_version_import_nothing_heavy():
    lines = ["", "--help", "--version", "nonsense", "help", "help commands"]

    assert not modules_after(*lines) & {*HEAVY, *WHEN_USED, "multitap.config"}


@pytest.mark.usefixtures("home")
def test_the_help_of_a_command_imports_no_sdk():
    assert not modules_after(*(f"{line} --help" for line in COMMANDS)) & {*HEAVY}


@pytest.mark.parametrize("line", ["", *COMMANDS])
def test_help_is_short_and_without_full_stop(multitap, line):
    ended = multitap(f"{line} --help")

    first = ended.lines[2]
    assert ended.code == 0
    assert not first.endswith(".")
    alone = {
        "access",
        "access list",
        "config",
        "config schema",
        "demo",
        "help",
        "pins",
        "policy",
        "sandbox",
        "stop",
        "trust",
        "undo",
    }
    without = ("cluster", "secret", "state", "token", "search", "self", "uninstall", "vault")
    without_files = line in alone or line.startswith(without)
    assert "MULTITAP_CONFIG" in ended.out or without_files


def test_help_commands_lists_every_command_in_a_section(multitap):
    listed = re.findall(r"^  (\w+)  ", multitap("help commands").out, re.MULTILINE)

    assert listed == [*TABLE]
    assert [*TABLE] == [line for line in COMMANDS if " " not in line]


@pytest.mark.parametrize("name", [*TABLE])
def test_the_line_about_a_command_is_its_own(name):
    command = program.get_command(click.Context(program), name)

    assert command.name == name
    assert command.help.partition("\n")[0] == TABLE[name].summary


def test_alone_it_helps(multitap):
    assert multitap("").out == multitap("--help").out


def test_help_fills_one_screen_with_the_everyday_commands(multitap):
    lines = multitap("--help").lines

    assert len(lines) < 24
    assert max(map(len, lines)) <= 80
    assert "`multitap help commands` lists all" in "\n".join(lines)
    assert [line.split()[0] for line in lines if re.match(r"  \w+  ", line)] == [*EVERYDAY]


def test_help_alone_also_says_how_to_look_up_an_error(multitap):
    ended = multitap("help")

    assert ended.out.startswith(multitap("--help").out)
    assert "`multitap help CODE`" in ended.out


@pytest.mark.parametrize("alias", ["list", "ls", "ps"])
def test_other_names_of_status_work_and_are_in_no_list(multitap, configure, alias):
    configure(off=zoo("good", enabled=False))

    assert multitap(alias).out == multitap("status").out
    assert not re.search(rf"^  {alias} ", multitap("help commands").out, re.MULTILINE)
    assert f"`multitap {alias}`" not in multitap("--help").out


def test_rm_removes(multitap, configure, home):
    configure(one="good", two="good")

    assert multitap("rm one").code == 0
    assert "servers.one" not in (home / "multitap.toml").read_text()


def test_version_is_a_command_too(multitap):
    assert multitap("version").out == multitap("--version").out


GROUPS = [line for line, command in DECLARED.items() if isinstance(command, click.Group)]


@pytest.mark.parametrize("group", [one for one in GROUPS if DECLARED[one].no_args_is_help])
def test_a_group_alone_prints_its_help(multitap, group):
    ended = multitap(group)

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.rstrip() == multitap(f"{group} --help").out.rstrip()


def test_the_version_is_printed(multitap):
    assert re.fullmatch(r"multitap \d+\.\d+\S*\n", multitap("--version").out)


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("statuss", "no such command 'statuss'", "did you mean 'status'?"),
        ("statsu", "no such command 'statsu'", "did you mean 'status'?"),
        ("config chek", "no such command 'chek'", "did you mean 'check'?"),
        ("frobnicate", "no such command 'frobnicate'", "run `multitap --help` for usage"),
        ("status --jsn", "no such option '--jsn'", "did you mean '--json'?"),
        ("call", "missing argument 'NAME'", "run `multitap call --help` for usage"),
        (
            "status --timeout soon",
            "invalid value for '--timeout': expected a number of seconds",
            "run `multitap status --help` for usage",
        ),
        ("status --timeout 0", "invalid value for '--timeout': expected more than 0", None),
        ("logs x -n -1", "invalid value for '-n' / '--lines'", None),
    ],
)
def test_wrong_usage_ends_with_2_and_the_way_out(multitap, line, error, hint):
    ended = multitap(line)

    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: {error}")
    assert hint is None or ended.err.endswith(f"hint: {hint}\n")


def start(*arguments, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "multitap", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_everything_with_its_own_exit_code(configure, tmp_path, number, code):
    ledger = Ledger(tmp_path)
    configure(zoo=zoo("good", env=ledger.env), hanging="never_init")
    with start("call", "zoo_sleep", "seconds=60") as process:
        wait_for(lambda: ledger.calls)
        started = descendants(process.pid)

        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)

    assert (process.returncode, out, err.strip()) == (code, "", "")
    assert len(started) >= 2
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("line", ["config schema", "pins", f"trace -- {GOOD}"])
def test_a_reader_that_has_seen_enough_is_no_traceback(line):
    with start(*line.split()) as process:
        process.stdout.close()
        err = process.stderr.read()

    assert (process.returncode, err) == (1, "")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "line", ["--help", "--version", "pins", "config schema", "tools --json", f"trace -- {GOOD}"]
)
def test_an_output_that_is_full_is_one_line(line, unbuffered):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "multitap", *line.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            check=False,
        )

    assert done.returncode == 1
    assert done.stderr.endswith("error: the output cannot be written: No space left on device\n")
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("home")
def test_messages_that_cannot_be_written_do_not_end_a_command():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "multitap", "tools", "--json"],
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
            check=False,
        )

    assert (done.returncode, done.stdout) == (0, "[]\n")


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "module",
    [
        *("multitap", "logging", "multitap.cli"),
        *("the script", "multitap.cli.app", "click", "multitap.config"),
    ],
)
def test_ctrl_c_while_it_starts_ends_it_without_a_traceback(module):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, "status"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")


def test_on_a_terminal_servers_are_shown_while_they_start_and_then_the_table(configure):
    configure(good="good", slow=zoo("slow_init"))

    code, seen = on_a_terminal("status", "--wait", "1m")

    assert code == 0
    assert "good  ready, 26 tools" in seen
    assert "slow  starting, " in seen
    table = seen.rpartition("\x1b[J")[2]
    assert "slow    \x1b[32mconnected" in table
    assert "starting" not in table


def on_a_terminal(*arguments):
    """How a command ends, and all that a terminal gets to see of it."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "multitap", *arguments]
    env = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    seen = b""
    while select.select([ours], [], [], 30)[0]:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    return process.wait(40), seen.decode()


def test_a_shell_completes_commands_servers_and_known_tools(multitap, configure, monkeypatch):
    configure(zoo="good", zebra={"command": "x", "enabled": False})
    multitap("tools")

    def completed(words):
        monkeypatch.setenv("_MULTITAP_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", f"multitap {words}")
        monkeypatch.setenv("COMP_CWORD", str(len(words.split(" "))))
        return [line.partition(",")[2] for line in multitap("").lines if line]

    assert completed("stat") == ["status", "stats", "state"]
    assert completed("doctor z") == ["zoo", "zebra"]
    assert completed("call zoo_a") == ["zoo_add", "zoo_ask"]
    assert completed("call none") == []
    assert completed("install cl") == ["claude", "claude-code", "cline"]
    assert completed("import cod") == ["codex"]
    assert completed("export vs") == ["vscode"]
    assert completed("add files") == ["filesystem"]
    monkeypatch.setenv("COMP_WORDS", "multitap call zoo_ad")
    monkeypatch.setenv("COMP_CWORD", "zoo_ad")
    monkeypatch.setenv("_MULTITAP_COMPLETE", "fish_complete")
    assert multitap("").out.startswith("plain,zoo_add\tzoo, listed ")


def test_files_that_may_not_be_read_are_left_to_the_commands():
    types = [param.type for command in DECLARED.values() for param in command.params]
    files = [kind for kind in types if isinstance(kind, click.Path)]

    assert len(files) > 20
    assert not any(kind.readable for kind in files)
