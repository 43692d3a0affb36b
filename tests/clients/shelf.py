"""The clients, each in a folder of its own, fetched once."""

import shutil
import sys
from pathlib import Path

from tests.conformance.kit import NODE, NotFetched, fill_once, locked, npm_install, run

FASTMCP = "fastmcp-slim[client]==4.1.8"
PACKAGES = {
    "inspector": "@modelcontextprotocol/inspector@2.12.0",
    "typescript-1": "@modelcontextprotocol/sdk@1.32.2",
    "typescript-2": "@modelcontextprotocol/client@2.4.0",
    "mcp-remote": "mcp-remote@0.15.1",
    "claude": "@anthropic-ai/claude-code@2.1.325",
    "opencode": "opencode-ai@1.18.33",
    "codex": "@openai/codex@0.166.0",
    "gemini": "@google/gemini-cli@0.61.0",
}


class Shelf:
    """Where the clients are.

    Args:
        home: A folder that outlives the tests.
    """

    def __init__(self, home):
        self._home = home
        self._missing = {}

    def npm(self, name):
        """The folder that has the packages of a client in `node_modules`.

        Raises:
            NotFetched: The registry cannot be reached, or does not have it.
        """
        return self._filled(name, lambda target: npm_install(target, PACKAGES[name]))

    def program(self, name, path):
        """The command line of a client that is a script, without arguments."""
        return node(self.npm(name) / "node_modules" / path)

    def fastmcp(self):
        """An interpreter that has FastMCP's client; raises as `npm` does."""
        return str(self._filled("fastmcp", _fetch_fastmcp) / "bin" / "python")

    def _filled(self, name, fill):
        if name in self._missing:
            raise self._missing[name]  # nobody waits for it twice
        try:
            with locked(self._home / f"{name}.lock"):
                fill_once(self._home / name, fill)
        except NotFetched as exc:
            self._missing[name] = exc
            raise
        return self._home / name


def node(script):
    """The command line of a script, without arguments."""
    return [str(NODE / "bin" / "node"), str(script)]


def _fetch_fastmcp(target):
    uv = Path(sys.executable).with_name("uv")
    shutil.rmtree(target)  # it wants to make the folder itself
    run(uv, "venv", "--quiet", "--python", sys.executable, target)
    run(uv, "pip", "install", "--quiet", "--python", target / "bin" / "python", FASTMCP)
