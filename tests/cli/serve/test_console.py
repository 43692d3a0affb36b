"""`multitap console`, and gateways that have no page."""

import asyncio
import re
import sys

import aiohttp
import pytest

from tests.screens.served import open_served
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


async def test_it_prints_a_link_that_opens_the_page_once():
    async with open_served("") as served:
        link = await served.multitap("console", "--no-open")
        async with aiohttp.ClientSession() as browser:
            statuses = [(await browser.get(link)).status for _ in range(2)]

    assert link.startswith(f"{served.url}/console/enter?key=")
    assert statuses == [200, 401]


@pytest.mark.parametrize(
    "options",
    [
        ("--http", "127.0.0.1:0", "--no-console"),
        ("--http", "0.0.0.0:0", "--insecure"),
    ],
    ids=["unwanted", "exposed"],
)
async def test_a_gateway_may_have_no_page(home, options):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "multitap", "serve", "--demo", *options,
        stderr=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL, cwd=home,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE):
            said = ""
            while "for example" not in said:
                said += (await process.stderr.readline()).decode()
            port = re.search(r"http://[0-9.]+:(\d+)/mcp", said)[1]
            async with (
                aiohttp.ClientSession() as browser,
                browser.get(f"http://127.0.0.1:{port}/console") as response,
            ):
                status = response.status
            process.terminate()
            rest = (await process.stderr.read()).decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()

    assert status == 404
    assert "console" not in said + rest
