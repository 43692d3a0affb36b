"""Finds out which package version each launcher started."""

from collections.abc import Callable
from functools import partial

from anyio import to_thread

from multitap.config import StdioServer
from multitap.events import LinkState
from multitap.tasks import Tasks
from multitap.trust.pins.packages import LaunchedPackage, launch_of, resolve
from multitap.trust.pins.pins import Pins, pin_mode
from multitap.upstream.link import Link


class PackageLookup:
    """Inspects each process of a launcher once.

    Args:
        tasks: Runs the inspections.
        pins: Receives the versions that are found.
        on_change: Called with a server whose version is new.
    """

    def __init__(self, tasks: Tasks, pins: Pins, on_change: Callable[[str], None]) -> None:
        self._tasks = tasks
        self._pins = pins
        self._on_change = on_change
        self._seen: dict[str, int] = {}

    def note(self, link: Link) -> None:
        """Inspect the process of a link whose state has changed, if it is a new one."""
        config, pid = link.config, link.pid
        if link.state is not LinkState.CONNECTED or pid is None or pid == self._seen.get(link.name):
            return
        if not isinstance(config, StdioServer) or pin_mode(config) == "off":
            return
        if (launch := launch_of(config.command, config.args)) is not None:
            # Before the inspection, which takes a while: other states of the process must not start
            # a second one.
            self._seen[link.name] = pid
            self._tasks.start_soon(partial(self._look, link, config), launch, pid)

    async def _look(
        self, link: Link, config: StdioServer, launch: LaunchedPackage, pid: int
    ) -> None:
        package = await to_thread.run_sync(resolve, launch, pid, abandon_on_cancel=True)
        if self._pins.note_package(link.name, config, package):
            self._on_change(link.name)
