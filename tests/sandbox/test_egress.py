"""The proxy of confined programs: what it never connects to, with and without another proxy."""

import asyncio
import base64
from contextlib import asynccontextmanager

import anyio
import pytest

from multitap.http.closed_ports import close_port
from multitap.sandbox.egress import ForwardProxy, ProxyAccess
from multitap.sandbox.learning import Traffic
from multitap.tasks import Tasks
from tests.waiting import PATIENCE

pytestmark = pytest.mark.usefixtures("own_logins", "own_executor")
SPELLINGS = ("127.0.0.1", "127.8.7.6", "localhost", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]")
ODD_NAMES = ("2130706433", "0x7f.1", "127.1", "2852039166")
"""Names that are addresses to the system alone: loopback, and the metadata service of clouds."""
EVERYWHERE = ("*", "0.0.0.0/0", "::/0", "localhost")


@asynccontextmanager
async def listening(answer):
    """A server on loopback; yields its port and the first lines that it was sent."""
    lines = []

    async def greet(reader, writer):
        lines.append((await reader.readline()).decode().strip())
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], lines


@asynccontextmanager
async def proxied(*rules, everything=False):
    """Yields a function that asks the proxy for a tunnel, as a program with these rules."""
    async with Tasks() as tasks:
        proxy = ForwardProxy(tasks)
        await proxy.start()
        access = ProxyAccess("x", rules, Traffic())
        access.everything = everything
        word = proxy.admit(access).partition("//")[2].partition("@")[0]

        async def ask(target):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            try:
                with anyio.fail_after(PATIENCE):
                    writer.write(
                        f"CONNECT {target} HTTP/1.1\r\n{_credentials(word)}\r\n\r\n".encode()
                    )
                    return (await reader.read(65536)).decode()
            finally:
                writer.close()

        try:
            yield ask
        finally:
            proxy.close()


def _credentials(word):
    return f"Proxy-Authorization: Basic {base64.b64encode(word.encode()).decode()}"


@pytest.fixture
def machine_wide(monkeypatch):
    """Sets the web proxy of this machine."""

    def use(port):
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "")

    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return use


@pytest.mark.parametrize("everything", [False, True], ids=["by its rules", "while it learns"])
@pytest.mark.parametrize("host", SPELLINGS)
async def test_a_closed_port_of_this_machine_is_refused_by_any_name(machine_wide, host, everything):
    async with listening(b"hello") as (port, lines), proxied(*(
        f"{rule}:{port}" if "::" not in rule else f"[{rule}]:{port}" for rule in EVERYWHERE
    ), everything=everything) as ask:  # fmt: skip
        with close_port(port):
            refused = await ask(f"{host}:{port}")

    assert refused.startswith("HTTP/1.1 403 ")
    assert "it is a port of Multitap" in refused
    assert lines == []


async def test_any_other_port_is_reached_as_the_rules_say(machine_wide):
    async with listening(b"hello") as (port, _), proxied(f"127.0.0.1:{port}") as ask:
        with close_port(port + 1 if port < 65535 else port - 1):
            assert (await ask(f"127.0.0.1:{port}")).startswith("HTTP/1.1 200 ")


@pytest.mark.parametrize("host", ODD_NAMES)
async def test_private_addresses_stay_closed_behind_a_proxy_of_the_machine(machine_wide, host):
    async with listening(b"HTTP/1.1 200 OK\r\n\r\n") as (port, lines), proxied("*") as ask:
        machine_wide(port)
        refused = await ask(f"{host}:443")

    assert refused.startswith("HTTP/1.1 403 ")
    assert "which no rule names" in refused
    assert lines == []


async def test_a_closed_port_stays_closed_behind_a_proxy_of_the_machine(machine_wide):
    async with (
        listening(b"HTTP/1.1 200 OK\r\n\r\n") as (port, lines),
        proxied("*:7", "127.0.0.0/8") as ask,
    ):
        machine_wide(port)
        with close_port(7):
            refused = await ask("2130706433:7")

    assert "it is a port of Multitap" in refused
    assert lines == []


async def test_a_name_that_only_the_proxy_of_the_machine_resolves_is_left_to_it(machine_wide):
    async with listening(b"HTTP/1.1 200 OK\r\n\r\n") as (port, lines), proxied("*.invalid") as ask:
        machine_wide(port)
        answer = await ask("api.invalid:443")

    assert answer.startswith("HTTP/1.1 200 ")
    assert lines == ["CONNECT api.invalid:443 HTTP/1.1"]
