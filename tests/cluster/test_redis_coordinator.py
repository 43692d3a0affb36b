"""Redis as it is run in production: TLS, users with few rights, Sentinel."""

import json
import re
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import anyio
import pytest

from multitap.cluster.redis_coordinator import open_redis
from multitap.errors import ConfigError, CoordinatorDown
from tests.cluster.clients import StatelessClient, connector
from tests.cluster.gateways import GatewayProcess, running
from tests.cluster.redis_server import PROGRAM, free_port, needs_redis, running_redis
from tests.waiting import PATIENCE, until_told, wait_for
from tests.zoo.ledger import Ledger
from tests.zoo.modes import command

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
pytestmark = needs_redis


def documented_rights():
    """Those that the page says are enough for a user."""
    found = re.search(
        r"ACL SETUSER multitap on '>PASSWORD' (.+?)\n```", PAGE.read_text(), re.DOTALL
    )
    return found[1].replace("\\\n", " ").replace("'", "").split()


@pytest.fixture(scope="module")
def certificates():
    """A CA and a certificate for this machine, made as an administrator would."""
    with TemporaryDirectory() as folder:
        path = Path(folder)
        make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        make += ["-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
        make += ["-addext", "subjectAltName=IP:127.0.0.1"]
        make += ["-keyout", str(path / "key.pem"), "-out", str(path / "cert.pem")]
        subprocess.run(make, check=True, capture_output=True)
        yield path


def secured(certificates, port):
    return (
        *("--tls-port", str(port), "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(certificates / "cert.pem")),
        *("--tls-key-file", str(certificates / "key.pem")),
        *("--tls-ca-cert-file", str(certificates / "cert.pem")),
    )


async def first_answer(coordinator):
    """Wait for it: to connect takes TLS longer than our second where many want a processor."""

    async def answers():
        with suppress(CoordinatorDown):
            return await coordinator.time() > 0

    await until_told(answers)


async def everything(coordinator):
    """Every operation that a cluster uses."""
    await first_answer(coordinator)
    records, leases, streams = coordinator.records, coordinator.leases, coordinator.streams
    await records.write("a", b"1", ttl=5)
    assert await records.swap("a", b"1", b"2", ttl=5)
    assert await records.touch("a", 5)
    assert await records.scan("") == {"a": b"2"}
    assert await records.delete("a")
    token = await leases.acquire("l", "me", ttl=5)
    assert await leases.renew({"l": token}, ttl=5) == {"l"}
    assert (await leases.look("l"))["l"].is_held
    assert await leases.release("l", token)
    async with coordinator.channels.subscribe("c") as messages:
        await coordinator.channels.publish("c", b"hi")
        with anyio.fail_after(PATIENCE):
            # after a lost connection, messages may have been missed
            while (message := await anext(messages)) is None:
                await coordinator.channels.publish("c", b"hi")
        assert message.data == b"hi"
    first = await streams.append("s", b"x", most=10, ttl=5)
    assert (await streams.ends("s")).first == first
    assert [one.data for one in await streams.entries("s", wait=1)] == [b"x"]
    await streams.trim("s", before=first)
    await streams.trim("s")
    assert await coordinator.limits.count("n", ttl=5) == 1
    assert (await coordinator.limits.take("w", limit=1, window=60)).allowed
    assert await coordinator.time() > 0
    assert coordinator.health.is_up


async def test_a_user_with_the_documented_rights_can_do_everything_over_tls(certificates):
    port = free_port()
    user = ("--user", "multitap", "on", ">s3cret/+", *documented_rights())
    with running_redis(*secured(certificates, port), *user) as server:
        ca = f"ssl_ca_certs={certificates}/cert.pem"
        async with open_redis(f"rediss://multitap:s3cret%2F%2B@127.0.0.1:{port}?{ca}") as found:
            await everything(found)
        async with open_redis(f"redis://multitap:s3cret%2F%2B@127.0.0.1:{server.port}") as found:
            with pytest.raises(CoordinatorDown, match="refuses"):
                await found._line.ask(found._line.client.execute_command("CONFIG", "GET", "*"))
            with pytest.raises(CoordinatorDown, match="refuses"):
                await found._line.ask(found._line.client.get("somebody else's"))
            assert found.health.is_up


async def test_a_certificate_of_an_unknown_authority_is_refused(certificates):
    port = free_port()
    with running_redis(*secured(certificates, port)):
        async with open_redis(f"rediss://127.0.0.1:{port}") as found:
            with pytest.raises(CoordinatorDown, match="certificate"):
                await found.time()


@contextmanager
def sentinel_for(primary_port, folder, *lines):
    """A sentinel that needs no other one to agree, and is quick to decide."""
    port = free_port()
    config = Path(folder, f"sentinel-{port}.conf")
    config.write_text(
        "\n".join(
            (
                *((lines and ("port 0", f"tls-port {port}")) or (f"port {port}",)),
                f"dir {folder}",
                f"sentinel monitor main 127.0.0.1 {primary_port} 1",
                "sentinel down-after-milliseconds main 500",
                "sentinel failover-timeout main 2000",
                *lines,
            )
        )
    )
    process = subprocess.Popen(
        [PROGRAM, str(config), "--sentinel"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield port
    finally:
        process.kill()
        process.wait()


@contextmanager
def watched_pair():
    """A primary, its replica, and a sentinel that knows both."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        primary = stack.enter_context(running_redis())
        second = stack.enter_context(running_redis("--replicaof", "127.0.0.1", str(primary.port)))
        wait_for(lambda: "master_link_status:up" in info(second))
        port = stack.enter_context(sentinel_for(primary.port, folder))
        wait_for(lambda: knows_replica("-p", str(port)))
        yield primary, second, f"redis+sentinel://127.0.0.1:{port},127.0.0.1:1/main"


def info(server):
    with suppress(OSError):
        return server.ask("INFO", "replication")
    return ""


def asked(options, *words):
    """What `redis-cli` with these options prints."""
    command = ["redis-cli", *options, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def knows_replica(*options):
    with suppress(ValueError):
        found = json.loads(asked(options, "--json", "SENTINEL", "REPLICAS", "main"))
        return [one["master-link-status"] for one in found] == ["ok"]
    return False


@contextmanager
def secured_pair(certificates):
    """The same with TLS everywhere, and a user with a password for each purpose."""
    cert, key = certificates / "cert.pem", certificates / "key.pem"
    users = (
        *("--user", "default", "off"),
        *("--user", "multitap", "on", ">s3cret/+", *documented_rights()),
        *("--user", "watcher", "on", ">w4tch", "~*", "&*", "+@all"),
        *("--tls-replication", "yes", "--masteruser", "watcher", "--masterauth", "w4tch"),
    )
    lines = (
        *("tls-replication yes", "tls-auth-clients no", f"tls-ca-cert-file {cert}"),
        *(f"tls-cert-file {cert}", f"tls-key-file {key}"),
        *("sentinel auth-user main watcher", "sentinel auth-pass main w4tch"),
        *("user default off", "user asker on >ask/3r ~* &* +@all"),
    )
    ports = [free_port(), free_port()]
    with TemporaryDirectory() as folder, ExitStack() as stack:
        first = (*secured(certificates, ports[0]), *users)
        primary = stack.enter_context(running_redis(*first))
        second = (
            *secured(certificates, ports[1]),
            *users,
            "--replicaof",
            "127.0.0.1",
            f"{ports[0]}",
        )
        stack.enter_context(running_redis(*second))
        port = stack.enter_context(sentinel_for(ports[0], folder, *lines))
        login = ("--tls", "--cacert", str(cert), "--user", "asker", "--pass", "ask/3r")
        wait_for(lambda: knows_replica("-p", str(port), *login, "--no-auth-warning"))
        options = f"ssl_ca_certs={cert}&sentinel_username=asker&sentinel_password=ask%2F3r"
        watcher = ("--tls", "--cacert", str(cert), "--user", "watcher", "--pass", "w4tch")
        second = ("-p", str(ports[1]), *watcher, "--no-auth-warning")
        yield (
            primary,
            second,
            f"rediss+sentinel://multitap:s3cret%2F%2B@127.0.0.1:{port}/main?{options}",
        )


@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "secured"])
async def test_a_coordinator_follows_a_failover(is_secured, certificates):
    with secured_pair(certificates) if is_secured else watched_pair() as (primary, second, url):
        async with open_redis(url) as found:
            await first_answer(found)
            token = await found.leases.acquire("l", "me", ttl=60)
            # a lease that the replica never saw would be lost with the primary
            options = second if is_secured else ("-p", str(second.port))
            wait_for(lambda: asked(options, "EXISTS", "{multitap}:lease:l").strip() == "1")
            primary.stop()
            with anyio.fail_after(PATIENCE):
                while True:
                    try:
                        kept = await found.leases.renew({"l": token}, ttl=60)
                    except CoordinatorDown:
                        await anyio.sleep(0.05)
                        continue
                    break
            assert kept == {"l"}
            await everything(found)


@pytest.mark.slow
async def test_calls_go_on_during_a_failover(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.folder.mkdir()
    program, *args = command("good")
    config = tmp_path / "mcp.json"
    entry = {"command": program, "args": args, "env": ledger.env}
    config.write_text(json.dumps({"mcpServers": {"zoo": entry}}))
    with watched_pair() as (primary, second, url):
        pair = [GatewayProcess(tmp_path, config, "--cluster", url) for _ in "ab"]
        with running(*pair):
            async with aiohttp.ClientSession(connector=connector()) as http:
                clients = [StatelessClient(http, one.url) for one in pair]
                made = 0

                async def call():
                    nonlocal made
                    for client in clients:
                        made += 1
                        result = await client.call("zoo_echo", {"text": f"{made}"})
                        assert result["content"][0]["text"] == f"{made}"

                with anyio.fail_after(PATIENCE):
                    await call()
                    primary.stop()
                    while "role:master" not in info(second):
                        await call()
                    for _ in range(20):
                        await call()
            assert len(ledger.pids) == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis+sentinel://h:1", "does not name the service"),
        ("redis+sentinel://h:1/main?sentinel=x", "'sentinel' is not an option"),
        ("redis+sentinel:///main", "is not a host"),
    ],
)
async def test_an_address_of_sentinels_that_cannot_be_used_says_why(url, words):
    with pytest.raises(ConfigError, match=words):
        async with open_redis(url):
            pass
