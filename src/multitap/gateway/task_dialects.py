"""Ids of tasks, and the words of both dialects for them."""

import base64
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from anyio import to_thread
from msgspec import Raw

from multitap.errors import MultitapError
from multitap.gateway.client import ClientRequest
from multitap.gateway.eras import to_stateless
from multitap.principal import Principal
from multitap.store.task_records import TaskRecord
from multitap.trust.private_file import PrivateFile
from multitap.trust.single_use import Seal, bind
from multitap.upstream.tasks import TaskState
from multitap.wire import jsonrpc
from multitap.wire.jsonrpc import EMPTY, NOTHING, UNPARSABLE, parse_table

POLL = 500
"""Milliseconds between two polls that we suggest."""
_KEY_FILE = "tasks.key"
_SIGN = jsonrpc.TASKS.encode()


class TaskId(msgspec.Struct, frozen=True, array_like=True):
    """What a task's id says, for those who can unseal it."""

    record: str
    server: str
    tool: str
    """The server's own name for it."""
    upstream: str = ""
    """The server's own id, if the task is relayed; empty if it runs here."""


class TaskIds:
    """Seals the ids of tasks, each for one principal: nobody else's request can open it.

    Args:
        key: Shared by the replicas of a cluster; None: the one in the state directory.
    """

    def __init__(self, key: bytes | None, folder: Path) -> None:
        self._key = key
        self._file = PrivateFile(folder / _KEY_FILE, MultitapError)
        self._seal: Seal | None = None

    async def seal(self, task: TaskId, principal: Principal) -> str:
        seal = await self._opened()
        sealed = seal.seal(msgspec.msgpack.encode(task), _purpose(principal))
        return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    async def unseal(self, task_id: str, principal: Principal) -> TaskId | None:
        """What an id says; None if it is not ours, or not this principal's."""
        padding = "=" * (-len(task_id) % 4)
        try:
            sealed = base64.b64decode(f"{task_id}{padding}", b"-_", validate=True)
        except ValueError:
            return None
        seal = await self._opened()
        opened = seal.unseal(sealed, _purpose(principal))
        return None if opened is None else msgspec.msgpack.decode(opened.data, type=TaskId)

    async def _opened(self) -> Seal:
        if self._seal is None:
            key = self._key
            self._seal = Seal(await to_thread.run_sync(self._load) if key is None else key)
        return self._seal

    def _load(self) -> bytes:
        """The key of this machine's gateways: ids outlive the process that gave them."""
        try:
            with self._file.hold_lock():
                if (key := self._file.read()) is None or len(key) != 32:  # noqa: PLR2004 - AES-256
                    key = os.urandom(32)
                    self._file.write(key)
                return key
        except MultitapError:  # a state directory that cannot be written: for this run only
            return os.urandom(32)


def _purpose(principal: Principal) -> str:
    return f"task {bind(principal.task_owner).hex()}"


def declares_tasks(request: ClientRequest) -> bool:
    """Whether a stateless client takes tasks; each request says so again."""
    # by its bytes first: most requests declare nothing of it, and are not decoded for that
    if _SIGN not in bytes(request.capabilities):
        return False
    try:
        extensions = parse_table(request.capabilities).get("extensions", EMPTY)
        return jsonrpc.TASKS in parse_table(extensions)
    except UNPARSABLE:
        return False


def state_of(record: TaskRecord, questions: Mapping[str, Any] | None = None) -> TaskState:
    """A task that runs here, as a server would tell of it."""
    return TaskState(
        id=record.public_id,
        status=record.status,
        message=record.message,
        created_at=moment(record.created),
        updated_at=moment(record.updated),
        ttl=round(record.ttl * 1000),
        poll=POLL,
        questions=Raw(jsonrpc.encode(questions)) if questions else NOTHING,
        result=Raw(record.result) if record.status == "completed" else NOTHING,
        error=Raw(record.error) if record.status == "failed" else NOTHING,
    )


def moment(at: float) -> str:
    moment = datetime.fromtimestamp(at, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def describe(state: TaskState, *, stateless: bool) -> dict[str, Any]:
    """A task in the words of a dialect, without what it asks and returns."""
    status = state.status
    if not stateless and status == "completed" and _is_error(state.result):
        status = "failed"  # as the handshake era calls a tool that reports an error
    description: dict[str, Any] = {
        "taskId": state.id,
        "status": status,
        "createdAt": state.created_at,
        "lastUpdatedAt": state.updated_at,
        "ttlMs" if stateless else "ttl": state.ttl,
    }
    if state.message:
        description["statusMessage"] = state.message
    if state.poll is not None:
        description["pollIntervalMs" if stateless else "pollInterval"] = state.poll
    return description


def detailed(state: TaskState) -> dict[str, Any]:
    """A task in the words of the extension, with what it asks or returns."""
    description = describe(state, stateless=True)
    match state.status:
        case "input_required":
            description["inputRequests"] = state.questions if len(state.questions) else {}
        case "completed":
            description["result"] = _complete(state.result)
        case "failed":
            message = state.message or "it failed without giving a reason"
            description["error"] = (
                state.error
                if len(state.error)
                else {"code": jsonrpc.INTERNAL_ERROR, "message": message}
            )
        case _:
            pass
    return description


def _complete(result: Raw) -> Raw:
    # a record has the result in the form of the handshake era; see `plain` in `task_calls`
    if b'"resultType"' in bytes(result):
        return result
    whole = to_stateless(result)
    return Raw(b"".join(whole) if isinstance(whole, tuple) else bytes(whole))


def _is_error(result: Raw) -> bool:
    try:
        return bytes(parse_table(result).get("isError", b"")) == b"true"
    except UNPARSABLE:
        return False
