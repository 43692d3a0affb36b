"""The messages on the control socket: one JSON line in, JSON lines out."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Raw

from multitap.config import Loaded
from multitap.errors import counted
from multitap.events import Snapshot
from multitap.hub.metrics import Stats

MAX_QUESTION = 8 * 1024 * 1024
"""Bytes of a question, which may contain the arguments of a call."""


class Question(msgspec.Struct, frozen=True, tag_field="ask"):
    """One line of a command."""


class AskAbout(Question, frozen=True, tag="about"):
    """Who are you? Answered by `About`."""


class AskState(Question, frozen=True, tag="snapshot"):
    """How are the servers? Answered by `GatewayState`."""


class AskTools(Question, frozen=True, tag="tools"):
    """What is there to call? Answered by a list of `ToolLine`."""


class AskFigures(Question, frozen=True, tag="stats"):
    """How often, how fast, for whom? Answered by `Figures`."""


class AskReload(Question, frozen=True, tag="reload"):
    """Reload the files. Answered by `ReloadReport`."""


class AskRestart(Question, frozen=True, tag="restart"):
    """Restart a server. Answered by null, at once."""

    server: str


class AskEvents(Question, frozen=True, tag="events"):
    """Stream events until I leave. Answered by `About`, then an `Activity` for each."""

    server: str | None = None


class AskTrace(Question, frozen=True, tag="trace"):
    """Stream the messages to and from a server. Answered by `About`, then `TracedMessage`s."""

    server: str


class AskResources(Question, frozen=True, tag="resources"):
    """What is there to read? Answered by a list of `ResourceLine`."""


class AskPrompts(Question, frozen=True, tag="prompts"):
    """Which prompts are there? Answered by a list of `PromptLine`."""


class AskCalls(Question, frozen=True, tag="calls"):
    """Which calls were made? Answered by a `Page` of `CallRecord`, newest first."""

    filter: str = ""
    """In the syntax of `RecordFilter`."""
    limit: int = 100
    cursor: str | None = None


class AskLog(Question, frozen=True, tag="log"):
    """What happened? Answered by a `Page` of `Activity`, newest first, calls included."""

    filter: str = ""
    limit: int = 100
    cursor: str | None = None


class AskPulse(Question, frozen=True, tag="pulse"):
    """What is new since I last asked? Answered by a `Pulse`; meant to be asked many times a second.

    It has the calls after `seen`, at most `most` of them; the counters are always exact.
    """

    seen: int = 0
    most: int = 100


class AskPulses(Question, frozen=True, tag="pulses"):
    """Stream what is new until I leave. Answered by a `Pulse` for every change.

    One with a `GatewayOverview` is sent every second, so that both sides notice if the other is
    gone. Like `AskOpenQuestions`, it shows that a person is present.
    """

    seen: int = 0
    most: int = 100
    every: float = 0.1
    """The least seconds between two pulses."""


class AskExchange(Question, frozen=True, tag="exchange"):
    """What did a call send and receive? Answered by an `Exchange`; null: it is not kept."""

    id: str


class AskHistory(Question, frozen=True, tag="history"):
    """How did calls go over the last `span` seconds? Answered by a `CallHistory`."""

    span: float = 900.0


class AskStderr(Question, frozen=True, tag="stderr"):
    """What did a server write to its standard error? Answered by its last lines, as one text."""

    server: str


class AskTrustReview(Question, frozen=True, tag="trust_review"):
    """What would untrusted projects do? Answered by a text; trusting is left to `multitap trust`.

    A page in a browser shows it. Whoever can reach the gateway must not be able to make it run
    something new.
    """


class AskAccess(Question, frozen=True, tag="access"):
    """Which tokens are there, and what waits for a review? Answered by an `AccessOverview`."""


class AskAudit(Question, frozen=True, tag="audit"):
    """Who did what? Answered by an `AuditPage`, newest first."""

    filter: str = ""
    limit: int = 100


class AskCreateToken(Question, frozen=True, tag="create_token"):
    """Create a token. Answered by a `NewTokenText`."""

    name: str
    profile: str | None = None
    allow: tuple[str, ...] = ()
    lasts: float | None = None
    """Seconds until it expires."""
    rate: str | None = None


class AskRevokeToken(Question, frozen=True, tag="revoke_token"):
    """Revoke a token by its id, or all those of a name. Answered by the list of their ids."""

    name: str


class AskAcceptPins(Question, frozen=True, tag="accept_pins"):
    """Pin what a `PinReview` showed. Answered by null."""

    server: str
    digest: str


class AskOpenQuestions(Question, frozen=True, tag="questions"):
    """What waits for a person? Answered by a list of `OpenQuestion`.

    Asking shows that a person is present: for `ATTENTION` seconds, questions that no client can
    answer wait for them.
    """


class AskReply(Question, frozen=True, tag="reply"):
    """The person's answer to an `OpenQuestion`. Answered by whether it was still open."""

    number: int
    result: Raw = Raw(b"null")
    error: str | None = None


class AskSwitch(Question, frozen=True, tag="switch"):
    """Enable or disable a server in its file. Answered by a `ReloadReport`."""

    server: str
    on: bool


class AskConsole(Question, frozen=True, tag="console"):
    """Where is the web console? Answered by a link that opens it once."""


class AskTool(Question, frozen=True, tag="tool"):
    """What does this tool take? Answered by a `ToolLine`, once its server is up."""

    name: str
    timeout: float | None = None


class AskPrompt(Question, frozen=True, tag="prompt"):
    """What does this prompt take? Answered by a `PromptLine`, once its server is up."""

    name: str
    timeout: float | None = None


class AskCall(Question, frozen=True, tag="call"):
    """Call a tool. Answered by a `Delivery`; to each `ServerQuestion` before it, a reply is due."""

    name: str
    arguments: Raw = Raw(b"{}")
    timeout: float | None = None
    person: bool = False
    """Whether a person can answer questions of the server."""


class AskRead(Question, frozen=True, tag="read"):
    """Read a resource. Answered by a `Delivery`."""

    uri: str
    server: str | None = None
    timeout: float | None = None


class AskFill(Question, frozen=True, tag="fill"):
    """Fill in a prompt. Answered by a `Delivery`."""

    name: str
    arguments: dict[str, str]
    timeout: float | None = None


class AskLogin(Question, frozen=True, tag="login"):
    """Log in to a server. Answered by an empty `Delivery`.

    Before that, a `ServerQuestion` has the address of the page to visit.
    """

    server: str
    timeout: float | None = None


GatewayAction = AskTool | AskPrompt | AskCall | AskRead | AskFill | AskLogin
"""Requests that a server works on. Lines with `more` precede the answer: progress, or null."""
Recall = AskPulse | AskCalls | AskLog | AskExchange | AskHistory | AskStderr | AskTrustReview
"""Questions that are answered from what is on disk."""
AccessQuestion = (
    AskAccess
    | AskAudit
    | AskCreateToken
    | AskRevokeToken
    | AskAcceptPins
    | AskOpenQuestions
    | AskReply
)
"""Questions of the Access place."""
Quick = (
    AskAbout
    | AskState
    | AskTools
    | AskResources
    | AskPrompts
    | AskFigures
    | AskReload
    | AskRestart
    | AskSwitch
    | AskConsole
    | Recall
    | AccessQuestion
)
"""Questions that the gateway answers by itself."""
AnyQuestion = Quick | AskEvents | AskPulses | AskTrace | GatewayAction

Kind = Literal["unknown", "arguments", "configuration", "unavailable", "denied", "failed"]
"""Kinds of errors."""


class ControlAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a gateway: the answer, or why there is none."""

    ok: Raw = Raw(b"null")
    error: str | None = None
    hint: str | None = None
    kind: Kind = "failed"
    server: str | None = None
    """The server that the error comes from."""
    more: bool = False
    """Whether more lines follow; `ok` is then the latest `ProgressStep`, or null."""
    question: "ServerQuestion | None" = None
    """A question of a server during the call."""


class ServerQuestion(msgspec.Struct, frozen=True):
    """A question of a server during a call."""

    number: int
    server: str
    method: str
    params: Raw


class CommandReply(msgspec.Struct, frozen=True):
    """A line that a command sends during its call: the answer to a question, or an error."""

    number: int
    result: Raw = Raw(b"null")
    error: str | None = None


class ProgressStep(msgspec.Struct, frozen=True):
    """How far a call has come."""

    done: float
    total: float | None = None
    message: str | None = None


class Delivery(msgspec.Struct, frozen=True):
    """A result follows unchanged: this many bytes of JSON, which may contain line breaks."""

    size: int
    server: str = ""
    tool: str = ""
    """The server's own name for it."""
    cap: int = 0
    """Characters after which its text is cut."""


class About(msgspec.Struct, frozen=True):
    """One gateway."""

    pid: int
    version: str
    started: float
    """Seconds since the epoch."""
    files: tuple[str, ...] | None
    """Its configuration files; None if it has none."""
    url: str | None = None
    """Its address for clients; None if it serves its own pipes."""


class GatewayState(msgspec.Struct, frozen=True):
    """The state of all servers at one moment."""

    snapshot: Snapshot
    asleep: tuple[str, ...] = ()
    """Servers that start with the first call."""
    degraded: tuple[str, ...] = ()
    """What is degraded, in words."""


class ToolLine(msgspec.Struct, frozen=True, rename="camel"):
    """One tool."""

    name: str
    server: str
    tool: str
    """The server's own name for it."""
    title: str | None
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None
    annotations: Mapping[str, Any]


class ResourceLine(msgspec.Struct, frozen=True):
    """One resource or template."""

    uri: str
    server: str
    definition: Mapping[str, Any]


class PromptLine(msgspec.Struct, frozen=True):
    """One prompt."""

    name: str
    server: str
    definition: Mapping[str, Any]


class ServerFigures(msgspec.Struct, frozen=True):
    """One server's calls since the gateway started."""

    total: Stats
    tools: dict[str, Stats]


class ClientFigures(msgspec.Struct, frozen=True):
    """One connected client; stateless clients, which connect for each call, are not listed."""

    name: str
    version: str
    protocol_version: str
    profile: str | None = None
    requests: int = 0
    """Requests in progress."""
    principal: str = ""
    """The name in its credentials."""
    capabilities: tuple[str, ...] = ()
    """The kinds of questions it can answer."""


class Figures(msgspec.Struct, frozen=True):
    """Calls and clients of a gateway since it started."""

    servers: dict[str, ServerFigures]
    clients: tuple[ClientFigures, ...]
    sessions: int
    waiting: int
    """Calls whose client is being asked something."""
    private_links: int
    """Sessions with servers that belong to one client."""
    missing_workers: int = 0
    """Workers that did not answer in time: what went through them is not counted here."""

    @property
    def gap(self) -> str:
        """What is not counted, in words; empty if everything is."""
        if not self.missing_workers:
            return ""
        return (
            f"{counted(self.missing_workers, 'worker')} did not answer in time;"
            " calls, clients and sessions there are not counted"
        )


class ReloadReport(msgspec.Struct, frozen=True):
    """The outcome of a reload."""

    taken: bool
    """Whether the new files are in use; if not, nothing has changed."""
    plan: str = ""
    problems: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Servers that keep their old configuration, because the new one cannot be used."""
    missing_workers: int = 0
    """Workers that have not confirmed the reload."""

    @property
    def gap(self) -> str:
        """The unconfirmed workers, in words; empty if all have confirmed it."""
        if not self.missing_workers:
            return ""
        return f"{counted(self.missing_workers, 'worker')} did not confirm the reload: reload again"


def files_of(loaded: Loaded) -> tuple[str, ...]:
    """The files of a configuration, by which a command finds the gateway that serves them."""
    return loaded.files
