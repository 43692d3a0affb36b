"""One entry of the audit log: who, what, when, the outcome and the decision."""

import getpass
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, final

import msgspec

from multitap.store.log_query import encodable

if TYPE_CHECKING:
    from multitap.store.call_records import CallRecord

_encoder = msgspec.json.Encoder()
_encode = _encoder.encode


@final
class AuditRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry; the fields are written in this order."""

    kind: str
    """`call`, `question`, or another action such as `secret.set`."""
    at: float
    """Seconds since the epoch."""
    principal: str = ""
    """The name in the caller's credentials; for commands, the system user."""
    client: str = ""
    """The label of the gateway's client."""
    agent: str = ""
    session: str = ""
    pid: int = 0
    """The id of the process."""
    server: str = ""
    tool: str = ""
    """The server's own name for it."""
    subject: str = ""
    """The object of another action."""
    outcome: str = ""
    decision: str = ""
    """`allow`, `ask` or `deny`; empty where no rule applied."""
    rule: str = ""
    """The place of the rule in its file."""
    detail: str = ""
    arguments: msgspec.Raw | None = None
    """The arguments without secrets, if the settings keep them."""

    def body(self) -> str:
        """The entry as JSON."""
        try:
            return _encode(self).decode()
        except UnicodeEncodeError:  # a lone surrogate from a server's answer
            texts = {name: getattr(self, name) for name in self.__struct_fields__}
            sound = {key: encodable(one) for key, one in texts.items() if isinstance(one, str)}
            return _encode(msgspec.structs.replace(self, **sound)).decode()


class Author(NamedTuple):
    """The author of entries."""

    user: str
    """The user who runs this program, for calls without a client."""
    pid: int


def bodies_of(records: "Iterable[AuditRecord | CallRecord]", author: Author) -> list[str]:
    """Entries as JSON."""
    user, pid = author
    entries = [one if type(one) is AuditRecord else of_call(one, user, pid) for one in records]
    try:
        # in one step: the encoded JSON contains no line breaks
        return _encoder.encode_lines(entries).decode().split("\n")[:-1]
    except UnicodeEncodeError:  # one by one: `body` handles the one that cannot be encoded
        return [entry.body() for entry in entries]


def of_call(call: "CallRecord", user: str, pid: int) -> AuditRecord:
    """The entry of a call."""
    decision, rule = call.ruled or ("", "")
    return AuditRecord(
        "call",
        call.at,
        user if call.principal is None else call.principal,
        call.client or "",
        call.agent or "",
        call.session or "",
        pid,
        call.server,
        call.tool,
        "",
        call.outcome,
        decision,
        rule,
        call.error or "",
        call.shown,
    )


def system_user() -> str:
    """The user who runs this program."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return str(os.getuid())
