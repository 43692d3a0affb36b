"""Returns memory to the system after servers and clients are gone."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import anyio

PAUSE = 60.0
"""Seconds between two looks."""
_GROWN = 2000  # objects more than after the last look, below which it is not worth the while


async def free_leftovers(pause: float = PAUSE) -> None:
    """Free what refers to itself and is old, now and then, until cancelled.

    A link whose server was lost or replaced is a net of such objects. In a gateway the collector
    comes to old ones only after millions of new ones, so that calls need not wait for it: 2,000
    crashes, edits and lost clients would cost 40 MB.

    Args:
        pause: Seconds between two looks.
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
    """Gives free pages back to the system, which glibc does by itself only with the last ones."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes  # noqa: PLC0415 - for this one call

    return getattr(ctypes.CDLL(None), "malloc_trim", None)
