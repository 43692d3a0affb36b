"""Signals of a confined server on kernels whose Landlock lets them out."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from multitap.wire.process import warden
from multitap.wire.process.sandbox_support import sandbox_support

SUPPORT = sandbox_support()
pytestmark = pytest.mark.skipif(SUPPORT.reason is not None, reason=str(SUPPORT.reason))

SENDER = """
import ctypes, fcntl, json, os, resource, signal, socket, struct, subprocess, sys
sys.path.append(sys.argv[1])
from process.sandbox import kernel, syscall_filter
report, victim = socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3])
kernel.prctl(38, 1)
resource.setrlimit(syscall_filter.MARK, (1, 1))
code = syscall_filter.confining(syscall_filter.machine(), proxied=False, signals=True)
listener = syscall_filter.install(syscall_filter.assemble(code))
socket.send_fds(report, [b"+"], [listener])
os.close(listener)
numbers = syscall_filter.ARCHITECTURES[syscall_filter.machine()][1]
details = ctypes.create_string_buffer(struct.pack("iii", signal.SIGCONT, 0, -1), 128)
child = subprocess.Popen(["sleep", "60"])
daemon = subprocess.Popen(["sleep", "60"], start_new_session=True)
own, other = socket.socketpair()
attempts = {
    "itself": lambda: os.kill(os.getpid(), signal.SIGCONT),
    "its thread": lambda: signal.raise_signal(signal.SIGCONT),
    "its group": lambda: os.kill(0, signal.SIGCONT),
    "its child": lambda: os.kill(child.pid, signal.SIGCONT),
    "its daemon": lambda: os.killpg(daemon.pid, signal.SIGCONT),
    "its child by descriptor": lambda: signal.pidfd_send_signal(
        os.pidfd_open(child.pid), signal.SIGCONT
    ),
    "nobody": lambda: os.kill(2**22 - 1, signal.SIGCONT),
    "another": lambda: os.kill(victim, signal.SIGCONT),
    "another's group": lambda: os.killpg(victim, signal.SIGCONT),
    "another by descriptor": lambda: signal.pidfd_send_signal(
        os.pidfd_open(victim), signal.SIGCONT
    ),
    "another's thread": lambda: kernel.syscall(numbers["tkill"], victim, int(signal.SIGCONT)),
    "another's thread of a group": lambda: kernel.syscall(
        numbers["tgkill"], victim, victim, int(signal.SIGCONT)
    ),
    "another by queue": lambda: kernel.syscall(
        numbers["rt_sigqueueinfo"], victim, int(signal.SIGCONT), details
    ),
    "another through a socket": lambda: fcntl.fcntl(own, fcntl.F_SETOWN, victim),
    "everybody": lambda: os.kill(-1, 0),
}
outcomes = {}
for name, attempt in attempts.items():
    try:
        attempt()
        outcomes[name] = "sent"
    except OSError as exc:
        outcomes[name] = type(exc).__name__
child.kill()
daemon.kill()
child.wait()
daemon.wait()
print(json.dumps(outcomes))
"""
ORDERS = {
    "listed": [],
    "read": [],
    "write": [],
    "devices": [],
    "proxy": 0,
    "processes": 99,
    "memory": 0,
    "proc": False,
    "network": False,
    "sockets": [],
    "socket_program": "",
    "closed_ports": "",
    "observe": False,
    "watch": False,
    "wrapper": [],
}


def test_they_stay_inside():
    folder = str(Path(warden.__file__).parent.parent)
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["sleep", "60"], start_new_session=True) as victim:
        sender = subprocess.Popen(
            [sys.executable, "-c", SENDER, folder, str(theirs.fileno()), str(victim.pid)],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        theirs.close()
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        keeper = warden.Warden(ours)
        keeper.leaders = {sender.pid: 1, victim.pid: 2}
        keeper._take_calls(1, sender.pid, fds[0], ORDERS)
        while keeper.confined:
            for fd, event in keeper.poll.poll():
                keeper._answer(fd, event)
        with sender:
            outcomes = json.loads(sender.stdout.read())
        victim.kill()

    sent = {name for name, outcome in outcomes.items() if outcome == "sent"}
    assert {name for name in outcomes if name.startswith("its")} == sent
    assert outcomes["nobody"] == "ProcessLookupError"
