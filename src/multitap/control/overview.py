"""What screens show of a gateway: its counters, its state, and who has access."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from multitap.control.messages import About, ClientFigures, Figures, GatewayState
from multitap.gateway.metrics import FAMILIES
from multitap.gateway.person_questions import OpenQuestion
from multitap.hub.metrics import Metrics, MetricsRow
from multitap.store.audit_log import AuditRecord
from multitap.store.tables import CallRecord
from multitap.telemetry.metrics import Samples, add_up


class GatewayOverview(msgspec.Struct, frozen=True):
    """One gateway at one moment."""

    about: About
    state: GatewayState
    figures: Figures
    questions: tuple[OpenQuestion, ...]
    """Questions that wait for a person."""


class Pulse(msgspec.Struct, frozen=True, omit_defaults=True):
    """The counters of a gateway, and its latest calls."""

    made: int
    """Calls since it started."""
    records: tuple[CallRecord, ...]
    """The latest of them, oldest first."""
    revision: int
    """The revision of the catalog."""
    in_flight: int
    """Calls in progress."""
    overview: GatewayOverview | None = None
    """Everything else; sent once a second."""


class WorkerFigures(msgspec.Struct, frozen=True):
    """Calls and clients of one worker since it started."""

    calls: dict[str, dict[str, MetricsRow]]
    clients: tuple[ClientFigures, ...]
    sessions: frozenset[str]
    """Their names, because two workers may serve the same session."""
    waiting: int
    private_links: int
    samples: Samples
    """What else monitoring reads."""
    missing: int = 0
    """Workers that did not answer in time, and are not counted."""

    @property
    def metrics(self) -> Metrics:
        return Metrics.of(self.calls)


def together(workers: Iterable[WorkerFigures], missing: int) -> WorkerFigures:
    """The figures of several workers as those of one gateway."""
    workers = tuple(workers)
    return WorkerFigures(
        Metrics.of(*(worker.calls for worker in workers)).rows,
        tuple(client for worker in workers for client in worker.clients),
        frozenset[str]().union(*(worker.sessions for worker in workers)),
        sum(worker.waiting for worker in workers),
        sum(worker.private_links for worker in workers),
        add_up(FAMILIES, [worker.samples for worker in workers]),
        missing,
    )


class TokenLine(msgspec.Struct, frozen=True):
    """One token, without its secret."""

    id: str
    name: str
    state: str
    """`active`, `expired` or `revoked`."""
    created: float
    profile: str | None = None
    allow: tuple[str, ...] = ()
    rate: str | None = None
    expires: float | None = None
    last_use: float | None = None
    is_console: bool = False
    """Whether it opens the web console, and nothing else."""
    accounts: tuple[str, ...] = ()
    """The servers at which its holder has an account of their own."""


class PersonLine(msgspec.Struct, frozen=True):
    """Somebody who came with a token of an identity provider."""

    label: str
    """The provider's name and the subject."""
    name: str
    state: str
    """`active` or `revoked`."""
    rules: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    last_use: float | None = None
    accounts: tuple[str, ...] = ()
    """The servers at which they have an account of their own."""


class PinnedTool(msgspec.Struct, frozen=True):
    """One tool that differs from what is pinned."""

    tool: str
    """The server's own name for it."""
    change: Literal["changed", "new"]
    difference: tuple[str, ...]
    """Removed (`-`), added (`+`) and unchanged lines, with hidden characters made visible."""
    findings: tuple[str, ...] = ()
    """Findings of the scanner."""


class PinReview(msgspec.Struct, frozen=True):
    """One server whose offers wait for a review."""

    server: str
    digest: str
    """A digest of what is shown: `accept_pins` accepts exactly this, no later change."""
    package: str
    """The pinned and the current package, if they differ."""
    tools: tuple[PinnedTool, ...]


class AccessOverview(msgspec.Struct, frozen=True):
    """Tokens, people, and changed servers that wait for a review."""

    tokens: tuple[TokenLine, ...] = ()
    pins: tuple[PinReview, ...] = ()
    trouble: tuple[str, ...] = ()
    """Files that cannot be read."""
    people: tuple[PersonLine, ...] = ()


class NewTokenText(msgspec.Struct, frozen=True):
    """A token that was just created; its text is shown only this once."""

    id: str
    token: str

    def __repr__(self) -> str:
        return f"<NewTokenText {self.id}>"


class AuditRow(msgspec.Struct, frozen=True):
    """One entry of the audit log."""

    entry: int
    record: AuditRecord

    @property
    def who(self) -> str:
        """The caller in words: principal, client and agent."""
        record = self.record
        return " ".join(filter(None, (record.principal, record.client, record.agent)))

    @property
    def what(self) -> str:
        """The action and its object."""
        record = self.record
        subject = " ".join(filter(None, (record.server, record.tool or record.subject)))
        return f"{record.kind}: {subject}" if subject else record.kind


class AuditPage(msgspec.Struct, frozen=True):
    """Some entries, newest first."""

    records: tuple[AuditRow, ...]
