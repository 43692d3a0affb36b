"""Ways out of a sandbox, each a real attempt; prints what it got, or fails.

Run as a program of its own: `python escape_probes.py WORLD`, where WORLD is JSON.
"""

import base64
import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
PROBES = {}
X86 = os.uname().machine == "x86_64"
WORLD = {}


def probe(function):
    PROBES[function.__name__] = function
    return function


def syscall(x86, arm, *arguments):
    """The result of a system call by its numbers on both machines."""
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = LIBC.syscall(ctypes.c_long(x86 if X86 else arm), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def home(*parts):
    return os.path.join(WORLD["home"], *parts)


def own(name):
    """A path in a folder that the probe may write to."""
    return os.path.join(tempfile.gettempdir(), f"{name}-{os.getpid()}")


def own_file(name):
    path = own(name)
    Path(path).write_text("evil")
    return path


def text(path):
    return Path(path).read_text()


def compete(attempt, *disturbances):
    """Try something until it succeeds, while another thread changes what it is about."""
    rounds = 0
    over = threading.Event()

    def disturb():
        nonlocal rounds
        while not over.is_set():
            for disturbance in disturbances:
                disturbance()
            rounds += 1

    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=disturb)
    thread.start()
    turns, before = 0, rounds
    try:
        # attempts between which the other had a turn: on a busy machine one thread may run alone
        # for hundreds of them
        while turns < 300:
            if attempt():
                return
            turns += rounds != before
            before = rounds
    finally:
        over.set()
        thread.join()
    raise PermissionError("it was always too late")


# --- files that must not be read


@probe
def read_ssh_key():
    return text(home(".ssh/id_rsa"))


@probe
def read_aws_credentials():
    return text(home(".aws/credentials"))


@probe
def read_gnupg():
    return text(home(".gnupg/private"))


@probe
def read_vault():
    return text(WORLD["vault"])


@probe
def read_our_configuration():
    return text(WORLD["config"])


@probe
def read_state_of_another_server():
    return text(WORLD["other_state"])


@probe
def read_hub_state():
    return text(WORLD["hub_state"])


@probe
def list_home():
    return os.listdir(home())


@probe
def list_sandboxes_of_others():
    return os.listdir(os.path.dirname(os.path.dirname(WORLD["other_state"])))


@probe
def read_shadow():
    return text("/etc/shadow")


@probe
def read_raw_disk():
    last = None
    for name in ("vda", "sda", "nvme0n1", "loop0", "mem"):
        try:
            with open(f"/dev/{name}", "rb") as disk:
                return disk.read(16)
        except OSError as exc:
            last = exc
    raise last


@probe
def read_shared_memory_of_others():
    return text(WORLD["shm"])


@probe
def read_through_symlink():
    link = own("link")
    os.symlink(home(".ssh"), link)
    return text(f"{link}/id_rsa")


@probe
def read_through_hard_link():
    link = own("hard")
    os.link(home(".ssh/id_rsa"), link)
    return text(link)


@probe
def read_through_proc_self_root():
    return text(f"/proc/self/root{home('.ssh/id_rsa')}")


@probe
def read_through_proc_self_cwd():
    os.chdir(home(".ssh"))
    return text("/proc/self/cwd/id_rsa")


@probe
def read_relative_to_working_directory():
    os.chdir(home(".ssh"))
    return text("id_rsa")


@probe
def read_through_path_descriptor():
    folder = os.open(home(), os.O_PATH)
    return os.read(os.open(".ssh/id_rsa", os.O_RDONLY, dir_fd=folder), 20)


@probe
def reopen_path_descriptor():
    place = os.open(home(".ssh/id_rsa"), os.O_PATH)
    return text(f"/proc/self/fd/{place}")


@probe
def read_by_file_handle():
    path = home(".ssh/id_rsa").encode()
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + bytes(128), 136)
    mount = ctypes.c_int()
    syscall(303, 264, -100, ctypes.c_char_p(path), handle, ctypes.byref(mount), 0)
    return os.read(syscall(304, 265, os.open("/", os.O_RDONLY), handle, os.O_RDONLY), 20)


# --- files that must not be changed


@probe
def write_bashrc():
    with open(home(".bashrc"), "a") as file:
        file.write("evil\n")
    return "written"


@probe
def write_git_hook():
    path = Path(WORLD["project"], ".git/hooks/pre-commit")
    path.write_text("#!/bin/sh\n")
    return "written"


@probe
def write_to_project():
    Path(WORLD["project"], "README").write_text("evil")
    return "written"


@probe
def create_in_home():
    Path(home(f"evil-{os.getpid()}")).touch()
    return "created"


@probe
def truncate_file():
    os.truncate(home("notes"), 1)
    return "truncated"


@probe
def delete_file():
    victim = home("disposable")
    os.unlink(victim)
    return "deleted"


@probe
def rename_into_own_folder():
    os.rename(home("movable"), own("moved"))
    return "moved"


@probe
def rename_out_of_own_folder():
    path = own("payload")
    Path(path).write_text("evil")
    os.rename(path, home(f"moved-{os.getpid()}"))
    return "moved"


@probe
def link_out_of_own_folder():
    path = own("payload")
    Path(path).write_text("evil")
    os.link(path, home(f"linked-{os.getpid()}"))
    return "linked"


@probe
def symlink_in_home():
    os.symlink("/", home(f"symlink-{os.getpid()}"))
    return "linked"


@probe
def change_mode():
    os.chmod(home("notes"), 0o666)
    return "changed"


@probe
def change_mode_through_descriptor():
    folder = os.open(home(), os.O_PATH)
    os.chmod("notes", 0o666, dir_fd=folder)
    return "changed"


@probe
def change_mode_through_link():
    link = own("link")
    os.symlink(home("notes"), link)
    os.chmod(link, 0o666)
    return "changed"


@probe
def set_attribute():
    os.setxattr(home("notes"), "user.evil", b"1")
    return "set"


@probe
def change_mode_of_read_only_descriptor():
    os.fchmod(os.open(home("notes"), os.O_RDONLY), 0o666)
    return "changed"


@probe
def change_mode_of_reopened_descriptor():
    place = os.open(home("notes"), os.O_PATH)
    os.chmod(f"/proc/self/fd/{place}", 0o666)
    return "changed"


@probe
def change_mode_by_the_newest_call():
    syscall(452, 452, -100, ctypes.c_char_p(home("notes").encode()), 0o666, 0)
    return "changed"


@probe
def change_mode_while_a_link_moves():
    """A link that points to a file of ours at the look, and elsewhere at the change."""
    link, mine, other = own("moving"), own("mine"), own("other")
    Path(mine).touch()

    def point(target):
        os.symlink(target, other)
        os.rename(other, link)

    def attempt():
        with contextlib.suppress(OSError):
            os.chmod(link, 0o666)
        return os.stat(home("notes")).st_mode & 0o777 == 0o666

    point(mine)
    compete(attempt, lambda: point(home("notes")), lambda: point(mine))
    return "changed"


@probe
def change_owner():
    os.chown(home("notes"), os.getuid(), os.getgid())
    return "changed"


@probe
def change_owner_of_read_only_descriptor():
    os.fchown(os.open(home("notes"), os.O_RDONLY), os.getuid(), -1)
    return "changed"


@probe
def change_owner_of_link():
    link = own("link")
    os.symlink(home("notes"), link)
    os.chown(link, os.getuid(), -1)
    return "changed"


@probe
def change_times():
    os.utime(home("notes"), (1, 1))
    return "changed"


@probe
def change_times_of_read_only_descriptor():
    os.utime(os.open(home("notes"), os.O_RDONLY), (1, 1))
    return "changed"


@probe
def change_times_by_old_calls():
    if X86:
        syscall(132, 0, ctypes.c_char_p(home("notes").encode()), None)
    else:
        os.utime(home("notes"))
    return "changed"


@probe
def empty_by_opening_to_read():
    os.open(home("notes"), os.O_RDONLY | os.O_TRUNC)
    return "emptied"


@probe
def empty_by_opening_for_neither():
    os.open(home("notes"), os.O_ACCMODE | os.O_TRUNC)
    return "emptied"


@probe
def set_attribute_of_read_only_descriptor():
    os.setxattr(os.open(home("notes"), os.O_RDONLY), "user.evil", b"1")
    return "set"


@probe
def set_file_flags():
    place = os.open(home("notes"), os.O_RDONLY)
    flags = fcntl.ioctl(place, 0x80086601, bytes(8))
    fcntl.ioctl(place, 0x40086602, flags)
    return "set"


@probe
def set_file_attributes_by_the_newest_call():
    attributes = ctypes.create_string_buffer(24)
    path = ctypes.c_char_p(home("notes").encode())
    syscall(468, 468, -100, path, attributes, 24, 0)
    syscall(469, 469, -100, path, attributes, 24, 0)
    return "set"


@probe
def write_through_hard_link():
    link = own("hard")
    os.link(home("notes"), link)
    Path(link).write_text("evil")
    return "written"


@probe
def open_by_the_newest_call():
    how = struct.pack("QQQ", os.O_RDONLY, 0, 0)
    path = ctypes.c_char_p(home(".ssh/id_rsa").encode())
    return os.read(syscall(437, 437, -100, path, ctypes.c_char_p(how), len(how)), 6)


@probe
def create_set_user_id_program():
    os.umask(0)
    place = os.open(own("program"), os.O_CREAT | os.O_WRONLY, 0o4755)
    if not os.fstat(place).st_mode & 0o4000:
        raise PermissionError("the bit is not set")
    return "created"


@probe
def make_set_user_id_program():
    os.umask(0)
    os.mknod(own("program"), 0o104755)
    return "created"


@probe
def change_cached_package():
    Path(home(".npm/_npx/run.js")).write_text("evil")
    return "changed"


@probe
def change_cached_wheel():
    os.replace(own_file("wheel"), home(".cache/uv/wheel.py"))
    return "changed"


@probe
def write_shared_memory_of_others():
    Path(WORLD["shm"]).write_text("evil")
    return "written"


@probe
def delete_shared_memory_of_others():
    place = f"{WORLD['shm']}-{os.getpid()}"
    os.link(WORLD["shm"], place)
    os.unlink(place)
    return "deleted"


@probe
def change_core_pattern():
    with open("/proc/sys/kernel/core_pattern", "r+"):
        return "opened for writing"


@probe
def change_kernel_setting():
    with open("/sys/kernel/mm/transparent_hugepage/enabled", "r+"):
        return "opened for writing"


@probe
def write_kernel_log():
    with open("/dev/kmsg", "w"):
        return "opened for writing"


@probe
def make_device():
    os.mknod(own("device"), 0o600 | 0o020000, os.makedev(1, 1))
    return "made"


# --- other processes


@probe
def read_environment_of_hub():
    return Path(f"/proc/{WORLD['hub']}/environ").read_bytes()[:20]


@probe
def read_environment_of_another_server():
    return Path(f"/proc/{WORLD['victim']}/environ").read_bytes()[:20]


@probe
def empty_memory_of_another_server():
    os.truncate(f"/proc/{WORLD['victim']}/fd/{WORLD['memory']}", 50)
    return "emptied"


@probe
def change_mode_of_memory_of_another_server():
    os.chmod(f"/proc/{WORLD['victim']}/fd/{WORLD['memory']}", 0o600)
    return "changed"


@probe
def watch_names_in_private_folder():
    watches = LIBC.inotify_init1(0)
    if LIBC.inotify_add_watch(watches, os.fsencode(home(".ssh")), 0xFFF) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "watched"


@probe
def make_others_wait_for_a_file():
    with open(home("notes")) as notes:
        fcntl.fcntl(notes, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(notes, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return "held"


@probe
def read_arguments_of_another_server():
    return Path(f"/proc/{WORLD['victim']}/cmdline").read_bytes()[:20]


@probe
def read_arguments_by_way_of_own_folder():
    return Path(f"/proc/self/../{WORLD['victim']}/cmdline").read_bytes()[:20]


@probe
def read_arguments_by_way_of_own_thread():
    return Path(f"/proc/thread-self/../../../{WORLD['victim']}/cmdline").read_bytes()[:20]


@probe
def read_through_own_root():
    return Path(f"/proc/{os.getpid()}/root/proc/{WORLD['victim']}/cmdline").read_bytes()[:20]


@probe
def read_memory_of_another_server():
    with open(f"/proc/{WORLD['victim']}/mem", "rb", buffering=0) as memory:
        memory.seek(WORLD["address"])
        return memory.read(6)


@probe
def read_memory_by_system_call():
    buffer = ctypes.create_string_buffer(6)
    ours = struct.pack("PN", ctypes.addressof(buffer), 6)
    theirs = struct.pack("PN", WORLD["address"], 6)
    syscall(310, 270, WORLD["victim"], ctypes.c_char_p(ours), 1, ctypes.c_char_p(theirs), 1, 0)
    return buffer.raw


@probe
def trace_another_server():
    syscall(101, 117, 0x4206, WORLD["victim"], 0, 0)  # PTRACE_SEIZE
    return "traced"


@probe
def list_descriptors_of_another_server():
    return os.listdir(f"/proc/{WORLD['victim']}/fd")


@probe
def take_descriptor_of_another_server():
    return syscall(438, 438, os.pidfd_open(WORLD["victim"]), 0, 0)


@probe
def read_through_root_of_another_server():
    return text(f"/proc/{WORLD['victim']}/root{home('.ssh/id_rsa')}")


@probe
def write_to_pipe_of_another_server():
    with open(f"/proc/{WORLD['victim']}/fd/0", "wb", buffering=0):
        return "opened"


@probe
def signal_another_server():
    os.kill(WORLD["victim"], signal.SIGCONT)
    return "sent"


@probe
def signal_hub():
    os.kill(WORLD["hub"], signal.SIGCONT)
    return "sent"


@probe
def signal_warden():
    os.kill(WORLD["warden"], signal.SIGCONT)
    return "sent"


@probe
def signal_group_of_another_server():
    os.killpg(WORLD["victim"], signal.SIGCONT)
    return "sent"


@probe
def signal_by_descriptor():
    signal.pidfd_send_signal(os.pidfd_open(WORLD["victim"]), signal.SIGCONT)
    return "sent"


@probe
def queue_signal():
    details = ctypes.create_string_buffer(struct.pack("iii", signal.SIGCONT, 0, -1), 128)
    syscall(129, 138, WORLD["victim"], int(signal.SIGCONT), details)
    return "sent"


@probe
def change_limits_of_hub():
    now = resource.getrlimit(resource.RLIMIT_CORE)
    resource.prlimit(WORLD["victim"], resource.RLIMIT_CORE, (0, now[1]))
    return "changed"


@probe
def change_priority_of_another_server():
    os.setpriority(os.PRIO_PROCESS, WORLD["victim"], 19)  # never higher than it is: not allowed
    return "changed"


@probe
def change_priority_of_everything():
    os.setpriority(os.PRIO_PGRP, WORLD["victim"], 19)
    return "changed"


@probe
def pin_another_server_to_a_core():
    os.sched_setaffinity(WORLD["victim"], {0})
    return "pinned"


@probe
def attach_shared_memory_of_others():
    segment = LIBC.shmget(WORLD["segment_key"], 0, 0)
    if segment < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    return segment


@probe
def open_message_queue():
    return syscall(240, 180, ctypes.c_char_p(f"probe{os.getpid()}".encode()), 0o102, 0o600, None)


# --- privileges and namespaces


@probe
def mount():
    target = own("mount")
    os.mkdir(target)
    if LIBC.mount(b"none", target.encode(), b"tmpfs", 0, None) < 0:
        raise OSError(ctypes.get_errno(), "mount")
    LIBC.umount2(target.encode(), 0)
    return "mounted"


@probe
def new_mount_interface():
    return syscall(430, 430, ctypes.c_char_p(b"tmpfs"), 0)


@probe
def user_namespace():
    if LIBC.unshare(0x10000000) < 0:
        raise OSError(ctypes.get_errno(), "unshare")
    return "entered"


@probe
def clone_into_namespace():
    pid = syscall(56, 220, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned"


@probe
def clone3_into_namespace():
    arguments = struct.pack("11Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    pid = syscall(435, 435, ctypes.c_char_p(arguments), len(arguments))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned"


@probe
def enter_namespace_of_another_server():
    place = os.open(f"/proc/{WORLD['victim']}/ns/uts", os.O_RDONLY)
    if LIBC.setns(place, 0) < 0:
        raise OSError(ctypes.get_errno(), "setns")
    return "entered"


@probe
def change_root():
    os.chroot(tempfile.gettempdir())
    return "changed"


@probe
def gain_privileges():
    if LIBC.prctl(39, 0, 0, 0, 0):
        raise PermissionError("no new privileges")
    return "a setuid program would get its privileges"


@probe
def io_ring():
    return syscall(425, 425, 8, ctypes.create_string_buffer(120))


@probe
def kernel_program():
    attributes = ctypes.create_string_buffer(struct.pack("IIII", 2, 4, 8, 1), 128)
    return syscall(321, 280, 0, attributes, 128)


@probe
def keyring():
    return syscall(
        248, 217, ctypes.c_char_p(b"user"), ctypes.c_char_p(b"evil"), ctypes.c_char_p(b"x"), 1, -4
    )


@probe
def user_fault_handler():
    return syscall(323, 282, 0)


@probe
def performance_counters():
    attributes = ctypes.create_string_buffer(struct.pack("IIQ", 1, 128, 0), 128)
    return syscall(298, 241, attributes, 0, -1, -1, 0)


@probe
def other_system_call_table():
    """The calls of 32-bit programs have other numbers."""
    if not X86:
        raise OSError("there is none")
    import mmap

    code = bytes.fromhex("b814000000cd80c3")  # getpid, as i386 calls it
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    result = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    if result != os.getpid():
        raise OSError(-result, "int 0x80")
    return result


@probe
def x32_system_call():
    if not X86:
        raise OSError("there is none")
    return syscall(0x40000000 + 41, 0, 1, 1, 0)


@probe
def type_at_a_terminal():
    os.setsid()
    _, terminal = os.openpty()
    fcntl.ioctl(terminal, 0x540E, 0)
    return fcntl.ioctl(terminal, 0x5412, b"x")


@probe
def write_to_terminal_of_another_program():
    place = os.open(WORLD["terminal"], os.O_RDWR | os.O_NOCTTY)
    return os.write(place, b"evil")


@probe
def read_terminal_of_another_program():
    return os.open(WORLD["terminal"], os.O_RDONLY | os.O_NOCTTY)


# --- network


def greeted(connected):
    connected.settimeout(5)
    return connected.recv(5)


@probe
def tcp_to_another_port():
    return greeted(socket.create_connection(("127.0.0.1", WORLD["tcp"]), 5))


@probe
def tcp_to_the_proxys_port_elsewhere():
    port = WORLD["proxy_port"]
    return greeted(socket.create_connection(("127.0.0.2", port), 5))


@probe
def tcp_over_ipv6():
    connected = socket.socket(socket.AF_INET6)
    connected.settimeout(5)
    connected.connect(("::ffff:127.0.0.1", WORLD["tcp"]))
    return greeted(connected)


@probe
def tcp_fast_open():
    connected = socket.socket()
    connected.sendto(b"stolen", 0x20000000, ("127.0.0.1", WORLD["tcp"]))
    return greeted(connected)


@probe
def tcp_fast_open_by_message():
    connected = socket.socket()
    connected.sendmsg([b"stolen"], [], 0x20000000, ("127.0.0.1", WORLD["tcp"]))
    return greeted(connected)


@probe
def multipath_tcp():
    connected = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    connected.settimeout(5)
    connected.connect(("127.0.0.1", WORLD["tcp"]))
    return greeted(connected)


@probe
def udp():
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    return sender.sendto(b"stolen", ("127.0.0.1", WORLD["udp"]))


@probe
def dns_tunnel():
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    query = b"\0\1\1\0\0\1\0\0\0\0\0\0\6stolen\7example\0\0\1\0\1"
    return sender.sendto(query, ("127.0.0.1", WORLD["udp"]))


@probe
def udp_over_ipv6():
    sender = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    return sender.sendto(b"stolen", ("::ffff:127.0.0.1", WORLD["udp"]))


@probe
def raw_socket():
    sender = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    return sender.sendto(b"\x08\0\xf7\xff\0\0\0\0", ("127.0.0.1", 0))


@probe
def packet_socket():
    return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).fileno()


@probe
def netlink_socket():
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).fileno()


def greeted_by(path, kind=socket.SOCK_STREAM):
    connected = socket.socket(socket.AF_UNIX, kind)
    connected.connect(path)
    return greeted(connected)


@probe
def control_socket():
    return greeted_by(WORLD["control"])


@probe
def ssh_agent():
    return greeted_by(WORLD["agent"])


@probe
def gpg_agent():
    return greeted_by(WORLD["key_agent"])


@probe
def message_bus():
    return greeted_by(WORLD["bus"])


@probe
def docker_socket():
    return greeted_by(WORLD["containers"])


@probe
def display():
    return greeted_by(WORLD["display"])


@probe
def terminal_multiplexer():
    return greeted_by(WORLD["multiplexer"])


@probe
def unix_packets():
    return greeted_by(WORLD["packets"], socket.SOCK_SEQPACKET)


@probe
def unix_socket_without_blocking():
    connected = socket.socket(socket.AF_UNIX)
    connected.setblocking(False)
    connected.connect(WORLD["agent"])
    return greeted(connected)


@probe
def unix_socket_by_link():
    link = own("link")
    os.symlink(WORLD["agent"], link)
    return greeted_by(link)


@probe
def unix_socket_by_linked_folder():
    link = own("link")
    os.symlink(os.path.dirname(WORLD["agent"]), link)
    return greeted_by(f"{link}/agent.1")


@probe
def unix_socket_by_hard_link():
    link = own("hard")
    try:
        os.link(WORLD["agent"], link)
    except OSError as exc:
        if exc.errno == 18:  # another file system: then it is no way out
            return greeted_by(WORLD["agent"])
        raise
    return greeted_by(link)


@probe
def unix_socket_from_its_folder():
    os.chdir(os.path.dirname(WORLD["agent"]))
    return greeted_by("agent.1")


@probe
def unix_socket_from_own_folder():
    os.chdir(tempfile.gettempdir())
    return greeted_by(os.path.relpath(os.path.realpath(WORLD["agent"])))


@probe
def unix_socket_by_own_root():
    return greeted_by(f"/proc/self/root{WORLD['agent']}")


@probe
def unix_socket_by_descriptor():
    place = os.open(WORLD["agent"], os.O_PATH)
    return greeted_by(f"/proc/self/fd/{place}")


@probe
def unix_socket_while_a_link_moves():
    """A link to a socket of ours at the look, and to another at the connection."""
    link, other, mine = own("moving"), own("next"), own("mine")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(mine)
    listener.listen(1000)

    def point(target):
        os.symlink(target, other)
        os.rename(other, link)

    def attempt():
        with socket.socket(socket.AF_UNIX) as connected, contextlib.suppress(BlockingIOError):
            connected.setblocking(False)
            try:
                connected.connect(link)
            except PermissionError:
                return False
            return connected.getpeername() != mine

    point(mine)
    compete(attempt, lambda: point(WORLD["agent"]), lambda: point(mine))
    return "connected"


@probe
def address_that_changes_after_the_look():
    """The port of the gateway, written over one that is open."""
    libc = ctypes.CDLL(None)
    free, shut = (port.to_bytes(2, "big") for port in (WORLD["tcp"], WORLD["gateway"]))
    address = ctypes.create_string_buffer(struct.pack("=H2s4s8x", 2, free, b"\x7f\0\0\1"), 16)

    def attempt():
        with socket.socket() as connected:
            is_made = libc.connect(connected.fileno(), address, 16) == 0
            return is_made and connected.getpeername()[1] == WORLD["gateway"]

    def write(port):
        ctypes.memmove(ctypes.addressof(address) + 2, port, 2)

    compete(attempt, lambda: write(shut), lambda: write(free))
    return "connected"


def gateway(host, family=socket.AF_INET, *more):
    connected = socket.socket(family)
    connected.settimeout(5)
    connected.connect((host, WORLD["gateway"], *more))
    return greeted(connected)


@probe
def gateway_on_loopback():
    return gateway("127.0.0.1")


@probe
def gateway_by_a_blocking_call():
    connected = socket.socket()
    connected.connect(("127.0.0.1", WORLD["gateway"]))
    return greeted(connected)


@probe
def gateway_by_another_loopback_address():
    return gateway("127.9.9.9")


@probe
def gateway_over_ipv6():
    return gateway("::1", socket.AF_INET6)


@probe
def gateway_by_mapped_address():
    return gateway("::ffff:127.0.0.1", socket.AF_INET6)


@probe
def gateway_by_no_address():
    return gateway("0.0.0.0")


@probe
def gateway_by_no_address_over_ipv6():
    return gateway("::", socket.AF_INET6)


@probe
def gateway_by_mapped_no_address():
    return gateway("::ffff:0.0.0.0", socket.AF_INET6)


def first_gateway(addresses):
    last = OSError("this machine has none")
    for host, *more in addresses:
        try:
            return gateway(host, socket.AF_INET6 if ":" in host else socket.AF_INET, *more)
        except OSError as exc:
            last = exc
    raise last


@probe
def gateway_by_address_of_this_machine():
    return first_gateway([(host,) for host in WORLD["machine"] if ":" not in host])


@probe
def gateway_by_ipv6_address_of_this_machine():
    return first_gateway([(host,) for host in WORLD["machine"] if ":" in host])


@probe
def gateway_by_mapped_address_of_this_machine():
    return first_gateway([(f"::ffff:{host}",) for host in WORLD["machine"] if ":" not in host])


@probe
def gateway_by_link_local_address():
    return first_gateway([(host, 0, index) for host, index in WORLD["link_local"]])


@probe
def gateway_by_a_deferred_connection():
    connected = socket.socket()
    connected.setsockopt(socket.IPPROTO_TCP, 30, 1)  # TCP_FASTOPEN_CONNECT
    connected.connect(("127.0.0.1", WORLD["gateway"]))
    connected.sendall(b"hello")
    return greeted(connected)


@probe
def gateway_by_fast_open():
    connected = socket.socket()
    connected.sendto(b"hello", 0x20000000, ("127.0.0.1", WORLD["gateway"]))
    return greeted(connected)


@probe
def gateway_by_another_process():
    source = f"import socket; print(socket.create_connection(('127.0.0.1', {WORLD['gateway']})))"
    return child(sys.executable, "-I", "-S", "-c", source)


@probe
def virtual_machine_socket():
    return socket.socket(40, socket.SOCK_STREAM).fileno()


@probe
def kernel_crypto_socket():
    return socket.socket(38, socket.SOCK_SEQPACKET, 0).fileno()


@probe
def stream_control_socket():
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).fileno()


@probe
def netlink_to_the_audit():
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9).fileno()


@probe
def old_packet_socket():
    return socket.socket(socket.AF_INET, 10, 3 << 8).fileno()


@probe
def unix_datagram():
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    return sender.sendto(b"stolen", WORLD["unix_datagram"])


@probe
def unix_datagram_by_raw_socket():
    """The kernel takes it for one of datagrams."""
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_RAW)
    return sender.sendto(b"stolen", WORLD["unix_datagram"])


@probe
def abstract_socket():
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(WORLD["abstract"].replace("@", "\0"))
    return greeted(connected)


@probe
def unix_datagram_by_pair():
    one, _other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return one.sendto(b"stolen", WORLD["unix_datagram"])


@probe
def bind_port():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    return listener.getsockname()


# --- children


def child(*command, **options):
    done = subprocess.run(command, capture_output=True, check=False, timeout=20, **options)
    if done.returncode or not done.stdout.strip():
        raise PermissionError(done.stderr.decode()[-200:] or "nothing was said")
    return done.stdout.decode().strip()


@probe
def child_process():
    return child("/bin/cat", home(".ssh/id_rsa"))


@probe
def child_with_preloaded_library():
    return child("/bin/cat", home(".ssh/id_rsa"), env={"LD_PRELOAD": ""})


@probe
def program_in_memory():
    place = os.memfd_create("cat", 0)
    with open("/bin/cat", "rb") as program:
        os.write(place, program.read())
    return child(f"/proc/self/fd/{place}", home(".ssh/id_rsa"), pass_fds=[place])


@probe
def daemon():
    """Forked twice, in a session of its own, without the warden's tag."""
    command = ["/bin/sh", "-c", f"(setsid env -i /bin/cat {home('.ssh/id_rsa')})"]
    return child(*command)


@probe
def own_program_in_own_folder():
    path = own("program")
    Path(path).write_text(f"#!/bin/sh\nexec /bin/cat {home('.ssh/id_rsa')}\n")
    os.chmod(path, 0o700)
    return child(path)


@probe
def set_user_id_program():
    """A mode that would let others become us."""
    path = own("program")
    Path(path).write_text("")
    place = os.open(path, os.O_RDONLY)
    os.fchmod(place, 0o4755)
    return "set"


# --- the proxy


def asked(request, password=None):
    address = os.environ.get("HTTPS_PROXY")
    if address is None:
        raise PermissionError("there is no proxy")
    credentials, _, place = address.removeprefix("http://").partition("@")
    port = int(place.rpartition(":")[2])
    word = base64.b64encode((password or credentials).encode()).decode()
    with socket.create_connection(("127.0.0.1", port), 5) as connected:
        head = request.format(auth=f"Proxy-Authorization: Basic {word}", tcp=WORLD["tcp"])
        connected.sendall(head.encode())
        connected.settimeout(5)
        answer = connected.recv(200)
        if b" 200 " not in answer.partition(b"\r\n")[0]:
            raise PermissionError(answer.decode())
        return answer + connected.recv(200)


def tunnel(host, password=None):
    return asked(f"CONNECT {host} HTTP/1.1\r\n{{auth}}\r\n\r\n", password)


@probe
def proxy_to_declared_host():
    return tunnel(f"127.0.0.1:{WORLD['declared']}")


@probe
def proxy_to_undeclared_port():
    return tunnel(f"127.0.0.1:{WORLD['tcp']}")


@probe
def proxy_to_undeclared_name():
    return tunnel(f"localhost:{WORLD['tcp']}")


@probe
def proxy_to_decimal_address():
    return tunnel(f"2130706433:{WORLD['tcp']}")


@probe
def proxy_to_short_address():
    return tunnel(f"127.1:{WORLD['tcp']}")


@probe
def proxy_to_hexadecimal_address():
    return tunnel(f"0x7f000001:{WORLD['tcp']}")


@probe
def proxy_to_mapped_address():
    return tunnel(f"[::ffff:127.0.0.1]:{WORLD['tcp']}")


@probe
def proxy_to_metadata_address():
    return tunnel("169.254.169.254:80")


@probe
def proxy_by_plain_request():
    return asked("GET http://127.0.0.1:{tcp}/ HTTP/1.1\r\n{auth}\r\n\r\n")


@probe
def proxy_with_user_in_address():
    return asked(
        f"GET http://127.0.0.1:{WORLD['declared']}@127.0.0.1:{{tcp}}/ HTTP/1.1\r\n{{auth}}\r\n\r\n"
    )


@probe
def proxy_with_credentials_of_nobody():
    return tunnel(f"127.0.0.1:{WORLD['declared']}", "multitap:guessed")


def outcome(function):
    try:
        return f"ESCAPED {function()}"
    except Exception as exc:
        return f"STOPPED {type(exc).__name__} {exc}"[:400]


def outcome_in_child(function):
    """In a process of its own: some probes end their process, or change it for good."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        os.write(write, outcome(function).encode(errors="replace"))
        os._exit(0)
    os.close(write)
    with open(read, "rb") as result:
        said = result.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    return said or f"STOPPED by status {os.waitstatus_to_exitcode(status)}"


if __name__ == "__main__":
    WORLD.update(json.loads(sys.argv[1]))
    WORLD["warden"] = os.getppid()
    found = {}
    for name in WORLD["wanted"]:
        function = PROBES[name]
        # the rules know the first process of a server by its id, so it has to try these itself
        first = not WORLD["proc"] and ("proc_self" in name or "reopen" in name)
        run = outcome if first else outcome_in_child
        found[name] = run(function)
        os.chdir("/")
    print(json.dumps(found))
