"""System calls that Python does not provide: their numbers, and which arguments are paths."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: object) -> int:
    """The result of a system call; integers are passed as the kernel's words.

    Raises:
        OSError: The kernel refuses.
    """
    values = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    ]
    return _check(_libc.syscall(ctypes.c_long(number), *values))


def prctl(option: int, *arguments: int) -> int:
    """The result of `prctl`.

    Raises:
        OSError: The kernel refuses.
    """
    values = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    return _check(_libc.prctl(ctypes.c_int(option), *values))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


# since Linux 5.1, a new call has one number on all machines
_SAME = {
    "pidfd_send_signal": 424,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "process_mrelease": 448,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "openat2": 437,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_setattr": 469,
}

# the rest as in the kernel's `syscall_64.tbl`, and in its `asm-generic/unistd.h`
_X86_64 = """
ptrace 101 process_vm_readv 310 process_vm_writev 311 kcmp 312 kexec_load 246
kexec_file_load 320 bpf 321 perf_event_open 298 keyctl 250 add_key 248 request_key 249
userfaultfd 323 mount 165 umount2 166 pivot_root 155 chroot 161 setns 308 unshare 272 clone 56
open_by_handle_at 304 name_to_handle_at 303 acct 163 quotactl 179 syslog 103 iopl 172 ioperm 173
settimeofday 164 clock_settime 227 clock_adjtime 305 adjtimex 159 sethostname 170
setdomainname 171 vhangup 153 fanotify_init 300 init_module 175 finit_module 313
delete_module 176 reboot 169 swapon 167 swapoff 168 shmget 29 shmat 30 shmctl 31 msgget 68
msgsnd 69 msgrcv 70 msgctl 71 semget 64 semop 65 semctl 66 semtimedop 220 mq_open 240
mq_unlink 241 socket 41 socketpair 53 connect 42 bind 49 listen 50 sendto 44 sendmsg 46
sendmmsg 307 ioctl 16 prlimit64 302 setpriority 141 ioprio_set 251 sched_setaffinity 203
sched_setscheduler 144 sched_setparam 142 sched_setattr 314 move_pages 279 migrate_pages 256
lookup_dcookie 212 nfsservctl 180 chmod 90 fchmod 91 fchmodat 268 setxattr 188 lsetxattr 189
removexattr 197 lremovexattr 198 open 2 openat 257 creat 85 execve 59 execveat 322 mkdir 83
mkdirat 258 unlink 87 unlinkat 263 rename 82 renameat 264 renameat2 316 link 86 linkat 265
symlink 88 symlinkat 266 truncate 76 rmdir 84 fork 57 vfork 58 chown 92 fchown 93 lchown 94
fchownat 260 fsetxattr 190 fremovexattr 199 utime 132 utimes 235 futimesat 261 utimensat 280
mknod 133 mknodat 259 kill 62 tkill 200 tgkill 234 rt_sigqueueinfo 129 rt_tgsigqueueinfo 297
fcntl 72 inotify_add_watch 254 setrlimit 160
"""

_AARCH64 = """
ptrace 117 process_vm_readv 270 process_vm_writev 271 kcmp 272 kexec_load 104
kexec_file_load 294 bpf 280 perf_event_open 241 keyctl 219 add_key 217 request_key 218
userfaultfd 282 mount 40 umount2 39 pivot_root 41 chroot 51 setns 268 unshare 97 clone 220
open_by_handle_at 265 name_to_handle_at 264 acct 89 quotactl 60 syslog 116
settimeofday 170 clock_settime 112 clock_adjtime 266 adjtimex 171 sethostname 161
setdomainname 162 vhangup 58 fanotify_init 262 init_module 105 finit_module 273
delete_module 106 reboot 142 swapon 224 swapoff 225 shmget 194 shmat 196 shmctl 195 msgget 186
msgsnd 189 msgrcv 188 msgctl 187 semget 190 semop 193 semctl 191 semtimedop 192 mq_open 180
mq_unlink 181 socket 198 socketpair 199 connect 203 bind 200 listen 201 sendto 206 sendmsg 211
sendmmsg 269 ioctl 29 prlimit64 261 setpriority 140 ioprio_set 30 sched_setaffinity 122
sched_setscheduler 119 sched_setparam 118 sched_setattr 274 move_pages 239 migrate_pages 238
lookup_dcookie 18 nfsservctl 42 fchmod 52 fchmodat 53 setxattr 5 lsetxattr 6 removexattr 14
lremovexattr 15 openat 56 execve 221 execveat 281 mkdirat 34 unlinkat 35 renameat 38
renameat2 276 linkat 37 symlinkat 36 truncate 45 fchown 55 fchownat 54 fsetxattr 7
fremovexattr 16 utimensat 88 mknodat 33 kill 129 tkill 130 tgkill 131 rt_sigqueueinfo 138
rt_tgsigqueueinfo 240 fcntl 25 inotify_add_watch 27 setrlimit 164
"""


def _table(text: str) -> dict[str, int]:
    fields = text.split()
    return {**_SAME, **dict(zip(fields[::2], map(int, fields[1::2]), strict=True))}


ARCHITECTURES = {
    "x86_64": (0xC000003E, _table(_X86_64)),
    "aarch64": (0xC00000B7, _table(_AARCH64)),
}
"""By machine: what the kernel calls it, and its numbers by name."""


_AT_FDCWD = -100
CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

USED_PATHS = {
    "open": ((None, 0, 1),),
    "openat": ((0, 1, 2),),
    "creat": ((None, 0, True),),
    "mknod": ((None, 0, True),),
    "mknodat": ((0, 1, True),),
    "mkdir": ((None, 0, True),),
    "mkdirat": ((0, 1, True),),
    "unlink": ((None, 0, True),),
    "unlinkat": ((0, 1, True),),
    "rmdir": ((None, 0, True),),
    "truncate": ((None, 0, True),),
    "rename": ((None, 0, True), (None, 1, True)),
    "renameat": ((0, 1, True), (2, 3, True)),
    "renameat2": ((0, 1, True), (2, 3, True)),
    "link": ((None, 0, False), (None, 1, True)),
    "linkat": ((0, 1, False), (2, 3, True)),
    "symlink": ((None, 1, True),),
    "symlinkat": ((1, 2, True),),
    "execve": ((None, 0, False),),
    "execveat": ((0, 1, False),),
}
"""By call: for each path where its folder is, where the path is, and where the flags are that say
whether it is opened for writing, or whether it is; None: the folder that the process is in."""
CHANGES = tuple(
    name for name, paths in USED_PATHS.items() if any(kind is True for *_, kind in paths)
)
"""Calls that change a path whatever their flags are."""


class UsedPath:
    """One path of one call: the descriptor of its folder, the pointer to it, what for."""

    def __init__(self, folder: int, pointer: int, *, changes: bool) -> None:
        self.folder = folder
        self.pointer = pointer
        self.changes = changes


def used_paths(name: str, arguments: list[int]) -> list[UsedPath]:
    """The paths of a call with these arguments."""
    paths: list[UsedPath] = []
    for folder, path, kind in USED_PATHS.get(name, ()):
        changes = kind if isinstance(kind, bool) else bool(arguments[kind] & CHANGING)
        where = _AT_FDCWD if folder is None else to_signed(arguments[folder])
        paths.append(UsedPath(where, arguments[path], changes=changes))
    return paths


def to_signed(word: int) -> int:
    """A descriptor in a register, which may be negative, such as `AT_FDCWD`."""
    return (word & 0xFFFFFFFF) - (1 << 32 if word & 0x80000000 else 0)
