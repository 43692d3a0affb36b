"""Fixtures that run the tests of a module on every event loop; to be imported by it."""

import asyncio

import pytest

LOOPS = {"asyncio": {}, "uvloop": {"use_uvloop": True}}


@pytest.fixture(scope="module", params=LOOPS.values(), ids=LOOPS)
def anyio_backend(request: pytest.FixtureRequest):
    return "asyncio", request.param


@pytest.fixture
async def no_task_left(no_task_left: None):
    """Let uvloop take the descriptor that it keeps in reserve from its first listener on."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    server.close()
    await server.wait_closed()
