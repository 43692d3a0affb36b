"""The traffic of one program by host, and its refused connections."""

from multitap.events import HostTraffic, RefusedHost

_MOST = 200  # hosts that are counted separately: a program may try any number of names


class Traffic:
    """Counts for one program."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._refused: dict[str, tuple[str, int]] = {}

    def on_opened(self, host: str) -> None:
        self._count(host)[0] += 1

    def on_sent(self, host: str, size: int) -> None:
        self._count(host)[1] += size

    def on_received(self, host: str, size: int) -> None:
        self._count(host)[2] += size

    def on_refused(self, host: str, reason: str) -> None:
        if host in self._refused or len(self._refused) < _MOST:
            self._refused[host] = (reason, self._refused.get(host, ("", 0))[1] + 1)

    def hosts(self) -> tuple[HostTraffic, ...]:
        return tuple(HostTraffic(host, *counts) for host, counts in self._counts.items())

    def refusals(self) -> tuple[RefusedHost, ...]:
        return tuple(RefusedHost(host, *told) for host, told in self._refused.items())

    def _count(self, host: str) -> list[int]:
        if host not in self._counts and len(self._counts) >= _MOST:
            host = "others"
        return self._counts.setdefault(host, [0, 0, 0])
