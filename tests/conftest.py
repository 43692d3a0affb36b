"""Nothing a test does may be left behind: no process, task, descriptor or thread."""

import asyncio
import faulthandler
import functools
import gc
import inspect
import os
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpcore2
import hypothesis
import pytest
import pytest_timeout
import sniffio

from tests.processes import descendants
from tests.trust.keyrings import no_keyring
from tests.waiting import PATIENCE

hypothesis.settings.register_profile(
    "any machine",
    deadline=None,  # one that is busy is slow
    max_examples=int(os.environ.get("MULTITAP_EXAMPLES", "40")),  # `make fuzz` tries far more
)
hypothesis.settings.load_profile("any machine")


STUCK = 300.0
"""Seconds in which no other thread got to run."""
UNIT = 60
"""Tests of one file that one worker runs, so that no worker is left alone with a long file at the
end. No file has as many slow ones: their servers live as long as the file, and start once.
"""
TERMINAL = pytest.StashKey[int]()
"""Where a worker's stacks go."""
WATCHDOG = pytest.StashKey["Watchdog"]()


def pytest_configure(config):
    config.stash[TERMINAL] = os.dup(2)  # before it is captured
    # servers of tests lie anywhere; those about sandboxes say that they want them
    os.environ["MULTITAP_SANDBOX"] = "off"
    # a gateway in the background would outlive its test; those about it say that they want it
    os.environ["MULTITAP_ALONE"] = "1"
    # each client of the SDK reads all certificates of the machine: that takes as long as a test
    httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)
    # a suite that a shell runs in the background ignores Ctrl-C, and so would all that it starts
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # likewise SIGHUP under `nohup`; a handler is not inherited, and the suite still survives it
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)


class Watchdog(threading.Thread):
    """Ends the process when a test takes too long.

    One thread for all tests: starting one for each costs more than most tests, above all where many
    processes wait for a processor.
    """

    def __init__(self, terminal):
        super().__init__(name="watchdog", daemon=True)
        self._terminal = terminal
        self.watched = None
        """When the test has to be done, and what `pytest_timeout` then wants to know."""

    def run(self):
        while True:
            # for code that never lets another thread run, this one included
            faulthandler.dump_traceback_later(STUCK, exit=True, file=self._terminal)
            threading.Event().wait(1)
            if (watched := self.watched) is not None and time.monotonic() > watched[0]:
                # a worker's own words about a timeout get lost, and it seems to have crashed
                faulthandler.dump_traceback(file=self._terminal)
                for pid in descendants(os.getpid()):  # nobody else would ever end them
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                pytest_timeout.timeout_timer(*watched[1:])


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item, settings):
    stash = item.config.stash
    if WATCHDOG not in stash:
        stash[WATCHDOG] = Watchdog(stash[TERMINAL])
        stash[WATCHDOG].start()
    stash[WATCHDOG].watched = time.monotonic() + settings.timeout, item, settings
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item):
    if WATCHDOG in item.config.stash:
        item.config.stash[WATCHDOG].watched = None
    return True


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - workers need none of it

    class Scheduler(LoadScopeScheduling):
        """Slow tests mostly wait, fast ones compute: one half of the workers begins with the slow
        ones and the other half with the last fast ones, so that the processors are always busy.

        It goes on behind a test that ended its worker; xdist's own gives it to worker after worker,
        until there may be no more, and the tests behind it never run.
        """

        def schedule(self):
            self._units, sizes = {}, Counter()
            for test in next(iter(self.registered_collections.values())):
                file = test.partition("::")[0]
                self._units[test] = f"{file} {sizes[file] // UNIT}"
                sizes[file] += 1
            super().schedule()

        def _split_scope(self, nodeid):
            return self._units[nodeid]

        def _assign_work_unit(self, node):
            if self.nodes.index(node) % 2:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

        def remove_node(self, node):
            workload = self.assigned_work.pop(node)
            open_tests = [
                (unit, test)
                for unit in workload.values()
                for test, is_complete in unit.items()
                if not is_complete
            ]
            if not open_tests:
                return None
            unit, crashed = open_tests[0]
            unit[crashed] = True
            for scope, unit in workload.items():
                if not all(unit.values()):
                    self.workqueue[scope] = unit
            for other in self.assigned_work:
                self._reschedule(other)
            return crashed

        def _reschedule(self, node):
            if node not in self.registered_collections:
                return  # it takes the place of one that has ended, and does not know the tests yet
            # a worker begins a test once it has the next one, or hears that there is none
            while self.workqueue and not node.shutting_down:
                if self._pending_of(self.assigned_work[node]) >= 2:
                    return
                self._assign_work_unit(node)
            if not node.shutting_down:
                node.shutdown()

    return Scheduler(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    gc.disable()  # all that is imported and collected stays: looking takes a third of the time
    try:
        return (yield)
    finally:
        _keep_for_good()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def quick_collections():
    yield
    _keep_for_good()


def _keep_for_good():
    # imported modules stay: looking through them for garbage takes half a second after each test
    gc.collect()
    gc.freeze()


BOTH_AT_ONCE = ("wire/", "hub/test_hub.py", "hub/test_lifecycle.py", "test_tasks.py")
"""Tests that run under both kinds of runner, by the beginnings of their paths.
`asyncio.run` comes first: it leaves less in the context, so that more can go wrong.
"""

BOTH_RUNNERS = (*BOTH_AT_ONCE, "http/", "gateway/", "upstream/", "hub/test_hub_http.py")
"""Tests of what has callbacks of its own: the others of them meet the second runner in
`make wide`.
"""

ONE_RUNNER = (
    *("test_cells", "test_crowds", "test_direct", "test_hostile", "test_http_floods"),
    *("test_odd_calls", "test_streams", "test_warden"),
)
"""But for those whose servers live as long as the module, which would meet them twice, those about
other processes than ours, and those that take long.
"""


def pytest_generate_tests(metafunc):
    path = metafunc.definition.path.relative_to(Path(__file__).parent)
    once = metafunc.definition.get_closest_marker("slow") or path.stem in ONE_RUNNER
    place = path.as_posix()
    if inspect.iscoroutinefunction(metafunc.function) and place.startswith(BOTH_RUNNERS):
        late = () if place.startswith(BOTH_AT_ONCE) else pytest.mark.wide
        runners = ["asyncio"] if once else ["asyncio", pytest.param("anyio", marks=late)]
        metafunc.parametrize("runner", runners, indirect=True)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def runner(request):
    """Which kind of host a test has: `asyncio.run`, unless it says or is told otherwise."""
    kind = getattr(request, "param", "asyncio")
    if inspect.iscoroutinefunction(request.function) and kind == "asyncio":
        request.getfixturevalue("no_help_from_anyio")
    return kind


@pytest.fixture
async def no_help_from_anyio():
    """Take away what `anyio.run` leaves in the context, and `asyncio.run` does not.

    With it anyio's objects can be made in callbacks, too; without it they need a task. Fixtures
    and tests share one task, and so one context.
    """
    token = sniffio.current_async_library_cvar.set(None)
    yield
    sniffio.current_async_library_cvar.reset(token)


def no_process_left():
    """For fixtures of a module whose servers live as long as it does."""
    before = descendants(os.getpid())
    yield
    deadline = time.monotonic() + PATIENCE
    while (left := descendants(os.getpid()) - before) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert not left, f"left behind: {left}"


@pytest.fixture(autouse=True)
def nothing_left(request):
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("no_task_left")
    before = _left_behind()
    yield
    deadline = time.monotonic() + PATIENCE
    while (left := _difference(before, _left_behind())) and time.monotonic() < deadline:
        gc.collect()
        _turn_loops()
        threading.Event().wait(0.02)
    assert not left, f"left behind: {left}"


def _turn_loops():
    """Run the loops of anyio's worker threads: only there a thread that is done becomes idle.

    A loop stands still between test and fixture, and a server that lives as long as its module may
    have begun some work in a thread in the very last turn.
    """
    for thread in threading.enumerate():
        loop = getattr(thread, "loop", None)
        if hasattr(thread, "idle_workers") and not (loop.is_running() or loop.is_closed()):
            loop.run_until_complete(asyncio.sleep(0))


@pytest.fixture
async def no_task_left():
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if not _of_the_runner(task)}
    assert not left, f"left behind: {left}"


def _of_the_runner(task):
    return "TestRunner" in task.get_coro().__qualname__


def _left_behind():
    return {
        "processes": descendants(os.getpid()),
        "descriptors": _descriptors(),
        "threads": {thread.name for thread in threading.enumerate() if not _is_pooled(thread)},
    }


def _is_pooled(thread):
    # An idle worker of anyio ends with the task that its loop ran as it began, or with the runner,
    # which may live as long as a module. It hears of that once the loop turns, in the next test.
    is_worker = hasattr(thread, "root_task")
    return is_worker and not thread.queue.unfinished_tasks and not thread.loop.is_closed()


def _difference(before, after):
    return {kind: found for kind in before if (found := after[kind] - before[kind])}


def _descriptors():
    # before and after each of thousands of tests: plain calls take a tenth of what `Path` takes
    found = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))  # noqa: PTH115
        except OSError:
            continue
    return found


@pytest.fixture
def own_logins(tmp_path, monkeypatch):
    """Nobody's logins but those of the test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with no_keyring():
        yield


@pytest.fixture
def own_project(tmp_path, monkeypatch):
    """An empty project to work in, of a person who has used nothing yet."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("STATE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.delenv("MULTITAP_CONFIG", raising=False)
    return folder


@pytest.fixture
async def own_executor():
    """Where the clients of models look up their platform; else the loop keeps the thread."""
    with ThreadPoolExecutor(1) as executor:
        asyncio.get_running_loop().set_default_executor(executor)
        yield
