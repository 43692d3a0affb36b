"""Answers questions about access: tokens, changed tools, open questions, the audit log."""

import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from itertools import islice

from anyio import to_thread

from multitap.config.sources import state_directory
from multitap.control.methods import Control
from multitap.control.overview import (
    AccessOverview,
    AuditPage,
    AuditRow,
    NewTokenText,
    PersonLine,
    PinnedTool,
    PinReview,
    TokenLine,
)
from multitap.errors import BadArguments, MultitapError, UnknownName
from multitap.gateway.gateway import Gateway
from multitap.limits import Rate
from multitap.principal import TOKEN_ISSUER, Person
from multitap.store.audit_log import AuditFile, AuditRecord
from multitap.store.queries import RecordFilter
from multitap.trust import audit
from multitap.trust.pin_review import ServerReview, accept, difference, reviews
from multitap.trust.pins import LockPlaces, stamps
from multitap.trust.scanner import scan
from multitap.trust.tokens import AccessTokens, TokenNames

MOST_TOOLS, MOST_LINES, LONGEST_LINE = 200, 400, 2_000
"""Tools, lines and characters shown of one review; `multitap pins review` shows everything."""
MOST_PEOPLE = 500
"""People in one answer; `multitap access list` shows everybody."""
MOST_ENTRIES = 500
"""Entries of the audit log in one answer."""
_LOOKED_AT = 50_000
"""Entries that are read for one answer: a filter that matches nothing must end as well."""


class AccessControl(Control):
    """The methods about access to one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._tokens = AccessTokens()
        self._reviewed: tuple[object, tuple[PinReview, ...]] = (None, ())

    # in threads: these read and write files

    async def access(self) -> AccessOverview:
        return await to_thread.run_sync(self._overview)

    async def audit(self, query: str = "", limit: int = 100) -> AuditPage:
        return await to_thread.run_sync(self._audit, RecordFilter.parse(query), limit)

    async def create_token(
        self,
        name: str,
        profile: str | None = None,
        allow: tuple[str, ...] = (),
        lasts: float | None = None,
        rate: str | None = None,
    ) -> NewTokenText:
        if profile is not None and profile not in self.gateway.hub.settings.profiles:
            raise UnknownName(f"no profile named {profile!r}")
        if rate is not None:
            try:
                Rate.parse(rate)
            except ValueError as exc:
                raise BadArguments(f"{rate!r}: {exc}", path="rate") from None
        if lasts is not None and lasts <= 0:
            raise BadArguments("expected more than 0 seconds", path="lasts")
        expires = None if lasts is None else time.time() + lasts
        create = partial(self._tokens.create, name, profile=profile, allow=allow, expires=expires)
        text, token = await to_thread.run_sync(partial(create, rate=rate))
        return NewTokenText(token.id, text)

    async def revoke_token(self, name: str) -> list[str]:
        return [token.id for token in await to_thread.run_sync(self._tokens.revoke, name)]

    async def accept_pins(self, server: str, digest: str) -> None:
        await to_thread.run_sync(self._accept, server, digest)

    def _overview(self) -> AccessOverview:
        # each by itself: one file that cannot be read must not hide the others
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
        people: tuple[PersonLine, ...] = ()
        try:
            people = self._people_lines()
        except (MultitapError, OSError) as exc:
            trouble.append(str(exc))
        return AccessOverview(tokens, pins, tuple(trouble), people)

    def _people_lines(self) -> tuple[PersonLine, ...]:
        if not self.gateway.hub.settings.access.oidc:
            return ()
        from multitap.identity.people import People  # noqa: PLC0415 - few have providers

        people, accounts = People(), self._accounts()
        revocations = people.revocations()
        return tuple(
            PersonLine(
                label=person.label,
                name=person.name,
                state="revoked" if revocations.refuses_person(person) else "active",
                rules=person.rules,
                clients=tuple(person.clients),
                last_use=person.last_use,
                accounts=tuple(accounts.get(Person(person.issuer, person.subject), ())),
            )
            for person in people.all()[:MOST_PEOPLE]
        )

    def _accounts(self) -> Mapping[Person, Sequence[str]]:
        """The servers at which people have accounts of their own."""
        people = self.gateway.hub.people
        return {} if people is None else people.vault.servers_of_all()

    async def revoke_person(self, label: str, undo: bool = False) -> None:  # noqa: FBT001, FBT002 - in JSON it has a name
        await to_thread.run_sync(self._revoke_person, label, undo)

    def _revoke_person(self, label: str, undo: bool) -> None:  # noqa: FBT001 - for a thread
        from multitap.identity.people import People  # noqa: PLC0415 - few have providers

        people = People()
        people.revoke(people.find(label), undo=undo)

    async def token_names(self) -> TokenNames:
        """Shows tokens by name; by id if their file cannot be read."""
        try:
            return TokenNames(await to_thread.run_sync(self._tokens.all))
        except MultitapError:
            return TokenNames(())

    def _token_lines(self) -> tuple[TokenLine, ...]:
        now, uses, accounts = time.time(), self._tokens.uses(), self._accounts()
        return tuple(
            TokenLine(
                id=token.id,
                name=token.name,
                state=token.state(now),
                created=token.created,
                profile=token.profile,
                allow=token.allow,
                rate=token.rate,
                expires=token.expires,
                last_use=uses.get(token.id),
                is_console=token.is_console,
                accounts=tuple(accounts.get(Person(TOKEN_ISSUER, token.owner or token.id), ())),
            )
            for token in self._tokens.all()
        )

    def _reviews(self) -> tuple[LockPlaces, list[ServerReview]]:
        hub = self.gateway.hub
        if (places := hub.pins.places) is None:
            raise UnknownName("the gateway keeps no pins")
        return places, [review for review in reviews(places, hub.settings.servers) if review.is_due]

    def _pin_reviews(self) -> tuple[PinReview, ...]:
        hub = self.gateway.hub
        if hub.pins.places is None:
            return ()
        # a screen asks every second, and definitions are long: read again only after a change
        source = (stamps(hub.pins.files), hub.settings.servers)
        if self._reviewed[0] != source:
            self._reviewed = (source, tuple(map(_describe_review, self._reviews()[1])))
        return self._reviewed[1]

    def _accept(self, server: str, digest: str) -> None:
        places, due = self._reviews()
        review = next((review for review in due if review.server == server), None)
        if review is None:
            raise UnknownName(f"nothing of {server!r} waits for a review")
        # the server may have changed again between review and click: what is accepted has to
        # be what was shown
        if _digest(review) != digest:
            raise MultitapError(
                f"{server} has changed again since you looked", hint="review it once more"
            )
        accept(places, review)

    def _audit(self, query: RecordFilter, limit: int) -> AuditPage:
        file = AuditFile(state_directory(self.gateway.hub.settings.state_dir))
        try:
            entries = islice(audit.lines(file, lambda _: True), _LOOKED_AT)
            matching = (line for line in entries if query.matches(_fields(line.record)))
            # the limit comes from outside, and `islice` refuses negative ones
            page = islice(matching, max(0, min(limit, MOST_ENTRIES)))
            return AuditPage(tuple(AuditRow(line.entry.seq, line.record) for line in page))
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
    whole = [*lines]
    cut = [
        line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} … (cut)"
        for line in whole[:MOST_LINES]
    ]
    if len(whole) > MOST_LINES:
        more = len(whole) - MOST_LINES
        cut.append(f"… {more:,} more lines: `multitap pins review` shows them")
    return tuple(cut)


def _digest(review: ServerReview) -> str:
    pins = review.pins
    tools = [f"{tool} {pin.sha256}" for tool, pin in sorted(pins.waiting.items())]
    return sha256("\n".join((*tools, str(pins.pending_package))).encode()).hexdigest()


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
