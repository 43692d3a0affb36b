"""Clients on pipes share one gateway in the background."""

import json
import os
import pty
import pwd
import shutil
import signal
import socket
import subprocess
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

import multitap
from multitap.control import places
from multitap.control.background import STRANGERS
from tests.attacks.ordinary_user import SEARCH, ordinary_python
from tests.cli.serve.machine import is_running, open_machine
from tests.waiting import wait_for

SOURCE = Path(multitap.__file__).parent


@pytest.fixture
def machine():
    with open_machine() as opened:
        yield opened


def test_many_clients_at_once_start_each_server_exactly_once(machine):
    machine.configure(machine.server("one") + machine.server("two"))

    clients = [machine.client() for _ in range(6)]
    for client in clients:
        client.greet()
    tools = [client.tools() for client in clients]
    pids = {client.call("one_pid") for client in clients}

    assert all("one_pid" in found and "two_pid" in found for found in tools)
    assert len(pids) == 1
    assert (machine.starts("one"), machine.starts("two")) == (1, 1)
    assert len(machine.running()) == 1


def test_a_client_that_comes_when_too_many_join_waits_for_its_turn(machine):
    machine.configure(machine.server("one"))
    first = machine.joined()
    pid = first.call("one_pid")
    (path,) = places.folder(machine.home / ".local/state/multitap").glob("background-*.sock")
    with ExitStack() as stack:
        for _ in range(STRANGERS):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        second = machine.joined()

    assert second.call("one_pid") == pid
    assert machine.starts("one") == 1
    assert len(machine.running()) == 1


def test_what_a_client_starts_is_small(machine):
    machine.configure(machine.server("one"))
    client = machine.joined()
    client.call("one_pid")

    status = Path(f"/proc/{client.process.pid}/status").read_text()

    resident = int(status.partition("VmRSS:")[2].split()[0])
    assert resident < 30 * 1024
    maps = Path(f"/proc/{client.process.pid}/maps").read_text()
    assert "pydantic" not in maps
    assert "uvloop" not in maps


def test_the_gateway_belongs_to_no_client(machine):
    machine.configure(machine.server("one"))
    client = machine.joined()

    pid = machine.pid

    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    parent, session = int(stat[1]), int(stat[3])
    assert parent != client.process.pid
    assert session != client.process.pid
    streams = _descriptors(pid)
    assert [streams.pop("0"), streams.pop("1")] == [os.devnull, os.devnull]
    assert streams.pop("2").startswith(str(machine.gateways))
    assert not {*streams.values()} & {*_descriptors(client.process.pid).values()}


def _descriptors(pid):
    descriptors = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            descriptors[path.name] = str(path.readlink())
    return descriptors


def test_a_client_that_is_killed_harms_no_other(machine, tmp_path):
    machine.configure(machine.server("one"))
    first = machine.joined()
    second = machine.joined()
    pid = machine.pid
    begun, until = tmp_path / "begun", tmp_path / "until"
    number = second.begin("one_slow", begun=str(begun), until=str(until))
    wait_for(begun.exists)

    first.kill()
    until.touch()

    assert second.answer(number)["result"]["content"][0]["text"] == "at last"
    assert second.call("one_echo", text="still here") == "still here"
    assert machine.pid == pid
    assert machine.starts("one") == 1


def test_the_death_of_the_gateway_is_an_error_for_its_calls_and_nothing_more(machine, tmp_path):
    machine.configure(machine.server("one"))
    client = machine.joined()
    client.tools()
    begun = tmp_path / "begun"
    number = client.begin("one_slow", begun=str(begun), until=str(tmp_path / "never"))
    wait_for(begun.exists)
    pid, server = machine.pid, int(machine.mark("one").read_text())

    os.kill(pid, signal.SIGKILL)

    error = client.answer(number)["error"]
    assert "may have run" in error["message"]
    assert client.call("one_echo", text="again") == "again"
    assert "notifications/tools/list_changed" in client.notifications
    wait_for(lambda: not is_running(server))
    assert machine.pid != pid


def test_it_ends_some_time_after_its_last_client(machine):
    machine.configure('[serve]\nkeep = "0.2s"\n' + machine.server("one"))
    client = machine.joined()
    client.call("one_pid")
    pid, server = machine.pid, int(machine.mark("one").read_text())

    assert client.leave() == 0

    wait_for(lambda: not is_running(server))
    wait_for(lambda: not is_running(pid))
    assert not [*machine.gateways.glob("*.sock")]


def test_a_server_outlives_the_client_that_started_it(machine):
    machine.configure(machine.server("one"))
    first = machine.joined()
    server = first.call("one_pid")
    first.leave()

    second = machine.joined()

    assert second.call("one_pid") == server
    assert machine.starts("one") == 1


def test_each_folder_has_its_own_workspace(machine):
    machine.configure(machine.server("one", "${workspaceFolder}"))
    here, there = machine.folder("here"), machine.folder("there")

    clients = [machine.joined(folder=folder) for folder in (here, there, here)]

    assert [client.call("one_arguments") for client in clients] == [
        str(here),
        str(there),
        str(here),
    ]
    assert machine.starts("one") == 2
    assert len(machine.running()) == 1


def test_two_projects_share_the_servers_of_their_user(machine):
    machine.configure(machine.server("one"))
    here, there = machine.folder("here"), machine.folder("there")
    first, second = machine.joined(folder=here), machine.joined(folder=there)
    assert first.tools() == second.tools()
    pids = {client.call("one_pid") for client in (first, second)}
    begun, until = machine.root / "begun", machine.root / "until"
    number = second.begin("one_slow", begun=str(begun), until=str(until))
    wait_for(begun.exists)

    first.kill()
    until.touch()

    assert second.answer(number)["result"]["content"][0]["text"] == "at last"
    assert {second.call("one_pid")} == pids
    assert machine.starts("one") == 1


def test_a_program_that_another_project_runs_can_be_restarted(machine):
    machine.configure(machine.server("one"))
    here, there = machine.folder("here"), machine.folder("there")
    first, second = machine.joined(folder=here), machine.joined(folder=there)
    before = {first.call("one_pid"), second.call("one_pid")}

    code, _, _ = machine.run("restart", "one", folder=there)

    assert code == 0
    wait_for(lambda: second.call("one_pid") not in before)
    assert first.call("one_pid") == second.call("one_pid")
    assert machine.starts("one") == 2


def test_a_program_goes_on_when_the_project_that_started_it_is_closed(machine):
    machine.configure('[serve]\nkeep = "0.2s"\n' + machine.server("one"))
    first = machine.joined(folder=machine.folder("here"))
    second = machine.joined(folder=machine.folder("there"))
    pid = first.call("one_pid")
    assert second.call("one_pid") == pid

    first.leave()

    answers = [second.call("one_pid") for _ in range(50)]
    assert {*answers} == {pid}
    second.leave()
    wait_for(lambda: not machine.running())
    assert machine.starts("one") == 1


def test_a_program_on_another_path_is_another_program(machine):
    machine.configure(machine.server("one").replace(machine.python, "tool"))
    for name in ("a", "b"):
        folder = machine.folder(name)
        (folder / "tool").write_text(f'#!/bin/sh\nexec {machine.python} "$@"\n')
        (folder / "tool").chmod(0o755)
    rest = machine.env["PATH"]

    first = machine.joined(env={"PATH": f"{machine.folder('a')}:{rest}"})
    second = machine.joined(env={"PATH": f"{machine.folder('b')}:{rest}"})
    third = machine.joined(env={"PATH": f"{machine.folder('a')}:{rest}:/nowhere"})

    pids = [client.call("one_pid") for client in (first, second, third)]
    assert pids[0] != pids[1]
    assert pids[0] == pids[2]


def test_a_server_that_knows_the_roots_of_one_client_serves_no_other(machine):
    machine.configure(machine.server("one") + machine.server("two"))
    clients = [machine.client() for _ in range(3)]
    for number, client in enumerate(clients):
        client.greet(roots=f"file:///root-{number}")

    seen = [client.call("one_roots") for client in clients]
    again = [client.call("one_roots") for client in reversed(clients)]

    assert seen == [f"file:///root-{number}" for number in range(3)]
    assert again == seen[::-1]
    assert len({client.call("one_pid") for client in clients}) == 3
    assert len({client.call("two_pid") for client in clients}) == 1
    assert machine.starts("two") == 1


def test_a_value_of_one_client_reaches_no_other_and_not_the_gateway(machine):
    machine.configure(machine.server("one", KEY="${KEY:-none}"))

    first = machine.joined(env={"KEY": "first-secret"})
    second = machine.joined(env={"KEY": "second-secret"})
    third = machine.joined()

    values = [client.call("one_variable", name="KEY") for client in (first, second, third)]
    assert values == ["first-secret", "second-secret", "none"]
    assert machine.starts("one") == 3
    own = Path(f"/proc/{machine.pid}/environ").read_bytes()
    assert b"secret" not in own


def test_a_variable_that_a_changed_file_names_is_asked_for(machine):
    machine.configure(machine.server("one"))
    client = machine.joined(env={"LATE": "the value"})
    assert client.call("one_pid")

    machine.configure(machine.server("one", LATE="${LATE}"))

    wait_for(lambda: client.call("one_variable", name="LATE") == "the value")


def test_a_profile_stays_with_its_client(machine):
    profiles = '[profiles.small]\nallow = ["one_echo"]\n'
    machine.configure(machine.server("one") + profiles)

    small, whole = machine.joined("--profile", "small"), machine.joined()

    assert small.tools() == {"one_echo"}
    assert "one_pid" in whole.tools()
    assert machine.starts("one") == 1


def test_a_profile_that_does_not_exist_is_an_error_in_words(machine):
    machine.configure(machine.server("one"))

    process = machine.start(
        "serve", "--profile", "none", stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        _, err = process.communicate()

    assert process.returncode == 3
    assert b"no profile named 'none'" in err


def test_alone_has_servers_of_its_own(machine):
    machine.configure(machine.server("one"))
    shared = machine.joined()

    alone = machine.joined("--alone")

    assert shared.call("one_pid") != alone.call("one_pid")
    assert machine.starts("one") == 2


def test_commands_use_it(machine):
    machine.configure(machine.server("one"))
    client = machine.joined()
    client.tools()

    code, out, err = machine.run("status")

    assert (code, machine.starts("one")) == (0, 1)
    assert "connected" in out
    assert f"pid {machine.pid}" in err


def test_a_command_joins_it_in_another_folder_and_starts_no_program_twice(machine):
    machine.configure(machine.server("one"))
    client = machine.joined(folder=machine.folder("here"))
    pid = client.call("one_pid")

    code, out, _ = machine.run("call", "one_folder", folder=machine.folder("there"))
    status = machine.run("status", folder=machine.folder("there"))

    assert (code, out.strip()) == (0, str(machine.home))
    assert (status[0], "connected" in status[1]) == (0, True)
    assert f"pid {machine.pid}" in status[2]
    assert client.call("one_pid") == pid
    assert machine.starts("one") == 1


def test_a_command_without_a_terminal_starts_none(machine):
    machine.configure(machine.server("one"))

    code, out, _ = machine.run("status")

    assert (code, "connected" in out) == (0, True)
    assert not machine.running()


def test_a_command_at_a_terminal_starts_one_that_the_next_one_finds(machine):
    machine.configure(machine.server("one"))
    machine.env["TERM"] = "xterm"
    ours, theirs = pty.openpty()
    try:
        with machine.start("status", stdin=theirs, stdout=theirs, stderr=theirs) as process:
            wait_for(lambda: process.poll() is not None)
    finally:
        os.close(theirs)
        os.close(ours)

    code, out, err = machine.run("status")

    assert (process.returncode, code, machine.starts("one")) == (0, 0, 1)
    assert "connected" in out
    assert f"pid {machine.pid} (in the background)" in err


def test_the_bundled_servers_are_found_where_nothing_is_configured(machine):
    with machine.start(
        "serve", "--demo", "--http", "127.0.0.1:0", stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            next(line for line in process.stderr if line.startswith("at "))
            wait_for(lambda: machine.run("status")[0] == 0)
            _, out, err = machine.run("status")
        finally:
            process.terminate()
            process.stderr.read()

    assert "calculator" in out
    assert f"pid {process.pid}" in err


def test_it_is_stopped_and_comes_back_with_the_next_request(machine):
    machine.configure(machine.server("one"))
    client = machine.joined()
    client.tools()
    pid, server = machine.pid, int(machine.mark("one").read_text())

    code, _, err = machine.run("stop")

    assert (code, err) == (0, f"stopped the gateway with pid {pid}\n")
    assert not machine.running()
    assert not is_running(server)
    assert machine.run("stop")[0] == 4
    assert client.call("one_echo", text="back") == "back"
    assert machine.pid != pid


def test_it_is_restarted_without_losing_a_call(machine):
    machine.configure(machine.server("one"))
    client = machine.joined()
    begun, until = machine.root / "begun", machine.root / "until"
    number = client.begin("one_slow", begun=str(begun), until=str(until))
    wait_for(begun.exists)
    pid = machine.pid

    code, _, err = machine.run("restart")

    assert (code, "takes over" in err) == (0, True)
    assert client.call("one_echo", text="new") == "new"
    until.touch()
    assert client.answer(number)["result"]["content"][0]["text"] == "at last"
    wait_for(lambda: not is_running(pid))
    assert machine.pid != pid


def test_notes_about_the_configuration_reach_the_client(machine):
    client = machine.joined()

    assert client.tools() == set()
    assert "no servers are configured" in (machine.root / "client.log").read_text()


def test_a_gateway_that_cannot_start_says_why(machine, tmp_path):
    copy = _copy(tmp_path, "0.1.0")
    (copy / "multitap/cli/serve/background.py").write_text("raise RuntimeError('out of order')\n")
    machine.configure(machine.server("one"))

    process = machine.start(
        "serve", env={"PYTHONPATH": str(copy)}, stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        _, err = process.communicate()

    assert process.returncode == 1
    assert b"did not start" in err
    assert b"out of order" in err
    assert b"--alone" in err


def _copy(tmp_path, version):
    """This program with another version."""
    copy = tmp_path / f"copy-{version}"
    shutil.copytree(SOURCE, copy / "multitap", ignore=shutil.ignore_patterns("__pycache__"))
    for file in SOURCE.parent.glob("_multitap.py"):
        shutil.copy(file, copy)
    path = copy / "multitap/version.py"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(
        "".join(
            f'VERSION = "{version}"\n' if line.startswith("VERSION =") else line for line in lines
        )
    )
    return copy


def test_an_upgrade_loses_no_call(machine, tmp_path):
    machine.configure(machine.server("one"))
    newer = {"PYTHONPATH": str(_copy(tmp_path, "99.0.0"))}
    client = machine.joined()
    client.call("one_pid")
    pid, over = machine.pid, threading.Event()
    answers = []

    def keep_calling():
        while not over.wait(0.01):
            answers.append(client.call("one_echo", text="x"))

    thread = threading.Thread(target=keep_calling)
    thread.start()
    begun, until = tmp_path / "begun", tmp_path / "until"
    other = machine.joined()
    number = other.begin("one_slow", begun=str(begun), until=str(until))
    wait_for(begun.exists)
    try:
        hello = machine.client(env=newer).greet()
        wait_for(lambda: len(machine.running()) == 2)
        before = len(answers)
        wait_for(lambda: len(answers) > before + 10)
    finally:
        over.set()
        thread.join()

    assert hello["serverInfo"]["version"] == "99.0.0"
    assert set(answers) == {"x"}
    until.touch()
    assert other.answer(number)["result"]["content"][0]["text"] == "at last"
    wait_for(lambda: not is_running(pid))
    assert other.call("one_echo", text="moved") == "moved"
    assert len(machine.running()) == 1


def test_an_older_client_joins_a_newer_gateway(machine, tmp_path):
    machine.configure(machine.server("one"))
    newer = {"PYTHONPATH": str(_copy(tmp_path, "99.0.0"))}
    first = machine.joined(env=newer)
    pid = machine.pid

    second = machine.joined()

    assert second.call("one_pid") == first.call("one_pid")
    assert machine.pid == pid


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_has_one_too(machine):
    nobody = pwd.getpwnam("nobody")
    machine.folder("work")
    machine.become(nobody, ordinary_python(), SEARCH)
    machine.configure(machine.server("one"))
    machine.become(nobody, machine.python, SEARCH)

    first, second = machine.joined(), machine.joined()

    assert first.call("one_pid") == second.call("one_pid")
    assert Path(f"/proc/{machine.pid}").stat().st_uid == nobody.pw_uid


@contextmanager
def _over_http(machine, *arguments):
    """While entered, a gateway over HTTP; yields its process."""
    with machine.start(
        "serve", "--http", "127.0.0.1:0", *arguments, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            next(line for line in process.stderr if line.startswith("at "))
            yield process
        finally:
            process.terminate()
            process.stderr.read()


def _hosts(machine, pid):
    """Whether clients on pipes join this process."""
    return f"pid {pid} serves" in machine.run("restart")[2]


def test_clients_on_pipes_share_the_servers_of_a_gateway_over_http(machine):
    machine.configure(machine.server("one"))
    with _over_http(machine) as process:
        wait_for(lambda: _hosts(machine, process.pid))

        pids = {machine.joined().call("one_pid") for _ in range(2)}
        code, _, err = machine.run("stop")

        assert pids == {machine.mark("one").read_text().strip()}
        assert not machine.running()
        assert (code, f"multitap stop --live {process.pid}" in err) == (4, True)
        assert process.poll() is None


def test_a_gateway_over_http_takes_over_the_clients_and_gives_them_back(machine):
    machine.configure(machine.server("one"))
    client = machine.joined()
    alone = client.call("one_pid")
    with _over_http(machine) as process:
        wait_for(lambda: _hosts(machine, process.pid))
        wait_for(lambda: not machine.running())

        shared = client.call("one_pid")

        assert shared != alone
        assert machine.joined().call("one_pid") == shared

    assert client.call("one_pid") not in {alone, shared}
    assert len(machine.running()) == 1


def test_a_gateway_over_http_may_keep_its_servers_to_itself(machine):
    machine.configure(machine.server("one"))
    with _over_http(machine, "--alone"):
        client = machine.joined()

        client.call("one_pid")

        assert machine.starts("one") == 2
        assert len(machine.running()) == 1


def test_it_has_a_page_once_somebody_wants_one(machine):
    machine.configure('[serve]\nkeep = "0.2s"\n' + machine.server("one"))
    client = machine.joined()
    client.tools()

    code, link, err = machine.run("console", "--no-open")

    assert (code, "in the background" in err) == (0, True)
    base = link.partition("/console")[0]
    browser = build_opener(HTTPCookieProcessor())
    assert browser.open(link.strip()).status == 200
    with pytest.raises(HTTPError, match="401"):
        browser.open(f"{base}/mcp")
    with browser.open(f"{base}/console/events") as page:
        assert page.readline() == b"event: frame\n"
        # it stays for the page, too
        client.leave()
        server = int(machine.mark("one").read_text())
        assert b"one" in page.readline()
        assert is_running(server)
        assert len(machine.running()) == 1
    wait_for(lambda: not machine.running())


def test_its_page_changes_the_files_of_its_clients(machine):
    path = machine.configure(machine.server("one"))
    client = machine.joined()
    client.tools()
    link = machine.run("console", "--no-open")[1]
    base = link.partition("/console")[0]
    browser = build_opener(HTTPCookieProcessor())
    browser.open(link.strip())

    def ask(method, **arguments):
        headers = {"Origin": base, "X-Multitap-Console": "1", "Content-Type": "application/json"}
        body = json.dumps(arguments).encode()
        with browser.open(Request(f"{base}/console/api/{method}", body, headers)) as response:
            return json.loads(response.read())

    ask("rename_server", server="one", name="first")
    ask("change_tool", server="first", tool="echo", name="say")
    found = ask("find_servers", text="fetch")
    with pytest.raises(HTTPError) as refused:
        ask("rename_server", server="first", name="first")
    problem = json.loads(refused.value.read())

    assert "[servers.first]" in path.read_text()
    wait_for(lambda: "first_say" in client.tools())
    assert "fetch" in {server["name"] for server in found["servers"]}
    assert "first" in str(problem)


def test_stop_and_restart_reach_gateways_of_other_surroundings(machine):
    machine.configure(machine.server("one"))
    first = machine.joined(env={"NO_PROXY": "localhost"})
    second = machine.joined()
    second.call("one_pid")
    before = machine.running()

    code, _, err = machine.run("restart")

    assert (code, err.count("takes over")) == (0, 2)
    assert first.call("one_echo", text="new") == "new"
    assert second.call("one_echo", text="new") == "new"
    wait_for(lambda: not {*machine.running()} & {*before})
    assert machine.run("stop")[0] == 0
    assert (len(before), machine.running()) == (2, [])


def test_a_server_that_offers_more_to_those_it_can_ask_has_no_new_tools_in_a_gateway(machine):
    machine.configure(machine.server("one"))
    before = machine.run("tools", "one")[1]
    client = machine.joined()

    tools = client.tools()
    _, status, err = machine.run("status")

    assert "one_ask" in before
    assert "one_ask" in tools
    assert "new" not in status + err
