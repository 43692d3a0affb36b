"""Sets the deadline of a call; the only place that does."""

import msgspec

from multitap.upstream.on_behalf_of import CallContext
from multitap.wire.jsonrpc.deadline import Deadline


class TimeLimits(msgspec.Struct, frozen=True):
    """How long calls of one tool, or requests to one server, may take."""

    timeout: float | None
    """Seconds without progress; None: only the hard limit applies."""
    hard_timeout: float
    """Seconds in total, whatever the progress; no less than `timeout`."""

    def deadline(self, context: CallContext, since: float) -> Deadline:
        """The deadline of a call that begins at `since`, by the loop's clock.

        Set once for each call: waits, retries and questions share it. The caller's own limits take
        precedence.
        """
        if context.timeout is None and context.hard_timeout is None:
            # the usual case, without `max` and `min`
            latest = since + self.hard_timeout
            at = latest if self.timeout is None else since + self.timeout
            return Deadline(self.timeout, self.hard_timeout, latest, at)
        timeout = context.timeout or self.timeout
        hard_timeout = max(context.hard_timeout or self.hard_timeout, timeout or 0.0)
        return Deadline.since(since, timeout, hard_timeout)


def limits(timeout: float | None, hard_timeout: float) -> TimeLimits:
    """The limits of a configuration, in which the hard one may be the smaller."""
    return TimeLimits(timeout, max(hard_timeout, timeout or 0.0))
