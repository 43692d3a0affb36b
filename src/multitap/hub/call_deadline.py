"""Sets the deadline of a call; nothing else does."""

import msgspec

from multitap.upstream.on_behalf_of import CallContext
from multitap.wire.jsonrpc.deadline import Deadline


class TimeLimits(msgspec.Struct, frozen=True):
    """How long calls of one tool, or requests to one server, may take."""

    timeout: float | None
    """Seconds without a sign of life; None: only the hard limit counts."""
    hard_timeout: float
    """Seconds after which no sign of life helps; no less than `timeout`."""

    def deadline(self, context: CallContext, since: float) -> Deadline:
        """When a call has to be over whose time begins at `since`, by the loop's clock.

        Set once for each call: whatever waits, is sent again or asks back has what is left of it.
        The caller's own limits come before these.
        """
        if context.timeout is None and context.hard_timeout is None:
            # nearly every call: here, `max` and `min` have nothing left to decide
            latest = since + self.hard_timeout
            at = latest if self.timeout is None else since + self.timeout
            return Deadline(self.timeout, self.hard_timeout, latest, at)
        timeout = context.timeout or self.timeout
        hard_timeout = max(context.hard_timeout or self.hard_timeout, timeout or 0.0)
        return Deadline.since(since, timeout, hard_timeout)


def limits(timeout: float | None, hard_timeout: float) -> TimeLimits:
    """The limits of a configuration, where the hard one may be written as the smaller."""
    return TimeLimits(timeout, max(hard_timeout, timeout or 0.0))
