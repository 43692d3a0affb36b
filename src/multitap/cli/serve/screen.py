"""`multitap` alone at a terminal: opens the screen on a running gateway or its own hub."""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from multitap.cli.attachments import Attachment, attachments, save_attachments
from multitap.cli.browser import open_page, open_picture
from multitap.cli.configuration import load_configuration, problem_line
from multitap.cli.options import CommonOptions
from multitap.cli.serve.gateway import ServedHub, from_files
from multitap.cli.signals import end_with_terminal, run_async
from multitap.cli.target import choose_gateway, join_background
from multitap.cli.terminal import Exit
from multitap.config import Problem
from multitap.control.places import own_socket
from multitap.control.server import open_control
from multitap.control.service import ControlService
from multitap.errors import MultitapError
from multitap.gateway.gateway import open_gateway
from multitap.results import ImageBlock, ToolResult
from multitap.screens.terminal.windows import Desktop
from multitap.version import own_program


def screen(options: CommonOptions) -> int:
    """Open the screen until the user leaves it."""
    if os.environ.get("TERM", "dumb") == "dumb":
        raise MultitapError(
            "this terminal cannot show a screen (TERM is not set, or `dumb`)",
            hint="`multitap status` and `multitap --help` work everywhere",
        )
    loaded = load_configuration(options)
    if not loaded.merged.servers:
        loaded.check()  # else the screen would say that there are none yet
    notice = _sum_up(loaded.errors)
    live = choose_gateway(options, loaded) or join_background(options, loaded)
    command = _again(options.files)
    with end_with_terminal():
        if live is not None:
            run_async(lambda: _show(live.path, command, notice))
        else:
            served = from_files(options)
            run_async(lambda: _show_own(served, command, notice))
    return Exit.DONE


async def _show(socket: Path, command: Sequence[str], notice: str) -> None:
    from multitap.control.client import ControlClient  # noqa: PLC0415 - slow to import
    from multitap.screens.terminal.app import Terminal  # noqa: PLC0415 - the same

    with TemporaryDirectory(prefix="multitap-") as folder:  # readable by its owner only
        desktop = _desktop(Path(folder))
        await Terminal(ControlClient(socket), command, desktop, notice=notice).run_async()


async def _show_own(served: ServedHub, command: Sequence[str], notice: str) -> None:
    """Show our own servers: a gateway without clients, used like any other."""
    async with (
        open_gateway(served.open, host=served.host) as gateway,
        open_control(
            lambda: ControlService(gateway, reloader=served.reloader, editor=served.editor),
            served.state,
        ),
    ):
        await _show(own_socket(served.state), command, notice)


def _sum_up(errors: Sequence[Problem]) -> str:
    """What is wrong with a configuration, in a few lines: the servers in it cannot be shown."""
    if not errors:
        return ""
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{problem_line(errors[0])}{more}: see `multitap config check`"


def _desktop(folder: Path) -> Desktop:
    """What the screen can do outside itself."""

    def save(result: ToolResult, name: str) -> Sequence[Path]:
        text = Attachment(result.text.encode(errors="replace"), "text/plain")
        return save_attachments(attachments(result.blocks) or (text,), Path.cwd(), name)

    def show(result: ToolResult) -> bool:
        pictures = attachments(block for block in result.blocks if isinstance(block, ImageBlock))
        return bool(pictures) and open_picture(save_attachments(pictures[:1], folder, "picture")[0])

    return Desktop(save, show, open_page)


def _again(files: Sequence[Path]) -> tuple[str, ...]:
    """The command that runs this program with the same configuration."""
    config_options = (word for file in files for word in ("--config", str(file)))
    return (*own_program(), *config_options)
