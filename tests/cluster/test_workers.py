"""One gateway in several processes."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import aiohttp
import anyio
import pytest
from msgspec import Raw

from multitap.cluster.coordinator import Coordinator
from multitap.control.client import ControlClient
from tests.cluster.clients import Refused, StatelessClient, connector
from tests.cluster.crowd import Crowd, NonceLedger, check
from tests.cluster.gateways import GatewayProcess, running
from tests.processes import descendants
from tests.waiting import PATIENCE, until, until_told, wait_for
from tests.zoo.ledger import Ledger
from tests.zoo.modes import command

YES = Raw(b'{"action":"accept","content":{"decision":"once"}}')
CALLS = 12
"""Enough that the system gives each worker some of them."""


def config_of(folder, **servers):
    path = Path(folder, "mcp.json")
    entries = {}
    for name, ledger in servers.items():
        ledger.folder.mkdir(exist_ok=True)
        program, *args = command("good")
        entries[name] = {"command": program, "args": args, "env": ledger.env}
    path.write_text(json.dumps({"mcpServers": entries}))
    return path


def test_the_port_of_workers_is_closed_to_confined_servers_as_long_as_one_listens(tmp_path):
    gateway = GatewayProcess(tmp_path, config_of(tmp_path), "--workers", "2")
    records = gateway.state / "multitap" / "ports"
    with running(gateway):
        wait_for(
            lambda: (
                {path.name for path in records.glob("*-*")}
                == {
                    f"{pid}-{gateway.port}"
                    for pid in (gateway.process.pid, *_children(gateway.process.pid))
                }
            )
        )
    assert not [*records.glob("*-*")]


def test_a_second_gateway_does_not_share_the_port(tmp_path):
    config = config_of(tmp_path)
    gateway = GatewayProcess(tmp_path, config, "--workers", "2")
    with running(gateway):
        command = [
            *(sys.executable, "-m", "multitap", "--config", str(config), "serve"),
            *("--http", f"127.0.0.1:{gateway.port}", "--workers", "2"),
        ]
        second = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    assert second.returncode == 3
    assert "Address already in use" in second.stderr


async def test_workers_share_a_port_and_run_each_server_once(tmp_path):
    ledgers = {name: Ledger(tmp_path / name) for name in ("one", "two")}
    gateway = GatewayProcess(tmp_path, config_of(tmp_path, **ledgers), "--workers", "2")
    with running(gateway):
        async with aiohttp.ClientSession(connector=connector()) as http:
            client = StatelessClient(http, gateway.url)
            with anyio.fail_after(PATIENCE):
                for name in ledgers:
                    for n in range(8):
                        result = await client.call(f"{name}_echo", {"text": f"{n}"})
                        assert result["content"][0]["text"] == f"{n}"
            assert [len(one.pids) for one in ledgers.values()] == [1, 1]

            # starved of processor time, as on a busy machine: their servers stay as they are
            for worker in _children(gateway.process.pid):
                os.kill(worker, signal.SIGSTOP)
                await anyio.sleep(1.5 * Coordinator.lease_ttl)
                os.kill(worker, signal.SIGCONT)
            with anyio.fail_after(PATIENCE):
                for name in ledgers:
                    assert (await client.call(f"{name}_echo", {"text": "x"}))["content"]
            assert [len(one.pids) for one in ledgers.values()] == [1, 1]

            doomed = _children(gateway.process.pid)[0]
            os.kill(doomed, signal.SIGKILL)
            wait_for(
                lambda: doomed not in (found := _children(gateway.process.pid)) and len(found) == 2
            )
            with anyio.fail_after(PATIENCE):
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
            with anyio.fail_after(PATIENCE):
                for n in range(16):
                    await client.call("one_echo", {"text": f"{n}"})

                async def are_counted():
                    return await _calls(http, origin) == {16}

                # each worker looks once a second who else is there
                await until_told(are_counted)
                link = re.search("key=(.+)", gateway.ask("console"))[1]
                entered = [await _enter(http, origin, link) for _ in range(4)]
                cookies = entered[0][1]
                seen = [await _status(http, f"{origin}/console/", cookies) for _ in range(6)]
        # a worker that is starved for seconds counts as missing, and is reported as such
        stats = wait_for(lambda: _stats(gateway, missing=0))
        reloaded = json.loads(gateway.ask("reload", "--json"))
        # the first worker has the control socket
        silent = max(_children(gateway.process.pid))
        os.kill(silent, signal.SIGSTOP)
        partial = wait_for(lambda: _stats(gateway, missing=1))
        os.kill(silent, signal.SIGCONT)

    assert stats["servers"]["one"]["total"]["calls"] == 16
    assert partial["servers"].get("one", {"total": {"calls": 0}})["total"]["calls"] < 16
    assert [one["gateway"] for one in reloaded] == [gateway.process.pid]
    assert [status for status, _ in entered] == [200, 401, 401, 401]
    assert set(seen) == {200}


@pytest.mark.timeout(300)
async def test_what_is_followed_comes_from_all_workers(tmp_path, monkeypatch):
    ledgers = {name: Ledger(tmp_path / name) for name in ("one", "two")}
    gateway = GatewayProcess(tmp_path, config_of(tmp_path, **ledgers), "--workers", "2")
    with (
        running(gateway),
        gateway.following("logs", "--follow") as log,
        gateway.following("trace", "one") as one,
        gateway.following("trace", "two") as two,
    ):
        async with aiohttp.ClientSession(connector=connector()) as http:
            client, batches = StatelessClient(http, gateway.url), 0

            async def are_told():
                """Whether all of them show each call of one batch, once."""
                before = [told().count(word) for told, word in shown]
                for name in ledgers:
                    for _ in range(CALLS):
                        await client.call(f"{name}_echo", {"text": "x"})

                def seen():
                    now = [told().count(word) for told, word in shown]
                    return [n - m for n, m in zip(now, before, strict=True)]

                with anyio.move_on_after(5):
                    while any(map(int.__lt__, seen(), expected)):
                        await anyio.sleep(0.05)
                # one that shows too much is given the time to do so
                await anyio.sleep(0.5)
                return seen() == expected

            shown = [(log, "echo: ok"), (one, "-> "), (two, "-> ")]
            expected = [2 * CALLS, CALLS, CALLS]
            with anyio.fail_after(280):
                # the commands start, and each worker is told a moment later who follows
                while not await are_told():
                    batches += 1
                monkeypatch.setenv("XDG_STATE_HOME", str(gateway.state))
                screen = ControlClient(gateway.control_socket)
                made = (batches + 1) * 2 * CALLS
                async with screen.pulses(0, most=2 * CALLS, every=0.05) as pulses:
                    async for pulse in pulses:
                        # it looks once a second who else is there
                        if pulse.made == made:
                            break
                await client.call("one_echo", {"text": "x"})

                async def latest():
                    return (await screen.pulse(made, 10)).records

                records = await until_told(latest)

    assert [record.tool for record in records] == ["echo"]


async def test_questions_of_all_workers_are_answered_at_one_screen(tmp_path, monkeypatch):
    program, *args = command("good")
    rule = {"decision": "ask", "tools": ["echo"]}
    entry = {"command": program, "args": args, "policy": [rule]}
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"one": entry}}))
    gateway = GatewayProcess(tmp_path, config, "--workers", "2")
    answered = 0

    async def call(client):
        nonlocal answered
        while True:
            # a worker learns within a second which others there are, whose questions to show
            with suppress(Refused):
                await client.call("one_echo", {"text": "x"})
                break
        answered += 1

    with running(gateway):
        monkeypatch.setenv("XDG_STATE_HOME", str(gateway.state))
        screen = ControlClient(gateway.control_socket)
        async with aiohttp.ClientSession(connector=connector()) as http:
            with anyio.fail_after(PATIENCE):
                client = StatelessClient(http, gateway.url)
                async with anyio.create_task_group() as tasks:
                    for _ in range(CALLS):
                        tasks.start_soon(call, client)
                    while answered < CALLS:
                        for question in await screen.questions():
                            await screen.answer_question(question.number, YES)
                        await anyio.sleep(0.05)

    assert answered == CALLS


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_worker_that_hangs_is_ended_before_another_one_runs_its_server(tmp_path):
    ledger = Ledger(tmp_path / "one")
    gateway = GatewayProcess(tmp_path, config_of(tmp_path, one=ledger), "--workers", "2")
    with running(gateway):
        (server,) = wait_for(lambda: ledger.pids)
        (owner,) = [pid for pid in _children(gateway.process.pid) if server in descendants(pid)]
        os.kill(owner, signal.SIGSTOP)
        wait_for(lambda: len(ledger.pids) > 1, patience=200)

        assert not Path(f"/proc/{owner}").exists()
        assert not Path(f"/proc/{server}").exists()
        wait_for(lambda: len(_children(gateway.process.pid)) == 2)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_call_is_lost_when_one_worker_after_another_leaves(tmp_path):
    ledger, crowd = NonceLedger(tmp_path), Crowd(pause=0.2)
    gateway = GatewayProcess(tmp_path, ledger.config(), "--workers", "2")
    with running(gateway):
        async with crowd.at_work(gateway.url, stateless=5, handshake=5):
            for leaving in _children(gateway.process.pid):
                os.kill(leaving, signal.SIGTERM)
                await until(lambda leaving=leaving: not Path(f"/proc/{leaving}").exists())
                await crowd.wait_served()
    await until(lambda: not ledger.left)

    check(crowd, ledger)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_gateway_that_stops_answers_every_call_that_was_executed(tmp_path):
    ledger, crowd = NonceLedger(tmp_path), Crowd(pause=0.5)
    gateway = GatewayProcess(tmp_path, ledger.config(), "--workers", "2")
    with running(gateway):
        async with crowd.at_work(gateway.url, stateless=5, handshake=5, is_lasting=False):
            gateway.signal(signal.SIGTERM)
            await until(lambda: gateway.process.poll() is not None)
    await until(lambda: not ledger.left)

    assert "another replica" not in gateway.log.read_text()
    assert ledger.executed.keys() == crowd.answered
    assert set(ledger.executed.values()) == {1}


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
            text = await response.text()
            calls = re.findall(r'mcp_server_operation_\w+_count\{.*server="one".*\} (\d+)', text)
            found.add(sum(map(int, calls)))
    return found


def _stats(gateway, *, missing):
    """What `multitap stats` counts, if that many workers do not answer."""
    stats = json.loads(gateway.ask("stats", "--json"))
    return stats if stats["missing_workers"] == missing else None


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
