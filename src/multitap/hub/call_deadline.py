"""Sets the deadline of a call; the only place that does."""

import math

import msgspec

from multitap.upstream.on_behalf_of import CallContext
from multitap.wire.jsonrpc.deadline import Deadline

RENEWALS = 10
"""How many times its timeout a call may take that reports progress, unless that is configured."""


class TimeLimits(msgspec.Struct, frozen=True):
    """How long calls of one tool, or requests to one server, may take."""

    timeout: float | None
    """Seconds without progress; None: only the hard limit applies."""
    hard_timeout: float
    """Seconds in total, whatever the progress; no less than `timeout`."""
    ceiling: float
    """The highest hard limit for callers with another timeout."""
    renewals: float
    """How many times its timeout a call may take within that."""

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
        if context.hard_timeout is None:
            hard_timeout = _hard_limit(timeout, self.ceiling, self.renewals)
        else:
            hard_timeout = max(context.hard_timeout, timeout or 0.0)
        return Deadline.since(since, timeout, hard_timeout)


def limits(timeout: float | None, hard_timeout: float, *, is_chosen: bool) -> TimeLimits:
    """The limits of a configuration, in which the hard one may be the smaller.

    Args:
        timeout: Seconds without progress.
        hard_timeout: Seconds in total.
        is_chosen: Whether a person chose these; the default is for servers that are busy for long,
            and not for a call with a short timeout.
    """
    renewals = math.inf if is_chosen else RENEWALS
    return TimeLimits(timeout, _hard_limit(timeout, hard_timeout, renewals), hard_timeout, renewals)


def _hard_limit(timeout: float | None, ceiling: float, renewals: float) -> float:
    return ceiling if timeout is None else max(timeout, min(ceiling, renewals * timeout))
