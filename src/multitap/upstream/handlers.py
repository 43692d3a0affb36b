"""The host's callbacks for what servers ask: elicitation, sampling, roots."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Raw

from multitap.records import dataclass

if TYPE_CHECKING:
    import mcp_types as types


@dataclass(frozen=True, slots=True)
class RequestOrigin:
    """The server that sends a request, and the call it belongs to."""

    server: str
    call: object | None = None
    """The context of the call it belongs to; `SEVERAL` if that is not certain."""


Elicit = Callable[
    [RequestOrigin, "types.ElicitRequestParams"], Awaitable["types.ElicitResult | types.ErrorData"]
]
Sample = Callable[
    [RequestOrigin, "types.CreateMessageRequestParams"],
    Awaitable["types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData"],
]
Roots = Callable[[RequestOrigin], Awaitable["types.ListRootsResult | types.ErrorData"]]
Said = Callable[[str, str, Raw], None]
"""Called with the server, method and parameters of a notification; must not block."""
Login = Callable[[RequestOrigin, str], Awaitable[str]]
"""Sends a person to a URL; returns the URL that they were redirected to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermitRequest:
    """A call that the policy asks a person about."""

    server: str
    tool: str
    """The server's own name for it."""
    name: str
    """The name that callers use."""
    arguments: Mapping[str, Any]
    """Redacted and shortened."""
    rule: str
    """The rule's place in a file; empty if it has none."""
    reason: str | None
    """The reason that the rule gives."""
    call: object | None = None
    """The context of the call."""


class Screen(Protocol):
    """Checks a server's question, and returns it in the form that may be asked."""

    def __call__(
        self, server: str, method: str, params: Mapping[str, Any], *, for_client: bool
    ) -> Mapping[str, Any]:
        """See `Questions.screen`."""
        ...


Permission = Literal["once", "always", "no"]
"""`always`: for this tool, by this rule, until the session ends."""
Permit = Callable[[PermitRequest], Awaitable[Permission | None]]
"""Asks a person; None if nobody can be asked."""


@dataclass(frozen=True, slots=True)
class Handlers:
    """The host's handlers for requests of servers; requests without a handler are refused."""

    elicit: Elicit | None = None
    sample: Sample | None = None
    sample_tools: bool = False
    """Whether `sample` lets the model use tools of the server that asks."""
    sample_context: bool = False
    """Whether `sample` can include context from the server that asks, or from others."""
    roots: Roots | None = None
    screen: Screen | None = None
    """Checks what servers ask before anyone else sees it; the hub provides one."""
    permit: Permit | None = None
    """Asks a person about calls if the policy says `ask`; not a capability."""
    said: Said | None = None
    """Receives notifications that belong to no call; not a capability."""
    login: Login | None = None
    """Sends a person to log in when a server requires it; not a capability."""
