"""The memory of servers and clients that are gone, given back."""

import gc
import weakref

import anyio
import pytest

from multitap import Settings, open_hub
from multitap.cli.serve.gateway import free_leftovers
from tests.gateway.talking import PATIENCE, zoo


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_a_link_that_was_replaced_is_freed_though_the_collector_never_comes(
    tmp_path, no_collector
):
    def settings(timeout):
        return Settings(state_dir=tmp_path, servers={"zoo": zoo("good_legacy", timeout=timeout)})

    with anyio.fail_after(PATIENCE):
        async with open_hub(settings(20)) as hub, anyio.create_task_group() as tasks:
            await hub.settled()
            replaced = weakref.ref(hub.links["zoo"])
            hub.apply(settings(21))
            await hub.settled()
            tasks.start_soon(free_leftovers, 0.3)  # each look takes a while in a large process
            busy = []
            while replaced() is not None:
                busy += ([] for _ in range(100))
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
