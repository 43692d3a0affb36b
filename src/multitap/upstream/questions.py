"""Whose call it is, and who answers what servers ask: elicitation, sampling, roots."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from msgspec import Raw

from multitap.principal import Principal
from multitap.wire.wire import OnProgress, OwnedCall

if TYPE_CHECKING:
    import mcp_types as types


class OnBehalfOf(Protocol):
    """A client whose request is forwarded; the server learns its capabilities."""

    @property
    def capabilities(self) -> Raw:
        """Its capabilities, as JSON."""
        ...

    @property
    def log_level(self) -> str | None:
        """The lowest level of log messages that it wants; None: no messages."""
        ...

    @property
    def owner(self) -> object:
        """Its identity, for servers that do not say which call a question belongs to."""
        ...

    @property
    def slot_holder(self) -> object:
        """Its identity among the callers of one server; None if there are no others."""
        ...

    @property
    def caller(self) -> str:
        """Its name, for people."""
        ...

    @property
    def principal(self) -> Principal:
        """Who asks, proven by its credentials or its connection."""
        ...

    @property
    def holder(self) -> str:
        """The key of its principal, or its address if that has none."""
        ...

    @property
    def drives_rounds(self) -> bool:
        """Whether it answers what a stateless server asks back by itself."""
        ...

    @property
    def can_be_asked_now(self) -> bool:
        """Whether it can be asked while its request is in progress."""
        ...

    def on_notification(self, method: str, params: Raw) -> None:
        """Receive a notification that belongs to its request; must not block."""
        ...

    async def ask(self, method: str, params: Mapping[str, Any]) -> Raw:
        """Forward a request of the server to it.

        Raises:
            RpcError: It refuses, or cannot be asked.
        """
        ...


OnQuestion = Callable[[str, Mapping[str, Any]], Awaitable[Raw]]
"""Receives the method and parameters of a question; returns the result, or raises `RpcError`."""


class CallContext(msgspec.Struct, OwnedCall, frozen=True, kw_only=True):
    """The caller of a call, and its limits."""

    agent_id: str | None = None
    session_id: str | None = None
    on_progress: OnProgress | None = None
    """Called with the tool's progress, which also restarts `timeout`."""
    timeout: float | None = None
    """Seconds to wait; by default, the server's setting."""
    hard_timeout: float | None = None
    """Seconds after which the call ends despite progress; by default, the server's setting."""
    approved: bool = False
    """Whether a person has already approved what the policy asks about."""
    client: OnBehalfOf | None = None
    """The client whose request it is, if it is not the host's own."""
    on_question: OnQuestion | None = None
    """Answers what the server asks during the call, in place of the hub's handlers, if
    `Handlers.callers_answer_within` is set."""
    on_task: Callable[[str], Awaitable[bool]] | None = None
    """Awaited with the server's id of the task that a call became. If it returns True, the caller
    follows the task itself, else the call waits for its end. None: a task is made only if the
    server does nothing else."""
    outlives_us: Callable[[], bool] | None = None
    """Whether the task goes on if the wait for it is cancelled: somebody will follow it again."""

    @property
    def owner(self) -> object:
        """Who may answer the server's questions about any of their calls."""
        return self if self.client is None else self.client.owner


NOBODY = CallContext()
"""The host itself, within the configured limits."""


def slot_holder_of(call: object | None) -> object:
    """The holder whose share of a server's slots a call uses; None for the host itself."""
    return (
        None
        if not isinstance(call, CallContext) or call.client is None
        else call.client.slot_holder
    )


def client_of(call: object | None) -> OnBehalfOf | None:
    """The client that a server's message belongs to, if that is certain."""
    return call.client if isinstance(call, CallContext) else None


class RequestOrigin(msgspec.Struct, frozen=True):
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
AskCustom = Callable[[RequestOrigin, str, Raw], Awaitable[Raw]]
"""Answers a request that MCP does not define; raises `RpcError` if nobody can."""
OnUnowned = Callable[[str, str, Raw], None]
"""Called with the server, method and parameters of a notification; must not block."""
Login = Callable[[RequestOrigin, str], Awaitable[str]]
"""Sends a person to a URL; returns the URL that they were redirected to."""


class PermitRequest(msgspec.Struct, frozen=True, kw_only=True):
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


class Handlers(msgspec.Struct, frozen=True, kw_only=True):
    """The host's handlers for requests of servers; requests without a handler are refused."""

    elicit: Elicit | None = None
    sample: Sample | None = None
    sample_tools: bool = False
    """Whether `sample` lets the model use tools of the server that asks."""
    sample_context: bool = False
    """Whether `sample` can include context from the server that asks, or from others."""
    roots: Roots | None = None
    callers_answer_within: float | None = None
    """Seconds for which elicitation and sampling wait for the caller whose call it is, before they
    are refused: `StartedCall.questions`, `CallContext.on_question`. None: callers are not asked.
    Servers are told of both, whether or not `elicit` and `sample` are set."""
    screen: Screen | None = None
    """Checks what servers ask before anyone else sees it; the hub provides one."""
    permit: Permit | None = None
    """Asks a person about calls if the policy says `ask`; not a capability."""
    extensions: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Capabilities to declare besides MCP's own: `extensions`, `experimental`."""
    custom: AskCustom | None = None
    """Answers requests that MCP does not define; not a capability."""
    said: OnUnowned | None = None
    """Receives notifications that belong to no call; not a capability."""
    login: Login | None = None
    """Sends a person to log in when a server requires it; not a capability."""
