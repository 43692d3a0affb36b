"""Shares work among callers that need it at the same time: renewals and logins."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from multitap.errors import MultitapError
from multitap.faults import AuthRequired, RequestFailed, WireFault
from multitap.tasks import Tasks

logger = logging.getLogger(__name__)

Work = Callable[..., Coroutine[Any, Any, None]]


class SharedWork:
    """Work in progress, by kind.

    Args:
        tasks: Runs it, even if all waiting callers are cancelled.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._under_way: dict[str, asyncio.Future[WireFault | None]] = {}

    async def wait(self, kind: str, work: Work, *given: object) -> None:
        """Start the work, or join it, and wait for its end.

        Raises:
            WireFault: It failed.
        """
        # shielded: a cancelled caller must not cancel the others
        fault = await asyncio.shield(self.begin(kind, work, *given))
        if fault is not None:
            raise fault.with_traceback(None)

    def begin(self, kind: str, work: Work, *given: object) -> asyncio.Future[WireFault | None]:
        """Start the work, unless it is running; returns a future with its error or None."""
        under_way = self._under_way.get(kind)
        if under_way is None:
            under_way = asyncio.get_running_loop().create_future()
            self._under_way[kind] = under_way
            self._tasks.start_soon(self._finish, kind, under_way, work, given)
        return under_way

    async def _finish(
        self,
        kind: str,
        under_way: asyncio.Future[WireFault | None],
        work: Work,
        given: tuple[object, ...],
    ) -> None:
        fault: WireFault | None = RequestFailed("the login was cancelled", sent=False)
        try:
            fault = await _outcome(work(*given))
        finally:
            del self._under_way[kind]
            if not under_way.done():
                under_way.set_result(fault)


async def _outcome(work: Coroutine[Any, Any, None]) -> WireFault | None:
    """The outcome of the work, as an error that can be raised more than once."""
    try:
        await work
    except WireFault as exc:
        return exc
    except OSError as exc:
        return RequestFailed(f"cannot log in: {exc.strerror or exc}", sent=False)
    except MultitapError as exc:
        return AuthRequired(str(exc), hint=exc.hint)
    except Exception as exc:
        logger.exception("a login failed")
        return AuthRequired(f"cannot log in: {type(exc).__name__}")
    return None
