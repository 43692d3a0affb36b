"""Other gateways, installed on demand, each into a folder of its own outside the project."""

import shutil
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

LONGEST = 300
"""Seconds that one installation may take."""


class Missing(Exception):
    """A gateway that can not be had here; says why."""


@dataclass(frozen=True, slots=True)
class Peer(ABC):
    """One release of a package, so that figures can be compared from run to run."""

    package: str
    version: str
    program: str
    """Where the program lies below the folder it is installed into."""
    beside: tuple[str, ...] = ()
    """What is installed with it."""
    override: str | None = None
    """A requirement that takes the place of the package's own."""

    def installed(self) -> Path:
        """The program.

        Raises:
            Missing: No installer is here, or it fails.
        """
        folder = user_cache_path("multitap-bench") / f"{self.package}-{self.version}"
        program = folder / self.program
        if not program.exists():
            shutil.rmtree(folder, ignore_errors=True)
            unfinished = folder.with_name(f"{folder.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            self.install(unfinished)
            unfinished.rename(folder)
        return program

    @abstractmethod
    def install(self, folder: Path) -> None: ...


class PythonPeer(Peer):
    def install(self, folder):
        uv = _installer("uv")
        packages = [f"{self.package}=={self.version}", *self.beside]
        override = []
        if self.override:
            (folder / "override.txt").write_text(self.override)
            override = ["--override", str(folder / "override.txt")]
        _run(uv, "venv", "--relocatable", "--python", "3.11", "--clear", str(folder / "venv"))
        python = folder / "venv" / "bin" / "python"
        _run(uv, "pip", "install", "--python", str(python), *override, *packages)


class NodePeer(Peer):
    def install(self, folder):
        npm = _installer("npm")
        (folder / "package.json").write_text('{"private": true}')
        quietly = ("--no-audit", "--no-fund", "--prefix", str(folder))
        _run(npm, "install", *quietly, f"{self.package}@{self.version}")


FASTMCP = PythonPeer(
    "fastmcp",
    "4.1.4",
    "venv/bin/python",
    beside=("uvloop", "httptools"),
    override="certifi>=2020",  # it asks for one that not every index has yet
)
MCP_PROXY = PythonPeer("mcp-proxy", "0.13.0", "venv/bin/mcp-proxy", beside=("uvloop", "httptools"))
MCPO = PythonPeer(
    "mcpo",
    "0.0.20",
    "venv/bin/mcpo",
    beside=("mcp<2", "fastapi==0.129.0"),  # with newer ones it does not start
)
SUPERGATEWAY = NodePeer("supergateway", "4.0.0", "node_modules/supergateway/dist/index.js")
MCP_HUB = NodePeer("mcp-hub", "4.2.1", "node_modules/mcp-hub/dist/cli.js")
NODE_MCP_PROXY = NodePeer("mcp-proxy", "6.7.19", "node_modules/mcp-proxy/dist/bin/mcp-proxy.mjs")


def _installer(name):
    found = shutil.which(name)
    if found is None:
        raise Missing(f"`{name}` is not here")
    return found


def _run(*command):
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.CalledProcessError as error:
        words = error.stderr.strip().splitlines() or [f"exit status {error.returncode}"]
        raise Missing(f"can not be installed: {words[-1]}") from error
    except subprocess.TimeoutExpired as error:
        raise Missing(f"not installed after {LONGEST} s") from error
