"""Who was here with a token of an identity provider, and who may not come back."""

import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from multitap.errors import MultitapError, UnknownName, quoted
from multitap.files import USER_FOLDERS
from multitap.identity.access_tokens import VerifiedToken
from multitap.principal import Principal
from multitap.trust.audit import recorder
from multitap.trust.private_file import PrivateFile

MOST_PEOPLE = 10_000
"""People that are remembered; beyond that, those who were not here for longest are forgotten."""
_MOST_CLIENTS = 20  # of one person: a program that registers itself has a new id each time
_LOGOUT_LIFE = 7 * 24 * 3600.0  # seconds; tokens from before have expired by then
_TOKEN_LIFE = 365 * 24 * 3600.0  # seconds after which a single revoked token has surely expired
_REPAIR = "repair it, or move it away: revoked people could then come back"


class PeopleError(MultitapError):
    """The record of people cannot be used; says why."""


class PersonRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A subject of a provider, or a machine, as its last token described it."""

    provider: str
    issuer: str
    subject: str = ""
    """Empty for a machine."""
    name: str = ""
    """A name for people, by the provider's word."""
    clients: Mapping[str, float] = {}
    """When each of their clients was last used."""
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    claims: Mapping[str, str] = {}
    """The claims that rules look at."""
    rules: tuple[str, ...] = ()
    first_use: float = 0.0
    last_use: float = 0.0

    @property
    def key(self) -> str:
        client = "" if self.subject else next(iter(self.clients), "")
        return f"{self.issuer} {self.subject} {client}"

    @property
    def label(self) -> str:
        """The name to use in commands."""
        return f"{self.provider}:{self.subject or next(iter(self.clients), '')}"


class Revocation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A decision about tokens, to be applied by all gateways."""

    kind: Literal["revoked", "restored", "logout", "token"]
    """`logout`: only tokens from before it are refused. `token`: only one."""
    at: float
    issuer: str = ""
    subject: str = ""
    """Empty if it is about a machine, a session or a token."""
    client: str = ""
    """The client of a machine."""
    session: str = ""
    """The session at the provider, for a logout without a subject."""
    digest: str = ""
    """The SHA-256 of the token."""
    forgets: bool = False
    """Whether the person's accounts at servers are deleted, too."""


class Revocations:
    """All decisions together."""

    def __init__(self, entries: Iterable[Revocation] = ()) -> None:
        self.entries = frozenset(entries)
        self._blocked: dict[tuple[str, str, str], Revocation] = {}
        self._logouts: dict[tuple[str, str, str], float] = {}
        self._tokens: set[str] = set()
        for entry in self.entries:
            if entry.kind == "token":
                self._tokens.add(entry.digest)
            elif entry.kind == "logout":
                key = (entry.issuer, entry.subject, entry.session)
                self._logouts[key] = max(entry.at, self._logouts.get(key, 0.0))
            else:
                self._block(entry)

    def _block(self, entry: Revocation) -> None:
        key = (entry.issuer, entry.subject, entry.client)
        latest = self._blocked.get(key)
        if latest is None or _rank(entry) > _rank(latest):
            self._blocked[key] = entry

    def is_blocked(self, issuer: str, subject: str, client: str) -> bool:
        """Whether somebody may not come back."""
        # a person is refused with every client, a machine is its client
        entry = self._blocked.get((issuer, subject, "" if subject else client))
        return entry is not None and entry.kind == "revoked"

    def refuses_person(self, person: PersonRecord) -> bool:
        """Whether somebody who was here may not come back."""
        return self.is_blocked(person.issuer, person.subject, next(iter(person.clients), ""))

    def refusal(self, token: VerifiedToken, digest: str) -> str | None:
        """Why a valid token is refused all the same; None if it is not."""
        if digest in self._tokens or self.is_blocked(token.issuer, token.subject, token.client):
            return "this access was revoked at the gateway"
        if self.has_logged_out(token.issuer, token.subject, token.session, token.issued):
            return "the person has logged out since the token was issued"
        return None

    def has_logged_out(self, issuer: str, subject: str, session: str, since: float) -> bool:
        """Whether a person, or their session at the provider, was logged out since a moment."""
        keys = [(issuer, subject, "")] if subject else []
        keys += [(issuer, "", session)] if session else []
        # at the same moment, too: providers often write whole seconds
        return any(since <= self._logouts.get(key, 0.0) for key in keys)


def concerns(
    entry: Revocation, principal: Principal, sessions: Mapping[tuple[str, str], Collection[str]]
) -> bool:
    """Whether a decision ends what a principal has open.

    Args:
        sessions: The keys of principals by issuer and session: several clients may share one.
    """
    if entry.kind in {"restored", "token"} or entry.issuer != principal.issuer:
        return False
    if entry.session and not entry.subject:
        return principal.key in sessions.get((entry.issuer, entry.session), ())
    if entry.subject:
        return entry.subject == principal.subject
    return principal.is_machine and entry.client == principal.client


def in_force(entries: Iterable[Revocation], now: float) -> frozenset[Revocation]:
    """Decisions without those that have become meaningless, so that they do not pile up."""
    latest: dict[tuple[str, ...], Revocation] = {}
    for entry in entries:
        life = {"logout": _LOGOUT_LIFE, "token": _TOKEN_LIFE}.get(entry.kind)
        if life is not None and now - entry.at >= life:
            continue
        kind = "" if entry.kind in {"revoked", "restored"} else entry.kind
        key = (kind, entry.issuer, entry.subject, entry.client, entry.session, entry.digest)
        earlier = latest.get(key)
        # of two at the same moment, the stricter one
        if earlier is None or _rank(entry) > _rank(earlier):
            latest[key] = entry
    return frozenset(latest.values())


def _rank(entry: Revocation) -> tuple[float, bool]:
    return entry.at, entry.kind == "revoked"


class _PeopleFile(msgspec.Struct, omit_defaults=True):
    version: int = 1
    people: dict[str, PersonRecord] = {}


class _RevocationFile(msgspec.Struct, omit_defaults=True):
    version: int = 1
    revocations: list[Revocation] = []


class People:
    """People and decisions, in files that only the user can read."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or USER_FOLDERS.user_data_path / "tokens"
        self._record = recorder(folder)
        self._people = PrivateFile(self.folder / "people.json", PeopleError)
        # a separate file: gateways look at it several times a second
        self._revocations = PrivateFile(self.folder / "revocations.json", PeopleError)

    def all(self) -> list[PersonRecord]:
        """Everybody, the last one first.

        Raises:
            PeopleError: Others could read the file, or it is damaged.
        """
        people = self._people.load(_PeopleFile, repair="move it away").people.values()
        return sorted(people, key=lambda person: person.last_use, reverse=True)

    def revocations(self) -> Revocations:
        """All decisions that are in force.

        Raises:
            PeopleError: The file cannot be used.
        """
        return Revocations(self._revocations.load(_RevocationFile, repair=_REPAIR).revocations)

    def stamp(self) -> tuple[int, int, int] | None:
        """Differs after every decision."""
        return self._revocations.stamp()

    def note(self, seen: Iterable[PersonRecord]) -> None:
        """Record who was here; several gateways may do so at once."""
        with self._people.changing(_PeopleFile, repair="move it away") as content:
            for person in seen:
                earlier = content.people.get(person.key)
                merged = person if earlier is None else _merge(earlier, person)
                content.people[person.key] = merged
            surplus = len(content.people) - MOST_PEOPLE
            if surplus > 0:
                oldest = sorted(content.people.values(), key=lambda it: it.last_use)[:surplus]
                for person in oldest:
                    del content.people[person.key]

    def find(self, text: str) -> PersonRecord:
        """The person with a subject, a name or a label.

        Raises:
            UnknownName: There is none, or there are several.
        """
        people = self.all()
        # first by label, which is unique: people choose their names, and may choose that of another
        meant = [person for person in people if person.label == text]
        meant = meant or [person for person in people if text in {person.subject, person.name}]
        meant = meant or [
            person for person in people if not person.subject and text in person.clients
        ]
        if not meant:
            raise UnknownName(
                f"nobody called {quoted(text)} was here", hint="`multitap access list` shows people"
            )
        if len(meant) > 1:
            labels = ", ".join(person.label for person in meant)
            raise UnknownName(f"several are called {quoted(text)}", hint=f"use one of: {labels}")
        return meant[0]

    def revoke(self, person: PersonRecord, *, undo: bool = False, forget: bool = False) -> None:
        """Refuse a person or machine from now on, or let it come back.

        With `forget`, gateways delete the accounts of a person whom they refuse.

        Raises:
            PeopleError: That cannot be stored.
        """
        client = "" if person.subject else next(iter(person.clients), "")
        self.decide(
            Revocation(
                kind="restored" if undo else "revoked",
                at=time.time(),
                issuer=person.issuer,
                subject=person.subject,
                client=client,
                forgets=forget and not undo,
            )
        )

    def decide(self, *entries: Revocation) -> None:
        """Store decisions; running gateways apply them within a second.

        Raises:
            PeopleError: They cannot be stored.
        """
        now = time.time()
        with self._revocations.changing(_RevocationFile, repair=_REPAIR) as content:
            everything = (*content.revocations, *entries)
            content.revocations = sorted(in_force(everything, now), key=_rank)
        for entry in entries:
            is_open = entry.kind == "restored"
            self._record(
                f"access.{entry.kind}",
                subject=entry.subject or entry.client or entry.session or entry.digest[:12],
                decision="allow" if is_open else "deny",
                detail=entry.issuer,
            )


def described(token: VerifiedToken, rules: tuple[str, ...], claims: Iterable[str]) -> PersonRecord:
    """A person as their token describes them."""
    now = time.time()
    names = (token.claims.get(key) for key in ("preferred_username", "email", "name"))
    texts = {name: value for name in claims if isinstance(value := token.claims.get(name), str)}
    return PersonRecord(
        provider=token.provider,
        issuer=token.issuer,
        subject=token.subject,
        name=next((name for name in names if isinstance(name, str)), "")[:200],
        clients={token.client: now},
        groups=tuple(sorted(token.groups)),
        scopes=tuple(sorted(token.scopes)),
        claims=texts,
        rules=rules,
        first_use=now,
        last_use=now,
    )


def as_token(person: PersonRecord) -> VerifiedToken:
    """What is known of a person, in the form that rules judge."""
    client = max(person.clients, key=lambda name: person.clients[name], default="")
    return VerifiedToken(
        provider=person.provider,
        issuer=person.issuer,
        subject=person.subject,
        client=client,
        is_machine=not person.subject,
        scopes=frozenset(person.scopes),
        groups=frozenset(person.groups),
        claims=person.claims,
        expires=0.0,
        issued=0.0,
    )


def _merge(earlier: PersonRecord, person: PersonRecord) -> PersonRecord:
    clients = {**earlier.clients, **person.clients}
    latest = sorted(clients, key=lambda name: clients[name], reverse=True)[:_MOST_CLIENTS]
    return msgspec.structs.replace(
        person,
        clients={name: clients[name] for name in latest},
        first_use=earlier.first_use,
        last_use=max(earlier.last_use, person.last_use),
    )
