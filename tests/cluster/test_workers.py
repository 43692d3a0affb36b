"""One gateway in several processes."""

import json
import os
import re
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


async def test_commands_and_pages_speak_for_all_workers(tmp_path):
    ledgers = {name: Ledger(tmp_path / name) for name in ("one", "two")}
    config = config_of(tmp_path, **ledgers)
    gateway = GatewayProcess(tmp_path, config, "--workers", "2", console=True)
    origin = gateway.url.removesuffix("/mcp")
    with running(gateway):
        # a connection for each request, so that both workers get some
        async with aiohttp.ClientSession(connector=connector()) as http:
            client = StatelessClient(http, gateway.url)
            with anyio.fail_after(50):
                for n in range(16):
                    await client.call("one_echo", {"text": f"{n}"})
                # each worker looks once a second who else is there
                while await _calls(http, origin) != {16}:
                    await anyio.sleep(0.1)
                link = re.search("key=(.+)", gateway.ask("console"))[1]
                entered = [await _enter(http, origin, link) for _ in range(4)]
                cookies = entered[0][1]
                seen = [await _status(http, f"{origin}/console/", cookies) for _ in range(6)]
        stats = json.loads(gateway.ask("stats", "--json"))
        reloaded = json.loads(gateway.ask("reload", "--json"))

    assert stats["servers"]["one"]["total"]["calls"] == 16
    assert [one["gateway"] for one in reloaded] == [gateway.process.pid]
    assert [status for status, _ in entered] == [200, 401, 401, 401]
    assert set(seen) == {200}


async def test_nothing_outlives_a_parent_that_is_killed(tmp_path):
    ledger = Ledger(tmp_path / "one")
    gateway = GatewayProcess(tmp_path, config_of(tmp_path, one=ledger), "--workers", "2")
    with running(gateway):
        wait_for(lambda: ledger.pids)
        left = [*_children(gateway.process.pid), *ledger.pids]
        gateway.kill()

        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))


async def _calls(http, origin):
    """How many calls the metrics of several workers count."""
    found = set()
    for _ in range(6):
        async with http.get(f"{origin}/metrics") as response:
            lines = re.findall(r'calls_total\{server="one".*\} (\d+)', await response.text())
            found.add(sum(map(int, lines)))
    return found


async def _status(http, url, cookies):
    async with http.get(url, cookies=cookies) as response:
        return response.status


async def _enter(http, origin, key):
    headers = {"Origin": origin}
    async with http.post(f"{origin}/console/enter", data={"key": key}, headers=headers) as response:
        return response.status, {name: one.value for name, one in response.cookies.items()}


def _children(pid):
    listed = subprocess.run(
        ["ps", "--ppid", str(pid), "-o", "pid=,args="], capture_output=True, text=True, check=False
    ).stdout
    return [int(line.split()[0]) for line in listed.splitlines() if "multitap" in line]
