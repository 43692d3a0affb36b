"""Shapes results where the loop of a gateway does not wait for it; large ones in a process."""

import resource
import sys
from subprocess import DEVNULL

import anyio
import msgspec
from anyio import CapacityLimiter, to_thread

from multitap.errors import MultitapError
from multitap.results.cutting import Handle
from multitap.results.select import Shaped, fit_result
from multitap.selectors import Selector

IN_THREAD = 256 * 1024
"""Bytes of a result that is cut in a thread."""
SELECTED_IN_THREAD = 64 * 1024
"""The same if something is selected, which may take far longer."""
AT_A_TIME = 2
"""Threads and processes that shape at the same time: each thread makes the loop wait 5 ms."""
_SECONDS = 30.0  # for a process, on a busy machine; a selection takes 2 s of processor time
_ADDRESSES = 1024**3  # bytes


class _Order(msgspec.Struct, frozen=True):
    raw: bytes
    expression: str | None
    room: int
    handle: Handle
    start: int


async def fit(  # noqa: PLR0917 - those of `fit_result`, and the limit
    raw: bytes,
    selector: Selector | None,
    room: int,
    handle: Handle,
    limiter: CapacityLimiter,
    start: int = 0,
) -> Shaped:
    """The same as `fit_result`.

    Decoding, comparing and collecting the objects of a large result holds the interpreter for up
    to a second, so a thread would not help: the loop would wait for it, too.

    Raises:
        MultitapError: It took too much time or memory.
    """
    async with limiter:
        if len(raw) <= (IN_THREAD if selector is None else SELECTED_IN_THREAD):
            return await to_thread.run_sync(fit_result, raw, selector, room, handle, start)
        expression = None if selector is None else selector.expression
        order = msgspec.msgpack.encode(_Order(raw, expression, room, handle, start))
        with anyio.move_on_after(_SECONDS):
            process = await anyio.run_process(
                [sys.executable, "-I", "-m", __name__],
                input=order,
                stderr=DEVNULL,
                check=False,
                cwd="/",
                env={},
                start_new_session=True,
            )
            if process.returncode == 0:
                return msgspec.msgpack.decode(process.stdout, type=Shaped)
    raise MultitapError("the result takes too long to shape")


def main() -> None:
    """Shape one result, from the standard input to the standard output."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=_Order)
    selector = None if order.expression is None else Selector(order.expression)
    shaped = fit_result(order.raw, selector, order.room, order.handle, order.start)
    sys.stdout.buffer.write(msgspec.msgpack.encode(shaped))


if __name__ == "__main__":
    main()
