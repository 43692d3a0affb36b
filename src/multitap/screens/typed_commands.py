"""Parses the prompt line: `/mcp …`, `/call …`."""

import shlex
from collections.abc import Sequence
from typing import Literal

import msgspec

from multitap.errors import BadArguments, quoted

HELP = """\
/mcp                   the servers
/mcp tools [SERVER]    their tools
/mcp add WHAT          add one: an address, a package, a name that `multitap search` finds
/mcp remove SERVER     remove one; `/mcp rename OLD NEW` renames it
/mcp import            add the servers of your clients
/mcp restart SERVER    restart one
/mcp enable SERVER     switch one on; `disable` switches it off
/mcp login SERVER      log in to one
/mcp logs [SERVER]     what happens there
/mcp stats             calls, errors and times
/mcp reload            read the configuration again
/call TOOL key=value   call a tool
/quit                  leave"""

Verb = Literal[
    "servers",
    "tools",
    "add",
    "import",
    "remove",
    "rename",
    "restart",
    "enable",
    "disable",
    "login",
    "logs",
    "stats",
    "reload",
    "call",
    "help",
    "quit",
]
_ONE_SERVER: frozenset[Verb] = frozenset(
    {"restart", "enable", "disable", "login", "remove", "rename"}
)
_ABOUT_SERVERS = ("tools", "remove", "rename", "restart", "enable", "disable", "login", "logs")
_MCP: dict[str, Verb] = {
    "": "servers",
    "status": "servers",
    "tools": "tools",
    "add": "add",
    "import": "import",
    "remove": "remove",
    "rename": "rename",
    "restart": "restart",
    "enable": "enable",
    "disable": "disable",
    "login": "login",
    "logs": "logs",
    "stats": "stats",
    "reload": "reload",
}
_OTHERS: dict[str, Verb] = {"call": "call", "help": "help", "quit": "quit", "exit": "quit"}


class TypedCommand(msgspec.Struct, frozen=True):
    """One command and its object."""

    verb: Verb
    about: str = ""
    """A server or a tool; empty for all."""
    arguments: tuple[str, ...] = ()
    """Arguments of a call, as typed."""

    @property
    def words(self) -> tuple[str, ...]:
        """Everything after the verb."""
        return (self.about, *self.arguments) if self.about else ()


def complete(line: str, servers: Sequence[str], tools: Sequence[str]) -> str | None:
    """The first command that begins with what was typed so far; None if there is none."""
    # without `status`, which is another word for `/mcp` alone
    commands = [f"/mcp {word}".strip() for word in _MCP if word != "status"]
    commands += [f"/mcp {verb} {server}" for verb in _ABOUT_SERVERS for server in servers]
    commands += [f"/call {tool}" for tool in tools]
    commands += [f"/{word}" for word in _OTHERS]
    return (
        next((command for command in commands if command.startswith(line)), None)
        # a slash alone says nothing yet about what is meant
        if len(line) > 1
        else None
    )


def typed_command(line: str) -> TypedCommand:
    """Parse a line.

    Raises:
        BadArguments: It is not a valid command.
    """
    try:
        first, *rest = shlex.split(line.strip().removeprefix("/")) or ["help"]
    except ValueError as exc:
        raise BadArguments(f"the line cannot be read: {exc}", path="", hint=HELP) from None
    if first == "mcp":
        word, *rest = rest or [""]
        verb = _MCP.get(word)
        if verb is None:
            raise BadArguments(f"/mcp has no {quoted(word)}", path="", hint=HELP)
    else:
        verb = _OTHERS.get(first)
        if verb is None:
            raise BadArguments(f"no command {quoted('/' + first)}", path="", hint=HELP)
    about, *arguments = rest or [""]
    if not about and (verb in _ONE_SERVER or verb in {"call", "add"}):
        missing = "a tool" if verb == "call" else "a server"
        raise BadArguments(f"/{verb} needs the name of {missing}", path="", hint=HELP)
    return TypedCommand(verb, about, tuple(arguments))
