"""Pictures of the terminal screen for the documentation, made from a real gateway.

`python -m scripts.terminal_screenshots` writes docs/assets/terminal-*.svg.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

from multitap import Settings, StdioServer, open_hub
from multitap.control.client import ControlClient
from multitap.control.places import own_socket
from multitap.control.server import open_control
from multitap.control.service import ControlService
from multitap.demo.demo_settings import GOOD, bundled_server
from multitap.gateway.gateway import open_gateway
from multitap.screens.terminal.app import Terminal

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
SIZE = (110, 26)
PATIENCE = 30.0
_BROKEN = "import sys; sys.exit('error: GITHUB_TOKEN is not set')"


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.05)


async def _draw(app: Terminal, pilot: Pilot[None]) -> None:
    def keep(name: str) -> None:
        path = ASSETS / f"terminal-{name}.svg"
        path.write_text(app.export_screenshot(title="multitap"), encoding="utf-8")
        print(path)  # noqa: T201 - it is a script

    await _until(lambda: "github" in app.view.title and bool(app.view.tools))
    await pilot.pause(1.2)
    keep("servers")
    await pilot.press("2")
    await _until(lambda: app.view.recent.made > 0)
    await pilot.pause(0.5)
    keep("calls")
    await pilot.press("3", "c")
    await pilot.pause(0.5)
    keep("form")


async def main() -> None:
    """Open a gateway with servers of our own, use it, and draw what the screen shows."""
    servers = {name: bundled_server(name) for name in GOOD}
    servers["github"] = StdioServer(command=sys.executable, args=("-c", _BROKEN))
    ASSETS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        settings = Settings(state_dir=state, servers=servers, record="all")
        async with (
            open_gateway(lambda host: open_hub(settings, handlers=host)) as gateway,
            open_control(lambda: ControlService(gateway), state),
        ):
            await gateway.hub.settled()
            for number in range(1, 8):
                await gateway.hub.call("calculator_add", {"a": number, "b": number})
            await gateway.hub.call("calculator_divide", {"a": 1, "b": 0})
            app = Terminal(ControlClient(own_socket(state)))
            async with app.run_test(size=SIZE) as pilot:
                await _draw(app, pilot)


if __name__ == "__main__":
    asyncio.run(main())
