"""Commands that are killed at any moment: no key is left in plain text, and `undo` works."""

import json
import subprocess
import sys

import pytest

KEY = "sk-live-4f9b2d7c1e8a6350"
# Each round runs a command in a child that dies at the next system call that changes a file, and
# then `undo` in another one.
ROUNDS = """
import json, os, signal, sys, traceback
from pathlib import Path
from multitap.cli.app import run

import multitap.cli.set_up.import_, multitap.trust.vault

CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "open"}
root, line, stdin = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]

def lived(home, words, last, stdin=""):
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    try:
        for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
            os.environ[name] = str(home / {"HOME": ""}.get(name, name))
        os.chdir(home)
        reading, writing = os.pipe()
        os.write(writing, stdin.encode())
        os.close(writing)
        sys.stdin = open(reading)
        count = 0

        def watch(event, values):
            nonlocal count
            if event in CHANGES and any(str(home) in str(value) for value in values):
                count += 1
                if count > last:
                    os.kill(os.getpid(), signal.SIGKILL)

        if last is not None:
            sys.addaudithook(watch)
        os._exit(run(words))
    except BaseException:
        traceback.print_exc()
        os._exit(99)

rounds = []
for last in range(1000):
    home = root / str(last)
    home.mkdir()
    cursor = home / ".cursor" / "mcp.json"
    cursor.parent.mkdir()
    cursor.write_text(json.dumps({"mcpServers": {"a": {
        "command": "x", "env": {"API_TOKEN": sys.argv[4]}}}}))
    status = lived(home, line, last, stdin)
    undone = lived(home, ["undo"], None)
    lived(home, ["secret", "remove", "nothing"], None)
    leaks = [
        str(path.relative_to(home)) for path in home.rglob("*")
        if path.is_file() and path != cursor and sys.argv[4].encode() in path.read_bytes()
    ]
    configured = sorted(
        str(path.relative_to(home)) for path in home.rglob("*.toml") if path.stat().st_size
    )
    rounds.append([status, undone, leaks, configured])
    if not os.WIFSIGNALED(status):
        break
print(json.dumps(rounds))
"""


def killed_everywhere(tmp_path, words, stdin=""):
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ROUNDS, tmp_path, json.dumps(words), stdin, KEY],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"},
    )
    assert not ended.returncode, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1]), ended.stderr


@pytest.mark.timeout(900)  # hundreds of processes
def test_an_import_that_is_killed_can_be_undone_with_its_secrets(tmp_path):
    words = ["import", "cursor", "--secrets", "vault", "--yes"]
    rounds, errors = killed_everywhere(tmp_path, words)

    assert len(rounds) > 20, errors
    assert rounds[-1][0] == 0, errors
    for status, _, leaks, configured in rounds:
        assert (leaks, configured) == ([], []), (status, errors)


@pytest.mark.timeout(300)
def test_a_secret_whose_command_is_killed_is_in_the_vault_or_nowhere(tmp_path):
    rounds, errors = killed_everywhere(tmp_path, ["secret", "set", "gh"], f"{KEY}\n")

    assert len(rounds) > 5, errors
    assert rounds[-1][0] == 0, errors
    for _, _, leaks, _ in rounds:
        assert set(leaks) <= {"XDG_DATA_HOME/multitap/vault/secrets.json"}
