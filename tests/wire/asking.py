"""Requests on a wire, as those make them who are above it."""

import asyncio

import anyio

from multitap.errors import WireFault
from multitap.tasks import Work
from multitap.wire.jsonrpc import RpcError
from multitap.wire.request import Deadline, make_request
from tests.waiting import PATIENCE


async def ask(wire, method, params, *, timeout, hard_timeout=None, **options):
    """The result of a request."""
    deadline = Deadline.since(asyncio.get_running_loop().time(), timeout, hard_timeout)
    request = make_request(method, params, deadline, **options)
    return await wire.request(request)


class Launched:
    """A request in a task of its own; its outcomes are kept."""

    def __init__(self, wire, tasks, method, params, *, timeout, on_end=None):
        self.told = []
        self._on_end = on_end or self.told.append
        self._ended = anyio.Event()
        self._work = Work()
        tasks.begin(self._work, self._go(wire, method, params, timeout))

    async def _go(self, wire, method, params, timeout):
        try:
            outcome = await ask(wire, method, params, timeout=timeout)
        except (WireFault, RpcError) as exc:
            outcome = exc
        self._on_end(outcome)
        self._ended.set()

    def give_up(self):
        self._work.cancel()

    async def get(self):
        """The only outcome."""
        with anyio.fail_after(PATIENCE):
            await self._ended.wait()
        (outcome,) = self.told
        return outcome
