"""Landlock: permanently limits a process to the named paths and ports."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys

from .kernel import syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# the numbers of the calls on all machines; the rest is of `linux/landlock.h`
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION = 1  # a flag: only say which version of the interface there is
_PATH_BENEATH, _NET_PORT = 1, 2
_OPENAT2, _AT_FDCWD, _NO_LINKS = 437, -100, 0b110

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_OLDEST = (1 << 13) - 1  # the rights of the first version
_ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # the others are for folders
_BIND, _CONNECT = 1 << 0, 1 << 1
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1

READ = EXECUTE | READ_FILE | READ_DIR
# no devices: a new one could be the disk itself
WRITE = (_OLDEST | REFER | TRUNCATE) & ~(_MAKE_CHAR | _MAKE_BLOCK)
DEVICE = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV

WITH_REFER, WITH_TRUNCATE, WITH_NETWORK, WITH_IOCTL, WITH_SCOPES = 2, 3, 4, 5, 6
"""The versions of the interface that brought each of these."""


def version() -> int:
    """The version of Landlock in the kernel.

    Raises:
        OSError: It has none, or it is switched off.
    """
    if not sys.platform.startswith("linux"):
        raise OSError(38, "only Linux has Landlock")
    return syscall(_CREATE, None, 0, _VERSION)


def restrict(grants: Iterable[tuple[str, int]], ports: Iterable[int] | None) -> None:
    """Leave this process, and all that it will ever start, only these paths and ports.

    `PR_SET_NO_NEW_PRIVS` must be set. Paths that do not exist are left out.

    Args:
        ports: TCP ports that may be connected to; None: all, and it may listen.

    Raises:
        OSError: The kernel refuses.
    """
    interface = version()
    files = _OLDEST
    for since, right in ((WITH_REFER, REFER), (WITH_TRUNCATE, TRUNCATE), (WITH_IOCTL, IOCTL_DEV)):
        files |= right if interface >= since else 0
    network = _BIND | _CONNECT if interface >= WITH_NETWORK and ports is not None else 0
    scopes = _ABSTRACT_SOCKETS | _SIGNALS if interface >= WITH_SCOPES else 0
    # an older kernel refuses fields that it does not know
    fields = (files, network, scopes)[
        : 1 + (interface >= WITH_NETWORK) + (interface >= WITH_SCOPES)
    ]
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    ruleset = syscall(_CREATE, ctypes.c_char_p(attributes), len(attributes), 0)
    try:
        for path, rights in grants:
            _allow(ruleset, path, rights & files)
        if network:
            for port in ports or ():
                rule = ctypes.c_char_p(struct.pack("QQ", _CONNECT, port))
                syscall(_ADD_RULE, ruleset, _NET_PORT, rule, 0)
        syscall(_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = _open(path)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _ON_FILES
        rule = ctypes.c_char_p(struct.pack("=Qi", rights, place))
        syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(place)


def _open(path: str) -> int:
    """Open a path without links.

    Links were resolved when the rules were made; one that appeared since may be an attack.

    Raises:
        OSError: There is no such file, or a link on the way.
    """
    flags = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
    how = struct.pack("=QQQ", flags, 0, _NO_LINKS)
    try:
        name = ctypes.c_char_p(os.fsencode(path))
        return syscall(_OPENAT2, _AT_FDCWD, name, ctypes.c_char_p(how), len(how))
    except OSError as exc:
        if exc.errno not in {errno.ENOSYS, errno.EPERM}:  # the filter of an older container
            raise
    place = os.open(path, flags)
    is_link = stat.S_ISLNK(os.fstat(place).st_mode)
    if is_link or os.readlink(f"/proc/self/fd/{place}") != path:
        os.close(place)
        raise OSError(errno.ELOOP, "a link")
    return place
