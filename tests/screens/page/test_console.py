"""The web console over HTTP: who is let in, what is refused, what a page is told."""

import json
import re
import sys
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

import aiohttp
import anyio
import pytest

from multitap import Settings, StdioServer, open_hub
from multitap.control.service import ControlService
from multitap.gateway.fronts.access import Access
from multitap.gateway.fronts.http import HttpFront, serve_http
from multitap.gateway.fronts.tokens import TokenSources
from multitap.gateway.gateway import open_gateway
from multitap.http.server.server import bind, url_of
from multitap.screens.page.access import ATTEMPTS, COOKIE, PAGES, ConsoleKeys
from multitap.screens.page.console import Console
from multitap.screens.page.page_feed import MOST_CALLS
from multitap.screens.page.pages import PLACES
from multitap.trust.tokens import AccessTokens
from tests.screens import hostile_server
from tests.waiting import PATIENCE, until, until_told

PATHS = ("/console", *(f"/console/{name}" for name in PLACES))
HOSTILE = StdioServer(command=sys.executable, args=(hostile_server.__file__,))


@pytest.fixture
def store(tmp_path):
    return AccessTokens(tmp_path / "tokens")


@asynccontextmanager
async def open_console(store, tmp_path, **settings):
    wanted = Settings(state_dir=tmp_path / "state", **settings)
    sources = TokenSources(store)
    listener = bind("127.0.0.1", 0)
    url = url_of(listener)
    async with open_gateway(lambda host: open_hub(wanted, handlers=host)) as gateway:
        with anyio.fail_after(PATIENCE):
            await gateway.hub.settled()
        keys = ConsoleKeys(sources, store)
        control = ControlService(gateway, url=url)
        access = Access("127.0.0.1", keys=sources.keys)
        console = Console(control, access, keys)
        front = HttpFront(gateway, access, sources=sources, console=console)
        jar = aiohttp.CookieJar(unsafe=True)
        async with (
            serve_http(front, listener),
            aiohttp.ClientSession(url, cookie_jar=jar) as browser,
            aiohttp.ClientSession(url) as stranger,
        ):
            yield SimpleNamespace(
                url=url,
                keys=keys,
                gateway=gateway,
                browser=browser,
                stranger=stranger,
                console=console,
                own={"origin": url, "x-multitap-console": "1", "sec-fetch-site": "same-origin"},
            )


@pytest.fixture
async def console(store, tmp_path):
    async with open_console(store, tmp_path) as found:
        yield found


async def enter(console):
    link = console.keys.new_link(console.url)
    async with console.browser.get(link) as response:
        assert response.status == 200
        return response


async def ask(console, method, arguments=None, browser=None, **headers):
    async with (browser or console.browser).post(
        f"/console/api/{method}", json=arguments or {}, headers={**console.own, **headers}
    ) as response:
        return response.status, await response.read()


async def test_a_link_opens_the_console_once_and_leaves_no_secret_behind(console):
    link = console.keys.new_link(console.url)
    async with console.browser.get(link) as response:
        cookie = response.headers["set-cookie"]
        page = await response.text()
    async with console.stranger.get(link) as again:
        assert again.status == 401
    async with console.browser.get("/console/servers") as inside:
        assert inside.status == 200

    flags = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/console", "max-age=43200"} <= flags
    assert link.rpartition("=")[2] not in page
    assert "url=/console/servers" in page


async def test_who_guesses_keys_has_to_wait(console):
    tries = int(ATTEMPTS.partition("/")[0])
    statuses = []
    for number in range(tries + 1):
        async with console.stranger.post(
            "/console/enter", data={"key": f"guess{number}"}, headers={"origin": console.url}
        ) as response:
            statuses.append(response.status)

    assert statuses == [401] * tries + [429]
    # who has a link is not locked out by others
    await enter(console)


async def test_without_a_key_there_is_nothing_to_see(console):
    for path in PATHS:
        async with console.stranger.get(path) as response:
            assert response.status == 401
            assert "The console is locked" in await response.text()
    async with console.stranger.get("/console/events") as response:
        assert response.status == 401
    for path in ("about", "tools", "call", "answer", "events", "leave"):
        async with console.stranger.post(
            f"/console/api/{path}", json={}, headers=console.own
        ) as response:
            assert response.status == 401
            assert "calculator" not in await response.text()


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": None},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://localhost:{port}"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none", "origin": None},
        {"x-multitap-console": None},
        {"x-multitap-console": "2"},
    ],
    ids=str,
)
async def test_no_other_page_can_act_with_the_persons_cookie(console, headers):
    await enter(console)
    port = console.url.rpartition(":")[2]
    given = {**console.own, **headers}
    sent = {name: value.format(port=port) for name, value in given.items() if value is not None}
    for path in ("create_token", "call", "answer", "leave"):
        async with console.browser.post(
            f"/console/api/{path}", json={"name": "x"}, headers=sent
        ) as response:
            assert response.status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        {"origin": "http://127.0.0.1:1"},
    ],
    ids=str,
)
async def test_no_other_page_can_read_or_embed_it(console, headers):
    await enter(console)
    for path in (*PATHS, "/console/events", "/console/static/console.js"):
        async with console.browser.get(path, headers=headers) as response:
            assert response.status == 403


async def test_a_foreign_name_for_this_machine_is_refused(console):
    async with console.browser.get("/console", headers={"host": "evil.example"}) as response:
        assert response.status == 421


async def test_every_response_has_the_headers_that_keep_others_out(console):
    await enter(console)
    for path in (*PATHS, "/console/nothing", "/console/static/console.js", "/console/enter"):
        async with console.browser.get(path) as response:
            for name, value in PAGES.safe:
                assert response.headers[name.decode()] == value.decode(), (path, name)
            assert response.headers["x-content-type-options"] == "nosniff"
    policy = dict(PAGES.safe)[b"content-security-policy"].decode()
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


async def test_the_tokens_of_clients_and_of_browsers_open_their_own_door_only(console, store):
    client, _ = store.create("client")
    browser, _ = store.create("console", is_console=True)
    hello = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    for token, status in ((client, 400), (browser, 401)):  # 400: there is no session

        async def is_answered_so(token=token, status=status):
            async with console.stranger.post(
                "/mcp", json=hello, headers={"authorization": f"Bearer {token}"}
            ) as response:
                return response.status == status

        await until_told(is_answered_so)
    async with console.stranger.get(
        "/console", headers={"cookie": f"{COOKIE}={client}"}
    ) as response:
        assert response.status == 401
    async with console.stranger.get(
        "/console", headers={"authorization": f"Bearer {browser}"}
    ) as response:
        assert response.status == 401


async def test_a_revoked_key_locks_the_open_page(console, store):
    await enter(console)
    async with console.browser.get("/console/events") as stream:
        await stream.content.readuntil(b"\n\n")
        with anyio.fail_after(PATIENCE):
            (revoked,) = store.revoke("console")
            await until_closed(stream)
    status, _ = await ask(console, "about")

    assert revoked.is_console
    assert status == 401


async def until_closed(stream):
    with suppress(aiohttp.ClientError):
        while await stream.content.readline():
            pass


async def test_who_leaves_is_locked_out(console, store):
    await enter(console)
    async with console.browser.post("/console/api/leave", json={}, headers=console.own) as response:
        assert response.status == 200
        assert "Max-Age=0" in response.headers["set-cookie"]
    await until(lambda: store.all()[-1].state(0) == "revoked")


async def test_the_page_asks_what_the_command_line_asks(console):
    await enter(console)

    status, about = await ask(console, "about")
    assert (status, json.loads(about)["url"]) == (200, console.url)
    for method, arguments, expected in (
        ("nothing", {}, 404),
        ("figures_here", {}, 404),
        ("call", {}, 400),
        ("restart", {"server": "nope"}, 404),
    ):
        status, _ = await ask(console, method, arguments)
        assert status == expected


async def frame(stream):
    """The next frame of a stream."""
    with anyio.fail_after(PATIENCE):
        while True:
            text = (await stream.content.readuntil(b"\n\n")).decode()
            if found := re.search(r"^data: (.*)$", text, re.MULTILINE):
                return json.loads(found[1])


async def test_all_pages_share_what_is_written_down_once(store, tmp_path):
    async with open_console(store, tmp_path, servers={"hostile": HOSTILE}) as console:
        await enter(console)
        hub = console.gateway.hub
        async with (
            console.browser.get("/console/events") as one,
            console.browser.get("/console/events") as two,
        ):
            first = await frame(one), await frame(two)
            for _ in range(3):
                await hub.call("hostile_say")
            told = [], []
            for stream, calls in zip((one, two), told, strict=True):
                while len(calls) < 3:
                    calls.extend((await frame(stream)).get("calls", []))
            assert first[0] == first[1]
            assert told[0] == told[1]
            assert [call["tool"] for call in told[0]] == ["say"] * 3
            assert first[0]["servers"][0]["name"] == "hostile"
        for _ in range(MOST_CALLS + 5):
            await hub.call("hostile_say")
        async with console.browser.get("/console/events") as late:
            whole = await frame(late)
            while whole["counters"]["made"] < MOST_CALLS + 8:
                whole |= await frame(late)

    assert whole["counters"]["made"] == MOST_CALLS + 8


async def test_what_a_server_says_is_text_in_the_page_without_scripts(store, tmp_path):
    broken = {"broken": StdioServer(command='<img src=x onerror="alert(1)">\u202e')}
    async with open_console(store, tmp_path, servers=broken) as console:
        await enter(console)
        await console.gateway.hub.settled()
        pages = []
        for path in PATHS:
            async with console.browser.get(path, params={"filter": "<script>"}) as response:
                pages.append(await response.text())

    for page in pages:
        assert "&lt;img src=x onerror" in page
        assert "<img" not in page
        assert "<script>" not in page
        assert "\u202e" not in page
        assert page.count("<script ") == 1


async def test_a_call_tells_its_progress_its_questions_and_its_result(store, tmp_path):
    from tests.gateway.talking import zoo  # noqa: PLC0415 - only here

    async with open_console(store, tmp_path, servers={"zoo": zoo()}) as console:
        await enter(console)
        call = {"name": "zoo_ask", "arguments": {}, "person": True}
        async with console.browser.post(
            "/console/api/call", json=call, headers=console.own
        ) as stream:
            action = await frame(stream)
            question = await frame(stream)
            reply = {
                "action": action,
                "number": question["number"],
                "result": {"action": "accept", "content": {"name": "Ada"}},
            }
            for token in (console.stranger, console.browser):
                async with token.post(
                    "/console/api/answer", json=reply, headers=console.own
                ) as response:
                    status = response.status
            answer = await frame(stream)

        assert status == 200
        assert question["server"] == "zoo"
        assert "Ada" in answer["result"]["content"][0]["text"]
        (record,) = console.gateway.hub.calls.latest()
        assert record.client == "console"


async def test_there_is_no_console_unless_it_is_wanted(store, tmp_path):
    settings = Settings(state_dir=tmp_path / "state")
    async with open_gateway(lambda host: open_hub(settings, handlers=host)) as gateway:
        front = HttpFront(gateway, Access("127.0.0.1"))
        listener = bind("127.0.0.1", 0)
        async with (
            serve_http(front, listener),
            aiohttp.ClientSession(url_of(listener)) as browser,
            browser.get("/console") as response,
        ):
            assert response.status == 404
