"""Answers the system calls that a confined process hands to the warden.

A filter sees numbers, not the memory behind pointers, which may change after a check. So a
supervised call is never simply allowed: the warden reads its arguments once, and makes the call
itself with what it read.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import struct
import time
from functools import partial

from .calling_process import AT_FDCWD, CallingProcess, real_path
from .kernel import ARCHITECTURES, CHANGING, USED_PATHS, to_signed, used_paths
from .seccomp import FILE_CHANGES, NEW_PROCESS, READING, SIGNALS, machine
from .supervised_connects import ConnectRules, SupervisedConnects
from .supervised_files import (
    DeniedChanges,
    OwnDevices,
    SupervisedChanges,
    SupervisedWatches,
    open_own,
    own_place,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .confinement import SandboxOrders

_EVERYBODY = -1


class SupervisedSignals:
    """The signals of one server.

    Args:
        owns: Whether a process, or with a negative number all of a group, are of the server.
    """

    def __init__(self, owns: Callable[[int], bool]) -> None:
        self._owns = owns

    def allows(self, caller: CallingProcess, name: str, target: int) -> bool:
        """Whether a signal goes to the server's own processes.

        The kernel reads no memory to find out to whom, so the call can go on.
        """
        if name == "kill" and target == 0:
            return True  # its own group, which is in its own session
        # a thread of its own, as runtimes signal all the time
        if target > 0 and os.path.exists(f"/proc/{target}/task/{caller.pid}"):
            return True
        return target != _EVERYBODY and self._owns(target)

    def send(self, caller: CallingProcess, arguments: list[int]) -> int:
        """Send a signal by descriptor: its caller could exchange what that is about.

        Raises:
            OSError: It is refused, or fails.
        """
        ours = caller.descriptor(to_signed(arguments[0]))
        try:
            if not self.allows(caller, "pidfd_send_signal", _process_behind(ours)):
                return -errno.EPERM
            signal.pidfd_send_signal(ours, to_signed(arguments[1]))
        finally:
            os.close(ours)
        return 0


def _process_behind(fd: int) -> int:
    """The process that a descriptor of ours is about.

    Raises:
        OSError: It is about none, or that process is gone.
    """
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name == "Pid" and int(value) > 0:
                return int(value)
    raise ProcessLookupError(errno.ESRCH, "no process")


# of `linux/seccomp.h`: requests about notifications, and their structures
_RECEIVE, _SEND, _ADD = 0xC0502100, 0xC0182101, 0x40182103
_CALL = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_DESCRIPTOR = struct.Struct("=QIIII")
_AS_ANSWER = 2  # the caller gets a descriptor and its number in one step
_MOST_USED = 20_000
_CONTINUE = 1
_OPENING = {"open": (1, 2), "openat": (2, 3)}
"""Calls that open a file, and which of their arguments are the flags and the mode."""
_OF_DEVICES = {
    "open": (0,),
    "openat": (1,),
    "unlink": (0,),
    "unlinkat": (1,),
    "link": (0, 1),
    "linkat": (1, 3),
}
"""Calls that programs make about terminals and shared memory, and where the paths are."""
_COUNT_AGAIN = 0.1  # seconds: a process that tries endlessly must not keep the warden counting
_SHARE = 10  # after a count, others have this many times as long


class SyscallSupervisor:
    """The calls of one server.

    Args:
        count: Counts its processes, by a look at all processes of the machine.
        owns: Whether a process, or with a negative number all of a group, are of the server.
        on_denied: Called with paths whose change is refused while it starts.
        on_used: Called with used paths, and whether they are changed, if it is observed.
    """

    def __init__(
        self,
        listener: int,
        orders: SandboxOrders,
        *,
        count: Callable[[], int],
        owns: Callable[[int], bool],
        on_refused: Callable[[str], None],
        on_denied: Callable[[str], None],
        on_used: Callable[[str, bool], None],
        on_crowded: Callable[[], None],
    ) -> None:
        self._listener = listener
        self._poll = select.epoll()
        self._poll.register(listener, select.EPOLLIN)
        write = orders["write"]
        self._boring = ("/proc/", "/dev/null", "/usr/", "/lib", *(f"{path}/" for path in write[:1]))
        self._observes = orders["observe"]
        self._on_used = on_used
        self._on_crowded = on_crowded
        self._processes = orders["processes"]
        self._proc = orders["proc"]
        self._listed = frozenset(orders["listed"])
        self._count = count
        self._signals = SupervisedSignals(owns)
        self._free = 0
        """How many more processes it may start before they are counted again."""
        self._is_full = False
        self._next_count = 0.0
        self._held: list[int] = []
        """Calls that wait for the next count."""
        self._is_crowded = False
        self._used: set[tuple[str, bool]] = set()
        self._watch = (
            DeniedChanges((*write, *orders["devices"]), on_denied) if orders["watch"] else None
        )
        self._devices = OwnDevices() if orders["network"] and not orders["wrapper"] else None
        self._connects = SupervisedConnects(
            ConnectRules(
                proxy=orders["proxy"],
                network=orders["network"],
                write=write,
                sockets=orders["sockets"],
                socket_program=orders["socket_program"],
                closed_ports=orders["closed_ports"],
            ),
            poll=self._poll,
            answer=self._send,
            on_refused=on_refused,
        )
        changes = SupervisedChanges(write, self._on_outside)
        watches = SupervisedWatches((*orders["read"], *write), orders["listed"])
        self._made: dict[str, Callable[[CallingProcess, list[int]], int | None]] = {
            **{name: partial(changes.make, name) for name in FILE_CHANGES},
            "connect": self._connects.begin,
            "listen": self._connects.listen,
            "inotify_add_watch": watches.add,
            "pidfd_send_signal": self._signals.send,
        }
        """Calls that we make for the caller; None: they are answered later."""
        numbers = ARCHITECTURES[machine()][1]
        self._names = {numbers[name]: name for name in numbers}

    @property
    def is_waiting(self) -> bool:
        """Whether `tick` has to be called now and then."""
        return self._connects.is_waiting or bool(self._held)

    def fileno(self) -> int:
        """The descriptor that is ready when there is something to do."""
        return self._poll.fileno()

    def close(self) -> None:
        self._connects.close()
        self._poll.close()
        os.close(self._listener)

    def settle(self) -> None:
        """Stop looking at changes: the server is up."""
        self._watch = None

    def tick(self) -> None:
        """Look after calls that wait."""
        self._connects.tick()
        held, self._held = self._held, []
        for call in held:
            self._start_process(call)

    def answer(self) -> bool:
        """Answer what can be answered; False if there will be no more calls."""
        for fd, event in self._poll.poll(0):
            if fd != self._listener:
                self._connects.resume(fd)
            elif not event & select.EPOLLIN or not self._answer_next():
                return False
        return True

    def _answer_next(self) -> bool:
        buffer = bytearray(_CALL.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, buffer)
        except OSError as exc:
            # the caller was killed while we looked
            return exc.errno in {errno.ENOENT, errno.EINTR}
        call, pid, _, number, _, _, *arguments = _CALL.unpack(buffer)
        caller = CallingProcess(self._listener, call, pid)
        name = self._names.get(number, "")
        if name == "bind":
            self._bind(caller, arguments)
        elif name in self._made:
            self._make(caller, name, arguments)
        elif name in NEW_PROCESS:
            self._start_process(call)
        elif name in SIGNALS:
            is_inside = self._signals.allows(caller, name, to_signed(arguments[0]))
            self._send(call, 0, _CONTINUE) if is_inside else self._send(call, -errno.EPERM)
        elif not self._use_device(caller, name, arguments) and not self._look(
            caller, name, arguments
        ):
            self._send(call, 0, _CONTINUE)  # Landlock decides, whatever we have seen
        return True

    def _use_device(self, caller: CallingProcess, name: str, arguments: list[int]) -> bool:
        """Make a call that is about a terminal or shared memory; False if it is not."""
        if self._devices is None or name not in _OF_DEVICES:
            return False
        try:
            paths = [caller.path(arguments[index]) for index in _OF_DEVICES[name]]
        except OSError:
            return False  # some programs hide their memory, as those for keys do
        if not paths[0].startswith("/dev/"):
            return False
        try:
            if name in _OPENING:
                flags, mode = (arguments[index] for index in _OPENING[name])
                ours = self._devices.open(caller, paths[0], flags, mode)
                if ours is not None:
                    self._give(caller, ours, flags)
                is_made = ours is not None
            else:
                act = self._devices.link if len(paths) > 1 else self._devices.unlink
                is_made = act(*paths)
                if is_made:
                    self._send(caller.call, 0)
        except OSError as exc:
            self._send(caller.call, -(exc.errno or errno.EACCES))
            is_made = True
        return is_made

    def _bind(self, caller: CallingProcess, arguments: list[int]) -> None:
        try:
            result = self._connects.bind(caller, arguments)
        except OSError as exc:
            result = -(exc.errno or errno.EPERM)
        if result is None:
            self._send(caller.call, 0, _CONTINUE)
        else:
            self._send(caller.call, result)

    def _make(self, caller: CallingProcess, name: str, arguments: list[int]) -> None:
        """Make a call for its caller."""
        if self._observes and name in USED_PATHS:
            self._look(caller, name, arguments)
        try:
            result = self._made[name](caller, arguments)
        except OSError as exc:
            result = -(exc.errno or errno.EPERM)
        if result is not None:
            self._send(caller.call, result)

    def _look(self, caller: CallingProcess, name: str, arguments: list[int]) -> bool:
        """Look at the paths of a call; True if it is answered already."""
        try:
            if self._observes:
                self._note(caller, name, arguments)
            if self._watch is not None:
                self._watch.look(caller, name, arguments)
        except OSError:
            pass  # a path that leads nowhere
        try:
            return name in READING and (
                (self._proc and self._open_own(caller, name, arguments))
                or (bool(self._listed) and self._open_listed(caller, name, arguments))
            )
        except OSError:
            return False

    def _send(self, call: int, result: int, flags: int = 0) -> None:
        try:
            value, error = max(result, 0), min(result, 0)
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(call, value, error, flags))
        except OSError:
            pass  # the caller is gone

    def _on_outside(self, real: str) -> None:
        if self._watch is not None:
            self._watch.report(real)

    def _open_own(self, caller: CallingProcess, name: str, arguments: list[int]) -> bool:
        """Open a file below the caller's /proc/self for it; False if the path is another one."""
        flags = arguments[READING[name]]
        path = caller.path(arguments[READING[name] - 1])
        if not path.startswith("/proc/") or flags & (os.O_PATH | CHANGING):
            return False
        place = own_place(path, caller.leader, caller.pid)
        if place is None:
            return False
        self._give(caller, open_own(place, flags, caller.check), flags)
        return True

    def _give(self, caller: CallingProcess, ours: int, flags: int) -> None:
        """Answer a call with a descriptor, and close ours."""
        try:
            close_on_exec = flags & os.O_CLOEXEC
            answer = _DESCRIPTOR.pack(caller.call, _AS_ANSWER, ours, 0, close_on_exec)
            fcntl.ioctl(self._listener, _ADD, answer)
        finally:
            os.close(ours)

    def _open_listed(self, caller: CallingProcess, name: str, arguments: list[int]) -> bool:
        """Open a folder around private places for it; False if it means another one.

        With the descriptor it can only list the names in the folder: Landlock looks at the whole
        path of everything that is opened by way of it.
        """
        flags = arguments[READING[name]]
        if not flags & os.O_DIRECTORY or flags & (os.O_PATH | CHANGING):
            return False
        folder = AT_FDCWD if name == "open" else to_signed(arguments[0])
        place = caller.place(folder, caller.path(arguments[READING[name] - 1]))
        try:
            if real_path(place) not in self._listed:
                return False
            ours = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        finally:
            os.close(place)
        self._give(caller, ours, flags)
        return True

    def _note(self, caller: CallingProcess, name: str, arguments: list[int]) -> None:
        """Report the paths of a call, each once."""
        for used in used_paths(name, arguments):
            path = caller.path(used.pointer)
            if not path.startswith("/"):
                at = "cwd" if used.folder == AT_FDCWD else f"fd/{used.folder}"
                path = os.path.join(os.readlink(f"/proc/{caller.pid}/{at}"), path)
            whole = os.path.normpath(path)
            if whole.startswith(self._boring) or len(self._used) >= _MOST_USED:
                continue
            if (whole, used.changes) not in self._used:
                self._used.add((whole, used.changes))
                self._on_used(whole, used.changes)

    def _start_process(self, call: int) -> None:
        """Let a call go on if there is room for a process; it may wait until they are counted."""
        now = time.monotonic()
        if self._free <= 0 and now >= self._next_count:
            self._free = self._processes - self._count()
            self._is_full = self._free <= 0
            self._next_count = now + _SHARE * (time.monotonic() - now)
            if self._is_full:
                self._next_count = max(self._next_count, now + _COUNT_AGAIN)
                if not self._is_crowded:
                    self._is_crowded = True
                    self._on_crowded()
        if self._free > 0:
            self._free -= 1
            self._send(call, 0, _CONTINUE)
        elif self._is_full:
            self._send(call, -errno.EAGAIN)
        else:
            self._held.append(call)
