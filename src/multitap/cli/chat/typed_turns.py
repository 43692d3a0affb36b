"""Parses a line of a chat: words, `@server:uri` resources, prompts and commands."""

import re
import shlex
from typing import Literal, get_args

from multitap.errors import BadArguments, quoted
from multitap.records import dataclass

HELP = """\
@SERVER:URI                    add a resource to the conversation
/SERVER:PROMPT key=value       go on with a prompt
/call TOOL key=value           call a tool yourself
/mcp [tools|restart|enable|disable|login|logs|stats|reload] [SERVER]
                               the servers: their state, or what you want of them
/tools [WORD]                  the tools
/show [NUMBER]                 a tool call with its whole result; the last one, or one before
/model [NAME]                  show or change the model
/save [FILE]                   save the conversation
/help, /quit                   this text; leave (so does Ctrl-D)
Ctrl-C stops an answer, not the chat."""

_RESOURCE = re.compile(r"(?<!\S)@([^\s:@]+):(\S+)")

Verb = Literal["call", "mcp", "tools", "show", "model", "save", "help", "quit"]
_VERBS: tuple[Verb, ...] = get_args(Verb)


@dataclass(frozen=True, slots=True)
class TypedMessage:
    """Text for the model, with the resources it mentions."""

    text: str
    resources: tuple[tuple[str, str], ...] = ()
    """Server and URI of each."""


@dataclass(frozen=True, slots=True)
class PromptUse:
    """A prompt of a server, to be filled in."""

    server: str
    prompt: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChatCommand:
    """A command for the chat itself."""

    verb: Verb
    arguments: tuple[str, ...] = ()


TypedTurn = TypedMessage | PromptUse | ChatCommand


def typed_turn(line: str) -> TypedTurn:
    """Parse a line.

    Raises:
        BadArguments: It is an unknown command.
    """
    if not line.startswith("/"):
        found = tuple((server, uri) for server, uri in _RESOURCE.findall(line))
        return TypedMessage(line, found)
    try:
        first, *rest = shlex.split(line[1:]) or ["help"]
    except ValueError as exc:
        raise BadArguments(f"the line cannot be read: {exc}", path="", hint=HELP) from None
    server, colon, prompt = first.partition(":")
    if colon:
        return PromptUse(server, prompt, tuple(rest))
    for verb in _VERBS:
        if first == verb:
            return ChatCommand(verb, tuple(rest))
    raise BadArguments(f"no command {quoted('/' + first)}", path="", hint=HELP)
