"""Where a confined server may connect to and listen; the warden makes these calls for it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import time

from .calling_process import AT_FDCWD, is_inside, real_path
from .kernel import ARCHITECTURES, syscall, to_signed
from .seccomp import machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .calling_process import CallingProcess

# of `linux/rtnetlink.h` and `linux/netlink.h`
_GET_ROUTE, _REQUEST = 26, 1
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_DESTINATION, _DEVICE = 1, 4
_UNICAST = 1  # of a route: to another machine
_NEW_ROUTE = 24
_TYPE = 7  # which field of a route
RESERVED = "reserved"
"""A folder in that of closed ports: its files are named like the ports that gateways had."""
_MAPPED = bytes(10) + b"\xff\xff"


def is_closed(folder: str, port: int) -> bool:
    """Whether a running process has closed a port, by a file `PID-PORT` in a folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return False
    ending = f"-{port}"
    return any(
        name.endswith(ending)
        and (_is_alive(name.removesuffix(ending)) or _is_locked(os.path.join(folder, name)))
        for name in names
    )


def is_reserved(folder: str, port: int) -> bool:
    """Whether a port belongs to a gateway of the user: one that runs, or that ran before."""
    return is_closed(folder, port) or os.path.exists(os.path.join(folder, RESERVED, str(port)))


def is_here(address: bytes, device: int = 0) -> bool:
    """Whether the kernel delivers to this machine what is sent to an address.

    The kernel itself is asked: it knows all addresses of all interfaces, and routes that make
    further ones local. True also if it does not answer.

    Args:
        device: The interface that a link-local address belongs to.
    """
    address = address.removeprefix(_MAPPED)
    if not any(address):
        return True  # the kernel takes it for loopback
    family = socket.AF_INET if len(address) == 4 else socket.AF_INET6  # noqa: PLR2004 - bytes
    body = _ROUTE.pack(family, 8 * len(address), 0, 0, 0, 0, 0, 0, 0)
    body += _ATTRIBUTE.pack(_ATTRIBUTE.size + len(address), _DESTINATION) + address
    if device:
        body += _ATTRIBUTE.pack(_ATTRIBUTE.size + 4, _DEVICE) + struct.pack("=I", device)
    request = _HEADER.pack(_HEADER.size + len(body), _GET_ROUTE, _REQUEST, 1, 0) + body
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
            kernel.settimeout(1)
            kernel.send(request)
            answer = kernel.recv(4096)
        _, kind, _, _, _ = _HEADER.unpack_from(answer)
        route = _ROUTE.unpack_from(answer, _HEADER.size)
    except (OSError, struct.error):
        return True
    return bool(kind != _NEW_ROUTE or route[_TYPE] != _UNICAST)


def _is_alive(pid: str) -> bool:
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _is_locked(path: str) -> bool:
    """Whether a process holds a file, which may be in another container, with ids of its own."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


_LONGEST = 128  # bytes of an address
_MOST_AT_A_TIME = 128
_MOST_REPORTED = 64
_LOOK_AGAIN = 0.09  # seconds; about 60 µs for each call that waits
_FAMILY = struct.Struct("=H")
_IPV4 = struct.Struct("=H2s4s8x")
_IPV6 = struct.Struct("=H2s4x16s")
_SCOPE = struct.Struct("=I")
_NETLINK = struct.Struct("=HHII")
_TIME = struct.Struct("ll")
_CONNECT = ARCHITECTURES[machine()][1]["connect"]
_BIND = ARCHITECTURES[machine()][1]["bind"]
_LISTEN = ARCHITECTURES[machine()][1]["listen"]
_FIRST_FREE_PORT = 1024
_OTHER = "an address of another kind"
_RESTART = 512  # ERESTARTSYS: the signal's own flags decide what becomes of the call


class ConnectRules:
    """Where a server may connect to.

    Args:
        proxy: Without `network`: the only port on loopback; 0: none.
        network: Whether it may connect to everything but what the rest excludes.
        write: Folders whose Unix sockets are its own.
        sockets: Unix sockets, and folders of them, that it may use too.
        socket_program: The only program that may use `sockets`; empty: all.
        closed_ports: The folder that names closed ports of this machine.
    """

    def __init__(
        self,
        *,
        proxy: int,
        network: bool,
        write: Sequence[str],
        sockets: Sequence[str],
        socket_program: str,
        closed_ports: str,
    ) -> None:
        self.proxy = proxy
        self.network = network
        self.write = tuple(write)
        self.sockets = tuple(sockets)
        self.socket_program = socket_program
        self.closed_ports = closed_ports

    def allows(self, address: InternetAddress, *, is_stream: bool) -> bool:
        """Whether it may connect to an address of the Internet protocols."""
        if not self.network:
            return bool(self.proxy) and address.is_loopback_port(self.proxy)
        return not (
            is_stream
            and self.closed_ports
            and is_closed(self.closed_ports, address.port)
            and is_here(address.address, address.device)
        )

    def allows_socket(self, real: str, caller: CallingProcess) -> bool:
        """Whether it may connect to the Unix socket at a real path."""
        if is_inside(real, self.write):
            return True
        is_open = is_inside(real, self.sockets)
        return is_open and self.socket_program in {"", caller.program}


class InternetAddress:
    """An address of the Internet protocols, as a call names it."""

    def __init__(self, data: bytes) -> None:
        self.device = 0
        if _FAMILY.unpack_from(data)[0] == socket.AF_INET:
            _, port, self.address = _IPV4.unpack_from(data)
        else:
            _, port, self.address = _IPV6.unpack_from(data)
            if len(data) >= _IPV6.size + _SCOPE.size:
                (self.device,) = _SCOPE.unpack_from(data, _IPV6.size)
        self.port = int.from_bytes(port, "big")

    def __str__(self) -> str:
        if len(self.address) == 4:  # noqa: PLR2004 - bytes
            return f"{socket.inet_ntop(socket.AF_INET, self.address)}:{self.port}"
        return f"[{socket.inet_ntop(socket.AF_INET6, self.address)}]:{self.port}"

    def is_loopback_port(self, port: int) -> bool:
        return self.address == b"\x7f\0\0\1" and self.port == port


class AddressRefused(Exception):
    """The server may not connect to an address, which is its argument."""


class ConnectAttempt:
    """One call: the caller's socket, and where it is to be connected to."""

    def __init__(self, caller: CallingProcess, number: int) -> None:
        self.caller = caller
        self.theirs = caller.socket(number)
        self.data = b""
        self.place = -1
        """Our descriptor of a Unix socket, by which `data` names it."""
        self.is_blocking = not fcntl.fcntl(self.theirs, fcntl.F_GETFL) & os.O_NONBLOCK
        self.deadline: float | None = None

    def start(self) -> int | None:
        """The result of the call; None if its caller has to wait for it."""
        if not self.is_blocking:
            return _connect(self.theirs.fileno(), self.data)
        seconds, rest = _TIME.unpack(
            self.theirs.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.size)
        )
        if seconds or rest:
            self.deadline = time.monotonic() + seconds + rest / 1e6
        # or the warden would wait for it, and all other calls for the warden
        os.set_blocking(self.theirs.fileno(), False)
        result = _connect(self.theirs.fileno(), self.data)
        # on loopback it is made by now
        return self.look_again() if self._is_unfinished(result) else result

    def look_again(self) -> int | None:
        """The result; None if there still is none.

        Connecting once more is how the kernel tells: it also leaves the socket as the one call of
        a program that waits would.
        """
        result = _connect(self.theirs.fileno(), self.data)
        if result == -errno.EISCONN:
            return 0
        if not self._is_unfinished(result):
            return result
        is_late = self.deadline is not None and time.monotonic() > self.deadline
        return -errno.EINPROGRESS if is_late else None

    def close(self) -> None:
        if self.is_blocking:
            # this belongs to the socket itself, which is the caller's as well
            os.set_blocking(self.theirs.fileno(), True)
        self.theirs.close()
        if self.place >= 0:
            os.close(self.place)

    def _is_unfinished(self, result: int) -> bool:
        # a listener of a Unix socket that has no room is tried again
        return result in {-errno.EINPROGRESS, -errno.EALREADY} or (
            result == -errno.EAGAIN and self.theirs.family == socket.AF_UNIX
        )


class SupervisedConnects:
    """The connections that one server makes.

    Args:
        on_refused: Called once with each refused address.
    """

    def __init__(
        self,
        rules: ConnectRules,
        *,
        poll: select.epoll,
        answer: Callable[[int, int], None],
        on_refused: Callable[[str], None],
    ) -> None:
        self._rules = rules
        self._poll = poll
        self._answer = answer
        self._on_refused = on_refused
        self._refused: set[str] = set()
        self._waiting: dict[int, ConnectAttempt] = {}
        self._next_look = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether there are calls that were not answered yet."""
        return bool(self._waiting)

    def begin(self, caller: CallingProcess, arguments: list[int]) -> int | None:
        """The result of a call; None if it is answered later."""
        number, pointer, size = (to_signed(arguments[0]), arguments[1], to_signed(arguments[2]))
        if not _FAMILY.size <= size <= _LONGEST:
            return -errno.EINVAL
        data = caller.memory(pointer, size)
        attempt = ConnectAttempt(caller, number)
        result: int | None = -errno.EACCES
        try:
            self._aim(attempt, data)
            result = attempt.start()
            if result is None and len(self._waiting) >= _MOST_AT_A_TIME:
                result = -errno.EAGAIN
        except AddressRefused as refused:
            self._refuse(str(refused))
        except struct.error:  # too short for its family
            result = -errno.EINVAL
        finally:
            if result is not None:
                attempt.close()
        if result is None:
            self._waiting[attempt.theirs.fileno()] = attempt
            self._poll.register(attempt.theirs.fileno(), select.EPOLLOUT)
        return result

    def bind(self, caller: CallingProcess, arguments: list[int]) -> int | None:
        """The result of giving a socket an address; None if the kernel decides.

        A server that listens on a gateway's port, beside it or while it is down, would get the
        requests of its clients, with their tokens.
        """
        number, pointer, size = (to_signed(arguments[0]), arguments[1], to_signed(arguments[2]))
        if not _FAMILY.size <= size <= _LONGEST:
            return -errno.EINVAL
        with caller.socket(number) as theirs:
            # of the socket, not of the address, which may be another one by the time it counts
            if theirs.family not in {socket.AF_INET, socket.AF_INET6}:
                return None
            data = caller.memory(pointer, size)
            try:
                port = InternetAddress(data).port
            except struct.error:
                return -errno.EINVAL
            if 0 < port < _FIRST_FREE_PORT:
                return -errno.EACCES  # we might have the privilege, the caller has not
            is_stream = theirs.type == socket.SOCK_STREAM
            folder = self._rules.closed_ports
            if is_stream and folder and is_reserved(folder, port):
                self._refuse(f"port {port}")
                return -errno.EADDRINUSE
            return _call(_BIND, theirs.fileno(), data)

    def listen(self, caller: CallingProcess, arguments: list[int]) -> int:
        """The result of listening.

        `bind` leaves sockets of other kinds to the kernel, and the caller may put another socket
        in the place of the one that was looked at. So it is looked at here again, when its
        address is certain.
        """
        with caller.socket(to_signed(arguments[0])) as theirs:
            if theirs.family in {socket.AF_INET, socket.AF_INET6}:
                if not theirs.getsockname()[1]:
                    # as the kernel would do, but before the look
                    theirs.bind(("", 0))
                port = theirs.getsockname()[1]
                folder = self._rules.closed_ports
                if folder and theirs.type == socket.SOCK_STREAM and is_reserved(folder, port):
                    self._refuse(f"port {port}")
                    return -errno.EADDRINUSE
            return syscall(_LISTEN, theirs.fileno(), to_signed(arguments[1]))

    def resume(self, fd: int) -> None:
        """Look at a socket that is ready."""
        attempt = self._waiting.get(fd)
        if attempt is not None and (result := attempt.look_again()) is not None:
            self._end(fd)
            self._answer(attempt.caller.call, result)

    def tick(self) -> None:
        """Look after calls whose sockets say nothing: interrupted, late, or to be tried again."""
        now = time.monotonic()
        if now < self._next_look:
            return  # other calls wake us far more often
        self._next_look = now + _LOOK_AGAIN
        for fd, attempt in tuple(self._waiting.items()):
            try:
                attempt.caller.check()
                is_interrupted = attempt.caller.has_signal
            except OSError:
                self._end(fd)  # its caller is gone
                continue
            if is_interrupted:
                self._end(fd)
                self._answer(attempt.caller.call, -_RESTART)
            elif attempt.deadline is not None or attempt.place >= 0:
                self.resume(fd)

    def close(self) -> None:
        for fd in tuple(self._waiting):
            self._end(fd)

    def _aim(self, attempt: ConnectAttempt, data: bytes) -> None:
        """Check an address.

        Raises:
            AddressRefused: The server must not connect to it.
        """
        (family,) = _FAMILY.unpack_from(data)
        attempt.data = data
        if family in {socket.AF_INET, socket.AF_INET6}:
            address = InternetAddress(data)
            is_stream = attempt.theirs.type == socket.SOCK_STREAM
            if not self._rules.allows(address, is_stream=is_stream):
                raise AddressRefused(str(address))
        elif not self._rules.network:
            raise AddressRefused(_OTHER)
        elif family == socket.AF_UNIX:
            self._aim_at_file(attempt, data[_FAMILY.size :])
        elif family == socket.AF_NETLINK:
            if any(_NETLINK.unpack_from(data)[2:]):  # another process; the kernel is 0
                raise AddressRefused(_OTHER)
        elif family != socket.AF_UNSPEC:  # which dissolves a connection
            raise AddressRefused(_OTHER)

    def _aim_at_file(self, attempt: ConnectAttempt, name: bytes) -> None:
        if name.startswith(b"\0"):
            raise AddressRefused("@" + os.fsdecode(name[1:]))
        path = os.fsdecode(name.partition(b"\0")[0])
        attempt.place = attempt.caller.place(AT_FDCWD, path)
        real = real_path(attempt.place)
        if not self._rules.allows_socket(real, attempt.caller):
            raise AddressRefused(real)
        # by descriptor: what the path names may be another socket by now
        ours = os.fsencode(f"/proc/self/fd/{attempt.place}\0")
        attempt.data = _FAMILY.pack(socket.AF_UNIX) + ours

    def _end(self, fd: int) -> None:
        self._poll.unregister(fd)
        self._waiting.pop(fd).close()

    def _refuse(self, address: str) -> None:
        if address not in self._refused and len(self._refused) < _MOST_REPORTED:
            self._refused.add(address)
            self._on_refused(address)


def _connect(fd: int, data: bytes) -> int:
    return _call(_CONNECT, fd, data)


def _call(number: int, fd: int, data: bytes) -> int:
    try:
        return syscall(number, fd, ctypes.c_char_p(data), len(data))
    except OSError as exc:
        return -(exc.errno or errno.EPERM)
