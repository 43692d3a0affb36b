"""A gateway as a person starts it, and people of the same machine who are somebody else."""

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import contextmanager

from tests.waiting import PATIENCE
from tests.zoo.modes import command as good_server

OTHER_USER = 65534
"""`nobody`, on any system."""
# only what was imported before: another user may not be able to read our interpreter's library
_ASK = """
import os, socket, sys
os.setgroups([]); os.setgid({user}); os.setuid({user})
asked = sys.stdin.buffer.read()
with socket.socket() as line:
    line.connect(("127.0.0.1", int(sys.argv[1])))
    line.sendall(asked)
    line.settimeout(30)
    answer = b""
    while part := line.recv(65536):
        answer += part
    sys.stdout.buffer.write(answer)
"""


def folders(folder):
    """The variables of a user whose home this is."""
    places = {
        f"XDG_{name}_HOME": str(folder / name.lower()) for name in ("DATA", "STATE", "CONFIG")
    }
    return {"HOME": str(folder), **places}


def console_key(folder):
    """The key in a link that `multitap console` prints to the user of that home."""
    config = ("--config", str(folder / "multitap.toml"))
    done = subprocess.run(
        [sys.executable, "-m", "multitap", *config, "console", "--no-open"],
        env={**os.environ, **folders(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    return done.stdout.strip().partition("key=")[2]


@contextmanager
def serving(folder, *options, sandbox="off", **more):
    """`multitap serve --http`; its value is its port, and a process whose stderr can be read."""
    program, *args = good_server("good")
    config = folder / "multitap.toml"
    server = {"command": program, "args": args, "sandbox": sandbox}
    lines = [f"{key} = {json.dumps(value)}" for key, value in server.items()]
    config.write_text("\n".join(["[servers.calculator]", *lines]))
    env = {
        **os.environ,
        **folders(folder),
        **more,
    }
    command = [
        sys.executable,
        "-m",
        "multitap",
        "serve",
        "--config",
        str(config),
        "--http",
        "127.0.0.1:0",
        *options,
    ]
    if "--http" in options:  # the last one counts
        command = [word for word in command if word != "127.0.0.1:0"]
        command.remove("--http")
    with subprocess.Popen(
        command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            said = ""
            while (found := re.search(r"http://[0-9.]+:(\d+)/mcp ", said)) is None:
                line = process.stderr.readline()
                assert line, f"the gateway ended: {said}"
                said += line
            yield int(found[1]), process
        finally:
            process.terminate()


def asked_by(user, port, data):
    """What the gateway answers to somebody else, on a connection that then ends."""
    program = _ASK.format(user=user)
    command = [sys.executable, "-c", program, str(port)]
    return subprocess.run(
        command, input=data, capture_output=True, check=True, timeout=PATIENCE
    ).stdout


def asked(port, data):
    """What it answers to ourselves."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as line:
        line.sendall(data)
        answer = b""
        while part := line.recv(65536):
            answer += part
        return answer


def status_of(answer):
    return int(answer.split(b" ", 2)[1])
