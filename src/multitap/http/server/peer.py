"""Finds out whether our own user, unconfined, is at the other end of a connection.

Confined servers run as our own user. Each has a mark that it can never remove, and that everything
it starts inherits: a limit on file locks, which nobody can raise without privileges, and which has
no other effect, since Linux ignores it. Together with a seccomp filter and without any way to new
privileges, nothing else has it; browsers and containers have filters, too, but not this limit. See
`sandbox/confinement.py`, which sets it.
"""

import asyncio
import contextlib
import ipaddress
import math
import os
import re
import socket
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple, Self

_PROC = "/proc"
_FIRST = "1"
"""A process that everybody sees, unless /proc hides those of others."""
_FILTERED = re.compile(rb"^NoNewPrivs:\t1$.*^Seccomp:\t2$", re.MULTILINE | re.DOTALL)
_MARKED = re.compile(rb"^Max file locks +\d+ +\d+ ", re.MULTILINE)
_SETTLED = 60.0
"""Seconds after which an unconfined process stays so: a server is confined just after its start."""
_LONGEST = 16 * 1024  # bytes of a file about a process; a page, in fact
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


class _Process(NamedTuple):
    """What is known of a process."""

    inode: int
    """Of its folder in /proc: another process with the same id has another."""
    is_confined: bool
    is_settled: bool
    """Whether that cannot change any more."""

    @classmethod
    def of(cls, pid: str, inode: int) -> "_Process":
        age = _age(pid)  # first: it may be confined after we look
        is_confined = _is_marked(pid)
        return cls(inode, is_confined, is_confined or age > _SETTLED)


class SocketHolders:
    """Looks at the processes of this machine; remembers those that it has looked at."""

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}
        self._looked = float("-inf")

    def is_confined(self, inode: int, since: float) -> bool | None:
        """Whether a confined server holds a socket; None if that is unknown.

        `since` is when it was last seen to exist, by `time.monotonic()`: an older look at the
        processes may lack its holder.
        """
        # one look serves all connections that came before it: it takes about 6 µs for each process
        if self._looked < since:
            self._look()
        confined = [pid for pid, process in self._processes.items() if process.is_confined]
        can_hide = _FIRST not in self._processes
        if not confined and not can_hide:
            return False
        name = f"socket:[{inode}]"
        # each thread can have descriptors of its own, and the first one may have ended
        for thread in (thread for pid in confined for thread in _threads(pid)):
            holds = _holds(thread, name)
            if holds:
                return True
            can_hide |= holds is None
        return self._is_unseen(name, may_be_confined=can_hide)

    def _is_unseen(self, name: str, *, may_be_confined: bool) -> bool | None:
        """False if an unconfined process holds a socket, or only such can hide that they do.

        A confined process can put a connection where no process has it, such as into the queue of
        another socket, so that it is not enough that none has it.
        """
        others = [pid for pid, process in self._processes.items() if not process.is_confined]
        is_anyone_hidden = False
        # clients are usually younger than most, and we have the most descriptors
        for pid in sorted(
            others, key=lambda pid: (pid != str(os.getpid()), int(pid)), reverse=True
        ):
            holds = _holds(pid, name)
            if holds:
                return False
            is_anyone_hidden |= holds is None and _is_own(pid)
        return False if is_anyone_hidden and not may_be_confined else None

    def _look(self) -> None:
        now = time.monotonic()
        processes: dict[str, _Process] = {}
        with os.scandir(_PROC) as entries:
            for entry in entries:
                if not entry.name.isdecimal():
                    continue
                inode, process = entry.inode(), self._processes.get(entry.name)
                if process is None or process.inode != inode or not process.is_settled:
                    process = _Process.of(entry.name, inode)
                processes[entry.name] = process
        self._processes, self._looked = processes, now


def _is_marked(pid: str) -> bool:
    """Whether a process is confined; one that has ended is not."""
    return bool(_FILTERED.search(_read(pid, "status")) and _MARKED.search(_read(pid, "limits")))


def _age(pid: str) -> float:
    """The seconds since a process was started; 0 if unknown."""
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    started = int(fields[19]) / _TICKS if len(fields) > 19 else math.inf  # noqa: PLR2004 - see proc(5)
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def _is_own(pid: str) -> bool:
    user = b"%d" % os.geteuid()
    return (
        re.search(rb"^Uid:\t\d+\t" + user + rb"\t", _read(pid, "status"), re.MULTILINE) is not None
    )


def _read(pid: str, name: str) -> bytes:
    """A file about a process, which everybody may read."""
    try:
        # plain calls here and below: `Path` takes several times as long
        handle = os.open(f"{_PROC}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, _LONGEST)
    except OSError:
        return b""
    finally:
        os.close(handle)


def _holds(pid: str, name: str) -> bool | None:
    """Whether a process has a descriptor of that name; None if it does not show what it has."""
    folder = f"{_PROC}/{pid}/fd"
    is_hidden = False
    try:
        for descriptor in os.listdir(folder):  # noqa: PTH208 - as above
            try:
                if os.readlink(f"{folder}/{descriptor}") == name:  # noqa: PTH115 - the same
                    return True
            except PermissionError:
                is_hidden = True
            except OSError:  # it was closed
                continue
    except PermissionError:
        return None
    except OSError:  # it has ended
        return False
    return None if is_hidden else False


def _threads(pid: str) -> list[str]:
    """The threads of a process, as paths below /proc; it may have ended, too."""
    try:
        return [f"{pid}/task/{thread}" for thread in os.listdir(f"{_PROC}/{pid}/task")]  # noqa: PTH208 - as above
    except OSError:
        return []


_ESTABLISHED, _FIN_WAIT_1, _FIN_WAIT_2, _CLOSE_WAIT = 1, 4, 5, 8
_OPEN = frozenset({_ESTABLISHED, _FIN_WAIT_1, _FIN_WAIT_2, _CLOSE_WAIT})
"""TCP states of sockets that a process holds, without listening ones."""
_TABLES = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
_OVERFLOW = Path("/proc/sys/kernel/overflowuid")
_MAPPED_USERS = Path("/proc/self/uid_map")
_ALL_USERS = ["0", "0", "4294967295"]

# of `linux/sock_diag.h` and `linux/inet_diag.h`
_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
_HEADER = struct.Struct("=IHHII")
_QUESTION = struct.Struct("=BBBxI")
_PORTS = struct.Struct("!HH")
_NO_DEVICE_NO_COOKIE = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)
_STATE = struct.Struct("=BBBB")
_USER = struct.Struct("=IIIII")
_SOCKET_AT = _HEADER.size + _STATE.size
_USER_AT = _SOCKET_AT + _PORTS.size + 2 * 16 + len(_NO_DEVICE_NO_COOKIE)
_CREDENTIALS = struct.Struct("3i")  # of `SO_PEERCRED`: process, user, group
_ANY_STATE = 0xFFFFFFFF
_ANSWER = 1024
_LATE = 0.5
"""Seconds to wait for the kernel, which usually answers at once."""


class _Endpoint(NamedTuple):
    """One end of a connection."""

    address: ipaddress.IPv4Address | ipaddress.IPv6Address
    port: int

    @classmethod
    def of(cls, name: tuple[str, int]) -> "_Endpoint":
        address = ipaddress.ip_address(name[0].partition("%")[0])
        mapped = address.ipv4_mapped if address.version == 6 else None  # noqa: PLR2004 - of IP
        return cls(mapped or address, name[1])


class _Owner(NamedTuple):
    """Who has the other end of a connection."""

    user: int
    inode: int
    """Of the socket."""


class PeerUsers:
    """Asks the kernel which user owns a connection; Linux only."""

    def __init__(self) -> None:
        self._netlink = _open_netlink()
        self._holders = SocketHolders()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._netlink is not None:
            self._netlink.close()

    def is_own(
        self, ours: tuple[str, int], theirs: tuple[str, int], since: float | None = None
    ) -> bool | None:
        """Whether a connection belongs to our own user or to root, who may do anything anyway.

        A confined server does not count as our user, although it runs as such.

        Args:
            ours: The address of our end.
            theirs: The address of the other end.
            since: When the connection was made, as `time.monotonic()`; by default, just now.

        Returns:
            None if that is unknown: the client has left, or is on another machine.
        """
        owner = self._owner(_Endpoint.of(theirs), _Endpoint.of(ours))
        if owner is None:
            return None
        if owner.user != os.geteuid():
            return owner.user == 0
        try:
            confined = self._holders.is_confined(
                owner.inode, time.monotonic() if since is None else since
            )
        except OSError:  # there is no /proc
            return None
        return None if confined is None else not confined

    def can_tell(self, host: str) -> bool:
        """Whether we are recognised at an address of this machine; in some containers not."""
        if sys.platform != "linux" or _is_ambiguous(os.geteuid()):
            return False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            with (
                socket.create_server((host.strip("[]"), 0), family=family) as listener,
                socket.create_connection(listener.getsockname()[:2], timeout=_LATE),
            ):
                accepted, _ = listener.accept()
                with accepted:
                    theirs, ours = accepted.getpeername()[:2], accepted.getsockname()[:2]
                    return self.is_own(ours, theirs) is True
        except OSError:
            return False

    def _owner(self, local: _Endpoint, remote: _Endpoint) -> _Owner | None:
        """The owner of the socket with these ends."""
        if local.address.version != remote.address.version:
            return None
        try:
            if self._netlink is not None:
                return _ask_kernel(self._netlink, local, remote)
            return _look_up(local, remote)
        except (OSError, struct.error, ValueError, IndexError):
            return None


class Peer:
    """The other end of one connection; its user is looked up once."""

    __slots__ = ("_is_own", "_is_sought", "_since", "_transport", "address", "client", "is_proxy")

    def __init__(self) -> None:
        self.address = ""
        """The holder whose share it counts against."""
        self.client: str | None = None
        """The address that a proxy names by the PROXY protocol."""
        self.is_proxy = False
        """Whether it is a proxy that the configuration trusts: its user says nothing then."""
        self._transport: asyncio.BaseTransport | None = None
        self._since = 0.0
        self._is_sought = False
        self._is_own: bool | None = None

    def open(self, transport: asyncio.BaseTransport, address: str) -> None:
        self._transport = transport
        self._since = time.monotonic()
        self.address = address

    def close(self) -> None:
        """Drop the reference to the connection, which is lost, to break the cycle."""
        self._transport = None

    @property
    def is_secure(self) -> bool:
        """Whether the connection uses TLS."""
        transport = self._transport
        return transport is not None and transport.get_extra_info("sslcontext") is not None

    @property
    def host(self) -> str:
        """The address at the other end of the connection; empty if it is closed or local."""
        transport = self._transport
        name = None if transport is None else transport.get_extra_info("peername")
        # a path, and usually an empty one, for a local socket
        return "" if not name or isinstance(name, str | bytes) else str(name[0])

    def user(self) -> int | None:
        """The user at the other end of a local socket; None if the system cannot tell."""
        transport = self._transport
        if sys.platform != "linux" or transport is None:
            return None
        plug = transport.get_extra_info("socket")
        peer = plug.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(peer)
        return int(user)

    def is_own(self, users: PeerUsers) -> bool | None:
        """Whether it belongs to our own user; None if that is unknown."""
        if self.is_proxy:
            return None
        if not self._is_sought:
            self._is_sought = True
            self._is_own = self._find(users)
        return self._is_own

    def may_be_stranger(self, users: PeerUsers) -> bool:
        """Whether it is a program of this machine that is not known to be of our own user."""
        if self.is_proxy:
            return False
        is_own = self.is_own(users)
        return not is_own if is_own is not None else self._is_on_this_machine()

    def _is_on_this_machine(self) -> bool:
        transport = self._transport
        if transport is None:
            return True  # it has left, and gets nothing
        ours, theirs = (transport.get_extra_info(end) for end in ("sockname", "peername"))
        if not ours or not theirs:
            return True
        address = _Endpoint.of(theirs[:2]).address
        return address.is_loopback or address == _Endpoint.of(ours[:2]).address

    def _find(self, users: PeerUsers) -> bool | None:
        transport = self._transport
        if transport is None:
            return None
        ours, theirs = (transport.get_extra_info(end) for end in ("sockname", "peername"))
        if not ours or not theirs:
            return None
        is_own = users.is_own(ours[:2], theirs[:2], self._since)
        plug = transport.get_extra_info("socket")
        state = plug.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        # after a reset, the same port may belong to another user's connection
        return is_own if state in {_ESTABLISHED, _CLOSE_WAIT} else None


def _open_netlink() -> socket.socket | None:
    if sys.platform != "linux":
        return None
    try:
        netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _SOCK_DIAG)
    except OSError:  # some sandboxes allow no such sockets
        return None
    netlink.settimeout(_LATE)
    return netlink


def _ask_kernel(netlink: socket.socket, local: _Endpoint, remote: _Endpoint) -> _Owner | None:
    family = socket.AF_INET if local.address.version == 4 else socket.AF_INET6  # noqa: PLR2004 - of IP
    ends = b"".join(
        (
            _PORTS.pack(local.port, remote.port),
            local.address.packed.ljust(16, b"\0"),
            remote.address.packed.ljust(16, b"\0"),
        )
    )
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, _ANY_STATE)
    body = question + ends + _NO_DEVICE_NO_COOKIE
    netlink.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST, 1, 0) + body)
    answer = netlink.recv(_ANSWER)
    if _HEADER.unpack_from(answer)[1] != _BY_FAMILY:  # an error: there is no such socket
        return None
    _, state, _, _ = _STATE.unpack_from(answer, _HEADER.size)
    *_, user, inode = _USER.unpack_from(answer, _USER_AT)
    return _Owner(user, inode) if _is_held(state, inode) and _has(answer, ends) else None


def _has(answer: bytes, ends: bytes) -> bool:
    """Whether the answer is about the requested socket.

    The kernel may also return one that listens on the port. A dual-stack socket is shown with its
    mapped addresses.
    """
    endpoints = answer[_SOCKET_AT : _SOCKET_AT + len(ends)]
    if endpoints == ends:
        return True
    local, remote = (b"\0" * 10 + b"\xff\xff" + ends[at : at + 4] for at in (4, 20))
    return endpoints == ends[:4] + local + remote


def _is_held(state: int, inode: int) -> bool:
    """Whether a process holds a socket: the kernel reports orphaned ones as root's."""
    return state in _OPEN and inode != 0


def _look_up(local: _Endpoint, remote: _Endpoint) -> _Owner | None:
    """The same from `/proc/net`, if netlink is not available."""
    wide = _widen(local), _widen(remote)
    pairs = {(_show(local), _show(remote)), (_show(wide[0]), _show(wide[1]))}
    for table in _TABLES:
        with contextlib.suppress(FileNotFoundError), table.open() as lines:
            for line in lines:
                fields = line.split()
                if (fields[1], fields[2]) in pairs:
                    owner = _Owner(int(fields[7]), int(fields[9]))
                    return owner if _is_held(int(fields[3], 16), owner.inode) else None
    return None


def _widen(end: _Endpoint) -> _Endpoint:
    """An IPv4 address in the form of a dual-stack socket."""
    if end.address.version == 6:  # noqa: PLR2004 - of IP
        return end
    return _Endpoint(ipaddress.IPv6Address(b"\0" * 10 + b"\xff\xff" + end.address.packed), end.port)


def _show(end: _Endpoint) -> str:
    packed = end.address.packed
    chunks = (packed[at : at + 4] for at in range(0, len(packed), 4))
    address = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in chunks)
    return f"{address}:{end.port:04X}"


def _is_ambiguous(user: int) -> bool:
    """Whether a user id may stand for users outside our namespace."""
    try:
        whole = _MAPPED_USERS.read_text().split() == _ALL_USERS
        return not whole and user == int(_OVERFLOW.read_text())
    except (OSError, ValueError):
        return True
