"""The screen, driven by keys, on a real gateway with real servers."""

import json
import os
import re
import sys
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
from mcp.server import MCPServer
from textual import events

from multitap import Settings, StdioServer, open_hub
from multitap.cli.attachments import attachments, save_attachments
from multitap.config import LocalServer
from multitap.config.policy_rules import PolicyRule
from multitap.control.client import ControlClient
from multitap.control.places import own_socket
from multitap.control.server import open_control
from multitap.control.service import ControlService
from multitap.demo.servers.calculator import server as calculator
from multitap.events import Withheld
from multitap.gateway.gateway import open_gateway
from multitap.screens.terminal.app import KeyBar, Terminal
from multitap.screens.terminal.board import Board
from multitap.screens.terminal.call_dialog import ResultWindow, WaitingWindow
from multitap.screens.terminal.windows import (
    NOTHING,
    AnswerWindow,
    Desktop,
    FormWindow,
    PageWindow,
    ReviewWindow,
    TextWindow,
)
from multitap.screens.view import stderr_lines
from multitap.upstream.questions import CallContext
from tests.gateway.talking import zoo
from tests.waiting import PATIENCE, until

SMALL = (80, 24)


@pytest.fixture
def anyio_backend():
    return "asyncio"  # Textual runs on nothing else


@pytest.fixture
def state(tmp_path_factory):
    """A state directory with a short path: its socket is in it."""
    return tmp_path_factory.mktemp("s") / "state"


@asynccontextmanager
async def opened(state, *, policy=(), desktop=NOTHING, size=SMALL, kind=Terminal, **servers):
    settings = Settings(
        state_dir=state,
        servers=servers or {"calculator": LocalServer(server=calculator)},
        record="all",
        policy=policy,
    )
    async with (
        open_gateway(lambda host: open_hub(settings, handlers=host)) as gateway,
        open_control(lambda: ControlService(gateway), state),
    ):
        await gateway.hub.settled()
        app = kind(ControlClient(own_socket(state)), ("true",), desktop)
        async with app.run_test(size=size) as pilot:
            await until(lambda: len(app.view.servers) == len(settings.servers))
            yield app, pilot, gateway


def lines(app):
    """What the current list shows, as text."""
    shown = app.screen_stack[0].query_one(Board).list
    return [shown.render_line(y).text for y in range(shown.size.height)]


def detail(app):
    """What the line below the list says."""
    return str(app.screen_stack[0].query_one("#detail").render())


def is_open(app, window):
    """Whether it is on top, with all that is in it."""
    return isinstance(app.screen, window) and app.screen.is_mounted


def text_of(app):
    """What the window on top says."""
    return app.screen.words if isinstance(app.screen, ResultWindow) else app.screen.text


async def test_the_failing_server_comes_first_with_its_reason_and_the_key_that_helps(state):
    async with opened(state, calculator=zoo(), broken=StdioServer(command="false")) as (
        app,
        _,
        gateway,
    ):
        await until(lambda: gateway.hub.links["broken"].failure is not None)
        await until(lambda: lines(app)[1].startswith("broken"))
        await until(lambda: "press r" in detail(app))

        assert "needs attention: broken" in app.view.title
        assert lines(app)[2].split()[:2] == ["calculator", "connected"]


async def test_servers_that_are_not_trusted_are_listed_with_the_key_that_shows_them(state):
    async with opened(state, calculator=zoo()) as (app, _, gateway):
        assert app.check_action("act", ("trust",)) is False
        words = "comes with a project that you have not trusted"
        gateway.hub.withheld = (
            Withheld("server", "new", words, "run `multitap trust`", project="/shop"),
            Withheld("server", "calculator", "changed", "run `multitap trust`", True, "/shop"),
        )
        await until(lambda: len(app.view.servers) == 2)
        states = {row.name: (row.state, row.key, row.project) for row in app.view.servers}
        await until(lambda: "press T" in detail(app))

        assert states["new"] == ("not trusted", "T", "/shop")
        assert states["calculator"] == ("connected", "T", "/shop")
        assert "1 of 1 server connected | not trusted: press T to review" in app.view.title
        assert app.check_action("act", ("trust",)) is True


async def test_the_level_of_confinement_is_shown(state):
    async with opened(state, calculator=zoo(), size=(200, 24)) as (app, *_):
        await until(lambda: "confinement off: " in detail(app))

        assert "LEVEL" in lines(app)[0]


async def test_r_restarts_the_server_under_the_cursor(state):
    async with opened(state) as (_, pilot, gateway):
        before = gateway.hub.snapshot().server("calculator").starts
        await pilot.press("r")

        await until(lambda: gateway.hub.snapshot().server("calculator").starts > before)


async def test_a_typed_call_shows_its_result_and_a_row_with_its_times(state):
    async with opened(state) as (app, pilot, _):
        await until(lambda: app.view.tools)
        await pilot.press("slash", *"call calculator_add a=20 b=22", "enter")
        await until(lambda: is_open(app, ResultWindow))
        assert "42" in text_of(app)

        await pilot.press("escape", "2")
        await until(lambda: len(lines(app)) > 1 and " ok " in lines(app)[1])
        await pilot.press("enter")
        await until(lambda: is_open(app, TextWindow))

        assert '"a": 20' in text_of(app)
        assert "server" in text_of(app)


async def test_a_tool_is_called_by_a_form_made_from_its_schema(state):
    async with opened(state) as (app, pilot, _):
        await until(lambda: app.view.tools)
        await pilot.press("3")
        await until(lambda: lines(app)[1].startswith("calculator_"))
        await pilot.press("c")
        await until(lambda: is_open(app, FormWindow))
        await pilot.press(*"no number", "enter", *"3", "enter")
        assert "a: expected a number" in str(app.screen.query_one("#complaint").render())

        await pilot.press("ctrl+u", *"4", "enter", "enter")
        await until(lambda: is_open(app, ResultWindow))

        assert "7" in text_of(app)


async def test_a_call_is_replayed_and_compared_with_the_last_good_one(state):
    async with opened(state) as (app, pilot, gateway):
        for b in (1, 2):
            await gateway.hub.call("calculator_add", {"a": 1, "b": b})
        await pilot.press("2")
        await until(lambda: lines(app)[2].strip() != "")
        await pilot.press("d")
        await until(lambda: is_open(app, TextWindow))
        assert '-  "b": 1' in text_of(app)
        assert '+  "b": 2' in text_of(app)

        await pilot.press("escape", "r")
        await until(lambda: is_open(app, FormWindow))
        await pilot.press("ctrl+s")
        await until(lambda: is_open(app, ResultWindow))

        assert "3" in text_of(app)
        await until(lambda: app.view.recent.made == 3)


async def test_calls_of_an_earlier_run_are_listed_and_compared_with(state):
    async with opened(state) as (_, _, gateway):
        await gateway.hub.call("calculator_divide", {"a": 1, "b": 8})
    async with opened(state) as (app, pilot, gateway):
        await gateway.hub.call("calculator_divide", {"a": 1, "b": 0})
        await pilot.press("2")
        await until(lambda: " error " in lines(app)[1] and " ok " in lines(app)[2])
        assert lines(app)[3].strip() == ""

        await pilot.press("d")
        await until(lambda: is_open(app, TextWindow))

        assert '-  "b": 8' in text_of(app)
        assert '+  "b": 0' in text_of(app)


async def test_one_filter_per_place_is_typed_and_a_wrong_one_explained(state):
    async with opened(state, calculator=zoo(), broken=StdioServer(command="false")) as (
        app,
        pilot,
        _,
    ):
        await pilot.press("f", *"status:up", "enter")
        await until(lambda: not any("broken" in line for line in lines(app)))
        await pilot.press("f", "ctrl+u", *"colour:red", "enter")
        await until(lambda: app._notifications)

        assert "no key 'colour'" in next(iter(app._notifications)).message


@pytest.mark.parametrize(
    ("typed", "place"),
    [("/mcp tools calculator", "tools"), ("/mcp logs", "log"), ("/mcp", "servers")],
)
async def test_typed_commands_lead_to_their_places(state, typed, place):
    async with opened(state) as (app, pilot, _):
        await pilot.press("slash", *typed.removeprefix("/"), "enter")

        await until(lambda: app.screen_stack[0].query_one(Board).place.name == place)
        await until(lambda: any(line.strip() for line in lines(app)[1:]))


async def test_a_gateway_that_has_stopped_is_reported_and_the_screen_stays(state):
    async with opened(state) as (app, pilot, _):
        app.view.client._path = state / "nowhere"

        await until(lambda: "the gateway has stopped" in app.view.title)
        await pilot.press("2", "q")


async def test_before_the_gateway_answers_nothing_is_said_about_servers(state):
    app = Terminal(ControlClient(state / "nowhere"), ("true",), NOTHING)
    async with app.run_test(size=SMALL) as pilot:
        await until(lambda: app.view.trouble)
        await pilot.pause()

        assert detail(app) == ""
        assert "no servers" not in "\n".join(lines(app))
        assert "server" not in app.view.title.replace("gateway", "")


async def test_an_empty_list_says_what_to_do_and_offers_it(state):
    async with opened(state) as (app, pilot, gateway):
        gateway.hub.apply(Settings(state_dir=state))
        await until(lambda: not app.view.servers)
        await until(lambda: "There are no servers yet." in "\n".join(lines(app)))

        assert "no servers yet" in app.view.title
        assert app.check_action("act", ("import",))
        assert not app.check_action("act", ("restart",))
        await pilot.press("a")
        assert app.query_one("#prompt").value == "/mcp add "
        await pilot.press("escape", "3")
        await until(lambda: "No server offers a tool." in "\n".join(lines(app)))


async def test_typed_commands_that_change_files_run_at_the_terminal_and_are_applied(state):
    async with opened(state) as (app, pilot, _):
        ran = []

        async def run(*words, wait):
            ran.append((*words, wait))

        app._keys._run = run
        await pilot.press("slash", *"mcp add https://mcp.example.com/ -t http", "enter")
        await until(lambda: ran)
        await pilot.press("slash", *"mcp remove nobody", "enter")
        await until(lambda: any("nobody" in str(one.message) for one in app._notifications))

        assert ran == [("add", "https://mcp.example.com/", "-t", "http", True)]


async def test_a_replay_without_recorded_arguments_says_why_its_form_is_empty(state):
    async with opened(state) as (app, pilot, gateway):
        settings = msgspec.structs.replace(gateway.hub.settings, record="errors")
        gateway.hub.apply(settings)
        await gateway.hub.call("calculator_add", {"a": 1, "b": 2})
        await pilot.press("2")
        await until(lambda: lines(app)[1].strip() != "")
        await pilot.press("r")
        await until(lambda: is_open(app, FormWindow))

        words = str(app.screen.query("#words Static").first().render())
        assert "The arguments of this call were not kept" in words
        assert 'record = "all"' in words


async def test_the_time_bar_is_seen_in_the_selected_row(state):
    async with opened(state) as (app, pilot, gateway):
        await gateway.hub.call("calculator_add", {"a": 1, "b": 2})
        await pilot.press("2")
        await until(lambda: "█" in lines(app)[1])

        strip = app.screen_stack[0].query_one(Board).list.render_line(1)
        bars = [segment for segment in strip if "█" in segment.text]
        others = [segment for segment in strip if "calculator" in segment.text]
        assert bars
        assert not any(segment.style.reverse for segment in bars)
        assert all(segment.style.reverse for segment in others)


@pytest.mark.parametrize("width", [60, 80, 200])
async def test_no_key_is_cut(state, width):
    async with opened(state, size=(width, 30)) as (app, _, gateway):
        gateway.hub.withheld = (Withheld("server", "new", "x", "y", project="/shop"),)
        await until(lambda: app.view.withheld)
        await until(lambda: "T Trust" in key_lines(app))

        assert all(len(line) <= width for line in key_lines(app).splitlines())
        assert "? Help" in key_lines(app)
        assert key_lines(app).endswith("q Quit")
        bar = app.query_one(KeyBar)
        await until(lambda: bar.size.height == len(key_lines(app).splitlines()))


def key_lines(app):
    return str(app.screen_stack[0].query_one(KeyBar).render())


async def test_a_wide_terminal_shows_more_of_the_selected_row_beside_the_list(state):
    async with opened(state, size=(200, 50)) as (app, pilot, gateway):
        await gateway.hub.call("calculator_add", {"a": 1, "b": 2})
        await until(lambda: "LATEST CALLS" in detail(app))
        await until(lambda: "divide  Divide one number by another." in detail(app))
        listed, panel = app.query_one(Board).list, app.query_one("#detail")

        assert panel.region.x >= listed.region.right
        assert panel.size.height > 30
        await pilot.press("3")
        await until(lambda: '"properties"' in detail(app))
        await pilot.resize_terminal(80, 24)
        await until(lambda: panel.region.y >= listed.region.bottom)


async def test_a_cursor_that_moves_while_the_screen_closes_does_no_harm(state):
    async with opened(state) as (app, _, _):
        await until(lambda: app.view.servers)

    app._on_moved()

    assert not app.screen_stack


async def test_ctrl_c_leaves(state):
    async with opened(state) as (app, pilot, _):
        await pilot.press("ctrl+c")

        await until(lambda: app.return_code == 0)


async def test_every_field_of_a_form_has_an_outline(state):
    async with opened(state) as (app, pilot, _):
        await until(lambda: app.view.tools)
        await pilot.press("3", "c")
        await until(lambda: is_open(app, FormWindow))

        fields = app.screen.query("Input")
        assert len(fields) == 2
        assert {edge for field in fields for edge, _ in field.styles.border} == {"round"}


async def test_markdown_in_a_result_is_formatted_and_its_source_is_a_key_away(state):
    server = MCPServer("writer")

    @server.tool()
    def report() -> str:
        """Write a report."""
        return "# Report\n\nIt is **fine**.\n"

    async with opened(state, writer=LocalServer(server=server)) as (app, pilot, _):
        await until(lambda: app.view.tools)
        await pilot.press("slash", *"call writer_report", "enter")
        await until(lambda: is_open(app, ResultWindow))
        words = app.screen.query_one("#words")

        assert "**" not in shown(app, words)
        assert "It is fine." in shown(app, words)
        await pilot.press("m")
        await until(lambda: "**fine**" in shown(app, words))


def shown(app, widget):
    """The cells of a widget, as text."""
    region = widget.region
    return "\n".join(
        "".join(segment.text for segment in widget.render_line(y)) for y in range(region.height)
    )


async def test_a_question_of_a_server_is_answered_in_a_form(state):
    async with opened(state, zoo=zoo("good_legacy")) as (app, pilot, _):
        await until(lambda: app.view.tools)
        await pilot.press("slash", *"call zoo_ask", "enter")
        await until(lambda: is_open(app, FormWindow))
        await pilot.press(*"Ada", "ctrl+s")
        await until(lambda: is_open(app, ResultWindow))

        assert json.loads(text_of(app)) == {"action": "accept", "content": {"name": "Ada"}}


async def test_a_page_is_shown_in_full_and_opened_only_on_request(state):
    visited = []
    desktop = msgspec.structs.replace(NOTHING, open_page=lambda url: not visited.append(url))
    async with opened(state, zoo=zoo("good_legacy"), desktop=desktop) as (app, pilot, _):
        await until(lambda: app.view.tools)
        await pilot.press("slash", *"call zoo_ask url=true", "enter")
        await until(lambda: is_open(app, PageWindow))
        assert "https://example.com/sign-in" in str(app.screen.query_one("Static").render())
        assert visited == []
        await pilot.press("o", "a")
        await until(lambda: is_open(app, ResultWindow))

        assert visited == ["https://example.com/sign-in"]
        assert json.loads(text_of(app)) == {"action": "accept"}


async def test_an_address_that_browsers_read_differently_is_declined(state):
    page = "https://evil.example\\@bank.example/"
    async with opened(state, zoo=zoo("good_legacy")) as (app, pilot, _):
        await until(lambda: app.view.tools)
        await pilot.press("slash", *f"call zoo_ask url=true page={page}", "enter")
        await until(lambda: is_open(app, ResultWindow))

        assert json.loads(text_of(app)) == {"action": "decline"}


async def test_a_request_for_a_model_is_answered_or_declined_by_the_person(state):
    async with opened(state, zoo=zoo("good_legacy")) as (app, pilot, _):
        await until(lambda: app.view.tools)
        for keys, answer in ((("H", "i", "ctrl+s"), '"text": "Hi"'), (("escape",), "declined")):
            await pilot.press("slash", *"call zoo_sample", "enter")
            await until(lambda: is_open(app, AnswerWindow))
            await pilot.press(*keys)
            await until(lambda: is_open(app, ResultWindow))
            assert answer in text_of(app)
            await pilot.press("escape")


async def test_a_call_under_way_is_cancelled_with_its_window(state):
    async with opened(state, zoo=zoo("good_legacy")) as (app, pilot, gateway):
        await until(lambda: app.view.tools)
        await pilot.press("slash", *"call zoo_sleep seconds=1000", "enter")
        await until(lambda: is_open(app, WaitingWindow))
        await until(lambda: app.view.recent.in_flight == 1)
        await pilot.press("escape")

        await until(lambda: app.view.recent.in_flight == 0)
        assert [one.outcome.value for one in gateway.hub.calls.latest()] == ["cancelled"]


async def test_pictures_are_described_saved_and_shown(state, tmp_path):
    shown, folder = [], tmp_path / "saved"
    desktop = Desktop(
        save=lambda result, name: save_attachments(attachments(result.blocks), folder, name),
        open_picture=lambda result: not shown.append(result),
        open_page=NOTHING.open_page,
    )
    async with opened(state, zoo=zoo("good_legacy"), desktop=desktop) as (app, pilot, _):
        await until(lambda: app.view.tools)
        await pilot.press("slash", *"call zoo_blocks", "enter")
        await until(lambda: is_open(app, ResultWindow))
        await pilot.press("s", "o")
        await until(lambda: shown)

        assert "image/png" in text_of(app)
        assert ".png" in {path.suffix for path in folder.iterdir()}


async def test_clients_are_listed_with_what_they_called(state):
    async with opened(state) as (app, pilot, gateway):
        await gateway.hub.call(
            "calculator_add", {"a": 1, "b": 2}, context=CallContext(agent_id="helper")
        )
        await pilot.press("4")
        await until(lambda: lines(app)[1].startswith("helper"))
        await until(lambda: "calculator add" in detail(app))
        await pilot.press("enter")

        await until(lambda: app.screen_stack[0].query_one(Board).place.name == "calls")
        await until(lambda: "add" in lines(app)[1])


async def test_a_call_that_the_policy_asks_about_is_decided_in_access(home, state):
    rule = PolicyRule(decision="ask", tools=["add"], reason="sums are serious")
    async with opened(state, policy=(rule,)) as (app, pilot, gateway):
        answers = []

        async def call():
            answers.append(await gateway.hub.call("calculator_add", {"a": 1, "b": 2}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until(lambda: "1 question: press 5" in app.view.title)
            await pilot.press("5")
            await until(lambda: lines(app)[1].startswith("policy question"))
            assert "sums are serious" in detail(app)
            await pilot.press("enter")
            await until(lambda: is_open(app, FormWindow))
            await pilot.press(*"once", "enter")

        assert answers[0].text == "3.0"
        await until(lambda: "question" not in app.view.title)
        await until(lambda: any(line.startswith("audit") for line in lines(app)))


async def test_a_token_is_created_shown_once_and_revoked(home, state):
    async with opened(state) as (app, pilot, _):
        await pilot.press("5", "n")
        await until(lambda: is_open(app, FormWindow))
        await pilot.press(*"ci", "enter", "enter", *"calculator_*", "ctrl+s")
        await until(lambda: is_open(app, TextWindow))
        token = text_of(app).split()[0]
        await pilot.press("escape")
        await until(lambda: lines(app)[1].split()[:3] == ["token", "ci", "active"])
        assert token not in "".join(lines(app)) + detail(app)
        await pilot.press("x")
        await until(lambda: is_open(app, ReviewWindow))
        await pilot.press("a")

        await until(lambda: lines(app)[1].split()[:3] == ["token", "ci", "revoked"])


async def test_changed_tools_are_accepted_only_after_their_difference_was_seen(
    home, state, tmp_path
):
    server = zoo("rug_pull", env={"ZOO_DIR": str(tmp_path)}, provenance="registry")
    async with opened(state, zoo=server) as (app, pilot, gateway):
        await gateway.hub.call("zoo_fault")
        await until(lambda: "changed tools: zoo" in app.view.title)
        await pilot.press("5")
        await until(lambda: lines(app)[1].startswith("changed tools"))
        await pilot.press("enter")
        await until(lambda: is_open(app, ReviewWindow))
        assert any(line.strip().startswith("+") for line in text_of(app).splitlines())
        assert "zoo_echo" not in gateway.hub.catalog.tools
        await pilot.press("a")

        await until(lambda: "zoo_echo" in gateway.hub.catalog.tools)
        await until(lambda: "changed" not in app.view.title)


async def test_tasks_are_listed_opened_and_cancelled(state):
    async with opened(state, zoo=zoo("good_legacy")) as (app, pilot, gateway):
        await pilot.press("7")
        await until(lambda: "There are no tasks" in "\n".join(lines(app)))
        done = await gateway.hub.start("zoo_add", {"a": 40, "b": 2})
        await done.result()
        hanging = await gateway.hub.start("zoo_sleep", {"seconds": 1000})
        await until(lambda: "working" in (shown := "\n".join(lines(app))) and "completed" in shown)
        await pilot.press("home", "x")
        await until(lambda: hanging.status == "cancelled")
        await until(lambda: "cancelled" in "\n".join(lines(app)))
        await pilot.press("end", "enter")
        await until(lambda: is_open(app, TextWindow))

        assert "42" in text_of(app)
        assert done.id in text_of(app)


async def test_the_log_shows_what_happens(state):
    async with opened(state) as (app, pilot, gateway):
        await pilot.press("6")
        await until(lambda: any("connected" in line for line in lines(app)))
        gateway.hub.restart("calculator")

        await until(lambda: sum("connected" in line for line in lines(app)) > 1)


def test_what_servers_write_is_part_of_the_log():
    text = "half a line\n2026-01-31 12:00:00 ready\n2026-01-31 12:00:01 \x1b[2Jbusy"

    assert [one.text for one in stderr_lines("zoo", text)] == [
        "stderr: ready",
        "stderr: \x1b[2Jbusy",
    ]


async def test_the_mouse_chooses_a_place_and_opens_a_row(state):
    async with opened(state) as (app, pilot, _):
        await until(lambda: app.view.tools)
        await pilot.click("Tab#tools")
        await until(lambda: lines(app)[1].startswith("calculator_"))
        await pilot.click("RowList#tools", offset=(2, 2))
        await pilot.click("RowList#tools", offset=(2, 2))

        await until(lambda: is_open(app, TextWindow))


async def test_without_colour_what_needs_attention_is_still_plain(state, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened(state, broken=StdioServer(command="false")) as (app, _, _):
        await until(lambda: "press r" in detail(app))
        drawn = app.export_screenshot()

        assert "error" in lines(app)[1]
        colours = {
            int(one[i : i + 2], 16) for one in re.findall(r"fill: #(\w{6})", drawn) for i in (0,)
        }
        assert colours
        assert all(
            one[:2] == one[2:4] == one[4:]
            for one in re.findall(r"-r\d+ {{ fill: #(\w{{6}})", drawn)
        )


class Impatient(Terminal):
    """As one on a machine that is too busy to handle a key in time."""

    longest = 0.0


@pytest.mark.parametrize("kind", [Terminal, Impatient])
async def test_what_is_typed_at_once_goes_to_the_prompt_line(state, kind):
    async with opened(state, kind=kind) as (app, pilot, _):
        for key in ("slash", *"mcp tools"):  # as fast as a terminal that pastes
            app.post_message(events.Key(key, None if len(key) > 1 else key))
        await until(lambda: app.query_one("#prompt").value == "/mcp tools")
        await pilot.press("enter")

        await until(lambda: app.screen_stack[0].query_one(Board).place.name == "tools")


@pytest.mark.skipif(sys.platform != "linux", reason="counts sockets in /proc")
async def test_one_connection_tells_of_every_call_until_the_screen_leaves(state):
    settings = Settings(state_dir=state, servers={"calculator": zoo()})
    async with open_gateway(lambda host: open_hub(settings, handlers=host)) as gateway:
        control = ControlService(gateway)
        async with open_control(lambda: control, state):
            await gateway.hub.settled()
            before = open_sockets()
            feed = ControlClient(own_socket(state)).pulses(0, most=3, every=0.01)
            with anyio.fail_after(PATIENCE):
                async with feed as pulses:
                    first = await anext(pulses)
                    for number in range(10):
                        await gateway.hub.call("calculator_add", {"a": number, "b": 1})
                    while (pulse := await anext(pulses)).made < first.made + 10:
                        assert len(pulse.records) <= 3
            # nothing new is said, and the gateway still notices that nobody listens
            await until(lambda: open_sockets() == before)

        assert (pulse.made, pulse.in_flight) == (10, 0)


def open_sockets():
    """How many descriptors of this process are sockets."""
    found = (os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd"))  # noqa: PTH208
    return sum("socket:" in one for one in found)


async def test_a_beat_of_the_clock_while_it_ends_is_harmless(state):
    async with opened(state) as (app, _, _):
        pass

    app._look_again()

    assert not app.screen_stack
