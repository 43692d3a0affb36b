"""What the Access place of a screen shows: tokens, changed tools, the audit log."""

from typing import Literal

import msgspec

from multitap.store.audit_records import AuditRecord


class TokenLine(msgspec.Struct, frozen=True):
    """One token, without what is secret about it."""

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
    """Lines that went (`-`), came (`+`) or stayed, with hidden characters made visible."""
    findings: tuple[str, ...] = ()
    """What looks like an attack."""


class PinReview(msgspec.Struct, frozen=True):
    """One server whose offers wait for a review."""

    server: str
    digest: str
    """Of all that is shown: `AskAcceptPins` accepts this, and nothing that came later."""
    package: str
    """What its package was and is, where that changed."""
    tools: tuple[PinnedTool, ...]


class AccessPicture(msgspec.Struct, frozen=True):
    """Who may come in, and what waits for a person."""

    tokens: tuple[TokenLine, ...] = ()
    pins: tuple[PinReview, ...] = ()
    trouble: tuple[str, ...] = ()
    """Files that cannot be read, in words."""


class NewTokenText(msgspec.Struct, frozen=True):
    """A token that was just created; this is the only time that anybody sees it."""

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
        """Everybody that the entry names."""
        one = self.record
        return " ".join(filter(None, (one.principal, one.client, one.agent)))

    @property
    def what(self) -> str:
        """What was done, and to what."""
        one = self.record
        subject = " ".join(filter(None, (one.server, one.tool or one.subject)))
        return f"{one.kind}: {subject}" if subject else one.kind


class AuditPage(msgspec.Struct, frozen=True):
    """Some entries, newest first."""

    records: tuple[AuditRow, ...]
