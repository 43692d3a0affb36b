"""Which TCP ports of this machine are closed, and which addresses are of this machine."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

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
        address: 4 or 16 bytes.
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
