"""Records of tasks: what is left of a call that outlives its request, and perhaps the process."""

from typing import Literal, Protocol

import msgspec

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]
ENDED = frozenset({"completed", "failed", "cancelled"})
"""The states that a task never leaves."""

MOST_TASKS = 10_000
"""How many are kept; beyond that, the oldest are forgotten."""
TASKS_TABLE = """
CREATE TABLE IF NOT EXISTS tasks (
    id TEXT PRIMARY KEY,
    created REAL NOT NULL,
    until REAL NOT NULL,
    body BLOB NOT NULL
)
"""
REPLACE_TASK = "REPLACE INTO tasks (id, created, until, body) VALUES (?, ?, ?, ?)"
SELECT_TASK = "SELECT body FROM tasks WHERE id = ?"
SELECT_TASKS = "SELECT body FROM tasks WHERE until > ? ORDER BY created DESC LIMIT ?"
TRIM_TASKS = """
DELETE FROM tasks WHERE until < ?
    OR id IN (SELECT id FROM tasks ORDER BY created DESC LIMIT -1 OFFSET ?)
"""


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task, as it is kept."""

    id: str
    server: str
    tool: str
    """The server's own name for it."""
    name: str
    """The name that the caller used."""
    created: float
    """Seconds since the epoch."""
    updated: float
    ttl: float
    """Seconds from its creation for which it is kept."""
    status: TaskStatus = "working"
    message: str | None = None
    principal: str = ""
    caller: str = ""
    """The label of its client, for people."""
    public_id: str = ""
    """The sealed id that its client knows it by."""
    runner: str = ""
    """The process or replica that runs it; empty if the server itself does."""
    upstream: str = ""
    """The server's id of the task, if the server has one."""
    arguments: bytes = b"{}"
    """As JSON, for the policy, which is asked again when the client returns."""
    result: bytes = b""
    """As JSON, in the format of the handshake era."""
    error: bytes = b""
    """As JSON, like a JSON-RPC error."""
    is_error: bool = False
    """Whether the result is a failure that the tool reports."""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def until(self) -> float:
        return self.created + self.ttl


# MessagePack has bytes; in JSON, a result would be base64
encode_task = msgspec.msgpack.Encoder().encode
decode_task = msgspec.msgpack.Decoder(TaskRecord).decode


class TaskRecords(Protocol):
    """Keeps the records of tasks."""

    async def save(self, record: TaskRecord) -> None:
        """Keep a record; it is safe once this returns.

        Raises:
            MultitapError: It cannot be kept.
        """
        ...

    async def load(self, task_id: str) -> TaskRecord | None:
        """The record of a task; None if there is none, or no longer."""
        ...

    async def recent(self) -> list[TaskRecord]:
        """All records that are still kept, newest first."""
        ...
