"""Programs of others at both ends: a provider, and clients that take a URL."""

import json
import os
import re
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
    session_of,
)
from tests.clients.agents import OFFLINE
from tests.clients.running import PATIENCE
from tests.clients.shelf import node
from tests.clients.test_clients import INSPECTOR
from tests.cluster.redis_server import free_port
from tests.conformance import kit as kits
from tests.terminals import terminal

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.network,
]

PAGE = re.compile(r"(http://[!-~]+/authorize\?[!-~]+)[^!-~]")
HERE = Path(__file__).parent


@pytest.fixture
async def place(packages, tmp_path):
    """The URL of a gateway at which a member of an organisation can sign in, and that member."""
    own, theirs = free_port(), free_port()
    redirect = f"http://127.0.0.1:{own}/authorize/callback"
    (tmp_path / "gateway").mkdir()
    async with (
        real_provider(packages, theirs, redirect) as organisation,
        # what Claude Code says about itself is in the internet
        gateway(tmp_path / "gateway", organisation, port=own, documents="false") as (public, _),
        Browser() as browser,
    ):
        yield f"{public}/mcp", Member(browser, public)


class RealOrganisation:
    """The provider of npm's `oidc-provider`."""

    def __init__(self, origin):
        self.origin = origin


@asynccontextmanager
async def real_provider(packages, port, *redirects):
    # beside its packages: Node looks for them from where a program is
    program = packages / "oidc_provider.mjs"
    program.write_bytes(Path(__file__).with_name("oidc_provider.mjs").read_bytes())
    command = [str(kits.NODE / "bin" / "node"), str(program), str(port), SECRET, *redirects]
    async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as process:
        try:
            with anyio.fail_after(PATIENCE):
                assert b"ready" in await process.stdout.receive()
            yield RealOrganisation(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()


class Member(Person):
    """Signs in at the provider with a name and any password, and agrees there, too."""

    def __init__(self, browser, public, name="alice"):
        super().__init__(browser, public)
        self.name = name

    async def return_to_client(self):
        """Open the address of the client's own small server."""
        await self._browser.open(self.address)

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
            form = {"prompt": prompt, "login": self.name, "password": "any"}
            page = await self._browser.send(url, form)
        raise AssertionError(page)


async def test_the_python_sdk_signs_in_with_the_url_alone(place):
    url, member = place
    public, memory = url.removesuffix("/mcp"), Memory()
    async with session_of(public, client_of(public, member, memory)) as session:
        answer = await session.call_tool("calc_add", {"a": 1, "b": 2})
    refresh = memory.tokens.refresh_token
    memory.tokens.access_token = "mta_gone"
    async with session_of(public, client_of(public, member, memory)) as session:
        await session.list_tools()

    assert json.loads(answer.content[0].text) == 3
    assert refresh.startswith("mtr_")


async def test_the_typescript_sdk_signs_in_with_the_url_alone(place, shelf):
    url, member = place
    home = fetched(shelf.npm, "typescript-2")
    command = [*node(HERE / "typescript_client.mjs"), str(home.resolve()), url]
    async with running(command) as client:
        await member.open((await lines_of(client, "page"))["page"])
        await client.stdin.send(f"{member.address}\n".encode())
        first = await lines_of(client, "answer")
        again = await lines_of(client, "renewed")

    assert (json.loads(first["answer"]), json.loads(again["answer"])) == (5, 5)
    assert again["renewed"]
    assert member.questions == 1


@pytest.mark.wide  # its part that signs in is the TypeScript SDK's, as the Inspector's is
@pytest.mark.usefixtures("own_executor")  # `localhost` is looked up
async def test_mcp_remote_signs_in_with_the_url_alone(place, shelf, tmp_path):
    url, member = place
    env = {"HOME": str(tmp_path), "MCP_REMOTE_CONFIG_DIR": str(tmp_path / "remote")}
    program = fetched(shelf.program, "mcp-remote", "mcp-remote/dist/proxy.js")
    async with running([*program, url, "--allow-http"], **env) as remote:
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "somebody", "version": "1"},
        }
        await say(remote, id=1, method="initialize", params=hello)
        await member.open(await page_in(remote.stderr))
        await member.return_to_client()
        await lines_of(remote, "result")
        await say(remote, method="notifications/initialized")
        call = {"name": "calc_add", "arguments": {"a": 2, "b": 3}}
        await say(remote, id=2, method="tools/call", params=call)
        answer = await lines_of(remote, "result")

    assert answer["result"]["structuredContent"] == {"result": 5}


@pytest.mark.wide
async def test_the_inspector_signs_in_with_the_url_alone(place, shelf, tmp_path):
    url, member = place
    program = fetched(shelf.program, "inspector", INSPECTOR)
    answer = await inspect(program, url, member, tmp_path, "calc_add", "--tool-arg", "a=2", "b=3")

    assert answer["structuredContent"] == {"result": 5}


async def inspect(program, url, member, home, tool, *options):
    """The result of a tool in the Inspector of somebody who signs in first."""
    back = f"http://127.0.0.1:{free_port()}/oauth/callback"
    call = ("--method", "tools/call", "--tool-name", tool, *options)
    command = [*program, "--cli", url, "--callback-url", back, *call]
    async with running(
        command, HOME=str(home), BROWSER="true", MCP_AUTO_OPEN_ENABLED="true"
    ) as inspector:
        await member.open(await page_in(inspector.stderr))
        await member.return_to_client()
        with anyio.fail_after(PATIENCE):
            return json.loads(b"".join([chunk async for chunk in inspector.stdout]))


async def test_claude_code_signs_in_with_the_url_alone(place, shelf, tmp_path):
    url, member = place
    folder = fetched(shelf.npm, "claude")
    (program,) = folder.glob("node_modules/@anthropic-ai/claude-code-*/claude")
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    env = {"HOME": str(tmp_path), **OFFLINE, **quiet}
    adding = [str(program), "mcp", "add", "--transport", "http", "--scope", "user", "gw", url]
    await anyio.run_process(adding, env={**os.environ, **env}, cwd=tmp_path)
    with terminal([str(program), "mcp", "login", "gw", "--no-browser"], **env) as login:
        page = await anyio.to_thread.run_sync(login.reads, PAGE.pattern)
        await member.open(page[1])
        login.type(member.address)
        code, said = await anyio.to_thread.run_sync(login.ends)
    listing = [str(program), "mcp", "list"]
    listed = await anyio.run_process(listing, env={**os.environ, **env}, cwd=tmp_path)

    assert code == 0, said
    assert b"Connected" in listed.stdout, listed.stdout


def fetched(find, *name):
    try:
        return find(*name)
    except kits.NotFetched as exc:
        pytest.skip(f"the client cannot be fetched: {exc}")


@asynccontextmanager
async def running(command, **env):
    """A program that is told what to do, and ends with the block."""
    async with await anyio.open_process(command, env={**os.environ, **env}) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()


async def say(process, **message):
    await process.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


async def page_in(stream):
    """The page that a client asks the person to open."""
    said = ""
    with anyio.fail_after(PATIENCE):
        while (page := PAGE.search(said)) is None:
            try:
                said += (await stream.receive()).decode()
            except anyio.EndOfStream:
                pytest.fail(f"it asks nobody to sign in: {said[-2000:]}")
    return page[1]


async def lines_of(process, member):
    """The next line of a program that is an object with such a member."""
    said = b""
    with anyio.fail_after(PATIENCE):
        while True:
            said += await process.stdout.receive()
            *lines, said = said.split(b"\n")
            for line in lines:
                if member in (message := json.loads(line)):
                    return message
