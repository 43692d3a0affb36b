"""What several gateways count once, as real processes with homes of their own and a real Redis."""

import asyncio
import json
import sqlite3
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import aiohttp
import anyio
import pytest

from multitap import HttpServer
from multitap.config import OAuth
from multitap.oauth.account import Account
from multitap.oauth.storage import LoginStorage
from multitap.store.audit_log import AuditFile
from multitap.tasks import Tasks
from multitap.trust.stored_logins import TokenStore
from tests.cluster.clients import Refused, StatelessClient, connector
from tests.cluster.crowd import Crowd, NonceLedger
from tests.cluster.gateways import GatewayProcess, running
from tests.cluster.redis_server import running_redis
from tests.oauth.provider import Person, provided
from tests.trust.keyrings import no_keyring
from tests.waiting import until
from tests.zoo.ledger import Ledger
from tests.zoo.modes import command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def configured(folder, **servers):
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return path


def three(folder, config, redis_server):
    return [GatewayProcess(folder, config, "--cluster", redis_server.url) for _ in range(3)]


@asynccontextmanager
async def clients_of(gateways):
    async with aiohttp.ClientSession(connector=connector()) as http:
        yield [StatelessClient(http, one.url) for one in gateways]


async def answered(client, tool, arguments):
    """The first answer of a server that may still be on its way up."""
    while True:
        try:
            return await client.call(tool, arguments)
        except Refused:
            await anyio.sleep(0.1)


async def log_in(gateway, url):
    """What `multitap login` does on the machine of one gateway."""
    folder = gateway.data / "multitap" / "vault"
    folder.mkdir(mode=0o700, parents=True)
    config = HttpServer(url=url, oauth=OAuth())
    with no_keyring():
        async with Tasks() as tasks:
            account = Account(
                "guarded", config, storage=LoginStorage(TokenStore(folder)), tasks=tasks
            )
            await account.log_in(Person().login, "http://127.0.0.1:8414/callback", None)


async def test_fifty_calls_at_expiry_are_one_refresh(tmp_path, redis_server):
    async with provided() as provider:
        config = configured(tmp_path, guarded={"url": provider.url})
        gateways = three(tmp_path, config, redis_server)
        await log_in(gateways[0], provider.url)
        with anyio.fail_after(200):
            async with run_in_thread(gateways), clients_of(gateways) as clients:
                for client in clients:
                    await answered(client, "guarded_whoami", {})
                provider.access.clear()
                async with anyio.create_task_group() as tasks:
                    for n in range(50):
                        tasks.start_soon(clients[n % 3].call, "guarded_whoami", {})

    grants = [form["grant_type"] for form in provider.forms]
    assert grants == ["authorization_code", "refresh_token"]
    assert len(provider.refresh) == 1


async def test_a_dead_server_is_tried_by_one_replica_at_a_time(tmp_path, redis_server):
    at_once, most, knocks = 0, 0, 0

    async def knock(reader, writer):
        nonlocal at_once, most, knocks
        at_once, knocks = at_once + 1, knocks + 1
        most = max(most, at_once)
        await asyncio.sleep(0.3)  # long enough that others would come meanwhile
        at_once -= 1
        writer.close()

    server = await asyncio.start_server(knock, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = configured(tmp_path, dead={"url": f"http://127.0.0.1:{port}/mcp", "oauth": False})
    gateways = three(tmp_path, config, redis_server)
    async with server:
        with anyio.fail_after(200):
            async with run_in_thread(gateways):
                # the first attempts of all three come before anybody has failed
                await until(lambda: all("dead: " in one.log.read_text() for one in gateways))
                await until(lambda: not at_once)
                most, before = 0, knocks
                await until(lambda: knocks >= before + 2)
                # before they stop: a knock that its replica has dropped is still counted here
                together = most
            await until(lambda: not at_once)

    assert together == 1


async def test_no_answered_call_is_missing_in_the_audit_log_of_a_killed_replica(tmp_path):
    ledger = NonceLedger(tmp_path)
    entry = json.loads(ledger.config().read_text())["mcpServers"]["nonces"]
    config = tmp_path / "multitap.toml"
    config.write_text(
        "[audit]\nrequired = true\narguments = true\n[servers.nonces]\n"
        f"command = {entry['command']!r}\nargs = {entry['args']!r}\n"
    )
    # one of its own: there the dead replica is known for some seconds more
    with running_redis() as redis:
        gateways = three(tmp_path, config, redis)
        calls = [Crowd(pause=0.01) for _ in gateways]
        with anyio.fail_after(200):
            async with run_in_thread(gateways), AsyncExitStack() as stack:
                for crowd, one in zip(calls, gateways, strict=True):
                    client = crowd.at_work(one.url, stateless=4, handshake=4, is_lasting=False)
                    await stack.enter_async_context(client)
                gateways[0].kill()
                await stack.aclose()
                answered = set().union(*(one.answered for one in calls))
                # an entry is written by whichever replica has the turn
                await until(lambda: answered <= audited(gateways))

    assert len(calls[0].answered) > 8


def audited(gateways):
    """The nonces in the audit logs of all of them."""
    found = set()
    for one in gateways:
        with suppress(sqlite3.OperationalError):  # it is being made
            for entry in AuditFile(one.state / "multitap").entries():
                arguments = json.loads(entry.body).get("arguments") or {}
                found.add(arguments.get("nonce"))
    return found


async def test_a_restart_at_any_replica_restarts_the_program(tmp_path, redis_server):
    ledger = Ledger(tmp_path / "ledger")
    ledger.folder.mkdir()
    program, *args = command("good")
    entry = {"command": program, "args": args, "env": ledger.env}
    gateways = three(tmp_path, configured(tmp_path, zoo=entry), redis_server)
    with anyio.fail_after(200):
        async with run_in_thread(gateways), clients_of(gateways) as clients:
            for n, (gateway, client) in enumerate(zip(gateways, clients, strict=True), 1):
                await answered(client, "zoo_echo", {"text": "x"})
                assert len(ledger.pids) == n
                await anyio.to_thread.run_sync(gateway.ask, "restart", "zoo")
                await until(lambda n=n: len(ledger.pids) != n)


@asynccontextmanager
async def run_in_thread(gateways):
    """Run gateways; starting and stopping them does not block this loop."""
    manager = running(*gateways)
    await anyio.to_thread.run_sync(manager.__enter__)
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(manager.__exit__, None, None, None)
