"""System calls that Python does not provide."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: object) -> int:
    """The result of a system call; integers are passed as the kernel's words.

    Raises:
        OSError: The kernel refuses.
    """
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *words))


def prctl(option: int, *arguments: int) -> int:
    """The result of `prctl`.

    Raises:
        OSError: The kernel refuses.
    """
    words = [ctypes.c_ulong(one) for one in (*arguments, 0, 0, 0, 0)[:4]]
    return _check(_libc.prctl(ctypes.c_int(option), *words))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
