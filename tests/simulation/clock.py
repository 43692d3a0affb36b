"""An event loop whose time is turned, not waited for."""

import asyncio
import selectors


class _Turning(selectors.DefaultSelector):
    """Looks whether anything is ready; if not, lets the loop's time pass instead of waiting."""

    def __init__(self):
        super().__init__()
        self.now = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("everything waits and nothing will ever happen")
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._turning = _Turning()
        super().__init__(self._turning)

    def time(self):
        return self._turning.now


def run(main):
    """Run a coroutine function in virtual time; nothing may be left when it returns."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:

        async def guarded():
            result = await main()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, left
            return result

        return runner.run(guarded())
