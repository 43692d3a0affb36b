"""The gateway in the background: reads the files of its views, and runs until nobody needs it.

It is a process of its own, or a part of `multitap serve --http`.
"""

import asyncio
import logging
import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import msgspec
from anyio import to_thread

from multitap.cli.configuration import configuration_loader
from multitap.cli.options import CommonOptions
from multitap.cli.serve.gateway import (
    describe_files,
    free_leftovers,
    served_files,
    tune_memory,
)
from multitap.cli.signals import run_async
from multitap.cli.terminal import NOTES, Exit
from multitap.cluster.neighbours import Neighbours
from multitap.config import Surroundings
from multitap.control.background import (
    LoadedView,
    OpenView,
    ViewKey,
    Views,
    needs_of,
    run_background,
)
from multitap.control.editing import (
    AdditionReview,
    ConfigEditor,
    EditReply,
    EditRequest,
    FoundServers,
    NewServer,
)
from multitap.control.joining import background_place, free_place
from multitap.control.places import own_socket
from multitap.control.server import open_control
from multitap.errors import MultitapError
from multitap.gateway.gateway import Gateway, open_gateway
from multitap.tasks import Tasks
from multitap.telemetry.logs import set_up_logs
from multitap.version import own_program

if TYPE_CHECKING:
    from multitap.control.service import ControlService
    from multitap.screens.page.console import Console

logger = logging.getLogger(__name__)

_HERE = "127.0.0.1"
_EDITING = 180.0
"""Seconds for a change of a file; a new server is started once."""
_Answer = TypeVar("_Answer")


def serve_background(ready: int) -> int:
    """Serve all clients of this user; `ready` is written to once it listens."""
    set_up_logs("text", {}, notes=NOTES)
    tune_memory()

    def on_listening() -> None:
        os.write(ready, b"1")
        os.close(ready)

    async def run() -> None:
        async with Tasks() as tasks:
            tasks.start_soon(free_leftovers)
            views = Views(_load, partial(_open, Neighbours(tasks)))
            await run_background(views, background_place(), on_listening)

    run_async(run, fast=True)
    return Exit.DONE


async def host_background(neighbours: Neighbours, url: str) -> None:
    """Serve clients on pipes, too, so that they share the servers of a gateway over HTTP.

    A gateway that runs in the background hands its clients over.

    Args:
        neighbours: The programs of the gateway's own hub, and of the views.
        url: The address of the gateway.
    """
    turn = ExitStack()
    try:
        # in a thread: the other gateway has to answer
        place = await to_thread.run_sync(turn.enter_context, free_place())
        views = Views(_load, partial(_open, neighbours))
        # until we listen, no client may start a gateway of its own in this place
        await run_background(views, place, turn.close, host=url)
    except (MultitapError, OSError) as exc:
        logger.info("clients on pipes do not share the servers of this gateway: %s", exc)
    finally:
        turn.close()


def _options(key: ViewKey) -> CommonOptions:
    return CommonOptions(files=tuple(map(Path, key.files)), dialect=key.dialect)


def _surroundings(key: ViewKey, env: Mapping[str, str]) -> Surroundings:
    return Surroundings(
        folder=Path(key.folder), home=Path.home(), config=Surroundings.here().config, env=env
    )


def _load(key: ViewKey) -> LoadedView:
    # the rest is sent once the files say what their servers need
    options, where = _options(key), _surroundings(key, dict(key.early))
    loaded = configuration_loader(options, where)()
    notes: list[str] = []
    describe_files(options, loaded, where, notes.append)
    return LoadedView(
        needs_of(loaded.settings),
        is_alone=loaded.settings.serve.transport == "http",
        notes=tuple(notes),
    )


@asynccontextmanager
async def _open(
    neighbours: Neighbours, key: ViewKey, env: Mapping[str, str], number: int
) -> AsyncGenerator[OpenView]:
    where = _surroundings(key, env)
    load = configuration_loader(_options(key), where)
    served = served_files(load, partial(ViewEditor, key, env))
    reloader = served.reloader
    assert reloader is not None  # noqa: S101 - there are files
    opening = partial(served.open, place=neighbours.place(number, env, served.state))
    async with open_gateway(opening, host=served.host) as gateway:
        gateway.hub.on_restart = partial(neighbours.restart, number)

        @cache
        def control() -> "ControlService":
            from multitap.control.service import ControlService  # noqa: PLC0415 - for commands

            service = ControlService(
                gateway, reloader=reloader, editor=served.editor, background=True
            )
            service.new_link = page.link
            return service

        page = ViewPage(gateway, control)
        async with open_control(control, served.state, number=number):
            yield OpenView(
                gateway,
                own_socket(served.state, number),
                needs=lambda: needs_of(reloader.settings),
                is_needed=lambda: neighbours.is_needed(number) or page.is_watched,
                keep_apart=lambda server: neighbours.keep_apart(number, server),
            )


class ViewPage:
    """Shows a view to browsers of this machine, on a port of its own.

    Most views are never shown: the port, and the code for it, come with the first link.
    """

    def __init__(self, gateway: Gateway, control: "Callable[[], ControlService]") -> None:
        self._gateway = gateway
        self._control = control
        self._console: Console | None = None
        self._opened: asyncio.Future[Callable[[], str]] | None = None
        """Makes links, once it listens."""

    @property
    def is_watched(self) -> bool:
        """Whether a browser shows it now."""
        return self._console is not None and self._console.is_watched

    async def link(self) -> str:
        """A link that opens it once.

        Raises:
            MultitapError: It cannot listen.
        """
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            self._gateway.tasks.start_soon(self._serve, self._opened, name="page")
        # shielded: a command that gives up must not take it from the next one
        new_link = await asyncio.shield(self._opened)
        return new_link()

    async def _serve(self, opened: "asyncio.Future[Callable[[], str]]") -> None:
        from multitap.gateway.fronts.access import AccessRules, open_access  # noqa: PLC0415
        from multitap.gateway.fronts.http import HttpFront, serve_http  # noqa: PLC0415
        from multitap.http.server.server import open_listener, url_of  # noqa: PLC0415
        from multitap.screens.page.access import ConsoleKeys  # noqa: PLC0415
        from multitap.screens.page.console import Console  # noqa: PLC0415

        control = self._control()
        # clients have their pipes: without a token, only the page answers here
        rules = AccessRules(host=_HERE, require_token=True)
        try:
            with open_access(rules) as allowed, open_listener(_HERE, 0) as listener:
                keys = control.keys = ConsoleKeys(allowed.sources)
                self._console = Console(control, allowed.access, keys)
                front = HttpFront(
                    self._gateway, allowed.access, sources=allowed.sources, console=self._console
                )
                async with serve_http(front, listener):
                    opened.set_result(partial(keys.new_link, url_of(listener)))
                    await anyio.sleep_forever()
        except (MultitapError, OSError) as exc:
            self._opened = None  # the next one who wants a link tries again
            if not opened.done():
                opened.set_exception(MultitapError(f"the page cannot be served: {exc}"))


class ViewEditor(ConfigEditor):
    """See `FileEditor`; one process for each change, with the folder and variables of a view."""

    def __init__(self, key: ViewKey, env: Mapping[str, str]) -> None:
        self._key = key
        self._env = env

    async def switch(self, server: str, *, on: bool) -> None:
        await self._edit(None, "switch", server=server, on=on)

    async def remove(self, server: str) -> None:
        await self._edit(None, "remove", server=server)

    async def rename(self, server: str, name: str) -> None:
        await self._edit(None, "rename", server=server, name=name)

    async def change_tool(
        self, server: str, tool: str, name: str | None, description: str | None
    ) -> None:
        texts = {"name": name, "description": description}
        await self._edit(None, "change_tool", server=server, tool=tool, **texts)

    async def search(self, text: str) -> FoundServers:
        return await self._edit(FoundServers, "search", text=text)

    async def review_new(self, new: NewServer) -> AdditionReview:
        return await self._edit(AdditionReview, "review_new", new=new)

    async def add(self, new: NewServer, digest: str) -> str:
        return await self._edit(str, "add", new=new, digest=digest)

    async def review_disabled(self, server: str) -> AdditionReview:
        return await self._edit(AdditionReview, "review_disabled", server=server)

    async def enable_reviewed(self, server: str, digest: str) -> None:
        await self._edit(None, "enable_reviewed", server=server, digest=digest)

    async def _edit(self, kind: "type[_Answer] | None", method: str, **arguments: Any) -> "_Answer":
        request = msgspec.json.encode(EditRequest(method, arguments))
        process = await to_thread.run_sync(self._run, request)
        try:
            reply = msgspec.json.decode(process.stdout, type=EditReply)
        except msgspec.DecodeError:
            raise MultitapError(
                f"the change failed: {process.stderr.decode(errors='replace').strip()}"
            ) from None
        if reply.error:
            raise MultitapError(reply.error, hint=reply.hint)
        return msgspec.convert(reply.result, kind)

    def _run(self, request: bytes) -> "subprocess.CompletedProcess[bytes]":
        files = [word for file in self._key.files for word in ("--config", file)]
        dialect = ("--dialect", self._key.dialect) if self._key.dialect else ()
        # in a process: the folder and the variables of ours are not those of the view
        return subprocess.run(  # noqa: S603 - our own program
            (*own_program(), "serve", "--edit", *files, *dialect),
            cwd=self._key.folder,
            env={**os.environ, **self._env},
            # not as arguments: answers may be secret
            input=request,
            capture_output=True,
            timeout=_EDITING,
            check=False,
        )
