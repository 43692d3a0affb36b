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
"""Bytes of a question: a call has arguments."""


class Question(msgspec.Struct, frozen=True, tag_field="ask"):
    """One line of a command."""


class AskAbout(Question, frozen=True, tag="about"):
    """Who are you? Answered by `About`."""


class AskPicture(Question, frozen=True, tag="snapshot"):
    """How are the servers? Answered by `GatewayPicture`."""


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
    """Tell what happens until I leave. Answered by `About`, then by a `Activity` each."""

    server: str | None = None


class AskTrace(Question, frozen=True, tag="trace"):
    """Tell what passes between you and a server. Answered by `About`, then `TracedMessage`s."""

    server: str


class AskResources(Question, frozen=True, tag="resources"):
    """What is there to read? Answered by a list of `ResourceLine`."""


class AskPrompts(Question, frozen=True, tag="prompts"):
    """Which prompts are there? Answered by a list of `PromptLine`."""


class AskCalls(Question, frozen=True, tag="calls"):
    """Which calls were made? Answered by a `Page` of `CallRecord`, newest first."""

    filter: str = ""
    """In the language of `RecordFilter`."""
    limit: int = 100
    cursor: str | None = None


class AskLog(Question, frozen=True, tag="log"):
    """What happened? Answered by a `Page` of `Activity`, newest first, calls included."""

    filter: str = ""
    limit: int = 100
    cursor: str | None = None


class AskPulse(Question, frozen=True, tag="pulse"):
    """What is new since I last asked? Answered by a `Pulse`; meant to be asked many times a second.

    The calls after `seen` are in it, but never more than `most`: the counters are exact anyway.
    """

    seen: int = 0
    most: int = 100


class AskPulses(Question, frozen=True, tag="pulses"):
    """Keep telling me what is new until I leave. Answered by a `Pulse` whenever there is anything.

    One with a `GatewayOverview` comes every second, so that both sides notice if the other is
    gone. Like `AskOpenQuestions`, it says that a person is there.
    """

    seen: int = 0
    most: int = 100
    every: float = 0.1
    """Seconds between two of them, at least."""


class AskExchange(Question, frozen=True, tag="exchange"):
    """What did a call send and receive? Answered by an `Exchange`; null: it is not kept."""

    id: str


class AskHistory(Question, frozen=True, tag="history"):
    """How did calls go over the last `span` seconds? Answered by a `CallHistory`."""

    span: float = 900.0


class AskStderr(Question, frozen=True, tag="stderr"):
    """What did a server write to its standard error? Answered by its last lines, as one text."""

    server: str


class AskAccess(Question, frozen=True, tag="access"):
    """Who may come in, and what waits for a review? Answered by an `AccessPicture`."""


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

    Asking says that a person is there: for `PersonQuestions.ATTENTION` seconds, questions that no
    client can answer wait for them.
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
    """Whether somebody is there to answer what the server asks."""


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
    """Log in to a server. Answered by a `Delivery` of nothing.

    Before that, a `ServerQuestion` has the address of the page to visit.
    """

    server: str
    timeout: float | None = None


GatewayAction = AskTool | AskPrompt | AskCall | AskRead | AskFill | AskLogin
"""What may take a server's time. Lines with `more` come before the answer: progress, or nothing."""
Recall = AskPulse | AskCalls | AskLog | AskExchange | AskHistory | AskStderr
"""What is answered from what was written down."""
AccessQuestion = (
    AskAccess
    | AskAudit
    | AskCreateToken
    | AskRevokeToken
    | AskAcceptPins
    | AskOpenQuestions
    | AskReply
)
"""What the Access place is about."""
Quick = (
    AskAbout
    | AskPicture
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
"""What the gateway answers by itself."""
AnyQuestion = Quick | AskEvents | AskPulses | AskTrace | GatewayAction

Kind = Literal["unknown", "arguments", "configuration", "unavailable", "denied", "failed"]
"""What kind of error it is."""


class ControlAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a gateway: the answer, or why there is none."""

    ok: Raw = Raw(b"null")
    error: str | None = None
    hint: str | None = None
    kind: Kind = "failed"
    server: str | None = None
    """Whose error it is."""
    more: bool = False
    """Whether it is still being worked on; `ok` is the latest `ProgressStep` then, or null."""
    question: "ServerQuestion | None" = None
    """What a server asks in the meantime."""


class ServerQuestion(msgspec.Struct, frozen=True):
    """What a server asks during a call."""

    number: int
    server: str
    method: str
    params: Raw


class CommandReply(msgspec.Struct, frozen=True):
    """A line of a command in the middle of its call: the answer to a question, or why not."""

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
    """What the server calls it."""
    cap: int = 0
    """Characters after which its text is cut."""


class About(msgspec.Struct, frozen=True):
    """One gateway."""

    pid: int
    version: str
    started: float
    """Seconds since the epoch."""
    files: tuple[str, ...] | None
    """What it is configured by; None: by no files."""
    url: str | None = None
    """Where clients reach it; None: on its own pipes."""


class GatewayPicture(msgspec.Struct, frozen=True):
    """All servers at one moment."""

    snapshot: Snapshot
    asleep: tuple[str, ...] = ()
    """Those that start with the first call."""
    degraded: tuple[str, ...] = ()
    """What keeps the gateway from doing all it should, in words."""


class ToolLine(msgspec.Struct, frozen=True, rename="camel"):
    """One tool."""

    name: str
    server: str
    tool: str
    """What the server calls it."""
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
    """One client that has shaken hands; those of the stateless era come and go with each call."""

    name: str
    version: str
    protocol_version: str
    profile: str | None = None
    requests: int = 0
    """Under way."""
    principal: str = ""
    """Whom its credentials name."""
    capabilities: tuple[str, ...] = ()
    """What it can be asked."""


class Figures(msgspec.Struct, frozen=True):
    """What went through a gateway since it started, and for whom."""

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
            f"{counted(self.missing_workers, 'worker')} did not answer in time:"
            " their calls, clients and sessions are not counted"
        )


class ReloadReport(msgspec.Struct, frozen=True):
    """The outcome of a reload."""

    taken: bool
    """If not, everything goes on as it was."""
    plan: str = ""
    problems: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Servers that go on as they were, because what is written about them cannot be used."""
    missing_workers: int = 0
    """Workers that have not confirmed the reload."""

    @property
    def gap(self) -> str:
        """Where it may not have happened, in words; empty if it is confirmed everywhere."""
        if not self.missing_workers:
            return ""
        return f"{counted(self.missing_workers, 'worker')} did not confirm the reload: reload again"


def files_of(loaded: Loaded) -> tuple[str, ...]:
    """The files of a configuration; a command and a gateway with the same ones mean the same."""
    return loaded.files
