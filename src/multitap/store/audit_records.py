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
    """What is written down; its fields are in this order in the file."""

    kind: str
    """`call`, `question`, or what else was done, such as `secret.set`."""
    at: float
    """In seconds since the epoch."""
    principal: str = ""
    """Whom the caller's credentials name; for commands, the user of the system."""
    client: str = ""
    """The client of the gateway, in words for people."""
    agent: str = ""
    session: str = ""
    pid: int = 0
    """The process that did it."""
    server: str = ""
    tool: str = ""
    """The server's own name for it."""
    subject: str = ""
    """What else it was done to."""
    outcome: str = ""
    decision: str = ""
    """`allow`, `ask` or `deny`; empty where no rule applied."""
    rule: str = ""
    """Where the rule is written."""
    detail: str = ""
    arguments: msgspec.Raw | None = None
    """Without secrets, where the settings want them kept."""

    def body(self) -> str:
        """As it is stored."""
        try:
            return _encode(self).decode()
        except UnicodeEncodeError:  # half of a character, from a server's answer
            texts = {name: getattr(self, name) for name in self.__struct_fields__}
            sound = {key: encodable(one) for key, one in texts.items() if isinstance(one, str)}
            return _encode(msgspec.structs.replace(self, **sound)).decode()


class Author(NamedTuple):
    """Who writes entries."""

    user: str
    """The user who runs this program, and makes the calls that no client makes."""
    pid: int


def bodies_of(records: "Iterable[AuditRecord | CallRecord]", author: Author) -> list[str]:
    """Entries as they are stored."""
    user, pid = author
    entries = [one if type(one) is AuditRecord else of_call(one, user, pid) for one in records]
    try:
        # in one go: JSON has no line breaks in it, and is never in need of any
        return _encoder.encode_lines(entries).decode().split("\n")[:-1]
    except UnicodeEncodeError:  # `body` knows what to do about the one that it is
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
    """Who runs this program."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return str(os.getuid())
