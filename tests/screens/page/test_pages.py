"""The page in a real browser, on a gateway that runs as a person starts it."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from mcp import Client

from tests.gateway import cells
from tests.module_life import anyio_backend, nothing_left
from tests.screens import hostile_server
from tests.screens.chromium import PROGRAM, open_chromium
from tests.screens.served import open_served
from tests.waiting import PATIENCE
from tests.zoo.modes import SERVER

__all__ = ["anyio_backend", "nothing_left"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="there is no chromium"),
]

CONFIG = f"""
record = "all"
[servers.hostile]
command = "{sys.executable}"
args = ["{hostile_server.__file__}"]
[servers.zoo]
command = "{sys.executable}"
args = ["{SERVER}", "good"]
[servers.cells]
command = "{sys.executable}"
args = ["{cells.__file__}", "old"]
[servers.broken]
command = "{sys.executable}"
args = ["-c", "import sys; print('no key <b>at all</b>', file=sys.stderr); sys.exit(3)"]
[[policy]]
decision = "ask"
servers = ["cells"]
tools = ["add"]
reason = "sums are serious"
"""
DIALOG = "document.querySelector('dialog[open]')"
FOCUS = "(document.activeElement?.innerText ?? '')"


@pytest.fixture(scope="module")
async def served():
    async with open_served(CONFIG) as found:
        yield found


@pytest.fixture(scope="module")
async def browser():
    async with open_chromium() as found:
        yield found


@pytest.fixture
async def page(served, browser):
    """A tab that is let in; nothing may be wrong with it at the end."""
    async with browser.page() as found:
        await found.visit(await served.new_link())
        await found.sees("live")
        yield found
        assert found.complaints == []
        assert await found.run("window.hacked") is None


async def call(served, name, **arguments):
    """A call of a real client."""
    async with Client(f"{served.url}/mcp") as client:
        return await client.call_tool(name, arguments)


async def visit(page, place, words):
    await page.press(place)
    await page.until(f"document.querySelector('main').innerText.includes({json.dumps(words)})")


async def dialog(page, words):
    await page.until(f"{DIALOG}?.innerText.includes({json.dumps(words)})")


async def closed(page):
    await page.press("Escape")
    await page.until(f"!{DIALOG}")


async def filtered(page, text):
    """Type a filter, and go to the first row, by keys."""
    await page.press("f")
    await page.run("document.activeElement.select()")
    await page.type(text)
    await page.until(f"location.search.includes({json.dumps(text.partition(':')[0])})")
    await page.press("ArrowDown")


async def on_row(page, words):
    row = "document.activeElement.closest('tr')"
    await page.until(f"{row}?.innerText.includes({json.dumps(words)})")


async def test_a_link_opens_the_page_and_is_left_behind(served, browser):
    async with browser.page() as page:
        await page.visit(await served.new_link())
        await page.sees("live")

        assert await page.run("location.href") == f"{served.url}/console/servers"
        assert await page.run("document.cookie") == ""
        assert await page.run("history.length") <= 2
        paint = await page.run("performance.getEntriesByType('paint')[0].startTime")
        sizes = await page.run(
            "performance.getEntriesByType('resource').filter((one) => one.decodedBodySize)"
            ".reduce((sum, one) => sum + one.decodedBodySize, 0)"
        )
        assert sizes < 150_000
        assert paint < 5000  # 200 on a machine that is idle, which this one is not
        assert page.complaints == []


async def test_servers_that_need_somebody_come_first_with_a_reason(served, page):
    first = await page.until("document.querySelector('tbody tr')?.innerText")

    assert first.startswith("broken")
    assert "no key <b>at all</b>" in first
    assert await page.run("document.querySelector('.summary').innerText") != ""
    await page.sees("needs attention: broken")


async def test_a_clients_calls_are_seen_as_they_happen(served, page):
    await page.press("2")
    made = await page.until("document.querySelector('.summary').innerText.match(/(\\d+) call/)[1]")
    await call(served, "zoo_add", a=20, b=22)
    await page.until("document.querySelector('tbody tr')?.innerText.includes('add')")
    await page.until(
        "Number(document.querySelector('.summary').innerText.match(/(\\d+) call/)[1]) > "
        f"{int(made)}"
    )
    row = await page.run("document.querySelector('tbody tr').innerText")
    bar = await page.run("document.querySelector('tbody tr svg.bar').getAttribute('aria-label')")

    assert "zoo" in row
    assert "ok" in row
    assert "server" in bar


async def test_a_tool_is_called_by_its_form_and_shows_its_picture(served, page):
    await visit(page, "3", "hostile_draw")
    await filtered(page, "tool:hostile_draw")
    await on_row(page, "hostile_draw")
    await page.press("c")
    await dialog(page, "Call")
    assert await page.run("document.activeElement.name") == "width"
    await page.type("5")
    await page.press("Enter")
    await dialog(page, "image/png, 5 \N{MULTIPLICATION SIGN} 3")
    sources = await page.run(f"[...{DIALOG}.querySelectorAll('img')].map((one) => one.src)")

    assert len(sources) == 1
    assert sources[0].startswith("data:image/png;base64,")
    await dialog(page, "image/svg+xml, 0 KB: this type is not shown")
    assert await page.run(f"{DIALOG}.querySelectorAll('script, iframe, object, embed').length") == 0
    await closed(page)


async def test_links_and_sounds_of_a_server_are_harmless(served, page):
    await visit(page, "3", "hostile_say")
    await filtered(page, "tool:hostile_say")
    await on_row(page, "hostile_say")
    await page.press("c")
    await dialog(page, "It takes no arguments.")
    await page.press("Enter")
    await dialog(page, "javascript:window.hacked=1")
    links = await page.run(f"[...{DIALOG}.querySelectorAll('a')].map((one) => one.href)")
    sound = await page.run(f"{DIALOG}.querySelector('audio').src")

    assert links == ["https://example.invalid/"]
    assert sound.startswith("data:audio/wav;base64,")
    await closed(page)


async def test_a_server_that_asks_is_answered_in_the_page(served, page):
    await visit(page, "3", "zoo_ask")
    await filtered(page, "tool:zoo_ask")
    await on_row(page, "zoo_ask")
    await page.press("c")
    await dialog(page, "Call")
    await page.click("Call", DIALOG)
    await page.until(
        "[...document.querySelectorAll('dialog')].at(-1)?.innerText.includes('zoo asks')"
    )
    await page.until("document.activeElement?.name === 'name'")
    await page.type("Ada")
    await page.press("Enter")
    await page.until("document.querySelectorAll('dialog').length === 1")
    await dialog(page, "Ada")
    await closed(page)


async def calls(page, tool, **known):
    """Call a tool by its form, up to the question of its server."""
    await visit(page, "3", tool)
    await filtered(page, f"tool:{tool}")
    await on_row(page, tool)
    await page.press("c")
    await dialog(page, "Call")
    for name in known:
        await page.run(f"{DIALOG}.querySelector('[name={name}]').click()")
    await page.click("Call", DIALOG)
    await page.until("document.querySelectorAll('dialog[open]').length === 2")


LAST = "[...document.querySelectorAll('dialog[open]')].at(-1)"


async def test_a_request_for_a_model_is_answered_or_refused_in_the_page(served, page):
    await calls(page, "zoo_sample")
    await page.until(f"{LAST}.innerText.includes('Say hello')")
    await page.until("document.activeElement.id === 'sampled'")
    await page.type("hello from a person")
    await page.press("Tab", "Enter")
    await page.until("document.querySelectorAll('dialog[open]').length === 1")
    await dialog(page, "hello from a person")
    await dialog(page, "human")
    await closed(page)

    await calls(page, "zoo_sample")
    await page.click("Refuse", LAST)
    await dialog(page, "the person refused")
    await closed(page)


async def test_a_page_that_a_server_wants_visited_is_opened_only_on_request(served, page):
    await calls(page, "zoo_ask", url=True)
    await page.until(f"{LAST}.innerText.includes('https://example.com/sign-in')")
    await page.until(f"{LAST}.innerText.includes('on the host example.com')")
    await page.click("Decline", LAST)
    await dialog(page, "decline")
    await closed(page)

    await calls(page, "zoo_ask", url=True)
    link = f"{LAST}.querySelector('a[href^=https]')"
    assert await page.run(f"[{link}.href, {link}.target, {link}.rel]") == [
        "https://example.com/sign-in",
        "_blank",
        "noopener noreferrer",
    ]
    # the page itself is not opened: this machine need not reach it
    await page.run(f"{link}.addEventListener('click', (event) => event.preventDefault())")
    await page.click("Open the page", LAST)
    await dialog(page, "accept")
    await closed(page)


async def test_a_call_that_the_policy_asks_about_waits_for_the_page(served, page):
    async with asyncio.TaskGroup() as tasks:
        # a client that cannot be asked itself
        calling = tasks.create_task(call(served, "cells_add", a=1, b=2))
        await dialog(page, "sums are serious")
        await page.run(f"{DIALOG}.querySelector('select').focus()")
        await page.press("ArrowDown")
        await page.press("Enter")
        await page.click("Send", DIALOG)
        result = await calling

    assert not result.is_error
    await page.until(f"!{DIALOG}")


async def test_a_failed_call_is_opened_replayed_and_compared(served, page):
    await call(served, "zoo_echo", text="well")
    await call(served, "zoo_fail", message="<b>oh</b>")
    await visit(page, "2", "fail")
    await filtered(page, "tool:fail")
    await on_row(page, "fail")
    await page.press("Enter")
    await dialog(page, "Response")
    await dialog(page, "<b>oh</b>")
    await closed(page)
    await on_row(page, "fail")
    await page.press("r")
    await dialog(page, "Call")
    assert await page.run(f"{DIALOG}.querySelector('[name=message]').value") == "<b>oh</b>"
    await page.click("Call", DIALOG)
    await dialog(page, "The tool reported a failure.")
    await closed(page)
    await call(served, "zoo_echo", text="better")
    await filtered(page, "tool:echo")
    await on_row(page, "echo")
    await page.press("d")
    await dialog(page, "better")
    kinds = await page.run(
        f"[...{DIALOG}.querySelectorAll('.difference span')].map((one) => one.className)"
    )
    assert {"came", "went"} <= {*kinds}
    await closed(page)


async def test_a_killed_server_is_seen_coming_back(served, page):
    cells_row = (
        "[...document.querySelectorAll('tbody tr')]"
        ".find((one) => one.innerText.startsWith('hostile'))?.innerText ?? ''"
    )
    await page.until(f"({cells_row}).includes('connected')")
    before = served.servers("hostile_server.py")
    for process in before:
        os.kill(process, signal.SIGKILL)
    await page.until(f"/connected[^]*\\t1\\t\\w+\\t/.test({cells_row})")
    await page.press("6")
    await page.sees("disconnected")
    after = served.servers("hostile_server.py")

    assert before
    assert after
    assert not {*before} & {*after}


async def test_ten_everyday_tasks_are_done_by_keys_alone(served, page):  # noqa: PLR0915 - ten
    # 1: which server fails, and why
    await page.press("1")
    await page.until("!!document.querySelector('tbody tr')")
    await page.press("ArrowDown")
    await on_row(page, "broken")
    # 2: what it wrote
    await page.press("l")
    await dialog(page, "no key <b>at all</b>")
    await closed(page)
    # 3: restart it
    await on_row(page, "broken")
    await page.press("r")
    await page.sees("broken restarts.")
    # 4: disable it, and 5: enable it again
    await page.press("e")
    await dialog(page, "Disable broken?")
    await page.press("Enter")
    await page.sees("broken is disabled.")
    await filtered(page, "server:broken")
    await on_row(page, "disabled")
    await page.press("e")
    await page.sees("broken is enabled.")
    # 6: find a tool by words, and read its schema
    await page.press("3")
    await filtered(page, "tool:zoo_add")
    await on_row(page, "zoo_add")
    await page.press("Enter")
    await dialog(page, '"required"')
    await closed(page)
    # 7: call it
    await on_row(page, "zoo_add")
    await page.press("c")
    await page.until("document.activeElement.name === 'a'")
    await page.type("2")
    await page.press("Tab")
    await page.type("3")
    await page.press("Enter")
    await dialog(page, "Answered in")
    await dialog(page, "5")
    await closed(page)
    # 8: find that call, and what it said
    await page.press("2")
    await filtered(page, "tool:add client:console")
    await on_row(page, "add")
    await page.press("Enter")
    await dialog(page, "Where the time went")
    await dialog(page, '"a": 2')
    await closed(page)
    # 9: create a token for a client
    await page.press("5", "n")
    await page.until("document.activeElement.id === 'token-name'")
    await page.type("by-keys")
    await page.press("Enter")
    await dialog(page, "mtap_")
    await closed(page)
    await page.sees("by-keys")
    # 10: read the log of one server
    await page.press("6")
    await filtered(page, "server:broken level:error")
    await page.sees("exited")


async def test_pins_tokens_and_audit_are_in_one_place(served, page):
    await visit(page, "5", "Tokens")
    await page.sees("All tools are as pinned.")
    await page.sees("this console")
    await page.sees("token.created")


async def test_tasks_are_listed_opened_and_cancelled(served, page):
    await served.multitap("call", "--detach", "zoo_add", "a=40", "b=2")
    await served.multitap("call", "--detach", "zoo_sleep", "seconds=1000")
    await visit(page, "7", "zoo_add")
    await page.until("document.querySelector('main').innerText.includes('working')")
    await page.press("ArrowDown")
    await on_row(page, "zoo_sleep")
    await page.press("x")
    await dialog(page, "Cancel zoo_sleep?")
    await page.press("Enter")
    await page.until("document.querySelector('main').innerText.includes('cancelled')")
    await filtered(page, "tool:zoo_add")
    await on_row(page, "completed")
    await page.press("Enter")
    await dialog(page, "42")
    await closed(page)


async def test_clients_are_listed_with_what_they_called(served, page):
    async with Client(f"{served.url}/mcp", mode="legacy") as client:
        await client.call_tool("zoo_pid", {})
        await visit(page, "4", "2025-")  # those with a session come first
        await page.press("ArrowDown", "Enter")
        await dialog(page, "pid")
        await closed(page)


async def test_clients_without_a_session_are_listed_with_what_they_called(served, page):
    await visit(page, "4", "sessions")
    await call(served, "zoo_pid")
    await page.sees("zoo pid")
    await filtered(page, "client:mcp*")
    await on_row(page, "zoo pid")
    await page.press("Enter")
    await dialog(page, "pid")
    await closed(page)


async def test_a_tool_without_arguments_is_called_by_enter(served, page):
    await visit(page, "3", "zoo_pid")
    await filtered(page, "tool:zoo_pid")
    await on_row(page, "zoo_pid")
    await page.press("c")
    await dialog(page, "It takes no arguments.")
    await page.press("Enter")
    await page.sees("Answered in")
    await closed(page)


async def test_the_page_is_locked_within_a_second_when_its_token_is_revoked(served, browser):
    async with browser.page() as page:
        await page.visit(await served.multitap("console", "--no-open"))
        await page.sees("live")
        await page.press("5")
        await page.sees("this console")
        tokens = json.loads(await served.multitap("token", "list", "--json"))
        newest = max((one for one in tokens if one["console"]), key=lambda one: one["created"])
        await served.multitap("token", "revoke", newest["id"])
        await page.sees("The console is locked")
        assert "this console" not in await page.run("document.body.innerText")
        await page.visit(f"{served.url}/console/calls")
        await page.sees("The console is locked")


async def test_without_scripts_the_page_says_so_and_shows_the_servers(served, browser):
    async with browser.page(scripts=False) as page:
        await page.visit(await served.new_link())
        await page.visit(f"{served.url}/console/calls")
        await page.until("location.pathname === '/console/calls'")
        await page.sees("The console needs JavaScript")
        await page.sees("no key <b>at all</b>")
        assert page.complaints == []


FILTERS = [
    "github", "server:a*", "-status:ok", "status:error", ">500ms", "<=1m30s", "tool:l?st",
    "text:Boom", "since:1h", "level:warning", '"two words"', "client:'cla ude'", "sever:x",
    ">fast", "level:loud", "'open", "tool:[ab]dd", "", "a:b:c", "-", "-server:a*",
]  # fmt: skip
ROWS = [
    {"server": "a1", "tool": "list", "status": "ok", "text": None, "seconds": 0.7, "at": 1e12},
    {"server": "github", "tool": "add", "status": "timeout", "text": "BOOM two words", "at": 1.0},
    {"server": "b", "client": "Cla Ude", "level": "error", "text": "a:b:c -", "seconds": 95.0},
]


async def test_the_page_understands_filters_as_the_gateway_does(served, page):
    from multitap.errors import BadArguments  # noqa: PLC0415 - only here
    from multitap.store.queries import RecordFilter  # noqa: PLC0415 - only here

    def expected(text):
        try:
            wanted = RecordFilter.parse(text)
        except BadArguments:
            return "refused"
        return [wanted.matches(row) for row in ROWS]

    found = await page.run(
        f"""import('/console/static/filters.js').then(({{ parse }}) =>
            {json.dumps(FILTERS)}.map((text) => {{
                try {{ return {json.dumps(ROWS)}.map(parse(text)); }} catch {{ return "refused"; }}
            }}))"""
    )

    assert dict(zip(FILTERS, found, strict=True)) == {text: expected(text) for text in FILTERS}


@pytest.mark.network
async def test_axe_finds_nothing_serious(served, page, request):
    source = _axe(request.config.cache.mkdir("axe"))
    await page.say("Page.addScriptToEvaluateOnNewDocument", source=source)
    found = {}
    for place in ("servers", "calls", "tools", "clients", "access", "log"):
        await page.visit(f"{served.url}/console/{place}")
        await page.sees("live")
        await page.until("!!document.querySelector('main table, main .empty')")
        for theme in ("light", "dark"):
            await page.run(f"document.documentElement.dataset.theme = '{theme}'")
            found[place, theme] = await _serious(page)
    await page.visit(f"{served.url}/console/tools?filter=tool:hostile_draw")
    await page.sees("live")
    await page.press("ArrowDown")
    await on_row(page, "hostile_draw")
    await page.press("c")
    await dialog(page, "Call")
    found["form"] = await _serious(page)
    await closed(page)

    assert {place: problems for place, problems in found.items() if problems} == {}


async def _serious(page):
    return await page.run(
        "axe.run().then(({violations}) => violations"
        ".filter((one) => ['serious', 'critical'].includes(one.impact))"
        ".map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' ').slice(0, 300)}`))"
    )


def _axe(folder):
    file = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not file.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("there is no npm")
        done = subprocess.run(
            [npm, "install", "--prefix", folder, "--ignore-scripts", "--no-audit", "axe-core@4"],
            capture_output=True,
            check=False,
            timeout=PATIENCE,
        )
        if done.returncode:
            pytest.skip("axe-core cannot be fetched")
    return file.read_text(encoding="utf-8")


async def test_a_kept_picture_is_shown_as_a_picture_and_its_data_is_named(served, page):
    await call(served, "hostile_picture")
    await page.press("2")
    await filtered(page, "tool:picture")
    await on_row(page, "picture")
    await page.press("Enter")
    await page.until(f"{DIALOG}?.querySelector('img')?.naturalWidth > 0")
    await page.click("Raw answer", inside=DIALOG)

    assert await page.run("[...document.querySelectorAll('dialog img')].length") == 1
    assert not await page.run(f"/[A-Za-z0-9+/]{{400}}/.test({DIALOG}.innerText)")
    await closed(page)


async def test_markdown_of_a_tool_is_formatted_and_harmless(served, page):
    await visit(page, "3", "hostile_report")
    await filtered(page, "tool:hostile_report")
    await on_row(page, "hostile_report")
    await page.press("c")
    await dialog(page, "Call")
    await page.press("Enter")
    await page.until(f"!!{DIALOG}?.querySelector('.markdown')")
    tags = await page.run(
        f"[...{DIALOG}.querySelectorAll('.markdown *')].map((one) => one.tagName)"
    )
    words = await page.run(f"{DIALOG}.querySelector('.markdown').innerText")
    await page.click("Source", inside=DIALOG)
    shown = f"[...{DIALOG}.querySelectorAll('pre')].find((one) => one.checkVisibility())"
    source = await page.run(f"{shown}.innerText")

    assert {"H3", "STRONG", "UL", "LI", "TABLE", "PRE", "CODE", "A"} <= {*tags}
    assert not {"IMG", "SCRIPT", "IFRAME"} & {*tags}
    assert "<img src=x onerror=" in words
    assert "javascript:" in words  # shown as text
    assert "**bold**" in source
    links = await page.run(f"[...{DIALOG}.querySelectorAll('.markdown a')].map((one) => one.href)")
    assert links == ["https://example.com/a"]
    await closed(page)


async def test_times_are_shown_one_way_and_counts_have_their_plurals(served, page):
    async with Client(f"{served.url}/mcp", mode="legacy") as client:
        await client.call_tool("zoo_pid", {})
        await page.until("document.querySelector('.axis-words')?.innerText")
        times = await page.run("document.querySelector('.axis-words').innerText")
        await page.press("4")
        words = await page.until(
            "/^[1-9].*session/.exec(document.querySelector('main .quiet')?.innerText)?.[0]"
        )

    assert re.match(r"\d\d:\d\d:\d\d\b", times)
    assert words.endswith("session") == words.startswith("1 ")


async def test_before_the_first_answer_the_page_says_that_it_loads(served, browser):
    async with browser.page() as page:
        await page.say(
            "Page.addScriptToEvaluateOnNewDocument",
            source="""window.texts = new Set(); new MutationObserver(() =>
                window.texts.add(document.querySelector('.empty')?.innerText ?? '')
            ).observe(document, { childList: true, subtree: true, characterData: true });""",
        )
        await page.visit(await served.new_link())
        await page.sees("live")
        await page.until("document.querySelectorAll('tbody tr').length >= 4")
        texts = await page.run("[...window.texts]")

    assert "Loading…" in texts
    assert {*texts} <= {"", "Loading…"}


async def test_without_servers_the_page_says_what_to_do(browser):
    async with open_served("[servers]\n") as served, browser.page() as page:
        await page.visit(await served.new_link())
        await page.sees("There are no servers yet.")
        await page.press("3")
        await page.sees("No server offers a tool.")
        await page.press("4")
        await page.sees("multitap install CLIENT")

        assert page.complaints == []


async def test_on_a_phone_every_action_is_within_reach_and_fields_have_outlines(served, browser):
    async with browser.page(size=(390, 844)) as page:
        await page.visit(await served.new_link())
        await page.until("document.querySelectorAll('tbody tr').length >= 4")
        for place in ("1", "2", "3", "5"):
            await page.press(place)
            await page.until("document.querySelector('main').children.length > 1")
            outside = await page.run(
                "[...document.querySelectorAll('main button, header button')]"
                ".map((one) => one.getBoundingClientRect())"
                ".filter((box) => box.width && (box.left < 0 || box.right > innerWidth)).length"
            )
            assert (place, outside) == (place, 0)
            assert await page.run("document.documentElement.scrollWidth <= innerWidth"), place
        colours = await page.run(
            "[...document.querySelectorAll('input, select')].map((one) => "
            "[getComputedStyle(one).borderTopColor, getComputedStyle(one).borderTopWidth].join())"
        )
        assert {*colours} == {"rgb(129, 139, 152),1px"}  # 3.4:1 on white


async def test_a_project_that_is_not_trusted_is_shown_and_stays_untrusted(browser):
    config = f'[servers.zoo]\ncommand = "{sys.executable}"\nargs = ["{SERVER}", "good"]\n'
    async with open_served(config, named=False) as served, browser.page() as page:
        await page.visit(await served.new_link())
        await page.sees("not trusted")
        first = await page.until("document.querySelector('tbody tr')?.innerText")
        await page.press("f", "ArrowDown", "T")
        await dialog(page, "server zoo (multitap.toml): new")
        await dialog(page, "This page cannot do that: in a terminal, run `multitap trust ")
        await dialog(page, SERVER.name)
        await closed(page)
        async with browser.page(scripts=False) as plain:
            await plain.visit(await served.new_link())
            await plain.sees("zoo: not trusted; it comes with a project that you have not trusted")
        assert json.loads(await served.multitap("trust", "--list", "--json")) == []
        await served.multitap("trust", "--yes")
        await page.until("document.querySelector('tbody tr')?.innerText.includes('connected')")

        assert first.startswith("zoo")
        assert page.complaints == []


EDITED = f"""
[servers.zoo]
command = "{sys.executable}"
args = ["{SERVER}", "good"]
[servers.archive]
command = "true"
enabled = false
"""


async def test_servers_and_tools_are_renamed_described_disabled_and_removed(browser):
    async with open_served(EDITED) as served, browser.page() as page:
        await page.visit(await served.new_link())
        await page.until("document.querySelector('tbody')?.innerText.includes('connected')")
        await page.click("zoo")
        await page.click("Rename", inside=DIALOG)
        await page.until(f"{DIALOG}?.querySelector('input')?.value === 'zoo'")
        await page.run(f"{DIALOG}.querySelector('input').value = 'park'")
        await page.click("Rename", inside=DIALOG)
        await page.until("document.querySelector('tbody')?.innerText.includes('park')")
        await visit(page, "3", "park_echo")
        await filtered(page, "tool:park_echo")
        await on_row(page, "park_echo")
        await page.press("Enter")
        await page.click("Rename or describe", inside=DIALOG)
        await page.until(f"{DIALOG}?.querySelector('#tool-name')?.value === 'echo'")
        await page.run(f"{DIALOG}.querySelector('#tool-name').value = 'repeat'")
        await page.run(f"{DIALOG}.querySelector('textarea').value = 'Repeats words.'")
        await page.click("Save", inside=DIALOG)
        await page.until(f"!{DIALOG}")
        await page.click("Tools")
        await page.sees("park_repeat")
        written = (served.home / "multitap.toml").read_text()
        await page.click("Servers")
        await page.click("Disable")
        await page.click("Disable", inside=DIALOG)
        await page.until("document.querySelector('tbody')?.innerText.match(/park\\s+disabled/)")
        await page.run(
            "[...document.querySelectorAll('tbody tr')].find((one) => one.innerText.startsWith("
            "'park')).querySelectorAll('.actions button')[1].click()"
        )
        await page.until("document.querySelector('tbody')?.innerText.includes('connected')")
        await page.click("park")
        await page.click("Remove", inside=DIALOG)
        await page.click("Remove", inside=DIALOG)
        await page.until("!document.querySelector('tbody')?.innerText.includes('park')")

        assert "[servers.park]" in written
        assert 'echo = "repeat"' in written
        assert 'echo = "Repeats words."' in written
        assert page.complaints == []


async def test_an_address_is_reviewed_connected_to_and_added(served, browser):
    async with open_served("[servers]\n") as other, browser.page() as page:
        await page.visit(await other.new_link())
        await page.click("Add a server")
        await page.until(f"!!{DIALOG}?.querySelector('#what')")
        await page.type(f"{served.url}/mcp")
        await page.until(f"{DIALOG}?.querySelector('.card code')?.innerText.startsWith('http')")
        await page.click("Review", inside=DIALOG)
        await dialog(page, "Connect to it once, and add it if it works?")
        await page.run(f"{DIALOG}.querySelector('#server-name').value = 'far'")
        await page.click("Add", inside=DIALOG)
        await page.until("document.querySelector('tbody tr')?.innerText.includes('connected')")

        assert f'url = "{served.url}/mcp"' in (other.home / "multitap.toml").read_text()
        assert page.complaints == []


async def test_what_others_wrote_is_added_disabled_and_starts_only_with_a_new_key(
    browser, tmp_path
):
    async with open_served("[servers]\n") as served, browser.page() as page:
        # a launcher that leaves a mark, and then is a server
        mark, launcher = tmp_path / "started", served.home / "bin"
        launcher.mkdir()
        (launcher / "npx").write_text(
            f"#!/bin/sh\ntouch {mark}\nexec {sys.executable} {SERVER} good\n"
        )
        (launcher / "npx").chmod(0o755)
        await page.visit(await served.new_link())
        await page.click("Add a server")
        await page.sees("memory")
        await page.run(f"{DIALOG}.querySelector('#what').value = 'memory'")
        await page.run(
            f"[...{DIALOG}.querySelectorAll('.card')]"
            ".find((one) => one.querySelector('strong')?.innerText === 'memory')"
            ".querySelector('button').click()"
        )
        await dialog(page, "It is written to your file, disabled.")
        await page.click("Add", inside=DIALOG)
        await dialog(page, "Others wrote this program. It has not run yet.")
        written = (served.home / "multitap.toml").read_text()
        refused = await page.run(
            "fetch('/console/api/switch', { method: 'POST', headers: { 'content-type':"
            " 'application/json', 'x-multitap-console': '1' }, body: JSON.stringify("
            "{ server: 'memory', on: true }) }).then((one) => one.json())"
        )
        await page.run(f"{DIALOG}.querySelector('#new-key').value = 'guessed'")
        await page.click("Enable", inside=DIALOG)
        await dialog(page, "this key was used already, or is too old")
        assert not mark.exists()

        link = await served.new_link()
        await page.run(f"{DIALOG}.querySelector('#new-key').value = {json.dumps(link)}")
        await page.click("Enable", inside=DIALOG)
        await page.until("document.querySelector('tbody tr')?.innerText.includes('connected')")

        assert "enabled = false" in written
        assert 'provenance = "' in written
        assert "described by others" in refused["error"]
        assert mark.exists()
        assert "enabled = true" in (served.home / "multitap.toml").read_text()
