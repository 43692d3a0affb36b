"""The screen, driven by keys, on a real gateway with real servers."""

from contextlib import asynccontextmanager

import pytest

from multitap import Settings, StdioServer, open_hub
from multitap.demo.cast import bundled
from multitap.gateway.fronts.control_desk import ControlDesk
from multitap.gateway.fronts.control_places import own_socket
from multitap.gateway.fronts.control_socket import open_control
from multitap.gateway.gateway import open_gateway
from multitap.screens.gateway_client import GatewayClient
from multitap.screens.terminal.app import Terminal
from multitap.screens.terminal.board import Board
from multitap.screens.terminal.result_window import ResultWindow
from multitap.screens.terminal.windows import FormWindow, TextWindow
from tests.waiting import until

SMALL = (80, 24)


@pytest.fixture
def anyio_backend():
    return "asyncio"  # Textual runs on nothing else


@pytest.fixture
def state(tmp_path_factory):
    """A state directory with a short path: its socket is in it."""
    return tmp_path_factory.mktemp("s") / "state"


@asynccontextmanager
async def opened(state, **servers):
    settings = Settings(
        state_dir=state,
        servers=servers or {"calculator": bundled("calculator")},
        record="all",
    )
    async with (
        open_gateway(lambda host: open_hub(settings, handlers=host)) as gateway,
        open_control(ControlDesk(gateway), state),
    ):
        await gateway.hub.settled()
        app = Terminal(GatewayClient(own_socket(state)), ("true",))
        async with app.run_test(size=SMALL) as pilot:
            await until(lambda: len(app.view.servers) == len(settings.servers))
            yield app, pilot, gateway


def lines(app):
    """What the current list shows, as text."""
    shown = app.screen_stack[0].query_one(Board).list
    return [shown.render_line(y).text for y in range(shown.size.height)]


def text_of(app):
    """What the window on top says."""
    return app.screen.words if isinstance(app.screen, ResultWindow) else app.screen.text


async def test_the_failing_server_comes_first_with_its_reason_and_the_key_that_helps(state):
    async with opened(
        state, calculator=bundled("calculator"), broken=StdioServer(command="false")
    ) as (app, _, gateway):
        await until(lambda: gateway.hub.links["broken"].failure is not None)
        await until(lambda: lines(app)[1].startswith("broken"))
        await until(lambda: "press r" in str(app.query_one("#detail").render()))

        assert "needs attention: broken" in app.view.title
        assert lines(app)[2].split()[:2] == ["calculator", "connected"]


async def test_r_restarts_the_server_under_the_cursor(state):
    async with opened(state) as (_, pilot, gateway):
        before = gateway.hub.snapshot().server("calculator").starts
        await pilot.press("r")

        await until(lambda: gateway.hub.snapshot().server("calculator").starts > before)


async def test_a_typed_call_shows_its_result_and_a_row_with_its_times(state):
    async with opened(state) as (app, pilot, _):
        await until(lambda: app.view.tools)
        await pilot.press("slash", *"call calculator_add a=20 b=22", "enter")
        await until(lambda: isinstance(app.screen, ResultWindow))
        assert "42" in text_of(app)

        await pilot.press("escape", "2")
        await until(lambda: len(lines(app)) > 1 and " ok " in lines(app)[1])
        await pilot.press("enter")
        await until(lambda: isinstance(app.screen, TextWindow))

        assert '"a": 20' in text_of(app)
        assert "server" in text_of(app)


async def test_a_tool_is_called_by_a_form_made_from_its_schema(state):
    async with opened(state) as (app, pilot, _):
        await until(lambda: app.view.tools)
        await pilot.press("3")
        await until(lambda: lines(app)[1].startswith("calculator_"))
        await pilot.press("c")
        await until(lambda: isinstance(app.screen, FormWindow))
        await pilot.press(*"no number", "enter", *"3", "enter")
        assert "a: expected a number" in str(app.screen.query_one("#complaint").render())

        await pilot.press("ctrl+u", *"4", "enter", "enter")
        await until(lambda: isinstance(app.screen, ResultWindow))

        assert "7" in text_of(app)


async def test_a_call_is_replayed_and_compared_with_the_last_good_one(state):
    async with opened(state) as (app, pilot, gateway):
        for b in (1, 2):
            await gateway.hub.call("calculator_add", {"a": 1, "b": b})
        await pilot.press("2")
        await until(lambda: lines(app)[2].strip() != "")
        await pilot.press("d")
        await until(lambda: isinstance(app.screen, TextWindow))
        assert '-  "b": 1' in text_of(app)
        assert '+  "b": 2' in text_of(app)

        await pilot.press("escape", "r")
        await until(lambda: isinstance(app.screen, FormWindow))
        await pilot.press("ctrl+s")
        await until(lambda: isinstance(app.screen, ResultWindow))

        assert "3" in text_of(app)
        await until(lambda: app.view.recent.made == 3)


async def test_one_filter_per_place_is_typed_and_a_wrong_one_explained(state):
    async with opened(
        state, calculator=bundled("calculator"), broken=StdioServer(command="false")
    ) as (app, pilot, _):
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


async def test_a_gateway_that_is_gone_is_reported_and_the_screen_stays(state):
    async with opened(state) as (app, pilot, _):
        app.view.client._path = state / "nowhere"

        await until(lambda: "gone" in app.view.title)
        await pilot.press("2", "q")
