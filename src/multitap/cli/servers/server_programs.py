"""Names the URL or program of a server, and the program's version."""

import os
import re
from pathlib import Path
from subprocess import DEVNULL, STDOUT

import anyio

from multitap.cli.servers.server_checks import Check, CheckVerdict
from multitap.cli.terminal.tables import cut, one_line
from multitap.config import HttpServer, StdioServer
from multitap.config.mask import masked_url
from multitap.trust.pins.lock_file import UNKNOWN, LockedPackage
from multitap.trust.pins.packages import launch_of
from multitap.wire.process.child_environment import child_environment
from multitap.wire.process.spawner import CannotStart
from multitap.wire.process.stdio_wire import locate

TIMEOUT = 5.0

_TELLS_VERSION = re.compile(r"npx|npm|node|bunx?|deno|uvx?|python[0-9.]*|docker|podman")
"""Programs whose `--version` is safe to run; others might start working."""
_LONGEST = 60


def of_address(config: HttpServer) -> Check:
    """A server's address as written: values of variables may be secret."""
    return Check("address", CheckVerdict.OK, masked_url(config.url))


async def of_program(config: StdioServer) -> Check:
    """Whether the program of a server exists; its variables are already expanded."""
    env = child_environment(os.environ, config.env)
    try:
        path = locate(config.command, env, config.start_folder)
    except CannotStart as exc:
        return Check("program", CheckVerdict.FAILED, str(exc), exc.hint)
    version = await _version(path, env)
    return Check("program", CheckVerdict.OK, f"{path}, {version}" if version else path)


def of_package(config: StdioServer, known: LockedPackage | None) -> Check | None:
    """Whether a launcher always starts the same package; None if it starts none.

    Args:
        config: The server, with unexpanded variables.
        known: The package that was last started.
    """
    if (launch := launch_of(config.command, config.args)) is None:
        return None
    if launch.is_exact:
        return Check("package", CheckVerdict.OK, f"{launch.name}@{launch.version}")
    found = known and known.version != UNKNOWN and known.version
    if launch.kind == "docker":
        hint = f"write `{launch.name}@sha256:...`"
    else:
        hint = f"write `{launch.name}@{found or 'VERSION'}`"
    newest = f"; the last one was {found}" if found else ""
    words = f"no exact version of {launch.name}: each start may run another one{newest}"
    return Check("package", CheckVerdict.WARN, words, hint)


async def _version(path: str, env: dict[str, str]) -> str:
    """The program's version; empty if it does not answer soon."""
    if not _TELLS_VERSION.fullmatch(Path(path).name):
        return ""
    home = Path.home()  # the current folder may contain a stranger's settings
    with anyio.move_on_after(TIMEOUT):
        try:
            done = await anyio.run_process(
                [path, "--version"], stdin=DEVNULL, stderr=STDOUT, check=False, env=env, cwd=home
            )
        except OSError:
            return ""
        return cut(one_line(done.stdout.decode(errors="replace").partition("\n")[0]), _LONGEST)
    return ""
