"""The seccomp filter of a confined process: what Landlock does not cover.

Sockets of other kinds than it may use, other processes' limits, namespaces, keyrings, io_uring
(which does what a filter forbids) and the like are refused. `connect`, watches and changes of
modes, owners, times and sizes are handed to the warden, which looks at their arguments and makes
the call itself: a filter sees no memory, and Landlock restricts none of these. So are new
processes, which the warden counts: the kernel's own limit counts all processes of a user, and none
of root's.

The kernel itself remembers the calls that a filter always allows, and asks it only about the
others. Of those, the ones that programs make often come first.
"""

from __future__ import annotations

import ctypes
import os
import struct

from .kernel import ARCHITECTURES, CHANGES, CHANGING, USED_PATHS, syscall

TYPE_CHECKING = False
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5

_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # of the classic packet filter
_AND = 0x54
_ALLOW, _ERRNO, _NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000
_NUMBER, _ARCHITECTURE = 0, 4  # where each is in what a filter sees
_X32 = 0x40000000  # a second set of numbers for the same calls

_EPERM, _EACCES, _EINVAL, _ENOTTY, _ENOSYS = 1, 13, 22, 25, 38
_EPROTONOSUPPORT, _EOPNOTSUPP, _EAFNOSUPPORT = 93, 95, 97
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_STREAM, _DATAGRAM, _SEQPACKET, _KIND = 1, 2, 5, 0xF
_FAST_OPEN = 0x20000000  # connects without `connect`
_NAMESPACES, _THREAD = 0x7E020000, 0x10000
_SET_ID = 0o6000
_TERMINAL = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX: type for the person at the terminal
_TCP = (0, 6)  # not MPTCP, which Landlock does not restrict
_INTERNET = (0, 6, 17)  # TCP and UDP
_ROUTES = 0  # the kind of netlink that lists addresses of this machine; resolvers ask it
_TEMPORARY = 0o20000000  # creates a file too
_FILE_SYSTEMS = (0x5800, 0x6600, 0x7600, 0x9400, 0xF500)
"""Requests of these kinds change files that are open to be read only: attributes, versions,
snapshots that put a folder elsewhere."""
_FILE_REQUESTS = (
    *(0x40049409, 0x4020940D, 0xC0189436),  # FICLONE, FICLONERANGE, FIDEDUPERANGE
    *(0x80086601, 0xC020660B, 0x801C581F, 0x80087601),  # read flags, extents, attributes, version
)
"""Those that do not, and that programs make."""

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
_ABSENT = (
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("clone3", "openat2"),  # their flags are in memory, which a filter does not see
)
"""Programs take these for those of a newer kernel, and do without."""
_UNSUPPORTED = (
    *("setxattr", "lsetxattr", "fsetxattr", "setxattrat", "file_setattr"),
    *("removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
)
LISTENING = ("bind", "listen")
_OTHERS_BY_FIRST = (
    *("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
)
"""Calls that mean another process if their first argument is not zero."""
FILE_CHANGES = (
    *("fchmod", "chmod", "fchmodat", "fchmodat2", "fchown", "chown", "lchown", "fchownat"),
    *("utimensat", "utime", "utimes", "futimesat", "truncate"),
)
"""Calls that the warden makes for the caller, on files that it may change."""
_HANDED_OVER = ("connect", "inotify_add_watch", *FILE_CHANGES, "fork", "vfork")
NEW_PROCESS = frozenset({"clone", "fork", "vfork"})
"""Calls that are only counted: they have no argument that could be changed meanwhile."""
SIGNALS = (
    *("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"),
)
"""Calls that send a signal; their first argument says to whom, and it is no pointer."""
_SIGNALLED = (0x8901, 0x8902)  # FIOSETOWN and SIOCSPGRP: who gets signals about a descriptor
_SIGNALLED_BY_FCNTL = (8, 15)  # F_SETOWN and F_SETOWN_EX: the same
_HOLDS = (1024, 1026, 1040)
"""F_SETLEASE, F_NOTIFY and F_SETDELEG: others who open a file wait for its holder, up to a minute;
so would the warden."""
MARK = 10
"""`RLIMIT_LOCKS`, which Linux ignores. Its value tells whose a confined process is: nobody can
raise a limit, and the filter keeps this one from being lowered."""
READING = {"openat": 2, "open": 1}
"""Calls that open a file, and which of their arguments says what for; the next is the mode."""
_MODES = {"creat": 1, "mknod": 1, "mknodat": 2}
"""Calls that create a file, and which of their arguments is its mode."""

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
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)


def confining(
    name: str,
    *,
    proxied: bool,
    network: bool = False,
    observed: bool = False,
    watched: bool = False,
    reading: bool = False,
    listing: bool = False,
    signals: bool = False,
) -> list[Instruction]:
    """The filter of a confined process.

    Args:
        proxied: Whether there are hosts that it may reach through the proxy.
        network: Whether it may use the network itself.
        observed: Whether all calls with paths are handed over, so that they can be looked at.
        watched: Whether those that change something are.
        reading: Whether files that are opened to be read are handed over.
        listing: Whether folders that are opened to be listed are handed over.
        signals: Whether signals are, since Landlock does not keep them inside.
    """
    numbers = ARCHITECTURES[name][1]
    handed_over = (*USED_PATHS,) if observed else CHANGES if watched else ()
    blocks: dict[str, list[Instruction]] = {}
    for call, flags in READING.items():
        on_read = _notify() if observed or reading else _allow()
        on_list = _notify() if listing else on_read
        blocks[call] = _open(
            flags, on_read, on_list, _notify() if observed or watched else _allow()
        )
    blocks["ioctl"] = _ioctl((*_TERMINAL, *_SIGNALLED) if signals else _TERMINAL)
    refused = (*_HOLDS, *_SIGNALLED_BY_FCNTL) if signals else _HOLDS
    blocks["fcntl"] = [_argument(1), *_if_one_of(refused, _answer(_EPERM)), _allow()]
    for call, flags in (("sendmsg", 2), ("sendto", 3), ("sendmmsg", 3)):
        blocks[call] = [_argument(flags), *_if_any(_FAST_OPEN, _EACCES), _allow()]
    blocks["clone"] = [
        _argument(0),
        *_if_any(_NAMESPACES, _EPERM),
        (_ANY_BIT, 0, 1, _THREAD),
        _allow(),
        _notify(),
    ]
    blocks["socket"] = _any_socket() if network else _socket() if proxied else [_answer(_EACCES)]
    blocks["socketpair"] = _pair()
    for calls, verdict in (
        ((*_HANDED_OVER, *handed_over, *(SIGNALS if signals else ())), _notify()),
        (LISTENING if network else (), _notify()),
        (_FORBIDDEN, _answer(_EPERM)),
        (_ABSENT, _answer(_ENOSYS)),
        (_UNSUPPORTED, _answer(_EOPNOTSUPP)),
        (() if network else LISTENING, _answer(_EACCES)),
    ):
        for call in calls:
            blocks.setdefault(call, [verdict])
    blocks |= _on_itself()
    for call, mode in (*_MODES.items(), ("fchmod", 1)):
        allowed = blocks.get(call, [_allow()])
        blocks[call] = [_argument(mode), *_if_any(_SET_ID, _EPERM), *allowed]
    code = prologue(name)
    for call, block in blocks.items():
        if call in numbers:
            code += _when(numbers[call], block)
    return [*code, _allow()]


def _on_itself() -> dict[str, list[Instruction]]:
    """Calls that are about the caller, and never about another process."""
    blocks = {
        call: [_argument(0), *_unless_equal(0, _EPERM), _allow()] for call in _OTHERS_BY_FIRST
    }
    for call, kind in (("setpriority", 0), ("ioprio_set", 1)):
        checked = [_argument(0), *_unless_equal(kind, _EPERM)]
        blocks[call] = [*checked, _argument(1), *_unless_equal(0, _EPERM), _allow()]
    change = [_argument(2), *_unless_equal(0, _EPERM), _upper(2), *_unless_equal(0, _EPERM)]
    marked = [(_EQUAL, 0, len(change), MARK), *change]
    blocks["prlimit64"] = [*blocks["prlimit64"][:-1], _argument(1), *marked, _allow()]
    blocks["setrlimit"] = [_argument(0), *_if_one_of((MARK,), _answer(_EPERM)), _allow()]
    return blocks


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


def _open(
    flags: int, on_read: Instruction, on_list: Instruction, on_change: Instruction
) -> list[Instruction]:
    """Decide a call that opens a file.

    A new file must not let others become its owner. One that is opened to be read must not be
    emptied, which Landlock prevents only since Linux 6.2.
    """
    return [
        _argument(flags),
        (_ANY_BIT, 0, 3, os.O_CREAT | _TEMPORARY),
        _argument(flags + 1),
        *_if_any(_SET_ID, _EPERM),
        _argument(flags),
        (_AND, 0, 0, os.O_TRUNC | os.O_ACCMODE),
        *_if_one_of((os.O_TRUNC, os.O_TRUNC | os.O_ACCMODE), _answer(_EACCES)),
        _argument(flags),
        (_ANY_BIT, 0, 1, CHANGING),
        on_change,
        (_ANY_BIT, 0, 1, os.O_DIRECTORY),
        on_list,
        on_read,
    ]


def _ioctl(refused: tuple[int, ...]) -> list[Instruction]:
    return [
        _argument(1),
        *_if_one_of(refused, _answer(_EPERM)),
        *_if_one_of(_FILE_REQUESTS, _allow()),
        (_AND, 0, 0, 0xFF00),
        *_if_one_of(_FILE_SYSTEMS, _answer(_ENOTTY)),
        _allow(),
    ]


def _any_socket() -> list[Instruction]:
    """Sockets whose addresses `connect` decides: no datagrams to Unix sockets, which need none."""
    internet = [
        _argument(1),
        (_AND, 0, 0, _KIND),
        (_EQUAL, 2, 0, _STREAM),
        (_EQUAL, 1, 0, _DATAGRAM),
        _answer(_EACCES),
        _argument(2),
        *_if_one_of(_INTERNET, _allow()),
        _answer(_EPROTONOSUPPORT),  # MPTCP: programs take TCP then
    ]
    unix = [
        _argument(1),
        (_AND, 0, 0, _KIND),
        *_if_one_of((_STREAM, _SEQPACKET), _allow()),
        _answer(_EACCES),
    ]
    netlink = [_argument(2), *_unless_equal(_ROUTES, _EACCES), _allow()]
    return [
        _argument(0),
        *_when(_AF_UNIX, unix),
        *_when(_AF_NETLINK, netlink),
        (_EQUAL, 2, 0, _AF_INET),
        (_EQUAL, 1, 0, _AF_INET6),
        _answer(_EAFNOSUPPORT),
        *internet,
    ]


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
    """Run a block, which ends with a verdict, for one number."""
    return [(_EQUAL, 0, len(block), number), *block]


def _argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * index)  # its lower half, which is all that these calls look at


def _upper(index: int) -> Instruction:
    return (_LOAD, 0, 0, 20 + 8 * index)


def _answer(errno: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | errno)


def _notify() -> Instruction:
    return (_RETURN, 0, 0, _NOTIFY)


def _allow() -> Instruction:
    return (_RETURN, 0, 0, _ALLOW)


def _unless_equal(value: int, errno: int) -> list[Instruction]:
    return [(_EQUAL, 1, 0, value), _answer(errno)]


def _if_any(bits: int, errno: int) -> list[Instruction]:
    return [(_ANY_BIT, 0, 1, bits), _answer(errno)]


def _if_one_of(values: tuple[int, ...], verdict: Instruction) -> list[Instruction]:
    return [instruction for value in values for instruction in ((_EQUAL, 0, 1, value), verdict)]
