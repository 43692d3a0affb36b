"""Answers questions about access: tokens, changed tools, open questions, the audit log."""

import sqlite3
import time
from collections.abc import Iterable
from hashlib import sha256
from itertools import islice
from typing import Any, assert_never

from anyio import to_thread

from multitap.config.search import state_directory
from multitap.errors import BadArguments, MultitapError, UnknownName
from multitap.gateway.fronts import control_messages as protocol
from multitap.gateway.fronts.access_messages import (
    AccessOverview,
    AuditPage,
    AuditRow,
    NewTokenText,
    PinnedTool,
    PinReview,
    TokenLine,
)
from multitap.gateway.gateway import Gateway
from multitap.http.server.rate_limit import Rate
from multitap.store.audit_file import AuditFile
from multitap.store.audit_records import AuditRecord
from multitap.store.record_filter import RecordFilter
from multitap.trust import audit
from multitap.trust.access_tokens import AccessTokens
from multitap.trust.pins.lock_places import LockPlaces
from multitap.trust.pins.pin_difference import difference
from multitap.trust.pins.pin_review import ServerReview, accept, reviews
from multitap.trust.pins.pins import stamps
from multitap.trust.scanner.scanner import scan

MOST_TOOLS, MOST_LINES, LONGEST_LINE = 200, 400, 2_000
"""Tools, lines and characters shown of one review; `multitap pins review` shows everything."""
MOST_ENTRIES = 500
"""Entries of the audit log in one answer."""
_LOOKED_AT = 50_000
"""Entries that are read for one answer: a filter that matches nothing must end as well."""


class AccessService:
    """Answers questions about access to one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tokens = AccessTokens()
        self._reviewed: tuple[object, tuple[PinReview, ...]] = (None, ())

    async def answer(self, question: protocol.AccessQuestion) -> Any:  # noqa: PLR0911 - one per question
        """The answer to a question.

        Raises:
            MultitapError: It cannot be fetched, or done.
        """
        match question:
            case protocol.AskOpenQuestions():
                return self._gateway.person.look()
            case protocol.AskReply(number, result, error):
                return self._gateway.person.reply(number, result, error)
            case protocol.AskAccess():
                # in threads: these read and write files
                return await to_thread.run_sync(self._overview)
            case protocol.AskAudit(text, limit):
                return await to_thread.run_sync(self._audit, RecordFilter.parse(text), limit)
            case protocol.AskCreateToken():
                return await to_thread.run_sync(self._create, question)
            case protocol.AskRevokeToken(name):
                return await to_thread.run_sync(self._revoke, name)
            case protocol.AskAcceptPins(server, digest):
                return await to_thread.run_sync(self._accept, server, digest)
            case _:
                assert_never(question)

    def _overview(self) -> AccessOverview:
        trouble: list[str] = []
        tokens: tuple[TokenLine, ...] = ()
        pins: tuple[PinReview, ...] = ()
        try:
            tokens = self._token_lines()
        except (MultitapError, OSError) as exc:
            trouble.append(str(exc))
        try:
            pins = self._pin_reviews()
        except (MultitapError, OSError) as exc:
            trouble.append(str(exc))
        return AccessOverview(tokens, pins, tuple(trouble))

    def _token_lines(self) -> tuple[TokenLine, ...]:
        now, uses = time.time(), self._tokens.uses()
        return tuple(
            TokenLine(
                id=one.id,
                name=one.name,
                state=one.state(now),
                created=one.created,
                profile=one.profile,
                allow=one.allow,
                rate=one.rate,
                expires=one.expires,
                last_use=uses.get(one.id),
                is_console=one.is_console,
            )
            for one in self._tokens.all()
        )

    def _create(self, wanted: protocol.AskCreateToken) -> NewTokenText:
        if wanted.profile is not None and wanted.profile not in self._gateway.hub.settings.profiles:
            raise UnknownName(f"no profile named {wanted.profile!r}")
        if wanted.rate is not None:
            try:
                Rate.parse(wanted.rate)
            except ValueError as exc:
                raise BadArguments(f"{wanted.rate!r}: {exc}", path="rate") from None
        if wanted.lasts is not None and wanted.lasts <= 0:
            raise BadArguments("expected more than 0 seconds", path="lasts")
        text, kept = self._tokens.create(
            wanted.name,
            profile=wanted.profile,
            allow=wanted.allow,
            expires=None if wanted.lasts is None else time.time() + wanted.lasts,
            rate=wanted.rate,
        )
        return NewTokenText(kept.id, text)

    def _revoke(self, name: str) -> list[str]:
        return [one.id for one in self._tokens.revoke(name)]

    def _reviews(self) -> tuple[LockPlaces, list[ServerReview]]:
        hub = self._gateway.hub
        if (places := hub.pins.places) is None:
            raise UnknownName("the gateway keeps no pins")
        return places, [one for one in reviews(places, hub.settings.servers) if one.is_due]

    def _pin_reviews(self) -> tuple[PinReview, ...]:
        hub = self._gateway.hub
        if hub.pins.places is None:
            return ()
        # a screen asks every second, and definitions are long: read again only after a change
        seen = (stamps(hub.pins.files), hub.settings.servers)
        if self._reviewed[0] != seen:
            self._reviewed = (seen, tuple(_describe_review(one) for one in self._reviews()[1]))
        return self._reviewed[1]

    def _accept(self, server: str, digest: str) -> None:
        places, due = self._reviews()
        review = next((one for one in due if one.server == server), None)
        if review is None:
            raise UnknownName(f"nothing of {server!r} waits for a review")
        # the server may have changed again between review and click: what is accepted has to
        # be what was shown
        if _digest(review) != digest:
            raise MultitapError(
                f"{server} has changed again since you looked", hint="review it once more"
            )
        accept(places, review)

    def _audit(self, wanted: RecordFilter, limit: int) -> AuditPage:
        file = AuditFile(state_directory(self._gateway.hub.settings.state_dir))
        try:
            entries = islice(audit.lines(file, lambda _: True), _LOOKED_AT)
            found = (one for one in entries if wanted.matches(_fields(one.record)))
            shown = islice(found, max(0, min(limit, MOST_ENTRIES)))
            return AuditPage(tuple(AuditRow(one.entry.seq, one.record) for one in shown))
        except sqlite3.Error as exc:
            raise MultitapError(
                f"{file.path} cannot be read: {exc}", hint="`multitap audit --verify` says more"
            ) from None


def _describe_review(review: ServerReview) -> PinReview:
    pending = review.pins.waiting
    moved = review.pins.pending_package
    tools = [_tool(review, name) for name in islice(pending, MOST_TOOLS)]
    return PinReview(
        server=review.server,
        digest=_digest(review),
        package=f"{review.pins.package} is now {moved}" if moved is not None else "",
        tools=tuple(tools),
    )


def _tool(review: ServerReview, name: str) -> PinnedTool:
    before, now = review.before(name), review.pins.waiting[name]
    return PinnedTool(
        tool=name,
        change="changed" if before else "new",
        difference=_cut(difference(before, now)),
        findings=tuple(finding.words for finding in scan(now.definition or {})),
    )


def _cut(lines: Iterable[str]) -> tuple[str, ...]:
    every = [*lines]
    shown = [
        line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} … (cut)"
        for line in every[:MOST_LINES]
    ]
    if len(every) > MOST_LINES:
        more = len(every) - MOST_LINES
        shown.append(f"… {more:,} more lines: `multitap pins review` shows them")
    return tuple(shown)


def _digest(review: ServerReview) -> str:
    pins = review.pins
    seen = [f"{tool} {pin.sha256}" for tool, pin in sorted(pins.waiting.items())]
    return sha256("\n".join((*seen, str(pins.pending_package))).encode()).hexdigest()


def _fields(record: AuditRecord) -> dict[str, object]:
    """The fields for a `RecordFilter`."""
    return {
        "server": record.server,
        "tool": record.tool,
        "status": record.outcome,
        "client": record.client or record.principal,
        "agent": record.agent,
        "kind": record.kind,
        "text": " ".join(filter(None, (record.subject, record.decision, record.detail))),
        "at": record.at,
    }
