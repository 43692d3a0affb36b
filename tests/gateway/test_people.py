"""Accounts of people: asked for, used by their own person only, and ended with them."""

from contextlib import closing
from functools import partial
from pathlib import Path

import anyio
import pytest
from mcp import MCPError

from multitap import Handlers, HttpServer, Settings, open_hub
from multitap.events import LinkState
from multitap.gateway.fronts.tokens import TokenSources
from multitap.hub import people as hub_people
from multitap.store.audit_log import AuditFile
from multitap.trust.audit import lines
from multitap.trust.personal_vault import keys_of
from multitap.trust.tokens import AccessTokens
from tests.gateway.people import NAMES, Browser, Client, person, program, team, text_of
from tests.oauth.provider import Person as Visitor
from tests.oauth.provider import provided
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("own_logins")
ERAS = ("old", "new")


def guarded(provider, folder, **fields):
    server = HttpServer(url=provider.url, credentials="per-user", **fields)
    return Settings(servers={"guarded": server}, state_dir=folder)


@pytest.mark.parametrize("era", ERAS)
async def test_the_first_use_asks_by_url_and_then_goes_on_by_itself(tmp_path, era):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway, "alice") as browser,
    ):
        async with Client(era, gateway, "alice", browser=browser.connect) as alice:
            with anyio.fail_after(PATIENCE):
                listed = await alice.client.list_tools()
                assert [tool.name for tool in listed.tools] == ["guarded_connect"]
                result = await alice.client.call_tool("guarded_connect", {})

            assert "guarded_whoami" in text_of(result)
            (asked,) = alice.asked
            assert asked.url.startswith(f"{browser.base}/accounts/connect?for=")
            assert "alice" not in asked.url
            with anyio.fail_after(PATIENCE):
                result = await alice.client.call_tool("guarded_whoami", {})
            assert text_of(result) == "nobody"
            listed = await alice.client.list_tools()
            assert [tool.name for tool in listed.tools] == ["guarded_whoami"]
        async with Client(era, gateway, "bob") as bob:
            listed = await bob.client.list_tools()
            assert [tool.name for tool in listed.tools] == ["guarded_connect"]


@pytest.mark.parametrize("era", ERAS)
async def test_who_cannot_be_asked_gets_a_full_link_and_the_next_call_works(tmp_path, era):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Client(era, gateway, "alice", able=False) as alice,
        Browser(gateway, "alice") as browser,
    ):
        with anyio.fail_after(PATIENCE):
            result = await alice.client.call_tool("guarded_connect", {})
        assert result.is_error
        link = next(word for word in text_of(result).split() if "://" in word)
        assert link.startswith(f"{browser.base}/accounts/connect?for=")

        assert "connected" in await browser.connect(link)
        with anyio.fail_after(PATIENCE):
            result = await alice.client.call_tool("guarded_whoami", {})
        assert not result.is_error


@pytest.mark.parametrize("era", ERAS)
async def test_everyone_has_a_program_of_their_own_with_their_own_key(tmp_path, era):
    settings = Settings(servers={"mine": program()}, state_dir=tmp_path)
    assert keys_of(settings.servers["mine"]) == ("key",)
    async with team(settings) as gateway:
        seen = {}
        for name in ("alice", "bob"):
            async with Browser(gateway, name) as browser:
                status, text = await browser.give_key("mine", f"key-of-{name}")
                assert (status, "stored" in text) == (200, True)
            async with Client(era, gateway, name) as client:
                with anyio.fail_after(PATIENCE):
                    listed = await client.client.list_tools()
                    names = {tool.name for tool in listed.tools}
                    assert f"mine_only_for_{name}" in names
                    result = await client.client.call_tool("mine_whoami", {"note": "x"})
                    key, pid, _ = text_of(result).split()
                    prompt = await client.client.get_prompt("mine_greeting")
                    read = await client.client.read_resource("personal://inbox")
                    notes = await client.client.read_resource("personal://notes/tea")
                seen[name] = pid
                assert key == f"key-of-{name}"
                assert prompt.messages[0].content.text == f"Greet key-of-{name}"
                assert read.contents[0].text == f"mail of key-of-{name}"
                assert notes.contents[0].text == f"notes of key-of-{name} on tea"
        assert len({*seen.values()}) == 2
        assert gateway.hub.people.link(person("alice"), "mine") is not None


async def connected(gateway, name, server="guarded"):
    """Connect the account of a person, by their page."""
    link = gateway.gateway.connections.links.new(person(name), server)
    async with Browser(gateway, name) as browser:
        assert "connected" in await browser.connect(link)
    with anyio.fail_after(PATIENCE):
        await until(lambda: gateway.gateway.connections.is_connected(person(name), server))


async def test_fifty_calls_at_expiry_cause_one_refresh(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Client("old", gateway, "alice", able=False) as alice,
    ):
        await connected(gateway, "alice")
        provider.access.clear()  # all access tokens have expired, as far as the server is concerned

        results = []

        async def call():
            results.append(await alice.client.call_tool("guarded_whoami", {}))

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for _ in range(50):
                    tasks.start_soon(call)

        assert [result.is_error for result in results] == [False] * 50
        refreshes = [form for form in provider.forms if form["grant_type"] == "refresh_token"]
        assert len(refreshes) == 1


@pytest.mark.parametrize("era", ERAS)
async def test_a_refused_refresh_is_a_sentence_for_its_person_and_keeps_the_tools(tmp_path, era):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Client(era, gateway, "alice", able=False) as alice,
        Client(era, gateway, "bob", able=False) as bob,
    ):
        await connected(gateway, "alice")
        await connected(gateway, "bob")
        kept = await gateway.hub.people.of(person("alice")).account("guarded")
        del provider.access[kept.secrets.access_token]
        del provider.refresh[kept.secrets.refresh_token]

        with anyio.fail_after(PATIENCE):
            result = await alice.client.call_tool("guarded_whoami", {})
            assert result.is_error
            assert "the login has ended (invalid_grant)" in text_of(result)
            assert "/accounts/connect?for=" in text_of(result)
            listed = await alice.client.list_tools()
            assert [tool.name for tool in listed.tools] == ["guarded_whoami"]
            # and nobody else is affected
            assert not (await bob.client.call_tool("guarded_whoami", {})).is_error

            await connected(gateway, "alice")
            assert not (await alice.client.call_tool("guarded_whoami", {})).is_error


async def test_parallel_first_calls_ask_once(tmp_path):
    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Browser(gateway, "alice") as browser,
        Client("old", gateway, "alice", browser=browser.connect) as alice,
    ):
        with anyio.fail_after(PATIENCE):
            await alice.client.list_tools()
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(alice.client.call_tool, "guarded_connect", {})

        assert len(alice.asked) == 1


async def test_accounts_survive_a_restart_of_the_gateway(tmp_path):
    async with provided() as provider:
        async with team(guarded(provider, tmp_path)) as gateway:
            await connected(gateway, "alice")
        async with (
            team(guarded(provider, tmp_path)) as gateway,
            Client("new", gateway, "alice", able=False) as alice,
        ):
            with anyio.fail_after(PATIENCE):
                listed = await alice.client.list_tools()
                assert [tool.name for tool in listed.tools] == ["guarded_whoami"]
                assert not (await alice.client.call_tool("guarded_whoami", {})).is_error


async def test_the_list_of_a_service_account_is_shown_but_its_account_is_not_used(tmp_path):
    async with provided() as provider:
        own = Settings(servers={"guarded": HttpServer(url=provider.url)}, state_dir=tmp_path)
        async with open_hub(own, handlers=Handlers(login=Visitor().login)) as hub:
            await until(lambda: hub.links["guarded"].state is LinkState.CONNECTED)
        settings = guarded(provider, tmp_path, service_account=True)
        async with (
            team(settings) as gateway,
            Client("old", gateway, "alice", able=False) as alice,
        ):
            with anyio.fail_after(PATIENCE):
                listed = await alice.client.list_tools()
                assert [tool.name for tool in listed.tools] == ["guarded_whoami"]
                before = len(provider.calls)
                result = await alice.client.call_tool("guarded_whoami", {})
            assert result.is_error
            assert "/accounts/connect?for=" in text_of(result)
            assert "tools/call" not in [rpc for rpc, _ in provider.calls[before:]]


async def test_the_user_who_runs_the_gateway_uses_its_own_account(tmp_path):
    async with provided() as provider:
        settings = guarded(provider, tmp_path)
        async with open_hub(settings, handlers=Handlers(login=Visitor().login)) as hub:
            await until(lambda: hub.links["guarded"].state is LinkState.CONNECTED)
            with anyio.fail_after(PATIENCE):
                result = await hub.call("guarded_whoami")
            assert result.success
            assert hub.people is not None
            assert [*hub.people.links()] == []


async def test_a_revoked_person_loses_their_programs(tmp_path):
    settings = Settings(servers={"mine": program()}, state_dir=tmp_path)
    async with team(settings) as gateway:
        for name in ("alice", "bob"):
            async with Browser(gateway, name) as browser:
                await browser.give_key("mine", f"key-of-{name}")
        with anyio.fail_after(PATIENCE):
            for name in ("alice", "bob"):
                await until(partial(gateway.gateway.connections.is_connected, person(name), "mine"))
        pids = [gateway.hub.people.link(person(name), "mine").pid for name in ("alice", "bob")]

        gateway.hub.people.drop(person("alice"))

        with anyio.fail_after(PATIENCE):
            await until(lambda: not Path(f"/proc/{pids[0]}").exists())
        assert Path(f"/proc/{pids[1]}").exists()


async def test_a_person_who_is_out_loses_what_runs_for_them_without_a_client(tmp_path):
    settings = Settings(servers={"mine": program(session="per-client")}, state_dir=tmp_path)
    async with team(settings) as gateway:
        async with Browser(gateway, "alice") as browser:
            await browser.give_key("mine", "key-of-alice")
        hub, private = gateway.hub, gateway.gateway.private
        with anyio.fail_after(PATIENCE):
            await until(partial(gateway.gateway.connections.is_connected, person("alice"), "mine"))
            async with Client("new", gateway, "alice", able=False) as alice:
                await alice.client.call_tool("mine_whoami", {})
        own = [entry.link for entry in private._links.values()]
        pids = [link.pid for link in (*hub.people.links(), *own) if link.pid]
        assert len(pids) == 2
        forgotten = []
        hub.people.common.forget = forgotten.append
        watch = gateway.front.watch_for(TokenSources(AccessTokens(tmp_path)))
        watch._end(frozenset(), {person("alice")})

        with anyio.fail_after(PATIENCE):
            for pid in pids:
                await until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
        assert forgotten == [person("alice")]


async def test_the_audit_log_says_whose_account_was_used(tmp_path):
    shared = program().replace(credentials="shared", env={"PERSONAL_KEY": "of-the-gateway"})
    settings = Settings(servers={"mine": program(), "ours": shared}, state_dir=tmp_path)
    async with team(settings) as gateway:
        async with Browser(gateway, "alice") as browser:
            await browser.give_key("mine", "key-of-alice")
        with anyio.fail_after(PATIENCE):
            await until(partial(gateway.gateway.connections.is_connected, person("alice"), "mine"))
            async with Client("new", gateway, "alice", able=False) as alice:
                await alice.client.call_tool("mine_whoami", {})
                await alice.client.call_tool("ours_whoami", {})
        await gateway.hub.store.write_audit()
        with closing(AuditFile(tmp_path)) as file:
            calls = [line.record for line in lines(file, lambda record: record.kind == "call")]

        assert {(call.server, call.user, call.credential) for call in calls} == {
            ("mine", "alice", "alice"),
            ("ours", "alice", ""),
        }


async def test_results_of_an_account_are_not_given_again_after_it_was_replaced(tmp_path):
    cached = program(cache={"key": 600})
    settings = Settings(servers={"mine": cached}, state_dir=tmp_path)
    async with team(settings) as gateway, Browser(gateway, "alice") as browser:
        for key in ("first-key", "second-key"):
            await browser.give_key("mine", key)
            with anyio.fail_after(PATIENCE):
                await until(
                    partial(gateway.gateway.connections.is_connected, person("alice"), "mine")
                )
                async with Client("new", gateway, "alice", able=False) as alice:
                    told = text_of(await alice.client.call_tool("mine_key", {}))
            assert told == key


@pytest.mark.parametrize("era", ERAS)
async def test_nobody_waits_for_a_refresh_that_is_stuck(tmp_path, era):
    stuck, asked = anyio.Event(), anyio.Event()

    async def hang(form):
        if form["grant_type"] == "refresh_token":
            asked.set()
            await stuck.wait()

    async with (
        provided() as provider,
        team(guarded(provider, tmp_path)) as gateway,
        Client(era, gateway, "alice", able=False) as alice,
        anyio.create_task_group() as tasks,
    ):
        await connected(gateway, "alice")
        await connected(gateway, "bob")
        provider.on_token = hang
        kept = await gateway.hub.people.of(person("alice")).account("guarded")
        del provider.access[kept.secrets.access_token]
        tasks.start_soon(alice.client.call_tool, "guarded_whoami", {})
        with anyio.fail_after(PATIENCE):
            await asked.wait()
            # a new client of the same person, and one of another
            async with Client(era, gateway, "alice", able=False) as again:
                names = [tool.name for tool in (await again.client.list_tools()).tools]
            async with Client(era, gateway, "bob", able=False) as bob:
                result = await bob.client.call_tool("guarded_whoami", {})
            stuck.set()

        assert names == ["guarded_whoami"]
        assert not result.is_error


@pytest.mark.parametrize("speaks", ERAS)
@pytest.mark.parametrize("era", ERAS)
async def test_the_first_use_goes_on_by_itself_in_every_cell(tmp_path, era, speaks):
    pinned = "handshake" if speaks == "old" else "stateless"
    settings = Settings(servers={"mine": program(speaks, era=pinned)}, state_dir=tmp_path)
    async with team(settings) as gateway, Browser(gateway, "alice") as browser:

        async def visit(url):
            assert "needs a key of yours" in (await browser.open(url))[1]
            await browser.give_key("mine", "key-of-alice")

        async with Client(era, gateway, "alice", browser=visit) as alice:
            with anyio.fail_after(PATIENCE):
                result = await alice.client.call_tool("mine_connect", {})
                assert "mine_only_for_alice" in text_of(result)
                told = await alice.client.call_tool("mine_whoami", {"note": "x"})
            assert text_of(told).split()[0] == "key-of-alice"
            assert [question.mode for question in alice.asked] == ["url"]


async def test_idle_programs_make_room_and_keep_their_lists(tmp_path, monkeypatch):
    monkeypatch.setattr(hub_people, "MANY_PROGRAMS", 2)
    settings = Settings(servers={"mine": program()}, state_dir=tmp_path)
    async with team(settings) as gateway:

        def running():
            links = gateway.hub.people.links()
            return {link.person.subject for link in links if link.session and link.pid}

        with anyio.fail_after(PATIENCE):
            for name in NAMES:
                async with Browser(gateway, name) as browser:
                    await browser.give_key("mine", f"key-of-{name}")
                await until(partial(gateway.gateway.connections.is_connected, person(name), "mine"))
            await until(lambda: len(running()) == 2)
            assert "carol" in running()
            async with Client("new", gateway, "alice", able=False) as alice:
                names = {tool.name for tool in (await alice.client.list_tools()).tools}
                assert "mine_only_for_alice" in names
                told = await alice.client.call_tool("mine_whoami", {"note": "x"})
            assert text_of(told).split()[0] == "key-of-alice"
            await until(lambda: len(running()) == 2)


async def test_beyond_the_bound_no_program_starts_and_its_person_reads_why(tmp_path, monkeypatch):
    monkeypatch.setattr(hub_people, "MOST_PROGRAMS", 1)
    settings = Settings(servers={"mine": program()}, state_dir=tmp_path)
    async with team(settings) as gateway:
        with anyio.fail_after(PATIENCE):
            for name in ("alice", "bob"):
                async with Browser(gateway, name) as browser:
                    await browser.give_key("mine", f"key-of-{name}")
                link = partial(gateway.hub.people.link, person(name), "mine")
                await until(lambda link=link: (one := link()) and (one.session or one.failure))
            async with Client("new", gateway, "bob", able=False) as bob:
                try:
                    result = await bob.client.call_tool("mine_connect", {})
                    assert result.is_error
                    said = text_of(result)
                except MCPError as exc:  # while it is tried again
                    said = str(exc)
                assert "too many programs of people are in use" in said
