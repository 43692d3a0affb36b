"""Writes the hub's decisions and calls to the audit log."""

import os
from time import time

import msgspec
from msgspec import Raw

from multitap.config.models import Audit
from multitap.errors import BadArguments
from multitap.hub.router import Route
from multitap.store import CallRecord, Store
from multitap.store.audit_records import AuditRecord
from multitap.trust.audit import system_user
from multitap.trust.policy.argument_tests import decoded
from multitap.trust.policy.policy import Ruling
from multitap.trust.policy.shown_arguments import shown
from multitap.upstream.on_behalf_of import OnBehalfOf

LARGEST = 64 * 1024
"""Bytes of arguments that are looked at; of longer ones only the size is kept."""


class AuditTrail:
    """Hands entries to the store, which writes them some at a time.

    Args:
        store: Writes them.
    """

    def __init__(self, store: Store) -> None:
        self._enabled = False
        self._store = store
        self.is_required = False
        """Whether calls depend on it."""
        self._with_arguments = False
        self._pid = os.getpid()
        self._user = system_user()

    def apply(self, wanted: Audit) -> None:
        """Note what the settings want."""
        self._enabled, self.is_required = wanted.enabled, wanted.enabled and wanted.required
        self._with_arguments = wanted.arguments
        self._store.audit_kept = wanted.keep

    @property
    def is_blocking(self) -> bool:
        """Whether calls must not be made, because nobody could tell of them later."""
        return self.is_required and self._store.is_audit_delayed

    def note(
        self,
        call: CallRecord,
        route: Route,
        client: OnBehalfOf | None,
        ruling: Ruling | None,
        given: bytes | Raw,
    ) -> None:
        """Note a call, once it is over."""
        if not self._enabled:
            return
        self._store.audit(
            AuditRecord(
                "call",
                call.at,
                self._user if client is None else client.principal,
                call.client or "",
                call.agent or "",
                call.session or "",
                self._pid,
                call.server,
                call.tool,
                "",
                call.outcome.value,
                "" if ruling is None else ruling.decision.value,
                "" if ruling is None else ruling.place,
                call.error or "",
                self._shown(route, given) if self._with_arguments else None,
            )
        )

    def note_question(self, server: str, method: str, words: str) -> None:
        """Note a question of a server that was refused or flagged."""
        if self._enabled:
            self._store.audit(
                AuditRecord(
                    "question", time(), pid=self._pid, server=server, subject=method, detail=words
                )
            )

    def _shown(self, route: Route, given: bytes | Raw) -> Raw:
        if len(given) > LARGEST:
            return Raw(b'"%d bytes"' % len(given))
        try:
            found = decoded(given)
        except BadArguments:
            return Raw(b'"unreadable"')
        return Raw(msgspec.json.encode(shown(found, route.link.report.redact)))
