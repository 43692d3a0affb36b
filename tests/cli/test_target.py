"""Commands that speak to a running gateway, each a process of its own."""

import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from multitap.cli.app import run
from multitap.control.places import folder
from tests.cli.conftest import Ended, toml, zoo
from tests.processes import descendants
from tests.waiting import PATIENCE, wait_for
from tests.zoo.ledger import Ledger

HEADERS = {
    "Content-Type": "application/json",
    "Accept": "application/json, text/event-stream",
}


@dataclass
class World:
    """A folder with a configuration, and the gateways that run by it."""

    folder: Path
    processes: list[subprocess.Popen] = field(default_factory=list)

    @property
    def env(self):
        return {
            **os.environ,
            "HOME": str(self.folder),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "MULTITAP_CONFIG": str(self.folder / "multitap.toml"),
        }

    @property
    def sockets(self):
        return {
            int(path.stem) for path in folder(self.folder / "state" / "multitap").glob("*.sock")
        }

    def configure(self, **servers):
        lines = ["auto_reload = false"]
        for name, server in servers.items():
            lines += [f"[servers.{name}]", *(f"{key} = {toml(server[key])}" for key in server)]
        (self.folder / "multitap.toml").write_text("\n".join(lines))

    def start(self, *arguments, **more):
        """Run a command beside us, in the folder."""
        process = subprocess.Popen(
            [sys.executable, "-m", "multitap", *arguments],
            cwd=self.folder,
            env=self.env,
            text=True,
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **more},
        )
        self.processes.append(process)
        return process

    def serve(self, *arguments, **more):
        """A gateway that can be reached."""
        process = self.start("serve", *arguments, **more)
        wait_for(lambda: process.pid in self.sockets or process.poll() is not None)
        assert process.poll() is None
        return process

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
            process.wait(PATIENCE)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    pipe.close()


def read_until(screen, words):
    """What a terminal shows up to some words."""
    seen = b""
    while words not in seen:
        assert select.select([screen], [], [], PATIENCE)[0]
        seen += screen.read(4096)
    return seen


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """One gateway for all tests that only look at it."""
    world = World(tmp_path_factory.mktemp("world"))
    world.ledger = Ledger(world.folder)
    world.configure(
        zoo=zoo("good", env=world.ledger.env),
        off={"command": "x", "enabled": False},
        no={"command": "nope"},
    )
    try:
        world.gateway = world.serve("--http", "127.0.0.1:0", stderr=subprocess.DEVNULL)
        wait_for(lambda: "tools/list" in world.ledger.methods)
        yield world
    finally:
        world.end()


@pytest.fixture
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("world"))
    yield world
    world.end()


@pytest.fixture
def typed(monkeypatch, capsys):
    """Runs a command line in this process, in the folder of a world."""

    def run_in(world, line):
        monkeypatch.chdir(world.folder)
        for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "MULTITAP_CONFIG"):
            monkeypatch.setenv(name, world.env[name])
        code = run(shlex.split(line))
        written = capsys.readouterr()
        return Ended(code, written.out, written.err)

    return run_in


def post(url, body, session=None):
    headers = HEADERS | ({"Mcp-Session-Id": session} if session else {})
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=PATIENCE) as reply:
        return reply.headers.get("Mcp-Session-Id"), reply.read()


def client(url, name):
    """A session of the handshake era."""
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": name, "version": "7"},
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    session, _ = post(url, request)
    post(url, {"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
    return session


def call(url, session, tool, **arguments):
    params = {"name": tool, "arguments": arguments}
    request = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
    return post(url, request, session)[1]


def address(typed, world):
    return typed(world, "stats --json").json["gateway"]["url"]


def test_status_is_that_of_the_gateway_and_starts_nothing(served, typed):
    wait_for(lambda: "  connected  " in typed(served, "status").out)
    started = len(served.ledger.starts)

    ended = typed(served, "status")
    as_json = typed(served, "status --json")

    assert ended.code == 4
    assert f"from the gateway with pid {served.gateway.pid} (http://127.0.0.1:" in ended.err
    assert [line.split()[:2] for line in ended.lines[1:]] == [
        ["zoo", "connected"],
        ["off", "disabled"],
        ["no", "error"],
    ]
    assert as_json.json["gateway"] == served.gateway.pid
    assert [server["name"] for server in as_json.json["servers"]] == ["zoo", "off", "no"]
    assert len(served.ledger.starts) == started == 1


def test_tools_are_those_of_the_gateway_and_the_same_as_without_it(served, typed):
    wait_for(lambda: "zoo_echo" in typed(served, "tools --server zoo").out)

    live = typed(served, "tools --server zoo --json")
    started = len(served.ledger.starts)
    own = typed(served, "tools --server zoo --json --no-live --wait 1m")  # not what is stored

    assert live.json == own.json
    assert "from the gateway with" in live.err
    assert own.err == ""
    assert started == 1
    assert len(served.ledger.starts) == 2
    assert "no is not listed: the program 'nope' is not on the PATH" in typed(served, "tools").err


def test_what_is_not_there_is_said(served, typed):
    tools = typed(served, "tools --server zo")
    restart = typed(served, "restart zo")
    pid = typed(served, "status --live 1")

    assert [ended.code for ended in (tools, restart, pid)] == [2, 2, 2]
    assert "hint: did you mean `zoo`?" in tools.err
    assert "hint: did you mean `zoo`?" in restart.err
    assert "error: no gateway runs with pid 1\n" in pid.err
    assert f"hint: running: the gateway with pid {served.gateway.pid} (" in pid.err


def test_stats_count_calls_errors_times_and_clients(served, typed):
    url = address(typed, served)
    session = client(url, "a test")
    assert b"hi" in call(url, session, "zoo_echo", text="hi")
    call(url, session, "zoo_fail", message="no")

    ended = typed(served, "stats")
    figures = typed(served, "stats --json").json

    rows = {tuple(line.split()[:4]) for line in ended.lines}
    assert {("zoo", "(all)", "2", "1"), ("zoo", "echo", "1", "0")} <= rows
    assert "a test  7        2025-06-18" in ended.out
    assert "2 calls, 1 client, 1 session; up for " in ended.err
    assert figures["servers"]["zoo"]["tools"]["echo"]["p99"] > 0
    assert figures["clients"][0]["name"] == "a test"


@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
def test_logs_follow_what_happens(served, typed, as_json):
    url = address(typed, served)
    session = client(url, "follower")
    options = ["--json"] if as_json else []
    with served.start("logs", "-f", *options, stderr=subprocess.DEVNULL) as process:

        def heard():
            call(url, session, "zoo_echo", text="hi")
            return select.select([process.stdout], [], [], 0.1)[0]

        wait_for(heard)
        line = process.stdout.readline()
        process.send_signal(signal.SIGINT)

    assert process.returncode == 130
    if as_json:
        told = json.loads(line)
        assert (told["kind"], told["server"], told["tool"]) == ("call", "zoo", "echo")
    else:
        assert "  info     zoo  echo: ok (" in line


def test_a_second_gateway_with_the_same_files_is_mentioned_and_can_be_chosen(served, typed):
    with served.serve(stderr=subprocess.DEVNULL) as other:
        both = typed(served, "stats")
        first = typed(served, f"stats --live {served.gateway.pid}")
        reloaded = typed(served, "reload --json")
        other.kill()
        other.wait(PATIENCE)
        left = other.pid in served.sockets
        after = typed(served, "stats")

    assert f"from the gateway with pid {other.pid} (on stdio)" in both.err
    assert f"choose one with `--live PID`: {served.gateway.pid}\n" in both.err
    assert f"from the gateway with pid {served.gateway.pid} (http" in first.err
    assert {told["gateway"] for told in reloaded.json} == {other.pid, served.gateway.pid}
    assert left
    assert other.pid not in served.sockets
    assert f"from the gateway with pid {served.gateway.pid} (http" in after.err


def test_other_files_are_another_configuration(served, typed, tmp_path):
    other = tmp_path / "other.toml"
    other.touch()

    assert typed(served, f"stats -c {other}").code == 4
    assert typed(served, f"stats -c {other} --live {served.gateway.pid}").code == 0


def test_a_gateway_follows_its_files_on_request(world, typed):
    world.configure(one=zoo("good"))
    world.serve("--http", "127.0.0.1:0", stderr=subprocess.DEVNULL)
    world.configure(one=zoo("good"), off={"command": "x", "enabled": False})

    before = typed(world, "status")
    reloaded = typed(world, "reload")
    after = typed(world, "status")
    (world.folder / "multitap.toml").write_text("[servers")
    broken = typed(world, "reload")

    assert "the files now name other servers\nhint: `multitap reload`" in before.err
    assert (reloaded.code, reloaded.out) == (
        0,
        f"pid {world.processes[0].pid}: start off; keep one\n",
    )
    assert "off     disabled" in after.out
    assert "other servers" not in after.err
    assert (broken.code, broken.out) == (3, "")
    assert "the files cannot be read; nothing is changed" in broken.err
    assert "not valid TOML" in broken.err


def test_an_emptied_file_and_a_change_that_does_not_come_up_are_said_and_end_nothing(world, typed):
    world.configure(one=zoo("good"))
    world.serve("--http", "127.0.0.1:0", stderr=subprocess.DEVNULL)
    wait_for(lambda: typed(world, "status").code == 0)
    (world.folder / "multitap.toml").write_text("")
    emptied = typed(world, "reload"), typed(world, "status")
    world.configure(one={"command": "nope"})
    changed = typed(world, "reload")
    wait_for(lambda: typed(world, "status --json").json["servers"][0]["pending"])
    pending, machine = typed(world, "status"), typed(world, "status --json")
    call(address(typed, world), client(address(typed, world), "tester"), "one_pid")
    world.configure(one=zoo("good"))
    restored = typed(world, "reload"), typed(world, "status")

    assert [ended.code for ended in emptied] == [3, 3]
    assert "multitap.toml: error: is empty" in emptied[0].err
    assert "connected" in emptied[1].out
    assert "multitap.toml: error: is empty" in emptied[1].err
    assert "other servers" not in emptied[1].err
    assert "replace one" in changed.out
    assert pending.code == 4
    assert "connected" in pending.out
    assert "the changed configuration does not come up" in pending.out
    assert machine.json["servers"][0]["pending"]["code"] == "missing_program"
    assert "keep one" in restored[0].out
    assert [ended.code for ended in restored] == [0, 0]
    assert "does not come up" not in restored[1].out


@pytest.mark.parametrize("line", ["stats", "reload", "restart x", "logs -f"])
def test_without_a_gateway_the_way_to_one_is_said(multitap, line):
    ended = multitap(line)

    assert (ended.code, ended.out) == (4, "")
    assert ended.err.startswith("error: no gateway is serving this configuration\nhint: ")


def test_logs_need_a_server_or_a_gateway_to_follow(multitap):
    ended = multitap("logs")

    assert ended.code == 2
    assert ended.err.startswith("error: name a server, or use -f or --filter")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 0)]
)
def test_a_signal_ends_a_gateway_and_nothing_stays(world, number, code):
    world.configure(one=zoo("good"))
    process = world.serve("--http", "127.0.0.1:0", stderr=subprocess.PIPE)
    started = wait_for(lambda: descendants(process.pid))

    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE)

    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert world.sockets == set()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


def test_on_pipes_only_the_protocol_is_spoken_and_what_is_good_is_served(world):
    world.configure(one=zoo("good"), typo={"comand": "x"}, crashing=zoo("exit_at_start"))
    process = world.start("serve", stderr=subprocess.PIPE)
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}
    for message in (
        {"id": 1, "method": "initialize", "params": params},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
    ):
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    process.stdin.flush()
    answers = {}
    while len(answers) < 2:
        told = json.loads(process.stdout.readline())
        if "id" in told:
            answers[told["id"]] = told
    rest, err = process.communicate(timeout=PATIENCE)

    assert process.returncode == 0
    assert "one_echo" in {tool["name"] for tool in answers[2]["result"]["tools"]}
    assert not [line for line in rest.splitlines() if not json.loads(line)]
    assert err.count("neither `command` nor `url`") == 1
    assert "crashing: it exited with code 1 during the handshake: zoo: cannot open" in err
    assert "Traceback" not in err


def test_a_file_that_cannot_be_read_is_said_once_and_is_no_end(world):
    (world.folder / "multitap.toml").write_text("[servers")
    process = world.start("serve", stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=PATIENCE)

    assert (process.returncode, out) == (0, "")
    assert err.count("not valid TOML") == 1
    assert "no servers are configured" not in err


def test_a_port_that_is_taken_is_a_clear_error(world):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = world.start("serve", "--demo", "--http", str(port), stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=PATIENCE)

    words = f"error: cannot listen on 127.0.0.1:{port}: Address already in use\nhint: "
    assert (process.returncode, out) == (3, "")
    assert err.startswith(words)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("call zoo_add a=2 b=40", id="call"),
        pytest.param("call zoo_add a=two b=1", id="wrong arguments"),
        pytest.param("call zoo_ad a=2", id="unknown tool"),
        pytest.param("call zoo_fail message=ouch", id="tool that fails"),
        pytest.param("call no_tool", id="server that is down"),
        pytest.param("resources", id="resources"),
        pytest.param("resources --server nix", id="unknown server"),
        pytest.param("read memo://none", id="unknown resource"),
        pytest.param("prompts --json", id="prompts"),
        pytest.param("prompt zoo_none", id="unknown prompt"),
        pytest.param("read zoo://item/never --timeout 1.5", id="resource without an answer"),
        pytest.param("prompt zoo_greet name=never --timeout 1.5", id="prompt without an answer"),
    ],
)
def test_a_gateway_answers_as_the_servers_do(served, typed, line):
    without = typed(served, f"{line} --no-live --wait 60")
    starts = len(served.ledger.starts)

    live = typed(served, line)

    first, *others = live.err.splitlines(keepends=True)
    assert first.startswith(f"from the gateway with pid {served.gateway.pid} ")
    assert (live.code, live.out, "".join(others)) == (without.code, without.out, without.err)
    assert len(served.ledger.starts) == starts


def test_a_gateway_has_nothing_to_say_about_commands_that_it_served(world, typed):
    world.configure(zoo=zoo("good"))
    told = world.folder / "told"
    with told.open("w") as stderr:
        gateway = world.serve("--http", "127.0.0.1:0", stderr=stderr)

    codes = [typed(world, "call zoo_echo text=hi").code for _ in range(5)]
    gateway.terminate()
    gateway.wait(PATIENCE)

    assert codes == [0] * 5
    assert [line for line in told.read_text().splitlines() if "xception" in line] == []


def test_ctrl_c_reaches_the_server_through_the_gateway(served):
    calls = served.ledger.methods.count("tools/call")
    with served.start("call", "zoo_sleep", "seconds=20", stderr=subprocess.DEVNULL) as calling:
        wait_for(lambda: served.ledger.methods.count("tools/call") > calls)
        before = served.ledger.methods.count("notifications/cancelled")
        calling.send_signal(signal.SIGINT)

        assert calling.wait(PATIENCE) == 130
    wait_for(lambda: served.ledger.methods.count("notifications/cancelled") > before)


def test_a_server_that_is_still_starting_is_waited_for_within_the_timeout(world, typed):
    world.configure(zoo=zoo("never_init"))
    world.serve("--http", "127.0.0.1:0", stderr=subprocess.DEVNULL)

    ended = [
        typed(world, f"{line} --timeout 0.5")
        for line in ("call zoo_echo text=hi", "read zoo://text", "prompt zoo_plain")
    ]

    assert [one.code for one in ended] == [4, 4, 4]
    assert all("zoo: it is still starting" in one.err for one in ended)


def test_progress_of_a_call_comes_through_the_gateway(served):
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        calling = served.start("call", "zoo_progress", "steps=3", "interval=0.2", stderr=theirs)
        os.close(theirs)
        seen = read_until(screen, b"3/3 step 3")
        out, _ = calling.communicate(timeout=PATIENCE)

    assert (calling.returncode, out) == (0, "3 steps\n")
    assert seen.startswith(b"from the gateway with pid ")


def test_a_failure_is_reported_once_and_again_when_it_changes(world, typed):
    why, starts = world.folder / "why", world.folder / "starts"
    why.write_text("cannot open the database")
    script = f'echo start >> {starts}; echo "error: $(cat {why})" >&2; exit 1'
    world.configure(moody={"command": "sh", "args": ["-c", script]})
    told = world.folder / "told"
    with told.open("w") as stderr:
        world.serve("--http", "127.0.0.1:0", stderr=stderr)

    def tried(times):
        def again():
            count = len(starts.read_text().split()) if starts.exists() else 0
            return count >= times or typed(world, "restart moody").code

        return again

    wait_for(lambda: "cannot open the database" in told.read_text())
    wait_for(tried(4))
    why.write_text("cannot open the port")
    wait_for(lambda: tried(5)() and "cannot open the port" in told.read_text())
    wait_for(tried(len(starts.read_text().split()) + 2))

    said = [line for line in told.read_text().splitlines() if line.startswith("moody: ")]
    assert [line.rpartition(": ")[2] for line in said] == [
        "cannot open the database",
        "cannot open the port",
    ]


def test_degradation_is_reported_once_and_shown_to_anybody_who_looks(world, typed):
    world.configure(one=zoo("good"))
    state = world.folder / "state" / "multitap"
    state.mkdir(parents=True, mode=0o700)
    (state / "multitap.sqlite3").write_bytes(b"not a database" * 100)
    told = world.folder / "told"
    with told.open("w") as stderr:
        world.serve("--http", "127.0.0.1:0", stderr=stderr)

    wait_for(lambda: "degraded: " in told.read_text())
    with urlopen(address(typed, world).removesuffix("mcp") + "health", timeout=PATIENCE) as reply:
        health = json.load(reply)
    shown, machine = typed(world, "status"), typed(world, "status --json")

    assert (health["status"], len(health["degraded"])) == ("degraded", 1)
    assert "it was moved to" in health["degraded"][0]
    assert shown.err.count(f"degraded: {health['degraded'][0]}\n") == 1
    assert machine.json["degraded"] == health["degraded"]
    assert told.read_text().count("degraded: ") == 1


def test_at_a_terminal_serve_says_what_it_waits_for(world):
    world.configure()
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        process = world.start("serve", stdin=theirs, stderr=theirs)
        os.close(theirs)
        seen = read_until(screen, b"--http")
        process.terminate()
        process.wait(PATIENCE)

    assert b"waiting for an MCP client on standard input" in seen
