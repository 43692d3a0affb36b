from pathlib import Path

import anyio
import pytest

from multitap import Settings, StdioServer, open_hub
from multitap.events import LinkState
from tests.real.conftest import fetch, program

pytestmark = [pytest.mark.slow, pytest.mark.wide, pytest.mark.network, pytest.mark.timeout(300)]

SERVER = Path(__file__).with_name("any_sdk.py")
RELEASES = (
    *("1.0.0", "1.1.3", "1.2.1", "1.3.0", "1.4.1", "1.5.0", "1.6.0", "1.7.1", "1.8.1", "1.9.4"),
    *("1.10.1", "1.12.4", "1.14.1", "1.17.0", "1.20.0", "1.23.3", "1.26.0", "1.30.0"),
    *("2.0.1", "2.1.1", "2.2.0", "2.3.0"),
)
FIRST_ON_NEW_PYDANTIC = (1, 23)
"""Older ones import what pydantic 2.12 no longer has."""


def command(release, *args):
    number = tuple(map(int, release.split(".")[:2]))
    extra = ["--with", "pydantic<2.12"] if number < FIRST_ON_NEW_PYDANTIC else []
    return [program("uvx"), *extra, "--from", f"mcp=={release}", "python", *args]


@pytest.fixture(scope="module")
def releases():
    """Those that can be had here."""
    reasons = fetch([command(release, "-c", "import mcp.server") for release in RELEASES])
    missing = {release: why for release, why in zip(RELEASES, reasons, strict=True) if why}
    for release, why in missing.items():
        print(f"SDK {release} is left out: {why}")
    if len(missing) == len(RELEASES):
        pytest.skip(f"no release of the SDK can be fetched: {why}")
    return [release for release in RELEASES if release not in missing]


async def test_servers_on_every_release_of_the_sdk_connect_and_answer(releases, tmp_path):
    servers = {}
    for release in releases:
        program_, *args = command(release, str(SERVER))
        servers[release] = StdioServer(command=program_, args=tuple(args))

    async with open_hub(Settings(servers=servers, state_dir=tmp_path)) as hub:
        with anyio.fail_after(180):
            await hub.settled()

        states = {server.name: server.state for server in hub.snapshot().servers}
        answers = {tool.server: (await hub.call(tool.name)).text for tool in hub.tools}

    assert states == dict.fromkeys(releases, LinkState.CONNECTED)
    assert answers == {release: release for release in releases}
