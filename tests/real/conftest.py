"""Programs from package registries, fetched before anything is timed."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.module_life import anyio_backend, nothing_left  # noqa: F401 - fixtures

PATIENCE = 180
PREFIX = "@modelcontextprotocol/server-"
NPM = (f"{PREFIX}everything", f"{PREFIX}filesystem", f"{PREFIX}memory")
PYTHON = ("mcp-server-time", "mcp-server-git")


def program(name):
    """Where a launcher is; the development environment has its own `uvx`."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed", allow_module_level=True)
    return found


def fetch(commands):
    """Run commands that do nothing but fill a cache; why each failed, or None."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(_fetched, commands))


def _fetched(command):
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {PATIENCE} s"
    return None if done.returncode == 0 else done.stderr.strip()[-300:] or "no reason was given"


@pytest.fixture(scope="session")
def fetched():
    """The servers of `NPM` and `PYTHON` are in the caches of their launchers."""
    npx, uvx = program("npx"), program("uvx")
    commands = [[npx, "-y", "-p", name, "-c", "true"] for name in NPM]
    commands += [[uvx, "--from", name, "python", "-c", ""] for name in PYTHON]
    for command, reason in zip(commands, fetch(commands), strict=True):
        if reason is not None:
            pytest.skip(f"{command[3]} cannot be fetched: {reason}")
