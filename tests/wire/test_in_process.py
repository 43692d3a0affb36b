"""A server object in this process: its work ends with whoever waits for it."""

import anyio

from multitap.wire.in_process import open_in_process
from tests.waiting import until
from tests.wire.asking import ask
from tests.wire.sdk_web import Waiting

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def test_a_call_that_is_given_up_at_any_point_of_its_way_does_not_run():
    waiting = Waiting()
    async with open_in_process(waiting.server) as wire:
        for turns in range(25):
            async with anyio.create_task_group() as tasks:
                params = {"name": "wait", "arguments": {}, "_meta": META}
                tasks.start_soon(lambda params=params: ask(wire, "tools/call", params, timeout=60))
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        await until(lambda: waiting.begun == waiting.ended)

    assert waiting.begun
