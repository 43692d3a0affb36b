"""Confines a process just before it becomes a server; also one that bubblewrap starts."""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import socket
import struct
import sys

from . import landlock, seccomp
from .kernel import prctl, syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypedDict

    class SandboxOrders(TypedDict):
        """Instructions for the warden; only what `marshal` can carry."""

        read: list[str]
        write: list[str]
        devices: list[str]
        proxy: int
        """The only loopback port that it may connect to; 0: none."""
        processes: int
        """How many processes it may have at a time."""
        memory: int
        """Bytes of data of each of them."""
        proc: bool
        """Whether processes other than the first may read their own /proc/self."""
        listed: list[str]
        """Folders that it may list, although it may not read everything in them."""
        network: bool
        """Whether it may use the network directly (`guard`), instead of the proxy alone."""
        sockets: list[str]
        """With `network`: Unix sockets, and folders of them, that it may connect to."""
        socket_program: str
        """The only program that may connect to Unix sockets that it cannot write to; empty: all."""
        closed_ports: str
        """A folder whose files are named `PID-PORT`: TCP ports of this machine that stay closed."""
        observe: bool
        """Whether the paths that it uses are reported, allowed or not."""
        watch: bool
        """Whether changes outside `write` are reported while it starts, as denied."""
        wrapper: list[str]
        """The command of a program that starts it, such as bubblewrap; empty: started directly."""


# of `linux/prctl.h` and `linux/capability.h`
_NO_NEW_PRIVS = 38
_BOUNDING_DROP, _AMBIENT, _AMBIENT_CLEAR = 24, 47, 4
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITIES_V3 = 0x20080522
_DAC_OVERRIDE = 1  # root in a container works with files of other users; Landlock still holds
_LAST_CAPABILITY = 63


def confine(orders: SandboxOrders, number: int) -> int:
    """Confine this process permanently; returns the descriptor for supervised system calls.

    Raises:
        OSError: The kernel refuses; nothing may be started then.
    """
    # first: otherwise the kernel lets only root use Landlock and a filter
    prctl(_NO_NEW_PRIVS, 1)
    mark = (seccomp.MARK, number)
    for limit, most in ((resource.RLIMIT_DATA, orders["memory"]), (resource.RLIMIT_CORE, 0), mark):
        _lower(limit, most)
    _drop_capabilities()
    grants = [(path, landlock.READ) for path in orders["read"]]
    grants += [(path, landlock.WRITE) for path in orders["write"]]
    grants += [(path, landlock.DEVICE) for path in orders["devices"]]
    # bubblewrap gives a server a /proc with nothing but its own processes
    grants += [("/proc" if orders["wrapper"] else f"/proc/{os.getpid()}", landlock.READ)]
    ports = [orders["proxy"]] if orders["proxy"] else []
    landlock.restrict(grants, None if orders["network"] else ports)
    code = seccomp.confining(
        seccomp.machine(),
        proxied=bool(orders["proxy"]),
        network=orders["network"],
        observed=orders["observe"],
        # its terminals and shared memory are opened for it
        watched=orders["watch"] or orders["network"],
        reading=orders["proc"],
        listing=bool(orders["listed"]),
        signals=landlock.version() < landlock.WITH_SCOPES,
    )
    return seccomp.install(seccomp.assemble(code))


def _lower(limit: int, most: int) -> None:
    """Lower a resource limit permanently; a lower one stays."""
    _, now = resource.getrlimit(limit)
    if now == resource.RLIM_INFINITY or now > most:
        resource.setrlimit(limit, (most, most))


def _drop_capabilities() -> None:
    """Drop root's capabilities, so that file permissions and the rules apply to it."""
    for capability in range(_LAST_CAPABILITY + 1):
        if capability != _DAC_OVERRIDE:
            try:
                prctl(_BOUNDING_DROP, capability)
            except OSError:
                break  # not root, or the kernel has no more
    try:
        prctl(_AMBIENT, _AMBIENT_CLEAR)
    except OSError:
        pass
    header = ctypes.c_char_p(struct.pack("Ii", _CAPABILITIES_V3, 0))
    capabilities = 1 << _DAC_OVERRIDE if os.geteuid() == 0 else 0
    sets = struct.pack("6I", capabilities, capabilities, 0, 0, 0, 0)
    syscall(_CAPSET[seccomp.machine()], header, ctypes.c_char_p(sets))


def wrapped_command(
    report: int, number: int, orders: bytes, program: str, argv: list[str]
) -> list[str]:
    """The command that bubblewrap starts."""
    # started as the warden itself was, with another module
    python = sys.orig_argv[: sys.orig_argv.index("-c") + 3]
    orders_and_report = [str(report), str(number), orders.hex()]
    return [*python, "multitap.sandbox.confinement", *orders_and_report, program, *argv]


def main() -> None:
    """Confine this process, which bubblewrap has started, and become the server.

    Bubblewrap needs the very calls that a confined process must not make, so it comes first.
    """
    _, _, _, report, number, orders, program, *argv = sys.argv
    warden = socket.socket(fileno=int(report))
    warden.set_inheritable(False)
    try:
        spec = marshal.loads(bytes.fromhex(orders))  # noqa: S302 - the warden's
        listener = confine(spec, int(number))
        socket.send_fds(warden, [b"+"], [listener])
        os.close(listener)
        os.execve(program, argv, os.environ)  # noqa: S606 - that is what it is for
    except OSError as exc:
        sys.exit(f"{program}: {os.strerror(exc.errno or 0)}")
