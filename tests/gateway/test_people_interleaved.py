"""Three people at once, over all kinds of requests: nobody gets anything of another's."""

import random
from contextlib import AsyncExitStack
from functools import partial

import anyio
import pytest

from multitap import HttpServer, Settings
from tests.gateway.people import NAMES, Browser, Client, person, program, team, text_of
from tests.oauth.provider import provided
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("own_logins")


async def ask(client, name, kind, note):
    """One request of a kind, and whether all of its answer is the person's own."""
    key = f"key-of-{name}"
    match kind:
        case "tool":
            words = text_of(await client.call_tool("mine_whoami", {"note": note})).split()
            assert (words[0], words[2]) == (key, note)
        case "prompt":
            prompt = await client.get_prompt("mine_greeting")
            assert prompt.messages[0].content.text == f"Greet {key}"
        case "resource":
            read = await client.read_resource("personal://inbox")
            assert read.contents[0].text == f"mail of {key}"
        case "template":
            read = await client.read_resource(f"personal://notes/{note}")
            assert read.contents[0].text == f"notes of {key} on {note}"
        case "list":
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {found for found in names if "only_for" in found} == {f"mine_only_for_{name}"}
        case "remote":
            assert not (await client.call_tool("guarded_whoami", {})).is_error


async def interleave(tmp_path, rounds):
    async with provided() as provider, AsyncExitStack() as stack:
        remote = HttpServer(url=provider.url, credentials="per-user")
        servers = {"mine": program(), "guarded": remote}
        settings = Settings(servers=servers, state_dir=tmp_path)
        gateway = await stack.enter_async_context(team(settings))
        clients = []
        for name in NAMES:
            async with Browser(gateway, name) as browser:
                await browser.give_key("mine", f"key-of-{name}")
                link = gateway.gateway.connections.links.new(person(name), "guarded")
                assert "connected" in await browser.connect(link)
            for era in ("old", "new"):
                client = await stack.enter_async_context(Client(era, gateway, name, able=False))
                clients.append((name, client.client))
        with anyio.fail_after(30):
            for name in NAMES:
                for server in servers:
                    await until(
                        partial(gateway.gateway.connections.is_connected, person(name), server)
                    )
        kinds = ("tool", "prompt", "resource", "template", "list", "remote")
        chance = random.Random(7)
        for number in range(rounds):
            async with anyio.create_task_group() as tasks:
                for name, client in chance.sample(clients, len(clients)):
                    kind, note = chance.choice(kinds), f"n{number}"
                    tasks.start_soon(ask, client, name, kind, note)
        # each person's calls came with their own token, and nobody else's
        tokens = {
            name: (
                await gateway.hub.people.of(person(name)).account("guarded")
            ).secrets.access_token
            for name in NAMES
        }
        assert len({*tokens.values()}) == len(NAMES)
        called = {token for rpc, token in provider.calls if rpc == "tools/call"}
        assert called <= {*tokens.values()}
        # and their programs write to logs of their own
        for name in NAMES:
            path = next(gateway.hub.logs.glob(f"person-{person(name).mark}/mine.log"))
            others = [f"a call of key-of-{other}" for other in NAMES if other != name]
            assert not any(other in path.read_text() for other in others)


async def test_interleaved_requests_of_three_people_never_mix(tmp_path):
    with anyio.fail_after(60):
        await interleave(tmp_path, 40)


@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_ten_thousand_interleaved_requests_never_mix(tmp_path):
    await interleave(tmp_path, 1700)
