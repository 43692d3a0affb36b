"""What the Access place of a screen shows: tokens, changed tools, the audit log."""

from typing import Literal

import msgspec

from multitap.store.audit_records import AuditRecord


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
    """A digest of what is shown: `AskAcceptPins` accepts exactly this, no later change."""
    package: str
    """The pinned and the current package, if they differ."""
    tools: tuple[PinnedTool, ...]


class AccessOverview(msgspec.Struct, frozen=True):
    """Tokens, and changed servers that wait for a review."""

    tokens: tuple[TokenLine, ...] = ()
    pins: tuple[PinReview, ...] = ()
    trouble: tuple[str, ...] = ()
    """Files that cannot be read, in words."""


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
        one = self.record
        return " ".join(filter(None, (one.principal, one.client, one.agent)))

    @property
    def what(self) -> str:
        """The action and its object, in words."""
        one = self.record
        subject = " ".join(filter(None, (one.server, one.tool or one.subject)))
        return f"{one.kind}: {subject}" if subject else one.kind


class AuditPage(msgspec.Struct, frozen=True):
    """Some entries, newest first."""

    records: tuple[AuditRow, ...]
