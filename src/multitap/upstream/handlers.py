"""The host's callbacks for what servers ask: elicitation, sampling, roots."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Raw

from multitap.records import dataclass

if TYPE_CHECKING:
    import mcp_types as types


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """Where a request of a server comes from."""

    server: str
    call: object | None = None
    """The context of the call it belongs to; `SEVERAL` where that is not certain."""


Elicit = Callable[
    [RequestOrigin, "types.ElicitRequestParams"], Awaitable["types.ElicitResult | types.ErrorData"]
]
Sample = Callable[
    [RequestOrigin, "types.CreateMessageRequestParams"],
    Awaitable["types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData"],
]
Roots = Callable[[RequestOrigin], Awaitable["types.ListRootsResult | types.ErrorData"]]
Said = Callable[[str, str, Raw], None]
"""Takes the server, the method and the parameters of a notification; must not block."""
Login = Callable[[RequestOrigin, str], Awaitable[str]]
"""Sends a person to the address; returns the one that they were sent back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitRequest:
    """A call that the policy asks a person about."""

    server: str
    tool: str
    """By the server's own name."""
    name: str
    """By the name that callers use."""
    arguments: Mapping[str, Any]
    """Without secrets, and shortened."""
    rule: str
    """Where the rule is written; empty if in no file."""
    reason: str | None
    """The rule's own."""
    call: object | None = None
    """The context of the call."""


class Screen(Protocol):
    """The question as it may be asked: of which server, by which method, with which parameters."""

    def __call__(
        self, server: str, method: str, params: Mapping[str, Any], *, for_client: bool
    ) -> Mapping[str, Any]:
        """See `Questions.screen`."""
        ...


Permission = Literal["once", "always", "no"]
"""`always`: for this tool, by this rule, until the session ends."""
Permit = Callable[[PermitRequest], Awaitable[Permission | None]]
"""Asks a person; None: nobody can be asked."""


@dataclass(frozen=True, slots=True)
class Handlers:
    """The host's handlers for requests of servers; requests without a handler are refused."""

    elicit: Elicit | None = None
    sample: Sample | None = None
    sample_tools: bool = False
    """Whether `sample` lets the model use tools of the server that asks."""
    sample_context: bool = False
    """Whether `sample` knows what else was said, to the server that asks or to others."""
    roots: Roots | None = None
    screen: Screen | None = None
    """Looks at what servers ask before anybody else does; the hub has one."""
    permit: Permit | None = None
    """Asks a person about calls, where the policy says `ask`; not announced."""
    said: Said | None = None
    """Told what a server says that belongs to no call; not announced."""
    login: Login | None = None
    """Not announced: it is what happens when a server wants credentials that it can give."""
