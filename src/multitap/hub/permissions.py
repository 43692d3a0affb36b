"""Asks a person about calls that the policy does not decide, and remembers answers."""

import hashlib
from itertools import islice
from time import monotonic
from typing import Any
from weakref import WeakKeyDictionary

from anyio import to_thread
from msgspec import Raw

from multitap.config.policy_rules import PolicyRule
from multitap.errors import Denied, quoted
from multitap.hub.router import Route
from multitap.trust.policy.argument_tests import decode_arguments, find_places
from multitap.trust.policy.policy import Decision, Ruling
from multitap.trust.policy.shown_arguments import show_arguments
from multitap.upstream.handlers import Permit, PermitRequest
from multitap.upstream.on_behalf_of import CallContext

ROUNDS = 600.0
"""Seconds for which a permitted call may be continued by its client without another question."""
MOST_KEPT = 1024
"""Answers that are kept: for calls of the host itself, and for calls in several rounds."""

MOST_PLACES = 100
"""Values that are shown first, because a rule looks at them."""
SMALL = 64 * 1024
"""Bytes of arguments that are prepared in the loop: a thread costs more."""

_Subject = tuple[str, str, PolicyRule | None]
_Round = tuple[object, str, str, bytes]


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
        self._rounds: dict[_Round, float] = {}

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
            raise Denied(
                f"the policy denies this call of {quoted(route.tool.name)}{ruling.because}",
                hint=ruling.hint,
                ruling=ruling,
            )

    async def ask(
        self, route: Route, ruling: Ruling, given: bytes | Raw, context: CallContext, *, again: bool
    ) -> None:
        """Ask a person to approve a call.

        Args:
            route: The route to the tool.
            ruling: The policy's decision.
            given: The arguments, as JSON.
            context: The caller.
            again: Whether the call continues an earlier one.

        Raises:
            Denied: They do not agree, or nobody can be asked.
        """
        tool = route.tool
        subject = (tool.server, tool.raw_name, ruling.rule)
        round_ = (_holder(context), tool.server, tool.raw_name, hashlib.sha256(given).digest())
        if context.approved or subject in self._always(context):
            return
        # a stateless client repeats the whole call to answer a server's question: the same
        # arguments were permitted a moment ago, and others have another digest
        if again and self._rounds.get(round_, 0.0) > monotonic():
            return
        request = PermitRequest(
            server=tool.server,
            tool=tool.raw_name,
            name=tool.name,
            arguments=await _shown_arguments(route, ruling, given),
            rule=ruling.place,
            reason=ruling.rule.reason if ruling.rule else None,
            call=context,
        )
        answer = None if self._permit is None else await self._permit(request)
        match answer:
            case "once":
                pass
            case "always":
                self._remember(context, subject)
            case "no":
                raise Denied(
                    f"a person refused this call of {quoted(tool.name)}",
                    hint="do something else, or ask them why",
                    ruling=ruling,
                )
            case None:
                raise Denied(
                    f"this call of {quoted(tool.name)} needs a person's approval{ruling.because}, "
                    "and nobody can be asked here",
                    hint=ruling.hint,
                    ruling=ruling,
                    asks=True,
                )
        self._note_round(round_)

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
        known = self._always(context)
        # Beyond that a person is asked again: a nuisance, while memory that a client can fill is an
        # attack.
        if len(known) >= MOST_KEPT:
            return
        client = context.client
        if client is not None:
            try:
                self._of_clients[client.owner] = [*known, subject]
            except TypeError:
                return
        elif len(self._of_hosts) < MOST_KEPT:
            self._of_hosts[context.agent_id, context.session_id] = [*known, subject]

    def _note_round(self, round_: _Round) -> None:
        # removed and added again, so that the oldest is dropped first
        self._rounds.pop(round_, None)
        self._rounds[round_] = monotonic() + ROUNDS
        if len(self._rounds) > MOST_KEPT:
            del self._rounds[next(iter(self._rounds))]


async def _shown_arguments(route: Route, ruling: Ruling, given: bytes | Raw) -> dict[str, Any]:
    """The arguments for the person who decides; first those that the rules look at."""
    if len(given) <= SMALL:
        return _show(route, ruling, given)
    # they may have millions of items, and other calls should not wait for them
    return await to_thread.run_sync(_show, route, ruling, given, abandon_on_cancel=True)


def _show(route: Route, ruling: Ruling, given: bytes | Raw) -> dict[str, Any]:
    arguments = decode_arguments(given)
    rules = (ruling.rule, *(route.guard.rules if route.guard else ()))
    places = (
        place
        for rule in filter(None, rules)
        for place in find_places(rule, route.link.config, arguments)
    )
    first = [*islice(places, MOST_PLACES)]
    return show_arguments(arguments, route.link.report.redact, first=first)


def _holder(context: CallContext) -> object:
    return None if context.client is None else context.client.slot_holder
