"""`multitap serve`: every server as one, for any MCP client."""

import gc
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import platformdirs

from multitap.agent.hosted import HostedEnvironment
from multitap.cli import problems
from multitap.cli.asked import Asked
from multitap.cli.configured import configured, explain_emptiness, state_directory
from multitap.cli.exits import Exit
from multitap.cli.leftovers import free_leftovers
from multitap.cli.output import advise, can_draw, note
from multitap.cli.running import run_async
from multitap.cli.tables import one_line
from multitap.config import Settings
from multitap.errors import ConfigError
from multitap.hub import Hub, open_hub
from multitap.later import Later
from multitap.records import dataclass
from multitap.reload import Reloader
from multitap.serve.access import Access, check_exposure, read_tokens
from multitap.serve.control import Control, open_control
from multitap.serve.errands import Errand
from multitap.serve.gateway import Gateway, open_gateway
from multitap.serve.stdio import INSTEAD, null_streams, serve_stdio
from multitap.serve.turn import Turn
from multitap.serve.web import bind
from multitap.upstream.caller import guest_of
from multitap.upstream.handlers import Handlers

if TYPE_CHECKING:
    from multitap.serve import http
    from multitap.wire import local
else:
    http = Later("multitap.serve.http")
    local = Later("multitap.wire.local")

_MMAP_THRESHOLD, _LARGE = -3, 1024 * 1024  # of `malloc.h`; bytes of a block that is kept apart


@dataclass(frozen=True, slots=True)
class Serving:
    """How the person wants it."""

    http: str | None = None
    """`[HOST:]PORT`; empty: where the configuration says; None: if it says so at all."""
    token_file: Path | None = None
    insecure: bool = False
    hosts: tuple[str, ...] = ()
    profile: str | None = None
    demo: bool = False


@dataclass(frozen=True, slots=True)
class Served:
    """What is served."""

    settings: Settings
    open: Callable[[Handlers], AbstractAsyncContextManager[Hub]]
    state: Path
    reloader: Reloader | None = None
    """None: there are no files to follow."""
    host: Handlers = field(default_factory=Handlers)
    """Answers what servers ask and no client can."""


class _OneLine(logging.Formatter):
    """What went wrong, without where in our code: it is for who reads it beside other output."""

    def format(self, record: logging.LogRecord) -> str:
        exc = record.exc_info[1] if record.exc_info else None
        reason = f": {type(exc).__name__}: {exc}" if exc else ""
        return one_line(f"{record.getMessage()}{reason}")


def serve(asked: Asked, serving: Serving) -> int:
    """Serve until the client leaves, or the person ends it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneLine())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    served = _demo() if serving.demo else from_files(asked)
    _check_profile(serving.profile, served.settings)
    address = _address(serving, served.settings)
    _spare_the_collector()
    _keep_large_blocks_apart()
    if address is None:
        _warn_of_nobody()
        _greet()
        run_async(lambda: _serve_stdio(served, serving.profile), fast=True)
    else:
        run_async(lambda: _serve_http(served, address, serving), fast=True)
    return Exit.DONE


def _warn_of_nobody() -> None:
    """Say so where no client can be: a gateway that ends at once would be a riddle."""
    if streams := null_streams():
        which = " and ".join(streams)
        note(f"warning: no client can use this gateway: standard {which} is closed or null")
        advise(INSTEAD)


def _greet() -> None:
    """Tell a person who typed it that it is no command to talk to."""
    if can_draw(sys.stdin) and can_draw(sys.stderr):
        note("waiting for an MCP client on standard input; Ctrl-C ends it")
        advise("a client starts it itself: `claude mcp add multitap -- multitap serve`")
        advise("`multitap serve --http` serves at a URL instead")


def _keep_large_blocks_apart() -> None:
    """Let the memory of large messages go back to the system as soon as they are gone.

    Once such a block was freed, glibc puts the next ones among the small ones, which then keep the
    holes between them: a few results of 20 MB grew a gateway by 170 MB within an hour.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # noqa: PLC0415 - for this one call

    with suppress(AttributeError, OSError):  # another C library has no such switch
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


def _spare_the_collector() -> None:
    """Let it not look through what stays for good, again and again, while calls are waiting."""
    gc.freeze()  # there is no garbage yet that would be worth a look
    gc.set_threshold(20_000, 20, 50)


def from_files(asked: Asked) -> Served:
    """The servers that the files name, and the environment that they describe."""
    environment = HostedEnvironment(lambda: configured(asked), profile=_profile_in_use)
    reloader = environment.files
    problems.show(problems.serious(reloader.problems))
    if not reloader.settings.servers:
        explain_emptiness(reloader.loaded)
    return Served(
        reloader.settings,
        environment.open,
        state_directory(reloader.loaded),
        reloader,
        environment.answers,
    )


def _profile_in_use() -> str | None:
    """The profile of the client for whom a server in this process works right now."""
    guest = guest_of(local.caller())
    return guest.peer.profile if isinstance(guest, Turn | Errand) else None


def _demo() -> Served:
    from multitap.demo.cast import GOOD, bundled  # noqa: PLC0415 - nobody else needs them

    shown = Settings(servers={name: bundled(name) for name in GOOD})
    return Served(
        shown,
        lambda handlers: open_hub(shown, handlers=handlers, recall=True),
        Path(platformdirs.user_state_dir("multitap")),
    )


def _check_profile(name: str | None, settings: Settings) -> None:
    if name is not None and name not in settings.profiles:
        known = ", ".join(settings.profiles) or "none"
        raise ConfigError(f"no profile named {name!r}", hint=f"the configuration has: {known}")


def _address(serving: Serving, settings: Settings) -> tuple[str, int] | None:
    """Where to listen; None: on our own pipes."""
    if serving.http is None:
        wanted = settings.serve
        return (wanted.host, wanted.port) if wanted.transport == "http" else None
    if not serving.http:
        return settings.serve.host, settings.serve.port
    host, _, port = serving.http.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:  # noqa: PLR2004 - the last port
        raise ConfigError(
            f"{serving.http!r} is no address", hint="say `--http PORT` or `--http HOST:PORT`"
        )
    return host or settings.serve.host, int(port)


async def _serve_stdio(served: Served, profile: str | None) -> None:
    async with open_gateway(served.open, host=served.host) as gateway:
        gateway.tasks.start_soon(free_leftovers)
        control = Control(gateway, reloader=served.reloader)
        async with open_control(control, served.state):
            await serve_stdio(gateway, profile=profile)


async def _serve_http(served: Served, address: tuple[str, int], serving: Serving) -> None:
    host, port = address
    tokens = read_tokens(serving.token_file) if serving.token_file else ()
    insecure = serving.insecure or served.settings.serve.insecure
    check_exposure(host, tokens, insecure=insecure)
    listener = bind(host, port)
    try:
        async with open_gateway(served.open, host=served.host) as gateway:
            gateway.tasks.start_soon(free_leftovers)
            front = http.HttpFront(
                gateway, Access(host, tokens, serving.hosts), profile=serving.profile
            )
            async with http.serve_http(front, listener) as url:
                control = Control(
                    gateway,
                    reloader=served.reloader,
                    url=url,
                    sessions=lambda: len(front.sessions),
                )
                async with open_control(control, served.state):
                    _say_how_to_connect(gateway, url, secured=bool(tokens))
                    await anyio.sleep_forever()
    finally:
        listener.close()


def _say_how_to_connect(gateway: Gateway, url: str, *, secured: bool) -> None:
    servers = ", ".join(gateway.hub.links) or "none"
    note(f"serving {servers}")
    note(f"at {url} (older clients: {url.removesuffix('mcp')}sse); Ctrl-C ends it")
    header = " --header 'Authorization: Bearer TOKEN'" if secured else ""
    note(f"for example: claude mcp add --transport http multitap {url}{header}")
