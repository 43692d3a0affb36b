"""The seccomp filter of a confined process: what Landlock does not cover.

Sockets other than TCP, other processes' limits, namespaces, keyrings, io_uring (which does what a
filter forbids) and the like are refused. `connect` and `chmod` are handed to the warden, which
looks at their arguments and makes the call itself: a filter sees no memory, and Landlock tells
neither addresses apart nor changes of mode. So are new processes, which the warden counts: the
kernel's own limit counts all processes of a user, and none of root's.
"""

from __future__ import annotations

import ctypes
import os
import struct

from .kernel import syscall
from .syscall_numbers import ARCHITECTURES
from .used_paths import CHANGING

TYPE_CHECKING = False
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # of the classic packet filter
_AND = 0x54
_ALLOW, _ERRNO, _NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000
_NUMBER, _ARCHITECTURE = 0, 4  # where each is in what a filter sees
_X32 = 0x40000000  # a second set of numbers for the same calls

_EPERM, _EACCES, _EINVAL, _ENOSYS, _EOPNOTSUPP = 1, 13, 22, 38, 95
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_STREAM, _SEQPACKET, _KIND = 1, 5, 0xF
_FAST_OPEN = 0x20000000  # connects without `connect`
_NAMESPACES, _THREAD = 0x7E020000, 0x10000
_SET_ID = 0o6000
_TERMINAL = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX: type for the person at the terminal
_TCP = (0, 6)  # not MPTCP, which Landlock does not restrict

_FORBIDDEN = """
ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd
kexec_load kexec_file_load bpf perf_event_open keyctl add_key request_key userfaultfd
mount umount2 pivot_root move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick
mount_setattr chroot setns unshare open_by_handle_at name_to_handle_at acct quotactl quotactl_fd
syslog iopl ioperm settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname
vhangup fanotify_init init_module finit_module delete_module reboot swapon swapoff
shmget shmat shmctl msgget msgsnd msgrcv msgctl semget semop semctl semtimedop mq_open mq_unlink
move_pages migrate_pages lookup_dcookie nfsservctl
""".split()  # noqa: SIM905 - seventy lines else
_ABSENT = ("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3")
"""Programs take these for those of a newer kernel, and do without."""
_UNSUPPORTED = (
    *("setxattr", "lsetxattr", "removexattr", "lremovexattr", "setxattrat", "removexattrat"),
)
_LISTENING = ("bind", "listen")
_OTHERS_BY_FIRST = (
    *("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
)
"""Calls that mean another process if their first argument is not zero."""
_HANDED_OVER = ("connect", "chmod", "fchmodat", "fchmodat2", "fork", "vfork")
NEW_PROCESS = frozenset({"clone", "fork", "vfork"})
"""Calls that are only counted: they have no argument that could be changed meanwhile."""
READING = {"open": 1, "openat": 2}
"""Calls that open a file, and which of their arguments says what for."""

if TYPE_CHECKING:
    from collections.abc import Iterable

Instruction = tuple[int, int, int, int]


def machine() -> str:
    """The name of this machine's architecture in the tables."""
    return os.uname().machine


def is_known_machine() -> bool:
    """Whether there is a filter for this machine."""
    return machine() in ARCHITECTURES


def install(program: bytes) -> int:
    """Put this process under a filter for good; the descriptor on which calls are handed over.

    Raises:
        OSError: The kernel refuses.
    """
    code = ctypes.create_string_buffer(program, len(program))
    count = len(program) // 8
    header = struct.pack("HxxxxxxP", count, ctypes.addressof(code))
    number = _SECCOMP[machine()]
    try:
        # or a signal could interrupt a supervised `fork`, which no program expects
        flags = _NEW_LISTENER | _WAIT_KILLABLE
        return syscall(number, _SET_FILTER, flags, ctypes.c_char_p(header))
    except OSError as exc:
        if exc.errno != _EINVAL:  # before Linux 5.19
            raise
    return syscall(number, _SET_FILTER, _NEW_LISTENER, ctypes.c_char_p(header))


def assemble(instructions: list[Instruction]) -> bytes:
    return b"".join(struct.pack("HBBI", *one) for one in instructions)


def confining(
    name: str, *, network: bool, shown: Iterable[str] = (), reading: bool = False
) -> list[Instruction]:
    """The filter of a confined process.

    Args:
        name: Which machine it is for.
        network: Whether there are hosts that it may reach through the proxy.
        shown: Calls that are handed over too, so that they can be looked at.
        reading: Whether files that are opened to be read are handed over.
    """
    numbers = ARCHITECTURES[name][1]
    blocks: dict[str, list[Instruction]] = {}
    for calls, verdict in (
        (_FORBIDDEN, _answer(_EPERM)),
        (_ABSENT, _answer(_ENOSYS)),
        (_UNSUPPORTED, _answer(_EOPNOTSUPP)),
        (_LISTENING, _answer(_EACCES)),
        ((*_HANDED_OVER, *shown), (_RETURN, 0, 0, _NOTIFY)),
    ):
        blocks |= {call: [verdict] for call in calls}
    for call in _OTHERS_BY_FIRST:
        blocks[call] = [_argument(0), *_unless_equal(0, _EPERM), _allow()]
    for call, kind in (("setpriority", 0), ("ioprio_set", 1)):
        checked = [_argument(0), *_unless_equal(kind, _EPERM)]
        blocks[call] = [*checked, _argument(1), *_unless_equal(0, _EPERM), _allow()]
    for call, flags in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        blocks[call] = [_argument(flags), *_if_any(_FAST_OPEN, _EACCES), _allow()]
    blocks["clone"] = [
        _argument(0),
        *_if_any(_NAMESPACES, _EPERM),
        (_ANY_BIT, 0, 1, _THREAD),
        _allow(),
        (_RETURN, 0, 0, _NOTIFY),
    ]
    for call, flags in READING.items() if reading else ():
        changing = [_argument(flags), (_ANY_BIT, 0, 1, CHANGING), _allow()]
        blocks.setdefault(call, [*changing, (_RETURN, 0, 0, _NOTIFY)])
    blocks["fchmod"] = [_argument(1), *_if_any(_SET_ID, _EPERM), _allow()]
    blocks["ioctl"] = [_argument(1), *_if_one_of(_TERMINAL, _answer(_EPERM)), _allow()]
    blocks["socket"] = _socket() if network else [_answer(_EACCES)]
    blocks["socketpair"] = _pair()
    code = prologue(name)
    for call, block in blocks.items():
        if call in numbers:
            code += _when(numbers[call], block)
    return [*code, _allow()]


def prologue(name: str) -> list[Instruction]:
    """Refuse calls with the numbers of another architecture, then load the number."""
    architecture, _ = ARCHITECTURES[name]
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        _answer(_EPERM),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if name == "x86_64":
        code += [(_ANY_BIT, 0, 1, _X32), _answer(_ENOSYS)]
    return code


def _socket() -> list[Instruction]:
    return [
        _argument(0),
        (_EQUAL, 2, 0, _AF_INET),
        (_EQUAL, 1, 0, _AF_INET6),
        _answer(_EACCES),
        _argument(1),
        (_AND, 0, 0, _KIND),
        *_unless_equal(_STREAM, _EACCES),
        _argument(2),
        *_if_one_of(_TCP, _allow()),
        _answer(_EACCES),
    ]


def _pair() -> list[Instruction]:
    """Both ends are connected for good; a socket for datagrams can be connected to others."""
    return [
        _argument(0),
        *_unless_equal(_AF_UNIX, _EACCES),
        _argument(1),
        (_AND, 0, 0, _KIND),
        *_if_one_of((_STREAM, _SEQPACKET), _allow()),
        _answer(_EACCES),
    ]


def _when(number: int, block: list[Instruction]) -> list[Instruction]:
    """Run a block, which ends with a verdict, for one call."""
    return [(_EQUAL, 0, len(block), number), *block]


def _argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * index)  # its lower half, which is all that these calls look at


def _answer(errno: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | errno)


def _allow() -> Instruction:
    return (_RETURN, 0, 0, _ALLOW)


def _unless_equal(value: int, errno: int) -> list[Instruction]:
    return [(_EQUAL, 1, 0, value), _answer(errno)]


def _if_any(bits: int, errno: int) -> list[Instruction]:
    return [(_ANY_BIT, 0, 1, bits), _answer(errno)]


def _if_one_of(values: tuple[int, ...], verdict: Instruction) -> list[Instruction]:
    return [one for value in values for one in ((_EQUAL, 0, 1, value), verdict)]
