"""Nothing is sent anywhere that nobody asked for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE
from tests.zoo.modes import command

SOURCE = Path(__file__).parents[2] / "src"
TRACKERS = re.compile(
    r"posthog|scarf|segment\.(io|com)|sentry(?!clirc)|mixpanel|amplitude|google-analytics"
    r"|bugsnag|//[\w.-]*telemetry",
    re.IGNORECASE,
)
"""Our own `telemetry` is what a person asked for; the command lines below show that."""
RUN = """
import sys
def watch(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        target = args[1] if event in ("socket.connect", "socket.sendto") else args[0]
        if not isinstance(target, (str, bytes)) or event.startswith("socket.get"):
            sys.stderr.write(f"NETWORK {event} {target!r}\\n")
sys.addaudithook(watch)
from multitap.cli.app import run
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "line", ["status", "tools", "call zoo_echo text=hi", "doctor zoo", "config check"]
)
def test_no_command_opens_a_connection_by_itself(line, tmp_path):
    program, *args = command("good")
    quoted = ", ".join(f'"{one}"' for one in args)
    config = tmp_path / "servers.toml"
    config.write_text(f'[servers.zoo]\ncommand = "{program}"\nargs = [{quoted}]\n')
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "MULTITAP_CONFIG": str(config)}
    done = subprocess.run(
        [sys.executable, "-c", RUN, *line.split()],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "NETWORK" not in done.stderr


def test_no_tracker_is_named_in_the_source():
    for path in SOURCE.rglob("*.py"):
        found = TRACKERS.search(path.read_text())
        assert found is None, (path, found)
