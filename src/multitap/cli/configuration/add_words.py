"""From what a person typed after `multitap add` to the servers they mean."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import field
from urllib.parse import urlsplit

from multitap.config.edit.server_draft import ServerDraft
from multitap.errors import ConfigError
from multitap.names import slug
from multitap.records import dataclass

_ADDRESS = re.compile(r"https?://\S+")


@dataclass(frozen=True, slots=True)
class AddRequest:
    """What was typed, sorted but not yet understood."""

    words: tuple[str, ...] = ()
    """What stands before `--`, options aside: mostly a name, and perhaps a URL."""
    command: tuple[str, ...] = ()
    """What stands after `--`."""
    text: str = ""
    """What was pasted: a single long argument, or standard input."""
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    transport: str | None = None
    inputs: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]], repr=False
    )
    """Options that are not ours (`--root .`): answers to what the server's draft asks for."""


Recogniser = Callable[[AddRequest], tuple[ServerDraft, ...]]
"""The servers that a request means; none if it is not of the kind that this one knows."""


def resolve(request: AddRequest) -> tuple[ServerDraft, ...]:
    """The servers that a request means.

    Raises:
        ConfigError: Nobody understands it.
    """
    for recognise in RECOGNISERS:
        if drafts := recognise(request):
            return drafts
    raise ConfigError(f"cannot tell which server {_shown(request)} means", hint=_HINT)


def a_command(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add NAME -- npx -y package`."""
    if not request.command or len(request.words) != 1:
        return ()
    program, *args = request.command
    fields = {"command": program, "args": args, "env": dict(request.env)}
    return (ServerDraft(request.words[0], _without_empty(fields)),)


def an_address(request: AddRequest) -> tuple[ServerDraft, ...]:
    """`add [NAME] URL [-H "K: V"]`."""
    found = [word for word in request.words if _ADDRESS.fullmatch(word)]
    names = [word for word in request.words if word not in found]
    if request.command or len(found) != 1 or len(names) > 1:
        return ()
    fields = {
        "url": found[0],
        "transport": request.transport,
        "headers": dict(request.headers),
    }
    return (ServerDraft(names[0] if names else name_of(found[0]), _without_empty(fields)),)


def name_of(url: str) -> str:
    """A short name for the server at an address: what tells its host from others."""
    host = urlsplit(url).hostname or "server"
    parts = [part for part in host.split(".")[:-1] or [host] if part not in {"mcp", "api", "www"}]
    return slug(parts[-1] if parts else host.split(".")[0])


def _without_empty(fields: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in fields.items() if value}


def _shown(request: AddRequest) -> str:
    return repr(shlex.join(request.words) or request.text[:40])


RECOGNISERS: tuple[Recogniser, ...] = (a_command, an_address)
"""The first one that understands a request is right; those that ask other machines come last."""

_HINT = (
    "`multitap add NAME -- COMMAND ARGS…`, `multitap add NAME URL`, a line such as"
    " `claude mcp add …`, or a JSON snippet from a README"
)
