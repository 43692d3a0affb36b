"""Asks the person at the terminal about a call that the policy does not decide."""

from collections.abc import Callable

import msgspec

from multitap.cli.terminal.output import note
from multitap.upstream.handlers import Permission, PermitRequest


def approve(request: PermitRequest, ask: Callable[[str], str]) -> Permission:
    """What the person says; anything but a yes is a no.

    Args:
        request: Which call.
        ask: Shows words and waits for a line.
    """
    note(f"server: {request.server}")
    note(f"tool: {request.tool}")
    note(f"arguments: {msgspec.json.format(msgspec.json.encode(request.arguments)).decode()}")
    if request.rule or request.reason:
        note(f"asked by: {' '.join(filter(None, (request.rule, request.reason)))}")
    try:
        answer = ask("Call it? [y/N]: ").strip().lower()
    except EOFError:
        return "no"
    return "once" if answer in {"y", "yes"} else "no"
