"""Pictures for the documentation, made from a real gateway: `python -m scripts.screenshots`.

PNGs of the page come from Chromium. They have at most 150 KB each. SVGs of the terminal come from
`scripts.terminal_screenshots`.
"""

import asyncio
import itertools
import sys
from pathlib import Path

import mcp_types as types
from mcp import Client
from tests.screens.chromium import Page, open_chromium
from tests.screens.served import Served, open_served

from scripts import terminal_screenshots

ASSETS = Path(__file__).parent.parent / "docs" / "assets"
LARGEST = 150 * 1024
SIZE = (1180, 680)
SERVERS = ("calculator", "clock", "notebook")
CONFIG = 'record = "all"\n' + "".join(
    f"""
[servers.{name}]
command = "{sys.executable}"
args = ["-m", "multitap.demo.servers.{name}"]
"""
    for name in SERVERS
)
CONFIG += f"""
[servers.search]
command = "{sys.executable}"
args = ["-c", "import sys; sys.exit('SEARCH_API_KEY is not set')"]
[servers.archive]
command = "true"
enabled = false
"""
CALLS = (
    ("calculator_add", {"a": 20, "b": 22}),
    ("calculator_divide", {"a": 1, "b": 8}),
    ("calculator_divide", {"a": 1, "b": 0}),
    ("clock_now", {}),
    ("notebook_write", {"title": "today", "text": "Call Ada."}),
    ("notebook_search", {"word": "Ada"}),
)


async def main() -> None:
    """Make all pictures again."""
    ASSETS.mkdir(exist_ok=True)
    await terminal_screenshots.main()
    async with open_served(CONFIG) as served, open_chromium() as browser:
        for dark in (False, True):
            async with browser.page(dark=dark, size=SIZE) as page:
                await page.visit(await served.new_link())
                await page.sees("live")
                await _show(served, page, "-dark" if dark else "")


async def _show(served: Served, page: Page, suffix: str) -> None:
    info = types.Implementation(name="claude-code", version="2.1.0")
    async with Client(f"{served.url}/mcp", mode="legacy", client_info=info) as client:
        for name, arguments in itertools.islice(itertools.cycle(CALLS), 48):
            await client.call_tool(name, arguments)
            await asyncio.sleep(0.07)
        await page.sees("needs attention: search")
        await page.until("document.querySelectorAll('.line.calls').length === 1")
        # the plots are renewed every few seconds
        await page.until("!/Errors\\s+none/.test(document.body.innerText)")
        await _taken(page, f"console-servers{suffix}")
        await page.press("2")
        await page.until("document.querySelectorAll('tbody tr').length > 20")
        await _taken(page, f"console-calls{suffix}")
        await page.press("3")
        await page.sees("calculator_divide")
        await page.press("f")
        await page.type("tool:calculator_divide")
        await page.press("ArrowDown")
        await page.until("document.activeElement.closest('tr') !== null")
        await page.press("c")
        await page.until("document.activeElement.name === 'a'")
        await page.type("1")
        await page.press("Tab")
        await page.type("8")
        await page.press("Enter")
        await page.sees("Answered in")
        await _taken(page, f"console-form{suffix}")
        await page.press("Escape")


async def _taken(page: Page, name: str) -> None:
    path = ASSETS / f"{name}.png"
    await page.picture(path)
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} has {path.stat().st_size:,} bytes")
    sys.stdout.write(f"{path}: {path.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    asyncio.run(main())
