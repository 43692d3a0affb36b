"""The gateway in the background: reads the files of its views, and runs until nobody needs it."""

import os
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

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
from multitap.control.editing import ConfigEditor
from multitap.control.joining import background_place
from multitap.control.places import own_socket
from multitap.control.server import open_control
from multitap.control.service import ControlService
from multitap.errors import MultitapError
from multitap.gateway.gateway import open_gateway
from multitap.tasks import Tasks
from multitap.telemetry.logs import set_up_logs
from multitap.version import own_program

_SWITCHING = 30.0
"""Seconds for a change of a file."""


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


def _options(key: ViewKey) -> CommonOptions:
    return CommonOptions(files=tuple(map(Path, key.files)), dialect=key.dialect)


def _surroundings(key: ViewKey, env: Mapping[str, str]) -> Surroundings:
    return Surroundings(
        folder=Path(key.folder), home=Path.home(), config=Surroundings.here().config, env=env
    )


def _load(key: ViewKey) -> LoadedView:
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
        control = ControlService(gateway, reloader=reloader, editor=served.editor, background=True)
        async with open_control(control, served.state, number=number):
            yield OpenView(
                gateway,
                own_socket(served.state, number),
                needs=lambda: needs_of(reloader.settings),
                is_needed=lambda: neighbours.is_needed(number),
                keep_apart=lambda server: neighbours.keep_apart(number, server),
            )


class ViewEditor(ConfigEditor):
    """Runs the commands as the clients of a view would: in their folder."""

    def __init__(self, key: ViewKey, env: Mapping[str, str]) -> None:
        self._key = key
        self._env = env

    async def switch(self, server: str, *, on: bool) -> None:
        await to_thread.run_sync(self._run, "enable" if on else "disable", server)

    async def remove(self, server: str) -> None:
        await to_thread.run_sync(self._run, "remove", server)

    async def rename(self, server: str, name: str) -> None:
        await to_thread.run_sync(self._run, "rename", server, name)

    def _run(self, verb: str, *words: str) -> None:
        files = [word for file in self._key.files for word in ("--config", file)]
        changed = subprocess.run(  # noqa: S603 - our own program
            (*own_program(), verb, *files, "--", *words),
            cwd=self._key.folder,
            env={**os.environ, **self._env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SWITCHING,
            check=False,
        )
        if changed.returncode:
            raise MultitapError(changed.stderr.strip().removeprefix("error: "))
