"""The configuration of the bundled servers."""

from pathlib import Path

from multitap.config import Settings, StdioServer
from multitap.version import own_program

GOOD = ("calculator", "clock", "notebook")
BAD = ("crasher", "sleeper")


def bundled_server(name: str, *, connect_timeout: float = 60.0) -> StdioServer:
    """One of the servers in `multitap.demo.servers`."""
    command, *args = own_program(f"multitap.demo.servers.{name}")
    return StdioServer(command=command, args=tuple(args), connect_timeout=connect_timeout)


def settings(state_dir: Path) -> Settings:
    """All bundled servers; the one that hangs has a short timeout."""
    good = {name: bundled_server(name) for name in GOOD}
    bad = {name: bundled_server(name, connect_timeout=6.0) for name in BAD}
    return Settings(servers=good | bad, state_dir=state_dir)
