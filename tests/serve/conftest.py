"""What tests of the gateway share."""

import asyncio

import pytest

from multitap import Settings


@pytest.fixture
async def no_task_left(no_task_left):
    """Let the loop take the descriptor that it keeps in reserve from its first listener on."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    server.close()
    await server.wait_closed()


@pytest.fixture
def settings(tmp_path):
    def make(**servers):
        more = {key: servers.pop(key) for key in ("profiles", "naming") if key in servers}
        return Settings(state_dir=tmp_path / "state", servers=servers, **more)

    return make
