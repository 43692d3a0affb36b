"""Returns memory to the system after servers and clients have left."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import anyio

PAUSE = 60.0
"""Seconds between two collections."""
_GROWN = 2000  # new objects since the last collection, below which another is not worth it


async def free_leftovers(pause: float = PAUSE) -> None:
    """Free old reference cycles periodically, until cancelled.

    A link whose server was lost or replaced consists of such cycles. In a gateway, the collector
    examines old objects only after millions of new ones, so that calls do not wait for it: 2,000
    crashes, edits and lost clients would cost 40 MB.

    Args:
        pause: Seconds between two collections.
    """
    trim = _trim()
    while True:
        await anyio.sleep(pause)
        young, *older = gc.get_count()
        if young > _GROWN or any(older):
            gc.collect()
            if trim is not None:
                trim(0)


def _trim() -> Callable[[int], Any] | None:
    """Returns free pages to the system; glibc itself returns only those at the end of the heap."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes  # noqa: PLC0415 - for this one call

    return getattr(ctypes.CDLL(None), "malloc_trim", None)
