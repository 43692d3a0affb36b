"""Servers that run in a sandbox, as a hub starts them."""

import asyncio
import json
import os
import shutil
import socket
import sys
import threading
import venv
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from multitap import Settings, StdioServer, open_hub
from multitap.config.models import SandboxRules
from multitap.http.server.server import open_listener
from multitap.sandbox.levels import sandbox_support
from tests.waiting import until

PROGRAM = Path(__file__).parent.parent / "attacks" / "confined_server.py"
SUPPORT = sandbox_support()
pytestmark = pytest.mark.skipif(SUPPORT.reason is not None, reason=str(SUPPORT.reason))


@pytest.fixture(autouse=True)
def with_sandboxes(monkeypatch, tmp_path, own_logins):
    monkeypatch.delenv("MULTITAP_SANDBOX")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "user" / ".ssh").mkdir(parents=True)
    (tmp_path / "user" / ".ssh" / "id_rsa").write_text("a key")
    (tmp_path / "user" / "notes.txt").write_text("a note")


def confined(tmp_path, provenance="registry", *, args=(), sandbox="strict", **rules):
    server = StdioServer(
        command=sys.executable,
        args=(str(PROGRAM), *args),
        provenance=provenance,
        pin="off",
        sandbox=sandbox,
        sandbox_rules=SandboxRules(**rules),
    )
    return Settings(servers={"s": server}, state_dir=tmp_path / "state")


async def asked(hub, tool, **arguments):
    result = await hub.call(f"s_{tool}", arguments)
    return result.output if result.success else f"refused: {result.error}"


@pytest.fixture
def web():
    """A server on this machine that a program in a sandbox may want to reach."""

    class Hello(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hello)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
async def no_thread_left():
    """The loop looks up the proxy's hosts in a thread, which it keeps."""
    yield
    await asyncio.get_running_loop().shutdown_default_executor()


@pytest.mark.usefixtures("no_thread_left")
async def test_files_and_hosts_are_those_of_the_rules(tmp_path, web):
    user = tmp_path / "user"
    (tmp_path / "open").mkdir()
    rules = {"write": [str(tmp_path / "open")], "hosts": [f"127.0.0.1:{web}"]}
    async with open_hub(confined(tmp_path, **rules)) as hub:
        await hub.settled()

        assert "PermissionError" in await asked(hub, "read", path=str(user / ".ssh/id_rsa"))
        assert "PermissionError" in await asked(hub, "read", path=str(user / "notes.txt"))
        assert "PermissionError" in await asked(hub, "write", path=str(user / "new"))
        assert await asked(hub, "write", path=str(tmp_path / "open/new")) == "1"
        assert await asked(hub, "fetch", url=f"http://127.0.0.1:{web}/") == "hello"
        assert "refused" in await asked(hub, "fetch", url="http://127.0.0.1:9/")
        assert "PermissionError" in await asked(hub, "connect", host="127.0.0.1", port=web)
        where = json.loads(await asked(hub, "where"))
        assert Path(where["cwd"]).is_relative_to(tmp_path / "state")
        assert where["cwd"] == where["home"]
        seen = hub.snapshot().server("s").sandbox
        assert seen is not None
        assert seen.confined
        assert [(one.host, one.connections) for one in seen.hosts] == [(f"127.0.0.1:{web}", 1)]
        assert any("127.0.0.1:9" in str(one) for one in seen.refused)


async def test_processes_and_memory_are_limited(tmp_path):
    rules = {"processes": 8, "memory": 256 * 1024 * 1024}
    async with open_hub(confined(tmp_path, **rules)) as hub:
        await hub.settled()

        assert await asked(hub, "fork", count=5) == "5"
        assert await asked(hub, "fork", count=50) == "7"  # and the server itself
        assert await asked(hub, "threads", count=30) == "30"
        assert await asked(hub, "allocate", bytes=16 * 1024 * 1024) == str(16 * 1024 * 1024)
        assert "MemoryError" in await asked(hub, "allocate", bytes=512 * 1024 * 1024)
        await until(lambda: hub.snapshot().server("s").sandbox.refused)
        [refused] = hub.snapshot().server("s").sandbox.refused
        assert refused.host == "another process"


@pytest.mark.parametrize("proc", [False, True])
async def test_a_child_reads_about_itself_only_by_a_rule(tmp_path, proc):
    async with open_hub(confined(tmp_path, proc=proc)) as hub:
        await hub.settled()
        own = await asked(hub, "read_in_child", path="/proc/self/status")

        assert "Name:" in await asked(hub, "read", path="/proc/self/status")
        assert ("Name:" if proc else "PermissionError") in own
        for other in (os.getpid(), f"self/../{os.getpid()}"):
            assert "PermissionError" in await asked(
                hub, "read_in_child", path=f"/proc/{other}/cmdline"
            )


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import nowhere_to_be_found", "install the Python package"),
        ("import os; os.abort()", "`multitap logs s`"),
        ("import sys; sys.exit('EAI_AGAIN example.com')", ""),
    ],
    ids=["a module is missing", "it says nothing", "it says that it was refused"],
)
async def test_a_confined_server_that_does_not_come_up_hints_at_the_sandbox(tmp_path, code, words):
    settings = confined(tmp_path)
    server = settings.servers["s"].replace(args=("-c", code))
    async with open_hub(settings.replace(servers={"s": server})) as hub:
        await hub.settled()
        failure = hub.snapshot().server("s").failure

        assert failure is not None
        assert words in failure.hint
        assert "`multitap sandbox learn s`" in failure.hint


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("open('{key}')", "denies it {key}: `multitap sandbox allow s --read {key}` opens that"),
        ("import time; time.sleep(60)", "under `guard`: `multitap sandbox set s off`"),
        ("raise SystemExit(1)", "under `guard`: `multitap sandbox set s off`"),
    ],
    ids=["it names a path", "it hangs", "it says nothing"],
)
async def test_a_failure_under_guard_says_what_was_denied_or_how_to_try_without(
    tmp_path, code, hint
):
    key = tmp_path / "user/.ssh/id_rsa"
    settings = confined(tmp_path, sandbox="guard")
    changes = {"args": ("-c", code.format(key=key)), "connect_timeout": 2.0}
    server = settings.servers["s"].replace(**changes)
    async with open_hub(settings.replace(servers={"s": server})) as hub:
        await hub.settled()
        failure = hub.snapshot().server("s").failure

        assert failure is not None
        assert hint.format(key=key) in failure.hint
        assert "connect_timeout" not in failure.hint


@pytest.mark.parametrize("provenance", ["user", "registry", "project"])
async def test_an_editable_install_is_found_unless_a_project_brought_it(tmp_path, provenance):
    place = tmp_path / "project"
    venv.create(place / ".venv", symlinks=True)
    (place / "src").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "installed_in_place.py").write_text(PROGRAM.read_text())
    [packages] = (place / ".venv").glob("lib/python3*/site-packages")
    (packages / "_editable.pth").write_text(f"{tmp_path / 'elsewhere'}\n/\n{tmp_path / 'user'}\n")
    settings = confined(tmp_path, provenance)
    changes = {
        "command": str(place / ".venv/bin/python"),
        "args": ("-m", "installed_in_place"),
        "cwd": place,
    }
    server = settings.servers["s"].replace(**changes)
    async with open_hub(settings.replace(servers={"s": server})) as hub:
        await hub.settled()

        seen = hub.snapshot().server("s")
        assert seen.sandbox.confined
        assert seen.state == ("error" if provenance == "project" else "connected")
        if provenance != "project":
            note = await asked(hub, "read", path=str(tmp_path / "user" / "notes.txt"))
            assert "PermissionError" in note


STRANGERS = ("project", "link", "file", "pipe", "registry", "bundle")


@pytest.mark.parametrize("provenance", ["user", *STRANGERS])
async def test_who_described_a_server_decides_its_level(tmp_path, provenance):
    async with open_hub(confined(tmp_path, provenance, sandbox="auto")) as hub:
        await hub.settled()
        key = await asked(hub, "read", path=str(tmp_path / "user" / ".ssh/id_rsa"))

        level = hub.snapshot().server("s").sandbox.level
        assert (level, key) == ("off", "a key") or (level == "guard" and "PermissionError" in key)
        assert (level == "guard") is (provenance in STRANGERS)


async def test_the_default_level_is_a_setting_that_a_project_cannot_lower(tmp_path):
    loose = confined(tmp_path, "project", sandbox="off")
    async with open_hub(loose.replace(sandbox="strict")) as hub:
        await hub.settled()

        assert hub.snapshot().server("s").sandbox.level == "strict"
        hub.apply(loose.replace(sandbox="guard"))
        hub.restart("s")
        await until(lambda: hub.snapshot().server("s").sandbox.level == "guard")


async def test_under_guard_private_places_are_closed_and_the_rest_is_as_usual(tmp_path):
    user = tmp_path / "user"
    shown = user / "shown"
    for folder in (shown, user / ".config/gh", user / "work"):
        folder.mkdir(parents=True)
    (user / ".config/gh/hosts.yml").write_text("a token")
    (user / ".bash_history").write_text("a command")
    (user / ".config/app.conf").write_text("a setting")
    async with open_hub(confined(tmp_path, args=(str(shown), str(user)), sandbox="guard")) as hub:
        await hub.settled()

        assert await asked(hub, "read", path=str(user / "notes.txt")) == "a note"
        assert await asked(hub, "read", path=str(user / ".config/app.conf")) == "a setting"
        for private in (".ssh/id_rsa", ".config/gh/hosts.yml", ".bash_history"):
            assert "PermissionError" in await asked(hub, "read", path=str(user / private)), private
        (tmp_path / "state" / "other").write_text("ours")
        assert "PermissionError" in await asked(hub, "read", path=str(tmp_path / "state/other"))
        assert await asked(hub, "write", path=str(shown / "new")) == "1"
        for closed in ("new", "work/new", ".bashrc"):
            assert "PermissionError" in await asked(hub, "write", path=str(user / closed)), closed
        where = json.loads(await asked(hub, "where"))
        assert Path(where["home"]).is_relative_to(tmp_path / "state")
        assert await asked(hub, "write", path=f"{where['home']}/new") == "1"
        assert "PermissionError" in await asked(hub, "read", path=f"/proc/{os.getpid()}/cmdline")


async def test_under_guard_folders_around_private_places_can_be_listed_and_no_more(tmp_path):
    user = tmp_path / "user"
    async with open_hub(confined(tmp_path, sandbox="guard")) as hub:
        await hub.settled()

        assert {".ssh", "notes.txt"} <= {*json.loads(await asked(hub, "list", path=str(user)))}
        assert "etc" in json.loads(await asked(hub, "list", path="/"))
        assert "PermissionError" in await asked(hub, "list", path=str(user / ".ssh"))
        by_folder = await asked(hub, "read_by_folder", folder=str(user), name=".ssh/id_rsa")
        assert "PermissionError" in by_folder
        assert await asked(hub, "read_by_folder", folder=str(user), name="notes.txt") == "a note"


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "127.0.0.2"])
async def test_under_guard_a_server_listens_but_never_where_a_gateway_is_or_was(tmp_path, host):
    async with open_hub(confined(tmp_path, sandbox="guard")) as hub:
        await hub.settled()
        with open_listener("127.0.0.1", 0) as gateway:
            gateway.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            port = gateway.getsockname()[1]
            assert "Address already in use" in await asked(hub, "listen", host=host, port=port)
        assert await asked(hub, "listen", host=host, port=port) == "listening"
        with open_listener("127.0.0.1", port):
            pass

        assert "Address already in use" in await asked(hub, "listen", host=host, port=port)
        assert await asked(hub, "listen", host=host, port=0) == "listening"


@pytest.mark.parametrize("swapped", ["folder", "parent"])
async def test_a_link_that_appears_later_opens_nothing(tmp_path, swapped):
    user, shown = tmp_path / "user", tmp_path / "data" / "shown"
    shown.mkdir(parents=True)
    (user / "shown").mkdir()
    async with open_hub(confined(tmp_path, args=(str(shown),), sandbox="guard")) as hub:
        await hub.settled()
        assert await asked(hub, "write", path=str(shown / "new")) == "1"
        place = shown if swapped == "folder" else shown.parent
        shutil.rmtree(place)
        place.symlink_to(user)

        assert "PermissionError" in await asked(hub, "write", path=str(shown / "new"))


async def test_a_program_that_ends_without_proc_starts_again_with_its_own(tmp_path):
    launcher = tmp_path / "launcher.py"
    needs = f"""
try:
    open('/proc/self/cgroup').close()
except OSError:
    raise SystemExit("StackOverflow")
import runpy
runpy.run_path({str(PROGRAM)!r})
"""
    launcher.write_text(
        f"import subprocess, sys\ncommand = [sys.executable, '-c', {needs!r}]\n"
        "sys.exit(subprocess.run(command).returncode)"
    )
    settings = confined(tmp_path, sandbox="guard")
    server = settings.servers["s"].replace(args=(str(launcher),))
    async with open_hub(settings.replace(servers={"s": server})) as hub:
        await hub.settled()

        assert hub.snapshot().server("s").state == "connected"
        other = await asked(hub, "read", path=f"/proc/{os.getpid()}/cmdline")
        assert "PermissionError" in other


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.usefixtures("no_thread_left")
async def test_bubblewrap_hides_what_the_kernel_s_rules_only_close(tmp_path, web):
    user = tmp_path / "user"
    (tmp_path / "open").mkdir()
    settings = confined(
        tmp_path, "user", write=[str(tmp_path / "open")], hosts=[f"127.0.0.1:{web}"], processes=8
    )
    server = settings.servers["s"].replace(sandbox="bubblewrap")
    async with open_hub(settings.replace(servers={"s": server})) as hub:
        await hub.settled()

        assert hub.snapshot().server("s").sandbox.confined
        assert "FileNotFoundError" in await asked(hub, "read", path=str(user / ".ssh/id_rsa"))
        assert "refused" in await asked(hub, "read", path=str(user / "notes.txt"))
        assert "refused" in await asked(hub, "write", path=str(user / "new"))
        assert await asked(hub, "write", path=str(tmp_path / "open/new")) == "1"
        assert (tmp_path / "open" / "new").read_text() == "x"
        assert await asked(hub, "fetch", url=f"http://127.0.0.1:{web}/") == "hello"
        assert "refused" in await asked(hub, "connect", host="127.0.0.1", port=web)
        assert int(await asked(hub, "fork", count=50)) < 8
        assert "refused" in await asked(hub, "read", path=f"/proc/{os.getpid()}/environ")


async def test_bubblewrap_that_is_missing_is_an_error_in_words(tmp_path, monkeypatch):
    settings = confined(tmp_path, "user")
    server = settings.servers["s"].replace(sandbox="bubblewrap")
    monkeypatch.setenv("PATH", str(tmp_path))
    async with open_hub(settings.replace(servers={"s": server})) as hub:
        await hub.settled()

        assert "bubblewrap is not installed" in str(hub.snapshot().server("s").failure)
