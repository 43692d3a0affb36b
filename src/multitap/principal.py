"""Who asks: a local user, the holder of one of our tokens, or a subject of an identity provider."""

import getpass
import hashlib
import os
from functools import cache
from typing import NamedTuple
from urllib.parse import quote

import msgspec

LOCAL_ISSUER = "multitap:local"
"""Vouches for the user who runs the gateway: the kernel says who connects."""
TOKEN_ISSUER = "multitap:tokens"  # noqa: S105 - a name
"""Issues the tokens of `multitap token create`; the subject is the id of the first of those that
replaced one another."""
FILE_ISSUER = "multitap:token-file"
"""Issues the tokens of a token file; the subject is the token's name, or a digest without one."""


class Person(NamedTuple):
    """The owner of accounts and secrets: one subject of one issuer.

    One person has the same with every client. Never use a name or an address instead: those are
    given to others later, and two issuers may use the same subject.
    """

    issuer: str
    subject: str

    @property
    def mark(self) -> str:
        """A digest for the names of files and records: it reveals neither issuer nor subject."""
        whole = f"{len(self.issuer)} {self.issuer} {self.subject}"
        return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:24]

    def __str__(self) -> str:
        is_own = self.issuer in {LOCAL_ISSUER, TOKEN_ISSUER, FILE_ISSUER}
        return self.subject if is_own else f"{self.subject} at {self.issuer}"


NO_PERSON = Person("", "")
"""Stands for programs that sign in for themselves: nobody's accounts are theirs."""


class Principal(msgspec.Struct, frozen=True):
    """Who asks, proven by a credential or the kernel, without rights.

    `Admitted.principal`, `Client.principal` and `OnBehalfOf.principal` (so `context.client` of a
    call) are all this one value, also at the other replicas of a cluster. Compare `key` to decide
    whether two requests have the same origin, and `person` to decide whose data may be used.
    """

    key: str = ""
    """Sessions, tickets, tasks and limits belong to it; a token that is renewed keeps it.

    Empty for the local user and without credentials: programs of one user are told apart by their
    connections instead.
    """
    issuer: str = ""
    """Who vouches for the subject; empty if nobody does, as under `--insecure`."""
    subject: str = ""
    """The subject of the issuer; empty for a machine that the issuer knows only as a client."""
    client: str = ""
    """The OAuth client that the token was issued to; empty for our own tokens and local users."""
    is_machine: bool = False
    """Whether no person is behind it, as with the client credentials grant."""
    rules: tuple[str, ...] = ()
    """The names of the access rules that admit it, for the audit log."""

    @property
    def person(self) -> Person | None:
        """The owner of accounts and secrets; None for machines and strangers."""
        return None if self.is_machine or not self.subject else Person(self.issuer, self.subject)

    @property
    def account_owner(self) -> Person | None:
        """Whose accounts it uses at servers where people have their own.

        None for the user who runs the gateway, whose accounts are the gateway's; `NO_PERSON` for
        machines and strangers.
        """
        return None if self.issuer == LOCAL_ISSUER else self.person or NO_PERSON

    @property
    def task_owner(self) -> str:
        """Whose tasks may be listed; empty for strangers, who cannot be told apart."""
        return self.key or self.issuer  # all programs of the local user are one owner

    @property
    def name(self) -> str:
        """A label for people; not unique."""
        if self.issuer == LOCAL_ISSUER or self.client:
            return self.subject or self.client
        return self.key


ANONYMOUS = Principal()
"""The principal of requests that need no credentials and come from anyone."""


def system_user() -> str:
    """The user who runs this program."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return str(os.getuid())


@cache  # a constant of the process, and asked for on every connection
def local_principal() -> Principal:
    """The user who runs this program: on pipes, on loopback, and at the control socket."""
    return Principal("", LOCAL_ISSUER, system_user())


def token_principal(token_id: str, owner: str = "") -> Principal:
    """The holder of one of our own tokens; `owner` is the first token that it replaces."""
    return Principal(token_id, TOKEN_ISSUER, owner or token_id)


def external_principal(
    issuer: str, subject: str, client: str, *, is_machine: bool, rules: tuple[str, ...] = ()
) -> Principal:
    """The principal of a token that an identity provider issued."""
    # quoted, so that no subject can contain what looks like another client; the kind keeps a
    # machine apart from a person whose subject is the id of its client
    kind = "machine" if is_machine else "person"
    key = f"{issuer} {kind} {quote(subject, safe='')} {quote(client, safe='')}"
    return Principal(key, issuer, subject, client, is_machine, rules)
