"""What a program under `guard` must be able to do, each a real attempt; prints what it got.

Run as a program of its own: `python guarded_program.py WORLD`, where WORLD is JSON.
"""

import ctypes
import errno
import json
import multiprocessing
import os
import pty
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import traceback
import urllib.request
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

NEEDS = {}
WORLD = {}
NODE = """
const http = require('http');
http.get(process.argv[1], r => r.on('data', d => process.stdout.write(d)))
  .on('error', e => { console.error(e); process.exit(1) });
"""


def need(function):
    NEEDS[function.__name__] = function
    return function


def own(name):
    """A path in a folder that the program may write to."""
    return os.path.join(tempfile.gettempdir(), f"{name}-{os.getpid()}")


def greeting(connected):
    with connected:
        connected.settimeout(10)
        return connected.recv(100)[-5:].decode()


@need
def tcp_with_a_blocking_socket():
    connected = socket.socket()
    connected.connect(("127.0.0.1", WORLD["web"]))
    assert connected.getblocking()
    return greeting(connected)


@need
def tcp_with_a_timeout():
    return greeting(socket.create_connection(("127.0.0.1", WORLD["web"]), 5))


@need
def tcp_without_blocking():
    connected = socket.socket()
    connected.setblocking(False)
    result = connected.connect_ex(("127.0.0.1", WORLD["web"]))
    assert result in {0, errno.EINPROGRESS}
    poll = select.poll()
    poll.register(connected, select.POLLOUT)
    assert poll.poll(5000)
    assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    return greeting(connected)


@need
def tcp_over_ipv6():
    connected = socket.socket(socket.AF_INET6)
    connected.connect(("::1", WORLD["web6"]))
    return greeting(connected)


@need
def tcp_to_a_mapped_address():
    connected = socket.socket(socket.AF_INET6)
    connected.connect(("::ffff:127.0.0.1", WORLD["web"]))
    return greeting(connected)


@need
def tcp_from_twenty_threads():
    results = []

    def connect():
        results.append(greeting(socket.create_connection(("127.0.0.1", WORLD["web"]))))

    threads = [threading.Thread(target=connect) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["hello"] * 20
    return "hello"


@need
def learn_that_nothing_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        connected = socket.socket()
        try:
            connected.connect(("127.0.0.1", port))
        except ConnectionRefusedError:
            # the same socket may be tried again
            assert connected.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED
            return "hello"


@need
def connect_twice():
    connected = socket.create_connection(("127.0.0.1", WORLD["web"]))
    assert connected.connect_ex(("127.0.0.1", WORLD["web"])) == errno.EISCONN
    return greeting(connected)


@need
def wrong_arguments():
    libc = ctypes.CDLL(None, use_errno=True)
    read, _write = os.pipe()
    with socket.socket() as connected:
        address = struct.pack("=HH4s8x", socket.AF_INET, 0, b"\x7f\0\0\1")
        for number, pointer, size, expected in (
            (99, ctypes.c_char_p(address), 16, errno.EBADF),
            (read, ctypes.c_char_p(address), 16, errno.ENOTSOCK),
            (connected.fileno(), ctypes.c_char_p(address), 4, errno.EINVAL),
            (connected.fileno(), ctypes.c_char_p(address), 4000, errno.EINVAL),
            (connected.fileno(), ctypes.c_void_p(8), 16, errno.EFAULT),
        ):
            assert libc.connect(number, pointer, size) == -1
            assert ctypes.get_errno() == expected, (expected, ctypes.get_errno())
    return "hello"


@need
def wait_for_a_listener_without_room():
    """Others are served meanwhile, and the call ends when there is room."""
    path = own("full.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        first, second = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        first.connect(path)
        thread = threading.Thread(target=lambda: second.connect(path))
        thread.start()
        assert tcp_with_a_blocking_socket() == "hello"
        assert thread.is_alive()
        listener.accept()[0].close()
        listener.accept()[0].sendall(b"hello")
        thread.join(10)
        first.close()
        return greeting(second)


@need
def give_up_a_call_by_a_signal():
    class Over(Exception):
        pass

    def on_alarm(number, frame):
        raise Over

    path = own("signal.sock")
    signal.signal(signal.SIGALRM, on_alarm)
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        with socket.socket(socket.AF_UNIX) as second:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            try:
                second.connect(path)
            except Over:
                return "hello"


@need
def end_while_a_call_waits():
    path = own("killed.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, b"!")
            socket.socket(socket.AF_UNIX).connect(path)
            os._exit(0)
        os.read(read, 1)
        os.kill(pid, signal.SIGKILL)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    return tcp_with_a_blocking_socket()


@need
def resolve_by_udp():
    question = b"\0\1\1\0\0\1\0\0\0\0\0\0\5hello\7example\0\0\1\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(10)
        sender.sendto(question, ("127.0.0.1", WORLD["dns"]))
        assert sender.recv(512)[:2] == b"\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(10)
        sender.connect(("127.0.0.1", WORLD["dns"]))
        sender.send(question)
        return sender.recv(512)[-5:].decode()


@need
def dissolve_a_connection():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", WORLD["dns"]))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.connect(sender.fileno(), ctypes.c_char_p(bytes(16)), 16) == 0
        assert sender.connect_ex(("127.0.0.1", WORLD["dns"])) == 0
    return "hello"


@need
def look_up_localhost():
    assert socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)
    return "hello"


@need
def list_interfaces():
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.bind((0, 0))
        kernel.connect((0, 0))
    assert socket.if_nameindex()
    return "hello"


@need
def fall_back_from_multipath_tcp():
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    except OSError as exc:
        return "hello" if exc.errno == errno.EPROTONOSUPPORT else repr(exc)


@need
def listen_and_accept():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as connected:
            guest, _ = listener.accept()
            guest.sendall(b"hello")
            guest.close()
            return greeting(connected)


@need
def own_unix_socket():
    path = own("own.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        os.chdir(os.path.dirname(path))
        for name in (path, os.path.basename(path), f"./{os.path.basename(path)}"):
            connected = socket.socket(socket.AF_UNIX)
            connected.connect(name)
            guest, _ = listener.accept()
            guest.sendall(b"hello")
            guest.close()
            assert greeting(connected) == "hello"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{path}2")
        listener.listen()
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connected.connect(f"{path}2")
        guest, _ = listener.accept()
        guest.sendall(b"hello")
        return greeting(connected)


@need
def allowed_unix_socket():
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(WORLD["allowed_socket"])
    return greeting(connected)


@need
def terminal():
    pid, master = pty.fork()
    if pid == 0:
        os.execv("/bin/sh", ["/bin/sh", "-c", "stty size >/dev/null && echo hello"])
    output = b""
    try:
        while part := os.read(master, 100):
            output += part
    except OSError:
        pass
    os.waitpid(pid, 0)
    return output.decode().strip()


@need
def shared_memory():
    memory = SharedMemory(create=True, size=10)
    try:
        context = multiprocessing.get_context("fork")
        with context.Lock():
            child = context.Process(target=memory.buf.__setitem__, args=(slice(0, 5), b"hello"))
            child.start()
        child.join()
        return bytes(memory.buf[:5]).decode()
    finally:
        memory.close()
        memory.unlink()


@need
def python_client():
    with urllib.request.urlopen(f"http://127.0.0.1:{WORLD['web']}/", timeout=10) as answer:
        return answer.read().decode()


@need
def node_client():
    node = shutil.which("node", path="/usr/bin:/usr/local/bin")
    if node is None:
        return "hello"
    address = f"http://127.0.0.1:{WORLD['web']}/"
    done = subprocess.run([node, "-e", NODE, address], capture_output=True, timeout=30, check=False)
    return done.stdout.decode() or done.stderr.decode()[-300:]


@need
def unpack_an_archive():
    """As package managers do: owners, modes and times of their own files."""
    folder = Path(own("archive"))
    folder.mkdir()
    (folder / "script").write_text("echo hello")
    with tarfile.open(folder / "a.tar", "w") as archive:
        archive.add(folder / "script", "script")
    done = subprocess.run(
        ["tar", "-xpf", "a.tar", "--transform=s/script/copy/"],
        cwd=folder,
        capture_output=True,
        check=False,
        timeout=20,
    )
    assert done.returncode == 0, done.stderr
    copy = folder / "copy"
    copy.chmod(0o755)
    os.chown(copy, os.getuid(), os.getgid())
    place = os.open(copy, os.O_RDONLY)
    os.fchmod(place, 0o700)
    os.fchown(place, -1, os.getgid())
    os.utime(place, (1, 2))
    os.utime(copy, ns=(1_000_000_000, 3_000_000_000))
    os.symlink("copy", folder / "link")
    os.lchown(folder / "link", os.getuid(), -1)
    os.utime(folder / "link", (5, 6), follow_symlinks=False)
    os.truncate(copy, 10)
    assert (copy.stat().st_mode & 0o777, copy.stat().st_mtime) != (0, 3)
    assert copy.stat().st_size == 10
    assert os.lstat(folder / "link").st_mtime == 6
    os.chmod(f"/proc/self/fd/{place}", 0o711)
    assert copy.stat().st_mode & 0o777 == 0o711
    return copy.read_text()[5:] and "hello"


@need
def write_although_its_memory_is_hidden():
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # not dumpable
    path = Path(tempfile.mkdtemp()) / "file"
    path.write_text("x")
    path.unlink()
    return "hello"


@need
def work_with_files_without_names():
    read, _write = os.pipe()
    os.fchmod(read, 0o600)
    memory = os.memfd_create("memory")
    os.fchmod(memory, 0o700)
    with tempfile.TemporaryFile() as file:
        os.fchmod(file.fileno(), 0o600)
        os.utime(file.fileno())
    return "hello"


def outcome(function):
    """In a process of its own: some change it for good."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            result = function()
        except BaseException as exc:
            result = f"{exc!r} at line {traceback.extract_tb(exc.__traceback__)[-1].lineno}"
        os.write(write, str(result).encode(errors="replace"))
        os._exit(0)
    os.close(write)
    with open(read, "rb") as result:
        said = result.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    return said or f"status {os.waitstatus_to_exitcode(status)}"


if __name__ == "__main__":
    WORLD.update(json.loads(sys.argv[1]))
    results = {}
    for name, function in NEEDS.items():
        results[name] = outcome(function)
    print(json.dumps(results))
