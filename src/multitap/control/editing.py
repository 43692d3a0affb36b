"""What a gateway can be asked to change in its files, and what a person sees before it does."""

from collections.abc import Mapping
from typing import Any, Literal, NoReturn

import msgspec

from multitap.errors import MultitapError


class FoundServer(msgspec.Struct, frozen=True):
    """One server that can be added."""

    name: str
    source: Literal["catalog", "registry"]
    description: str


class FoundServers(msgspec.Struct, frozen=True):
    """What a search found."""

    servers: tuple[FoundServer, ...]
    trouble: str = ""
    """Why the registry was not searched."""


class AdditionInput(msgspec.Struct, frozen=True, kw_only=True):
    """A value that only the person knows."""

    name: str
    description: str = ""
    secret: bool = False
    required: bool = True
    default: str | None = None
    choices: tuple[str, ...] = ()


class AdditionReview(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what a server can do, as `multitap add` shows it."""

    name: str
    lines: tuple[str, ...]
    question: str
    digest: str
    """A digest of the lines: what is agreed to has to be what was shown."""
    inputs: tuple[AdditionInput, ...] = ()
    is_own: bool = False
    """Whether the person describes it, as by typing an address: others wrote the rest."""


class NewServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server to add: a name of the catalog or the registry, or an address; never a command."""

    source: Literal["catalog", "registry", "url"]
    what: str
    name: str = ""
    """Its name here; empty for the usual one."""
    answers: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """By the names of its inputs."""

    def __repr__(self) -> str:
        return f"NewServer({self.what!r})"  # answers may be secret


class EditRequest(msgspec.Struct, frozen=True):
    """A change that another process makes."""

    method: str
    """Of `ConfigEditor`."""
    arguments: Mapping[str, Any]


class EditReply(msgspec.Struct, frozen=True):
    """What came of it."""

    result: Any = None
    error: str = ""
    hint: str | None = None


class ConfigEditor:
    """Changes the files of a gateway as the commands do, so that `multitap undo` reverts it.

    Every method may raise a `MultitapError`; then nothing was written. Here, all of them do.
    """

    async def switch(self, server: str, *, on: bool) -> None:
        """Enable or disable a server."""
        _refuse(server, on)

    async def remove(self, server: str) -> None:
        """Remove a server."""
        _refuse(server)

    async def rename(self, server: str, name: str) -> None:
        """Rename a server."""
        _refuse(server, name)

    async def change_tool(
        self, server: str, tool: str, name: str | None, description: str | None
    ) -> None:
        """Rename or describe a tool; None changes nothing, and "" restores the server's own."""
        _refuse(server, tool, name, description)

    async def search(self, text: str) -> FoundServers:
        """Servers of the catalog and the registry."""
        _refuse(text)

    async def review_new(self, new: NewServer) -> AdditionReview:
        """What adding a server would do."""
        _refuse(new)

    async def add(self, new: NewServer, digest: str) -> str:
        """Add a server whose review had this digest; returns its name.

        One that the person describes is connected to once, and added if it works. What others
        describe is written, but disabled.
        """
        _refuse(new, digest)

    async def review_disabled(self, server: str) -> AdditionReview:
        """What enabling a server would do."""
        _refuse(server)

    async def enable_reviewed(self, server: str, digest: str) -> None:
        """Start it once, and enable it if it works."""
        _refuse(server, digest)


def _refuse(*_: object) -> NoReturn:
    raise MultitapError("this gateway does not change files", hint="use `multitap` in a terminal")
