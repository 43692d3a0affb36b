"""Starts a hub's servers, and ends what is left of them when the hub is gone.

A program of its own, so that the promise holds even when the hub is killed with SIGKILL: the socket
that is its last argument closes, and everything the hub started is ended. It is the
servers' parent, which lets it adopt daemonised grandchildren (Linux) without changing the host
process. Messages in both directions are a 4-byte length and a marshalled tuple; the other side is
the same Python, see `process.py`.

It must never end what is not ours, and ids of processes are reused. So a server that has ended
stays a zombie until the rest of its group is gone, which keeps the id of the group from being
reused; any other process is looked at, opened as a pidfd and looked at again before it is ended.
Processes that an earlier warden left behind are known by the tag in their environment; see
`ServerTag`. Confined ones, which may change that, have a mark as well; see `syscall_filter.MARK`.
"""

from __future__ import annotations

import marshal
import os
import select
import signal
import socket
import struct
import sys

TYPE_CHECKING = False  # `typing` would cost more than all other imports together
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from multitap.sandbox.confinement import SandboxOrders
    from multitap.sandbox.supervisor import SyscallSupervisor

LENGTH = struct.Struct("!I")
TAG = "MULTITAP_ORIGIN"  # wardens of older versions would end what has a MULTITAP_TAG of this form
PROC = "/proc"
SWEEPS = 20  # a process that forks while it is being ended is found in the next round
LAST_SWEEPS = (
    400  # after the hub is gone there is time, and processes missed now are missed for good
)
PAUSE = 0.005  # seconds between two rounds
IDLE = 1000  # milliseconds: orphans of an earlier run can wait for the start-up rush
TICK = 100  # milliseconds between two looks after calls that wait for a connection

RESET = (
    signal.SIGCHLD,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGPIPE,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGXFSZ,
)  # ignored by Python or by us; a server starts with the defaults

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class ServerTag:
    """The tag in a server's environment, which identifies its origin.

    `PLACE.WARDEN.STARTED.NUMBER.LEADER`: the boot and the namespaces within which ids have a
    meaning, the warden that started the server, when that warden was started, and the server's
    own number and process id. Whatever the server starts inherits it.
    """

    def __init__(self, place: str, warden: str, started: str, number: str, leader: str) -> None:
        self.place = place
        self.warden = warden
        self.started = started
        self.number = number
        self.leader = leader

    def __str__(self) -> str:
        return f"{self.place}.{self.warden}.{self.started}.{self.number}.{self.leader}"

    @classmethod
    def of(cls, pid: int) -> ServerTag | None:
        """The tag of a process; None if it has none that we could understand."""
        for entry in _environment(pid).split(b"\0"):
            if entry.startswith(TAG.encode() + b"="):
                parts = entry.partition(b"=")[2].decode("utf-8", "replace").split(".")
                whole = len(parts) == 5 and all(part.isdecimal() for part in parts[1:])  # noqa: PLR2004 - see above
                return cls(*parts) if whole else None
        return None


class ProcessStat:
    """The state of one process, from /proc."""

    def __init__(self, fields: list[str]) -> None:
        self.zombie = fields[0] in {"Z", "X"}
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.session = int(fields[3])
        self.at_terminal = fields[4] != "0"
        self.started = fields[19]

    @classmethod
    def of(cls, pid: int | str) -> ProcessStat | None:
        """The state of a process; None if it does not exist, or is not visible."""
        try:
            with open(f"{PROC}/{pid}/stat", "rb") as file:
                return cls(file.read().rpartition(b")")[2].decode().split())
        except OSError:
            return None


class Warden:
    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.leaders: dict[int, int] = {}
        self.ended: set[int] = set()
        """Servers that are zombies: each keeps its id from being reused until it is swept."""
        self.swept: set[int] = set()
        """Servers that were swept and will end soon."""
        self.sweeping: list[int] = []
        """The numbers of servers to be swept."""
        self.place = _place()
        self.prctl = _prctl()
        self.confined: dict[int, SyscallSupervisor] = {}
        """Confined servers, by the descriptor that says when each has handed a call to us."""
        self.supervisors: dict[int, SyscallSupervisor] = {}
        """The same by the numbers of their orders."""
        self.poll = select.poll()

    def run(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)  # only the wake-up counts
        if self.prctl:
            self.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.poll.register(self.control, select.POLLIN)
        self.poll.register(wake_read, select.POLLIN)
        idle: int | None = IDLE
        while True:
            waiting = [calls for calls in self.confined.values() if calls.is_waiting]
            ready = self.poll.poll(TICK if waiting else idle)
            for calls in waiting:
                calls.tick()
            if not ready and not waiting and idle is not None:
                self._end_orphans()
                idle = None
            for fd, event in ready:
                if fd == wake_read:
                    _drain(wake_read)
                    self._reap()
                elif fd in self.confined:
                    self._answer(fd, event)
                elif fd == self.control.fileno() and not self._obey():
                    return
            # together, once no order is left: each looks at all processes, and may pause
            if self.sweeping and not select.select([self.control], [], [], 0)[0]:
                numbers, self.sweeping = self.sweeping, []
                self._sweep(numbers)

    def end_everything(self) -> None:
        for _ in range(LAST_SWEEPS):
            for leader in self.leaders:
                _kill_group(leader, signal.SIGKILL)
            for group in (self.leaders, self.ended, self.swept):
                group.clear()
            victims = _descendants(os.getpid())
            for pid, stat in victims.items():
                _end(pid, stat)
            self._reap()
            if not victims:
                return
            select.select([], [], [], PAUSE)

    def _obey(self) -> bool:
        try:
            header, fds, _, _ = socket.recv_fds(self.control, LENGTH.size, 3)
            while header and len(header) < LENGTH.size:
                header += self.control.recv(LENGTH.size - len(header))
            order = marshal.loads(_read_exactly(self.control, LENGTH.unpack(header)[0]))
        except (OSError, EOFError, struct.error):
            return False
        kind, number, *rest = order
        if kind == "spawn":
            self._spawn(number, fds, *rest)
            return True
        if kind == "signal" and (leader := self._leader(number)) is not None:
            _kill_group(leader, rest[0])
        elif kind == "settle" and number in self.supervisors:
            self.supervisors[number].settle()
        elif kind == "sweep":
            self.sweeping.append(number)
        return True

    def _leader(self, number: int) -> int | None:
        return next((pid for pid, order in self.leaders.items() if order == number), None)

    def _spawn(
        self,
        number: int,
        fds: list[int],
        program: str,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        orders: SandboxOrders | None,
    ) -> None:
        for fd in fds:
            os.set_inheritable(fd, False)
        if orders is not None:
            __import__("multitap.sandbox.confinement")  # once, before the fork
        ours, theirs = socket.socketpair()
        warden = os.getpid()
        pid = os.fork()
        if pid == 0:
            env[TAG] = str(self._tag(warden, number, os.getpid()))
            self._become(number, program, argv, env, cwd, fds, orders, warden=warden, report=theirs)
        theirs.close()
        for fd in fds:
            os.close(fd)
        failure = self._watch_start(number, pid, ours, orders)
        ours.close()
        if failure:
            os.waitpid(pid, 0)
            errno, stage = failure.decode().split(":")
            self._say("failed", number, (int(errno), stage))
            return
        self.leaders[pid] = number
        self._say("spawned", number, pid)

    def _watch_start(
        self, number: int, leader: int, child: socket.socket, orders: SandboxOrders | None
    ) -> bytes:
        """Wait until a program has started; returns the error, or nothing if it started.

        An observed program is also supervised in its `execve`, which is answered here.
        """
        poll = select.poll()
        poll.register(child, select.POLLIN)
        report = b""
        while True:
            for fd, event in poll.poll():
                if fd != child.fileno():
                    if not self._answer(fd, event):
                        poll.unregister(fd)
                    continue
                part, fds, _, _ = socket.recv_fds(child, 256, 1)
                if not part:
                    is_lost = orders is not None and orders["wrapper"] and not report
                    return b"1:sandbox" if is_lost else report.removeprefix(b"+")
                report += part
                for listener in fds:
                    if orders is not None:
                        calls = self._take_calls(number, leader, listener, orders)
                        poll.register(calls, select.POLLIN)
                if orders is not None and orders["wrapper"] and fds:
                    return b""  # the wrapper keeps its end open for as long as the server runs

    def _take_calls(
        self, number: int, leader: int, listener: int, orders: SandboxOrders
    ) -> SyscallSupervisor:
        from multitap.sandbox.supervisor import SyscallSupervisor  # noqa: PLC0415 - others need none

        os.set_inheritable(listener, False)
        calls = SyscallSupervisor(
            listener,
            orders,
            count=lambda: self._population(number, leader),
            owns=lambda target: self._is_of(number, leader, target),
            on_refused=lambda address: self._say("refused", number, address),
            on_denied=lambda path: self._say("denied", number, path),
            on_used=lambda path, changes: self._say("used", number, (int(changes), path)),
            on_crowded=lambda: self._say("crowded", number, orders["processes"]),
        )
        self.confined[calls.fileno()] = self.supervisors[number] = calls
        self.poll.register(calls, select.POLLIN)
        return calls

    def _population(self, number: int, leader: int) -> int:
        """How many processes a confined server has, including those that left its session."""
        return sum(
            stat.session == leader or _mark(pid) == number
            for pid, stat in _descendants(os.getpid()).items()
        )

    def _is_of(self, number: int, leader: int, target: int) -> bool:
        """Whether a process is of a confined server; for a negative number, all of a group."""
        if target < 0:
            group = [pid for pid, stat in _processes().items() if stat.group == -target]
            return all(self._is_of(number, leader, pid) for pid in group)
        stat = ProcessStat.of(target)
        if stat is None or stat.session == leader:
            return True  # the kernel itself says that there is none
        return _mark(target) == number and target in _descendants(os.getpid())

    def _answer(self, fd: int, event: int) -> bool:
        """Answer calls of a server; False when there will be no more."""
        calls = self.confined[fd]
        if event & select.POLLIN and calls.answer():
            return True
        self.poll.unregister(fd)
        del self.confined[fd]
        self.supervisors = {
            number: other for number, other in self.supervisors.items() if other is not calls
        }
        calls.close()
        return False

    def _tag(self, warden: int, number: int, leader: int) -> ServerTag:
        stat = ProcessStat.of(warden)
        return ServerTag(
            self.place or "", str(warden), stat.started if stat else "0", str(number), str(leader)
        )

    def _become(
        self,
        number: int,
        program: str,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        fds: list[int],
        orders: SandboxOrders | None,
        *,
        warden: int,
        report: socket.socket,
    ) -> NoReturn:
        stage = "setup"
        try:
            os.setsid()
            if self.prctl:
                self.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != warden:  # it died before the line above
                    os._exit(127)
            for ignored in RESET:
                signal.signal(ignored, signal.SIG_DFL)
            for target, fd in enumerate(fds):
                os.dup2(fd, target)
            stage = "cwd"
            if cwd is not None:
                os.chdir(cwd)
            if orders is not None and orders["wrapper"]:
                from multitap.sandbox.confinement import wrapped_command  # noqa: PLC0415 - few want it

                stage = "sandbox"
                os.set_inheritable(report.fileno(), True)
                spec = marshal.dumps({**orders})
                inner = wrapped_command(report.fileno(), number, spec, program, argv)
                os.execve(orders["wrapper"][0], [*orders["wrapper"], *inner], env)
            if orders is not None:
                stage = "sandbox"
                from multitap.sandbox.confinement import confine  # noqa: PLC0415 - imported before the fork

                listener = confine(orders, number)
                socket.send_fds(report, [b"+"], [listener])
                os.close(listener)
            stage = "exec"
            os.execve(program, argv, env)
        except OSError as exc:
            report.sendall(f"{exc.errno}:{stage}".encode())
        finally:
            os._exit(127)

    def _reap(self) -> None:
        """Report the servers that have ended, and reap all other processes."""
        if not hasattr(os, "waitid"):
            self._reap_at_once()
            return
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        for pid in self.leaders.keys() - self.ended:
            self._notice(os.waitid(os.P_PID, pid, look))
        while not self.ended:  # a kept zombie would be reported again and again
            try:
                ended = os.waitid(os.P_ALL, 0, look)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid in self.leaders:
                self._notice(ended)
            else:
                os.waitpid(ended.si_pid, 0)

    def _notice(self, ended: os.waitid_result | None) -> None:
        if ended is None:
            return
        ended_itself = ended.si_code == os.CLD_EXITED
        code = ended.si_status if ended_itself else -ended.si_status
        self._say("exited", self.leaders[ended.si_pid], code)
        self.ended.add(ended.si_pid)
        if ended.si_pid in self.swept:
            self._release(ended.si_pid)

    def _release(self, leader: int) -> None:
        """Reap a server, after which its id may be reused."""
        os.waitpid(leader, 0)
        del self.leaders[leader]
        self.ended.discard(leader)
        self.swept.discard(leader)

    def _reap_at_once(self) -> None:
        """The same on systems where a process can only be checked by reaping it."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self.leaders.pop(pid, None)
            if number is not None:
                _kill_group(pid, signal.SIGKILL)  # now or never: its id is free from here on
                self._say("exited", number, os.waitstatus_to_exitcode(status))

    def _sweep(self, numbers: list[int]) -> None:
        """Kill what is left of some servers: their sessions, groups, processes with their tags."""
        leaders = {pid: number for pid, number in self.leaders.items() if number in numbers}
        tags = {
            str(self._tag(os.getpid(), number, leader)): leader
            for leader, number in leaders.items()
        }
        # a number without calls has no confined process, either
        marks = {number: pid for pid, number in leaders.items() if number in self.supervisors}
        ended: dict[int, set[int]] = {number: set() for number in numbers}
        for _ in range(SWEEPS):
            for leader in leaders:
                _kill_group(leader, signal.SIGKILL)
            has_ended = False
            for pid, stat in _descendants(os.getpid()).items():
                owner = next(
                    (group for group in (stat.group, stat.session) if group in leaders), None
                )
                owner = owner or tags.get(str(ServerTag.of(pid))) or marks.get(_mark(pid))
                if owner is not None:
                    _end(pid, stat)
                    ended[leaders[owner]].add(pid)
                    has_ended = True
            self._reap()
            if not has_ended:
                break
            select.select([], [], [], PAUSE)
        for leader in leaders:
            if leader in self.ended:
                self._release(leader)
            elif leader in self.leaders:
                self.swept.add(leader)
        self._reap()
        for number, pids in ended.items():
            self._say("swept", number, len(pids))

    def _end_orphans(self) -> None:
        """Kill leftover processes of servers whose warden was killed as well."""
        if self.place is None:
            return
        seen = _processes()
        used = _at_terminals(seen)
        for pid, stat in seen.items():
            tag = ServerTag.of(pid)
            if (
                tag is not None
                and tag.place == self.place
                and _is_gone(int(tag.warden), tag.started)
                and (
                    stat.session == int(tag.leader)
                    or not (pid in used or _is_guest(tag, stat, seen))
                )
            ):
                _end(pid, stat, tag)

    def _say(self, kind: str, number: int, value: int | str | tuple[int, str]) -> None:
        message = marshal.dumps((kind, number, value))
        try:
            self.control.sendall(LENGTH.pack(len(message)) + message)
        except OSError:
            return  # the hub is gone; the next read says so too


def _ignore(number: int, frame: object) -> None:
    """Do nothing: without a handler, the signal would not wake us."""


def _prctl() -> Callable[..., Any] | None:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes  # noqa: PLC0415 - not needed elsewhere

    return ctypes.CDLL(None, use_errno=True).prctl


def _read_exactly(control: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = control.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return


def _end(pid: int, seen: ProcessStat, tag: ServerTag | None = None) -> None:
    """Kill an inspected process, unless its id was reused meanwhile."""
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        handle = None  # an old kernel or a seccomp filter: rely on the second look
    try:
        now = ProcessStat.of(pid)
        if now is None or now.started != seen.started:
            return
        if tag is not None and str(ServerTag.of(pid)) != str(tag):
            return
        _kill(pid, handle)
    finally:
        if handle is not None:
            os.close(handle)


def _kill(pid: int, handle: int | None) -> None:
    try:
        if handle is None:
            os.kill(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _kill_group(leader: int, number: int) -> None:
    """Signal the group of a process that is not reaped, so that its id is still valid."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return


def _place() -> str | None:
    """Identifies boot and namespaces, within which process ids are valid; None if unknown."""
    try:
        with open(f"{PROC}/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        namespaces = [os.stat(f"{PROC}/self/ns/pid").st_ino]
        if os.path.exists(f"{PROC}/self/ns/time"):  # it shifts the times of starts
            namespaces.append(os.stat(f"{PROC}/self/ns/time").st_ino)
    except OSError:
        return None
    return "-".join([boot, *map(str, namespaces)]) if _is_proc_ours() else None


def _is_proc_ours() -> bool:
    """Whether /proc belongs to our own pid namespace."""
    try:
        return os.readlink(f"{PROC}/self") == str(os.getpid())
    except OSError:
        return False


def _processes() -> dict[int, ProcessStat]:
    if not _is_proc_ours():
        return {}
    processes = {int(entry): ProcessStat.of(entry) for entry in os.listdir(PROC) if entry.isdigit()}
    return {pid: stat for pid, stat in processes.items() if stat is not None}


def _descendants(root: int) -> dict[int, ProcessStat]:
    """All living processes below `root`; zombies are already ended."""
    seen = _processes()
    below: set[int] = set()
    grown = True
    while grown:
        grown = False
        for pid, stat in seen.items():
            if pid not in below and (stat.parent == root or stat.parent in below):
                below.add(pid)
                grown = True
    return {pid: seen[pid] for pid in below if not seen[pid].zombie}


def _at_terminals(seen: dict[int, ProcessStat]) -> set[int]:
    """The processes at a terminal and their ancestors: a person may be using them."""
    used: set[int] = set()
    for pid, stat in seen.items():
        above = pid if stat.at_terminal else 0
        while above in seen and above not in used:
            used.add(above)
            above = seen[above].parent
    return used


def _is_guest(tag: ServerTag, stat: ProcessStat, seen: dict[int, ProcessStat]) -> bool:
    """Whether a process only inherited the tag, and lives in a session of another program.

    The leader of a session may be gone, or outside our namespace; then its oldest member
    decides.
    """
    members = [
        (int(other.started), pid)
        for pid, other in seen.items()
        if other.session == stat.session and not other.zombie
    ]
    return bool(members) and str(ServerTag.of(min(members)[1])) != str(tag)


def _is_gone(pid: int, started: str) -> bool:
    """Whether a process has certainly ended; one that cannot be inspected may still run."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    stat = ProcessStat.of(pid)
    return stat is not None and (stat.zombie or stat.started != started)


def _has_filter(pid: int) -> bool:
    """Whether a process has a seccomp filter."""
    try:
        with open(f"{PROC}/{pid}/status", "rb") as file:
            return b"\nSeccomp:\t2" in file.read()
    except OSError:
        return False


def _mark(pid: int) -> int:
    """The number of the confined server that a process belongs to; -1 for all others.

    It can leave its group and its session, and forget its tag, but not this limit.
    """
    try:
        with open(f"{PROC}/{pid}/limits", "rb") as file:
            hard = file.read().partition(b"Max file locks ")[2].split(maxsplit=2)[1]
    except (OSError, IndexError):
        return -1
    return int(hard) if hard.isdigit() and _has_filter(pid) else -1


def _environment(pid: int) -> bytes:
    try:
        with open(f"{PROC}/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[-1]))
    control.set_inheritable(False)  # it was passed to us, no server may have it
    warden = Warden(control)
    try:
        warden.run()
    finally:
        warden.end_everything()
