"""One gateway in several processes."""

import json
import os
import signal
import subprocess
from pathlib import Path

import aiohttp
import anyio

from tests.cluster.clients import StatelessClient, connector
from tests.cluster.gateways import GatewayProcess, running
from tests.waiting import wait_for
from tests.zoo.ledger import Ledger
from tests.zoo.modes import command


def config_of(folder, **servers):
    path = Path(folder, "mcp.json")
    entries = {}
    for name, ledger in servers.items():
        ledger.folder.mkdir(exist_ok=True)
        program, *args = command("good")
        entries[name] = {"command": program, "args": args, "env": ledger.env}
    path.write_text(json.dumps({"mcpServers": entries}))
    return path


async def test_workers_share_a_port_and_run_each_server_once(tmp_path):
    ledgers = {name: Ledger(tmp_path / name) for name in ("one", "two")}
    gateway = GatewayProcess(tmp_path, config_of(tmp_path, **ledgers), "--workers", "2")
    with running(gateway):
        async with aiohttp.ClientSession(connector=connector()) as http:
            client = StatelessClient(http, gateway.url)
            with anyio.fail_after(50):
                for name in ledgers:
                    for n in range(8):
                        result = await client.call(f"{name}_echo", {"text": f"{n}"})
                        assert result["content"][0]["text"] == f"{n}"
            assert [len(one.pids) for one in ledgers.values()] == [1, 1]

            doomed = _children(gateway.process.pid)[0]
            os.kill(doomed, signal.SIGKILL)
            wait_for(
                lambda: doomed not in (found := _children(gateway.process.pid)) and len(found) == 2
            )
            with anyio.fail_after(50):
                for name in ledgers:
                    assert (await client.call(f"{name}_echo", {"text": "x"}))["content"]


def _children(pid):
    listed = subprocess.run(
        ["ps", "--ppid", str(pid), "-o", "pid=,args="], capture_output=True, text=True, check=False
    ).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "multitap" in line]
