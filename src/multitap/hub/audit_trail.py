"""Writes the hub's decisions and calls to the audit log."""

import os
from time import time

import msgspec
from msgspec import Raw

from multitap.config.models import Audit
from multitap.errors import LONGEST_QUOTE, BadArguments, MultitapError, shortened
from multitap.events import Outcome
from multitap.hub.router import Route
from multitap.store import Store
from multitap.store.audit_records import AuditRecord, system_user
from multitap.trust.policy.argument_tests import decode_arguments
from multitap.trust.policy.shown_arguments import show_arguments
from multitap.upstream.on_behalf_of import CallContext

LARGEST = 64 * 1024
"""Bytes of arguments that are recorded; of longer ones only the size is kept."""


class AuditTrail:
    """Hands entries to the store, which writes them in batches.

    Args:
        store: Writes them.
    """

    def __init__(self, store: Store) -> None:
        self.is_enabled = False
        """Whether calls are recorded."""
        self._store = store
        self.is_required = False
        """Whether answers wait for their entries; calls are refused while none can be written."""
        self.keeps_arguments = False
        """Whether arguments are recorded with calls."""
        self._pid = os.getpid()

    def apply(self, wanted: Audit) -> None:
        """Apply the audit settings."""
        self.is_enabled = wanted.enabled
        self.is_required = wanted.enabled and wanted.required
        self.keeps_arguments = wanted.enabled and wanted.arguments
        self._store.audit_kept = wanted.keep

    @property
    def is_blocking(self) -> bool:
        """Whether calls must be refused, because they could not be recorded."""
        return self.is_required and self._store.is_audit_delayed

    async def wait_written(self, result: object) -> None:
        """Wait until all entries are on disk or, in a cluster, with the coordinator.

        Args:
            result: The result of the call, if there is one.

        Raises:
            MultitapError: They cannot be written, so the result must not be returned.
        """
        if not await self._store.write_audit() and result is not None:
            raise MultitapError(
                "the call was made, but it could not be written to the audit log, so its result is "
                "withheld",
                hint="`multitap status` says why; without `audit.required`, it would be returned",
            )

    def show_arguments(self, route: Route, given: bytes | Raw) -> Raw:
        """A call's arguments without secrets."""
        if len(given) > LARGEST:
            return Raw(b'"%d bytes"' % len(given))
        try:
            found = decode_arguments(given)
        except BadArguments:
            return Raw(b'"unreadable"')
        return Raw(msgspec.json.encode(show_arguments(found, route.link.report.redact)))

    def note_refusal(self, name: str, words: str, context: CallContext) -> None:
        """Record a call of a tool that is hidden from the caller."""
        if not self.is_enabled:
            return
        client = context.client
        self._store.audit(
            AuditRecord(
                "call",
                time(),
                system_user() if client is None else client.principal,
                "" if client is None else client.caller,
                context.agent_id or "",
                context.session_id or "",
                self._pid,
                subject=shortened(name, LONGEST_QUOTE),
                outcome=Outcome.REFUSED.value,
                decision="deny",
                detail=words,
            )
        )

    def note_question(self, server: str, method: str, words: str) -> None:
        """Record a server's question that was refused or flagged."""
        if self.is_enabled:
            self._store.audit(
                AuditRecord(
                    "question", time(), pid=self._pid, server=server, subject=method, detail=words
                )
            )
