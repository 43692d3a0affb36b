"""Programs of others at both ends: a provider, and clients that take a URL."""

import json
import os
import re
import socket
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urljoin

import anyio
import pytest

from tests.authorization.organisation import SECRET, Browser
from tests.authorization.test_clients_sign_in import (
    Memory,
    Person,
    client_of,
    gateway,
    organisation_at_work,
    session_of,
)
from tests.conformance import kit as kits

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.timeout(240),
]

PROVIDER, REMOTE = "oidc-provider@9.13.3", "mcp-remote@0.15.1"
PAGE = re.compile(r"(http://\S+/authorize\?\S+)\s")


@pytest.fixture(scope="module")
def packages(pytestconfig):
    home = pytestconfig.cache.mkdir("sign-in")
    try:
        with kits.locked(home / "lock"):
            kits.fill_once(
                home / "packages", lambda target: kits.npm_install(target, PROVIDER, REMOTE)
            )
    except kits.NotFetched as exc:
        pytest.skip(f"the programs cannot be fetched: {exc}")
    return home / "packages"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RealOrganisation:
    """The provider of npm's `oidc-provider`."""

    def __init__(self, origin):
        self.origin = origin


@asynccontextmanager
async def real_provider(packages, port, redirect):
    # beside its packages: Node looks for them from where a program is
    program = packages / "oidc_provider.mjs"
    program.write_bytes(Path(__file__).with_name("oidc_provider.mjs").read_bytes())
    command = [str(kits.NODE / "bin" / "node"), str(program), str(port), SECRET, redirect]
    async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as process:
        try:
            with anyio.fail_after(30):
                assert b"ready" in await process.stdout.receive()
            yield RealOrganisation(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()


class Member(Person):
    """Signs in at the provider with a name and any password, and agrees there, too."""

    async def sign_in_at(self, url):
        page = await self._browser.open(url)
        for _ in range(20):
            if (location := page.headers.get("location")) is not None:
                url = urljoin(url, location)
                if url.startswith(f"{self._public}/authorize/callback"):
                    return await self._browser.open(url)
                page = await self._browser.open(url)
                continue
            action = re.search(r'action="([^"]+)"', page)
            assert action is not None, page
            url = urljoin(url, action[1])
            prompt = re.search(r'name="prompt" value="(\w+)"', page)[1]
            form = {"prompt": prompt, "login": "alice", "password": "any"}
            page = await self._browser.send(url, form)
        raise AssertionError(page)


async def test_the_sdk_signs_in_with_the_url_alone_at_a_real_provider(packages, tmp_path):
    own, theirs = free_port(), free_port()
    redirect = f"http://127.0.0.1:{own}/authorize/callback"
    memory = Memory()
    async with (
        real_provider(packages, theirs, redirect) as organisation,
        gateway(tmp_path, organisation, port=own) as (public, _),
        Browser() as browser,
    ):
        person = Member(browser, public)
        async with session_of(public, client_of(public, person, memory)) as session:
            answer = await session.call_tool("calc_add", {"a": 1, "b": 2})
        refresh = memory.tokens.refresh_token
        memory.tokens.access_token = "mta_gone"
        async with session_of(public, client_of(public, person, memory)) as session:
            await session.list_tools()

    assert json.loads(answer.content[0].text) == 3
    assert refresh.startswith("mtr_")


@pytest.mark.usefixtures("own_executor")  # `localhost` is looked up
async def test_mcp_remote_signs_in_with_the_url_alone(packages, tmp_path):
    """A client of the TypeScript SDK, with all that it expects of a server."""
    async with (
        organisation_at_work() as organisation,
        gateway(tmp_path, organisation) as (public, _),
        Browser() as browser,
    ):
        env = {
            **os.environ,
            "HOME": str(tmp_path),
            "MCP_REMOTE_CONFIG_DIR": str(tmp_path / "remote"),
        }
        program = packages / "node_modules" / "mcp-remote" / "dist" / "proxy.js"
        command = [str(kits.NODE / "bin" / "node"), str(program), f"{public}/mcp"]
        async with await anyio.open_process([*command, "--allow-http"], env=env) as remote:
            hello = {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "somebody", "version": "1"},
            }
            await say(remote, id=1, method="initialize", params=hello)
            person = Person(browser, public)
            await person.open(await question_of(remote))
            await browser.open(person.address)
            await answer_to(remote, 1)
            await say(remote, method="notifications/initialized")
            call = {"name": "calc_add", "arguments": {"a": 2, "b": 3}}
            await say(remote, id=2, method="tools/call", params=call)
            answer = await answer_to(remote, 2)
            remote.terminate()

    assert answer["result"]["structuredContent"] == {"result": 5}


async def say(process, **message):
    await process.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


async def question_of(process):
    said = ""
    with anyio.fail_after(60):
        while (page := PAGE.search(said)) is None:
            said += (await process.stderr.receive()).decode()
    return page[1]


async def answer_to(process, number):
    said = b""
    with anyio.fail_after(60):
        while True:
            said += await process.stdout.receive()
            for line in said.split(b"\n")[:-1]:
                if (message := json.loads(line)).get("id") == number:
                    return message
