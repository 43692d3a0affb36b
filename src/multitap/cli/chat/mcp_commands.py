"""`/mcp …` in a chat: shows and controls its servers."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from anyio import to_thread

from multitap.cli.command_hub import adapt
from multitap.cli.configuration.chosen_configuration import load_configuration
from multitap.cli.options import CommonOptions
from multitap.cli.terminal.output import note, say_text
from multitap.cli.terminal.tables import table
from multitap.errors import MultitapError, UnknownName
from multitap.hub.hub import Hub
from multitap.own_program import own_program
from multitap.screens.time_bars import stats_words
from multitap.screens.typed_commands import TypedCommand
from multitap.wire.process.stderr_log import last_lines, log_path

_LAST = 2000
"""Bytes of a server's standard error that are shown."""


class ServerCommands:
    """Acts on the servers of one chat."""

    def __init__(self, hub: Hub, options: CommonOptions) -> None:
        self._hub = hub
        self._options = options

    async def obey(self, command: TypedCommand) -> None:
        """Run a typed command.

        Raises:
            MultitapError: It cannot be done.
        """
        server = self._require_known(command.about) if command.about else ""
        match command.verb:
            case "tools":
                self.show_tools(lambda owner, _: server in {"", owner})
            case "restart":
                self._hub.restart(server)
                note(f"{server} restarts")
            case "login" | "enable" | "disable":
                await self._run(command.verb, server)
                self._reload()
                # a reload would not restart it: only its tokens are new, not its entry
                if command.verb == "login":
                    self._hub.restart(server)
            case "logs":
                await self._show_log(server)
            case "stats":
                say_text(stats_words(self._hub.metrics.servers()) or "there were no calls yet")
            case "reload":
                self._reload()
            case _:
                self._show()

    def show_tools(self, wanted: Callable[[str, str], bool]) -> None:
        """List the tools that `wanted` selects by server and text."""
        for tool in self._hub.catalog.tools.values():
            if wanted(tool.server, f"{tool.name} {tool.description}"):
                say_text(f"{tool.name}  {tool.description.partition('.')[0]}")

    def _show(self) -> None:
        rows = [
            (one.name, one.state.value, str(one.tools), str(one.failure or ""))
            for one in self._hub.snapshot().servers
        ]
        table(("SERVER", "STATE", "TOOLS", "NOTE"), rows)

    def _require_known(self, server: str) -> str:
        if server not in self._hub.links:
            names = ", ".join(self._hub.links)
            raise UnknownName(f"no server named {server!r}", hint=f"there are: {names}")
        return server

    async def _show_log(self, server: str) -> None:
        logs = self._hub.logs
        if not server or logs is None:
            raise MultitapError("/mcp logs needs the name of a server")
        text = await to_thread.run_sync(last_lines, log_path(logs, server), _LAST)
        say_text(text or f"{server} has not written anything")

    def _reload(self) -> None:
        """Read the files again, and apply them."""
        # no question here: it would stop everything that runs in this loop
        loaded = load_configuration(replace(self._options, asks=False))
        plan = self._hub.apply(adapt(loaded, self._options, lambda _name, _config: {}))
        note(f"reloaded: {plan}")

    async def _run(self, *arguments: str) -> None:
        """Run a command of the program, at the same terminal."""
        files = (word for file in self._options.files for word in ("--config", str(file)))
        started = await asyncio.create_subprocess_exec(*own_program(), *files, *arguments)
        try:
            if await started.wait():
                raise MultitapError(f"`multitap {' '.join(arguments)}` failed")
        finally:
            # Ctrl-C cancels this task, and the command must not keep the terminal
            if started.returncode is None:
                started.terminate()
