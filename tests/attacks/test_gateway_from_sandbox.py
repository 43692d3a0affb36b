"""A confined server, which has the user of the gateway, tries to use it as that user."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from mcp import Client

from multitap.config.models import SandboxRules, StdioServer
from multitap.control.places import sockets
from multitap.sandbox.levels import sandbox_support
from multitap.sandbox.sandboxes import open_sandboxes
from multitap.wire.process import open_spawner
from tests.attacks import gateway_probes
from tests.attacks.served import asked, serving, status_of
from tests.gateway.hostile.raw import http
from tests.processes import descendants
from tests.waiting import PATIENCE, wait_for

SUPPORT = sandbox_support()
pytestmark = pytest.mark.skipif(SUPPORT.reason is not None, reason=str(SUPPORT.reason))
HEALTH = http("GET", "/health", connection="close")
REFUSED = ("PermissionError", "ConnectionRefusedError")


def own_addresses():
    """Addresses of this machine other than loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:  # it has no network
            return []
        return [probe.getsockname()[0]]


HOSTS = [
    *("127.0.0.1", "127.0.0.2", "0.0.0.0", "localhost", "::ffff:127.0.0.1", "::1", "::"),
    *("::ffff:0.0.0.0", *own_addresses()),
]


@pytest.fixture(params=[(), ("--workers", "2")], ids=["one process", "workers"])
def gateway(request, tmp_path, monkeypatch):
    """The port of a gateway of this user."""
    for name in ("DATA", "STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))
    with serving(tmp_path, *request.param) as (port, _):
        yield port


async def attempted(folder, gateway, level, *, hosts=HOSTS, **changed):
    """What becomes of each probe of a server that is confined at a level."""
    state = folder / "state" / "multitap"
    (control,) = sockets(state)
    world = {
        "port": gateway,
        "hosts": list(hosts),
        "control": str(control),
        "secret": str(state / "gateways" / "control.key"),
    }
    rules = SandboxRules(hosts=tuple(_rule(host, gateway) for host in hosts))
    config = StdioServer(
        command=sys.executable, provenance="project", sandbox=level, sandbox_rules=rules, cwd=folder
    )
    source = Path(gateway_probes.__file__).read_text()
    command = [sys.executable, "-I", "-S", "-c", source, json.dumps(world)]
    async with open_spawner() as spawner, open_sandboxes(state, SUPPORT) as sandboxes:
        base = {"PATH": os.environ["PATH"]}
        launch = await sandboxes.launch("probe", config, sys.executable, base)
        with launch, Path(os.devnull).open("r+b") as null:
            out_read, out_write = os.pipe()
            child = await spawner.spawn(
                *(sys.executable, command),
                env=launch.env,
                cwd=launch.cwd,
                pipes=(null.fileno(), out_write, null.fileno()),
                orders={**launch.orders, **changed},
            )
            os.close(out_write)
            with os.fdopen(out_read, "rb") as output:
                said = await anyio.to_thread.run_sync(output.read)
            with anyio.fail_after(PATIENCE):
                await child.exited.wait()
            await child.sweep()
    return json.loads(said)


def _rule(host, port):
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reached(outcomes):
    return {name: told for name, told in outcomes.items() if not told.startswith(REFUSED)}


@pytest.mark.usefixtures("own_executor")
@pytest.mark.parametrize("level", ["guard", "strict"])
async def test_a_confined_server_reaches_its_users_gateway_by_no_name(tmp_path, gateway, level):
    outcomes = await attempted(tmp_path, gateway, level)

    reached = _reached(outcomes)
    assert {name: told for name, told in reached.items() if " 403 Forbidden" not in told} == {}
    assert not [told for told in outcomes.values() if "calculator" in told]
    # and nobody else has to do anything for that
    assert status_of(asked(gateway, HEALTH)) == 200


async def test_the_gateway_refuses_a_confined_server_that_does_connect(tmp_path, gateway):
    outcomes = await attempted(
        tmp_path,
        gateway,
        "guard",
        hosts=["127.0.0.1"],
        closed_ports="",
    )

    assert " 403 Forbidden" in outcomes["network 127.0.0.1"]
    assert "confined servers" in outcomes["network 127.0.0.1"]
    assert outcomes["secret"].startswith("PermissionError")
    assert status_of(asked(gateway, HEALTH)) == 200


@pytest.fixture
def guarding(tmp_path):
    """The port of a gateway whose own server is confined, and runs."""
    with serving(tmp_path, sandbox="guard", MULTITAP_SANDBOX="on") as (port, process):
        wait_for(lambda: any(map(is_confined, descendants(process.pid))))
        yield port


def is_confined(pid):
    try:
        return "Seccomp:\t2" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("curl", "--silent", "{url}"), id="curl"),
        pytest.param(
            ("node", "-e", "fetch('{url}').then((one) => one.text()).then(console.log)"), id="node"
        ),
        pytest.param(
            (
                *("chromium", "--headless", "--disable-gpu", "--no-sandbox"),
                *("--user-data-dir={folder}/profile", "--dump-dom", "{url}"),
            ),
            id="browser",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_other_programs_of_the_user_need_no_token_beside_a_confined_server(
    tmp_path, guarding, command
):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    words = [
        word.format(url=f"http://127.0.0.1:{guarding}/health", folder=tmp_path) for word in command
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert '"status":"ok"' in done.stdout


async def test_a_client_of_the_sdk_needs_no_token_beside_a_confined_server(guarding):
    with anyio.fail_after(PATIENCE):
        async with Client(f"http://127.0.0.1:{guarding}/mcp") as client:
            tools = await client.list_tools()

    assert "calculator_add" in {tool.name for tool in tools.tools}
