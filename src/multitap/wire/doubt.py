"""A question of a server that may belong to one of several calls."""

import asyncio
from collections.abc import Mapping

from multitap.wire.wire import SEVERAL, party_of


class Doubt:
    """Waits until all calls but those of one party are answered: it is theirs then.

    A call that is answered waits for nothing any more. One that was given up may still be worked
    on, and the question may be its own: it never becomes certain then.

    Args:
        calls: The calls under way when it was asked, by request.
    """

    __slots__ = ("_calls", "settled")

    def __init__(self, calls: Mapping[object, object]) -> None:
        self._calls = dict(calls)
        self.settled: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        """The call it belongs to; `SEVERAL` where nobody will ever know."""

    def ended(self, request: object, *, answered: bool) -> None:
        """One of the requests has come to its end."""
        if request not in self._calls or self.settled.done():
            return
        if not answered:
            self.settled.set_result(SEVERAL)
            return
        del self._calls[request]
        if (call := common(self._calls)) is not SEVERAL:
            self.settled.set_result(call)


def common(calls: Mapping[object, object]) -> object | None:
    """One of the calls if all are of the same party, `SEVERAL` if not; None: there are none."""
    found = list(calls.values())
    if not found:
        return None
    same = all(party_of(call) is party_of(found[0]) for call in found)
    return found[-1] if same else SEVERAL
