"""Asks a person about calls that the policy does not decide, and remembers answers."""

from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
from anyio import to_thread
from msgspec import Raw

from multitap.config.policy_rules import PolicyRule
from multitap.errors import Denied, quoted
from multitap.hub.router import Route
from multitap.results.sifting import UNREADABLE
from multitap.trust.policy.argument_tests import decode_arguments, find_places
from multitap.trust.policy.policy import Decision, Ruling
from multitap.trust.policy.shown_arguments import show_arguments
from multitap.trust.single_use import SingleUse
from multitap.upstream.handlers import Permit, PermitRequest
from multitap.upstream.on_behalf_of import CallContext

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
        self.continuations = SingleUse(CONTINUATION)
        """Permitted calls in which a server has asked its stateless client something."""

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
        self,
        route: Route,
        ruling: Ruling,
        given: bytes | Raw,
        context: CallContext,
        extra: bytes = b"",
    ) -> None:
        """Ask a person to approve a call.

        Args:
            route: The route to the tool.
            ruling: The policy's decision.
            given: The arguments, as JSON.
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
            if await self.continuations.take(*_binding(route, given, context, continued)):
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

    async def expect_answer(
        self, route: Route, given: bytes | Raw, context: CallContext, result: bytes | Raw
    ) -> None:
        """Let a stateless client answer what the server asks back in a permitted call, once."""
        client = context.client
        # others are asked during the call, or the result is the last of it
        if client is None or not client.drives_rounds or b"input_required" not in bytes(result):
            return
        question = _read_round(result)
        if question.result_type == "input_required":
            await self.continuations.issue(*_binding(route, given, context, question))

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


def _read_round(message: bytes | Raw) -> _Round:
    try:
        return _parse_round(message)
    except UNREADABLE:  # such as a state that is a number
        return _UNREADABLE


def _binding(
    route: Route, given: bytes | Raw, context: CallContext, round_: _Round
) -> tuple[str | bytes, ...]:
    """What a person's permission holds for: one caller, one call, and one question in it."""
    client, tool = context.client, route.tool
    principal, holder = ("", "") if client is None else (client.principal, client.holder)
    return ("call", principal, holder, tool.server, tool.raw_name, bytes(given), round_.state)
