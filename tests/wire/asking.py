"""Requests on a wire, as those make them who are above it."""

import asyncio

import anyio

from multitap.errors import WireFault
from multitap.tasks import LightTask
from multitap.wire.jsonrpc import RpcError
from multitap.wire.request import Deadline, make_request


async def ask(wire, method, params, *, timeout, hard_timeout=None, light=None, **options):
    """The result of a request."""
    deadline = Deadline.since(asyncio.get_running_loop().time(), timeout, hard_timeout)
    request = make_request(method, params, deadline, **options)
    request.light = light
    return await wire.request(request)


class Launched:
    """A request in no task of its own, for as long as that goes; its outcomes are kept."""

    def __init__(self, wire, tasks, method, params, *, timeout, on_end=None):
        self.told = []
        self._on_end = on_end or self.told.append
        self._ended = anyio.Event()
        self._light = LightTask(tasks)
        self._light.run(self._go(wire, method, params, timeout))

    @property
    def in_task(self):
        return self._light.task is not None

    async def _go(self, wire, method, params, timeout):
        try:
            outcome = await ask(wire, method, params, timeout=timeout, light=self._light)
        except (WireFault, RpcError) as exc:
            outcome = exc
        self._on_end(outcome)
        self._ended.set()

    def give_up(self):
        self._light.cancel()

    async def get(self):
        """The only outcome."""
        with anyio.fail_after(30):
            await self._ended.wait()
        (outcome,) = self.told
        return outcome
