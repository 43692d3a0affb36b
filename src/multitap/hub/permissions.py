"""Whether a call may be made: asks people, remembers their answers, and writes the audit log."""

import os
from functools import cached_property
from itertools import islice
from time import time
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from anyio import to_thread
from msgspec import Raw

from multitap.config.models import Audit
from multitap.config.policy_rules import PolicyRule
from multitap.errors import LONGEST_QUOTE, BadArguments, MultitapError, quoted, shortened
from multitap.events import Outcome
from multitap.hub.routes import Route
from multitap.principal import ANONYMOUS, system_user
from multitap.results.result import UNREADABLE
from multitap.store import Store
from multitap.store.audit_log import AuditRecord
from multitap.trust.arguments import decode_arguments, find_places
from multitap.trust.policy import Decision, DeniedByRule, Ruling
from multitap.trust.shown_arguments import show_arguments
from multitap.trust.single_use import SingleUse
from multitap.upstream.questions import CallContext, Permit, PermitRequest

CONTINUATION = 600.0
"""Seconds that a client has to answer what the server asks back in a permitted call."""
MOST_KEPT = 1024
"""Answers that are kept for one client, and for calls of the host itself."""

MOST_PLACES = 100
"""Values that are shown first, because a rule looks at them."""
SMALL = 64 * 1024
"""Bytes of arguments that are prepared in the loop: a thread costs more."""

_Subject = tuple[str, str, PolicyRule | None]


class _Round(msgspec.Struct):
    """A server's question, or the call that answers it."""

    request_state: str | None = msgspec.field(default=None, name="requestState")
    result_type: str = msgspec.field(default="", name="resultType")

    @property
    def state(self) -> str:
        # a server may ask without a state, which is not the same as an empty one
        return "" if self.request_state is None else f"={self.request_state}"


_parse_round = msgspec.json.Decoder(_Round).decode
_UNREADABLE = _Round("", "unreadable")


class Permissions:
    """Asks for permission, and remembers answers that hold for the rest of a session.

    Args:
        permit: Asks a person; None if there is nobody to ask.
    """

    def __init__(self, permit: Permit | None) -> None:
        self._permit = permit
        # weak: what a person allowed a client ends with the client
        self._of_clients: WeakKeyDictionary[object, list[_Subject]] = WeakKeyDictionary()
        self._of_hosts: dict[tuple[str | None, str | None], list[_Subject]] = {}
        self.waiting = 0
        """Calls that wait for a person's answer."""

    @cached_property
    def continuations(self) -> SingleUse:
        """Permitted calls in which a server has asked its stateless client something."""
        return SingleUse(CONTINUATION)

    def forget(self) -> None:
        """Forget all answers, as the rules may have changed."""
        self._of_clients.clear()
        self._of_hosts.clear()

    def check(self, route: Route, ruling: Ruling) -> None:
        """Check that the policy does not deny a call.

        Raises:
            Denied: It does.
        """
        if ruling.decision is Decision.DENY:
            raise DeniedByRule(
                f"the policy denies this call of {quoted(route.tool.name)}{ruling.because}",
                ruling,
                hint=ruling.hint,
            )

    async def ask(
        self,
        route: Route,
        ruling: Ruling,
        encoded: bytes | Raw,
        context: CallContext,
        extra: bytes = b"",
    ) -> None:
        """Ask a person to approve a call.

        Args:
            route: The route to the tool.
            ruling: The policy's decision.
            encoded: The arguments, as JSON.
            context: The caller.
            extra: Members that a stateless client adds to answer the server's question in an
                earlier round of the call; see `Calls.make`.

        Raises:
            Denied: They do not agree, or nobody can be asked.
        """
        tool = route.tool
        subject = (tool.server, tool.raw_name, ruling.rule)
        if context.approved or subject in self._always(context):
            return
        # a stateless client repeats the whole call to answer what the server asked in it
        if extra:
            continued = _read_round(b"{%b}" % extra[1:])
            if await self.continuations.take(*_binding(route, encoded, context, continued)):
                return
        request = PermitRequest(
            server=tool.server,
            tool=tool.raw_name,
            name=tool.name,
            arguments=await _shown_arguments(route, ruling, encoded),
            rule=ruling.place,
            reason=ruling.rule.reason if ruling.rule else None,
            call=context,
        )
        self.waiting += 1
        try:
            answer = None if self._permit is None else await self._permit(request)
        finally:
            self.waiting -= 1
        match answer:
            case "once":
                pass
            case "always":
                self._remember(context, subject)
            case "no":
                raise DeniedByRule(
                    f"a person refused this call of {quoted(tool.name)}",
                    ruling,
                    hint="do something else, or ask them why",
                )
            case None:
                raise DeniedByRule(
                    f"this call of {quoted(tool.name)} needs a person's approval{ruling.because}, "
                    "and nobody can be asked here",
                    ruling,
                    hint=ruling.hint,
                    asks=True,
                )

    async def expect_answer(
        self, route: Route, encoded: bytes | Raw, context: CallContext, result: bytes | Raw
    ) -> None:
        """Let a stateless client answer what the server asks back in a permitted call, once."""
        client = context.client
        # others are asked during the call, or the result is the last of it
        if client is None or not client.drives_rounds or b"input_required" not in bytes(result):
            return
        question = _read_round(result)
        if question.result_type == "input_required":
            await self.continuations.issue(*_binding(route, encoded, context, question))

    def _always(self, context: CallContext) -> list[_Subject]:
        """The tools that a caller's user has allowed for the whole session."""
        client = context.client
        if client is None:
            return self._of_hosts.get((context.agent_id, context.session_id), [])
        try:
            return self._of_clients.get(client.owner, [])
        except TypeError:  # a single request: there is no session to remember it for
            return []

    def _remember(self, context: CallContext, subject: _Subject) -> None:
        subjects = self._always(context)
        # Beyond that a person is asked again: a nuisance, while memory that a client can fill is an
        # attack.
        if len(subjects) >= MOST_KEPT:
            return
        client = context.client
        if client is not None:
            try:
                self._of_clients[client.owner] = [*subjects, subject]
            except TypeError:
                return
        elif len(self._of_hosts) < MOST_KEPT:
            self._of_hosts[context.agent_id, context.session_id] = [*subjects, subject]


async def _shown_arguments(route: Route, ruling: Ruling, encoded: bytes | Raw) -> dict[str, Any]:
    """The arguments for the person who decides; first those that the rules look at."""
    if len(encoded) <= SMALL:
        return _show(route, ruling, encoded)
    # they may have millions of items, and other calls should not wait for them
    return await to_thread.run_sync(_show, route, ruling, encoded, abandon_on_cancel=True)


def _show(route: Route, ruling: Ruling, encoded: bytes | Raw) -> dict[str, Any]:
    arguments = decode_arguments(encoded)
    rules = (ruling.rule, *(route.guard.rules if route.guard else ()))
    places = (
        place
        for rule in filter(None, rules)
        for place in find_places(rule, route.link.config, arguments)
    )
    first = [*islice(places, MOST_PLACES)]
    return show_arguments(arguments, route.link.report.redact, first=first)


def _read_round(message: bytes | Raw) -> _Round:
    try:
        return _parse_round(message)
    except UNREADABLE:  # such as a state that is a number
        return _UNREADABLE


def _binding(
    route: Route, encoded: bytes | Raw, context: CallContext, round_: _Round
) -> tuple[str | bytes, ...]:
    """What a person's permission holds for: one caller, one call, and one question in it."""
    client, tool = context.client, route.tool
    principal, holder = ("", "") if client is None else (client.principal.key, client.holder)
    return ("call", principal, holder, tool.server, tool.raw_name, bytes(encoded), round_.state)


LARGEST_AUDITED = 64 * 1024
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

    def apply(self, settings: Audit) -> None:
        """Apply the audit settings."""
        self.is_enabled = settings.enabled
        self.is_required = settings.enabled and settings.required
        self.keeps_arguments = settings.enabled and settings.arguments
        self._store.audit_kept = settings.keep

    @property
    def is_blocking(self) -> bool:
        """Whether calls must be refused, because they could not be recorded."""
        return self.is_required and self._store.is_audit_delayed

    async def wait_written(self, *, was_made: bool) -> None:
        """Wait until all entries are on disk or, in a cluster, with the coordinator.

        Args:
            was_made: Whether the call was not refused, so that its answer says what came of it.

        Raises:
            MultitapError: They cannot be written, so the result must not be returned.
        """
        if not await self._store.write_audit() and was_made:
            raise MultitapError(
                "the call was made, but it could not be written to the audit log, so its result is "
                "withheld",
                hint="`multitap status` says why; without `audit.required`, it would be returned",
            )

    def show_arguments(self, route: Route, encoded: bytes | Raw) -> Raw:
        """A call's arguments without secrets."""
        if len(encoded) > LARGEST_AUDITED:
            return Raw(b'"%d bytes"' % len(encoded))
        try:
            arguments = decode_arguments(encoded)
        except BadArguments:
            return Raw(b'"unreadable"')
        return Raw(msgspec.json.encode(show_arguments(arguments, route.link.report.redact)))

    async def note_refusal(self, name: str, reason: str, context: CallContext) -> None:
        """Record a call of a tool that is hidden from the caller; see `wait_written`."""
        if not self.is_enabled:
            return
        client = context.client
        principal = ANONYMOUS if client is None else client.principal
        self._store.audit(
            AuditRecord(
                "call",
                time(),
                system_user() if client is None else principal.name,
                "" if client is None else client.caller,
                context.agent_id or "",
                context.session_id or "",
                self._pid,
                subject=shortened(name, LONGEST_QUOTE),
                outcome=Outcome.REFUSED.value,
                decision="deny",
                detail=reason,
                issuer=principal.issuer if principal.key else "",
                user=principal.subject if principal.key else "",
                client_id=principal.client,
                access=",".join(principal.rules),
            )
        )
        if self.is_required:
            await self.wait_written(was_made=False)

    def note_question(self, server: str, method: str, reason: str) -> None:
        """Record a server's question that was refused or flagged."""
        if self.is_enabled:
            self._store.audit(
                AuditRecord(
                    "question", time(), pid=self._pid, server=server, subject=method, detail=reason
                )
            )
