"""Hostile clients of every kind: the gateway and its other clients go on, and nothing is left."""

import pytest

from tests.serve.hostile import bodies, crowds, heads, impostors, readers
from tests.serve.hostile.stage import beside_healthy_clients, open_stage


@pytest.fixture
def anyio_backend():
    return "asyncio", {"use_uvloop": True}  # as the program runs


@pytest.fixture
async def no_task_left(no_task_left):
    """The loop keeps a descriptor in reserve from its first listener on: it is no loss."""
    import asyncio

    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    server.close()
    await server.wait_closed()


def named(hostile):
    return hostile.__name__


@pytest.mark.parametrize(
    "hostile",
    [*heads.HOSTILE, *bodies.HOSTILE, *impostors.HOSTILE, *readers.HOSTILE, *crowds.HOSTILE],
    ids=named,
)
async def test_the_others_are_served_while_hostile_clients(hostile, tmp_path):
    async with open_stage(tmp_path) as stage, beside_healthy_clients(stage) as healthy:
        await hostile(stage, healthy)
