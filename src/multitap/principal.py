"""Who asks: a local user, the holder of one of our tokens, or a subject of an identity provider."""

import getpass
import os
from functools import cache
from urllib.parse import quote

import msgspec

LOCAL_ISSUER = "multitap:local"
"""Vouches for the user who runs the gateway: the kernel says who connects."""
TOKEN_ISSUER = "multitap:tokens"  # noqa: S105 - a name
"""Issues the tokens of `multitap token create`; the subject is the token's id."""
FILE_ISSUER = "multitap:token-file"
"""Issues the tokens of a token file; the subject is the token's name."""


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
    def person(self) -> tuple[str, str] | None:
        """Issuer and subject: the owner of accounts and secrets; None for machines and strangers.

        One person has the same with every client. Never use a name or an address instead: those
        are given to others later, and two issuers may use the same subject.
        """
        return None if self.is_machine or not self.subject else (self.issuer, self.subject)

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


def token_principal(token_id: str) -> Principal:
    """The holder of one of our own tokens."""
    return Principal(token_id, TOKEN_ISSUER, token_id)


def external_principal(
    issuer: str, subject: str, client: str, *, is_machine: bool, rules: tuple[str, ...] = ()
) -> Principal:
    """The principal of a token that an identity provider issued."""
    # quoted, so that no subject can contain what looks like another client; the kind keeps a
    # machine apart from a person whose subject is the id of its client
    kind = "machine" if is_machine else "person"
    key = f"{issuer} {kind} {quote(subject, safe='')} {quote(client, safe='')}"
    return Principal(key, issuer, subject, client, is_machine, rules)
