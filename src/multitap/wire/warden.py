"""Starts a hub's servers, and ends whatever is left of them when the hub is gone.

A program of its own, run as `python -I -S warden.py FD OWNER`, so that the promise holds even when
the hub is killed with SIGKILL: the socket FD closes, and everything the hub started is ended. It is
the servers' parent, which lets it adopt daemonised grandchildren (Linux) without changing the host
process. Messages in both directions are a 4-byte length and a marshalled tuple; the other side is
the same Python, see `spawner.py`.
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

LENGTH = struct.Struct("!I")
TAG = "MULTITAP_TAG"
PROC = "/proc"
SWEEPS = 20  # a process that forks while it is being ended is found in the next round

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


class Warden:
    def __init__(self, control: socket.socket, owner: str) -> None:
        self.control = control
        self.owner = owner
        self.leaders: dict[int, int] = {}
        self.tags: dict[int, str] = {}
        self.prctl = _prctl()

    def run(self) -> None:
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)  # only the wake-up counts
        if self.prctl:
            self.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        idle: int | None = 1000  # ms: orphans of an earlier run can wait for the start-up rush
        while True:
            ready = poll.poll(idle)
            if not ready and idle is not None:
                self._end_orphans_of_the_dead()
                idle = None
            for fd, _ in ready:
                if fd == wake_read:
                    _drain(wake_read)
                    self._reap()
                elif not self._obey():
                    return

    def end_everything(self) -> None:
        for _ in range(SWEEPS):
            victims = _descendants(os.getpid()) | set(self.leaders)
            for pid in victims:
                _kill(pid)
            self._reap()
            if not victims:
                return
            select.select([], [], [], 0.005)

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
        elif kind == "signal":
            if number in self.leaders.values():
                leader = next(pid for pid, n in self.leaders.items() if n == number)
                _kill_group(leader, rest[0])
        elif kind == "sweep":
            self._say("swept", number, self._sweep(number, *rest))
        return True

    def _spawn(
        self,
        number: int,
        fds: list[int],
        program: str,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
    ) -> None:
        for fd in fds:
            os.set_inheritable(fd, False)
        self.tags[number] = env[TAG]
        failed_read, failed_write = os.pipe()
        warden = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(program, argv, env, cwd, fds, warden=warden, failed=failed_write)
        os.close(failed_write)
        for fd in fds:
            os.close(fd)
        failure = _read_all(failed_read)
        os.close(failed_read)
        if failure:
            os.waitpid(pid, 0)
            errno, stage = failure.decode().split(":")
            self._say("failed", number, (int(errno), stage))
        else:
            self.leaders[pid] = number
            self._say("spawned", number, pid)

    def _become(
        self,
        program: str,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        fds: list[int],
        *,
        warden: int,
        failed: int,
    ) -> NoReturn:
        stage = "setup"
        try:
            os.setsid()
            if self.prctl:
                self.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() != warden:  # it died before the line above
                    os._exit(127)
            for number in RESET:
                signal.signal(number, signal.SIG_DFL)
            for target, fd in enumerate(fds):
                os.dup2(fd, target)
            stage = "cwd"
            if cwd is not None:
                os.chdir(cwd)
            stage = "exec"
            os.execve(program, argv, env)
        except OSError as exc:
            os.write(failed, f"{exc.errno}:{stage}".encode())
        finally:
            os._exit(127)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self.leaders.pop(pid, None)
            if number is not None:
                self._say("exited", number, os.waitstatus_to_exitcode(status))

    def _sweep(self, number: int, leader: int) -> int:
        """End what is left of one server: its session, its group, whatever carries its tag."""
        tag = f"{TAG}={self.tags.get(number, '')}".encode()
        ended: set[int] = set()
        for _ in range(SWEEPS):
            found = {
                pid
                for pid in _descendants(os.getpid())
                if _group_and_session(pid) & {leader} or _carries(pid, tag)
            }
            if not os.path.isdir(PROC) or leader in self.leaders:
                _kill_group(leader, signal.SIGKILL)
            for pid in found:
                _kill(pid)
            ended |= found
            self._reap()
            if not found:
                break
            select.select([], [], [], 0.005)
        self.tags.pop(number, None)
        return len(ended)

    def _end_orphans_of_the_dead(self) -> None:
        """End servers that an earlier hub, killed together with its warden, left behind."""
        for pid in _processes():
            tag = _tag_of(pid)
            if tag is None:
                continue
            owner, _, started = tag.partition(".")[0].partition("-")
            if f"{owner}-{started}" != self.owner and _start_time(owner) != started:
                _kill(pid)

    def _say(self, kind: str, number: int, value: int | tuple[int, str]) -> None:
        message = marshal.dumps((kind, number, value))
        try:
            self.control.sendall(LENGTH.pack(len(message)) + message)
        except OSError:
            return  # the hub is gone; the next read says so too


def _ignore(number: int, frame: object) -> None:
    """A handler must be there for a signal to wake anybody."""


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


def _read_all(fd: int) -> bytes:
    data = b""
    while part := os.read(fd, 256):
        data += part
    return data


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        return


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _kill_group(leader: int, number: int) -> None:
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return


def _processes() -> list[int]:
    try:
        return [int(entry) for entry in os.listdir(PROC) if entry.isdigit()]
    except OSError:
        return []


def _stat(pid: int | str) -> list[str]:
    """State, parent, group, session, ... of a process; empty when it is gone."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return []


def _start_time(pid: int | str) -> str | None:
    fields = _stat(pid)
    return fields[19] if fields else None


def _group_and_session(pid: int) -> set[int]:
    fields = _stat(pid)
    return {int(fields[2]), int(fields[3])} if fields else set()


def _descendants(root: int) -> set[int]:
    """All living processes below `root`; zombies are already ended."""
    parents: dict[int, tuple[int, str]] = {}
    for pid in _processes():
        fields = _stat(pid)
        if fields:
            parents[pid] = (int(fields[1]), fields[0])
    below: set[int] = set()
    grown = True
    while grown:
        grown = False
        for pid, (parent, _) in parents.items():
            if pid not in below and (parent == root or parent in below):
                below.add(pid)
                grown = True
    return {pid for pid in below if parents[pid][1] != "Z"}


def _environment(pid: int) -> bytes:
    try:
        with open(f"{PROC}/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _carries(pid: int, tag: bytes) -> bool:
    return tag in _environment(pid).split(b"\0")


def _tag_of(pid: int) -> str | None:
    for entry in _environment(pid).split(b"\0"):
        if entry.startswith(TAG.encode() + b"="):
            return entry.partition(b"=")[2].decode("utf-8", "replace")
    return None


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)  # it was passed to us, no server may have it
    warden = Warden(control, sys.argv[2])
    try:
        warden.run()
    finally:
        warden.end_everything()


if __name__ == "__main__":
    main()
