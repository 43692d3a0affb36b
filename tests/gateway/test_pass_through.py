"""Methods that extensions define, while the server that they are meant for still starts."""

import sys
from pathlib import Path

import pytest

from multitap import Settings
from multitap.config import StdioServer
from tests.gateway import plain_client
from tests.gateway.starting import starting

HERE = Path(__file__).parent


@pytest.mark.parametrize("era", ["old", "new"])
async def test_a_method_waits_until_it_is_known_whose_it_is(tmp_path, era):
    scripts = {"skilled": ("skill_server.py", "s"), "plain": ("plain_server.py",)}
    servers = {
        name: StdioServer(command=sys.executable, args=(str(HERE / script), era, *more))
        for name, (script, *more) in scripts.items()
    }
    settings = Settings(state_dir=tmp_path / "state", servers=servers)
    async with (
        starting(settings) as opened,
        plain_client.on_http(era, opened.url) as client,
    ):
        await client.begin()
        answer = await client.result("acme/echo", x=1)

    assert answer["echo"] == {"x": 1}
