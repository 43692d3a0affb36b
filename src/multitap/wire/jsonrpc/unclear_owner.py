"""A server's question that could belong to several calls."""

import asyncio
from collections.abc import Mapping

from multitap.wire.wire import SEVERAL, owner_of


class UnclearOwner:
    """Waits until all calls but those of one owner are answered: the question is theirs then.

    An answered call asks nothing more. A cancelled one may still run at the server, and the
    question may be its own: then the owner never becomes certain.

    Args:
        calls: The pending calls when the question arrived, by request.
    """

    __slots__ = ("_calls", "outcome")

    def __init__(self, calls: Mapping[object, object]) -> None:
        self._calls = dict(calls)
        self.outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        """The call it belongs to; `SEVERAL` if that cannot be known."""

    def on_end(self, request: object, *, answered: bool) -> None:
        """Note that one of the requests has ended."""
        if request not in self._calls or self.outcome.done():
            return
        if not answered:
            self.outcome.set_result(SEVERAL)
            return
        del self._calls[request]
        if (call := common(self._calls)) is not SEVERAL:
            self.outcome.set_result(call)


def common(calls: Mapping[object, object]) -> object | None:
    """One of the calls if all have the same owner, `SEVERAL` if not; None without calls."""
    found = list(calls.values())
    if not found:
        return None
    same = all(owner_of(call) is owner_of(found[0]) for call in found)
    return found[-1] if same else SEVERAL
