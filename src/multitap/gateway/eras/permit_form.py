"""The form that asks a client's user whether a call may be made."""

from typing import Any

import msgspec
from msgspec import Raw

from multitap.gateway.client_message import UNPARSABLE
from multitap.trust.policy.shown_arguments import write_lines
from multitap.upstream.handlers import Permission, PermitRequest

_CHOICES = {
    "once": "Allow this call",
    "always": "Allow calls of this tool until I disconnect",
    "no": "Refuse",
}


class _Filled(msgspec.Struct):
    action: str = ""
    content: dict[str, Any] | None = None


_parse = msgspec.json.Decoder(_Filled).decode


def question(request: PermitRequest) -> dict[str, Any]:
    """The parameters of `elicitation/create`."""
    lines = [
        f"Multitap asks: may the tool {request.tool!r} of the server {request.server!r} be called?",
    ]
    if request.reason:
        lines.append(f"Reason: {request.reason}")
    # at the end: a client may cut a long text
    lines.append(f"Arguments:\n{write_lines(request.arguments)}")
    return {
        "mode": "form",
        "message": "\n".join(lines),
        "requestedSchema": {
            "type": "object",
            "properties": {
                "decision": {
                    "type": "string",
                    "title": "Decision",
                    "enum": [*_CHOICES],
                    "enumNames": [*_CHOICES.values()],
                }
            },
            "required": ["decision"],
        },
    }


def permission(answer: Raw) -> Permission:
    """The person's decision; anything but a clear yes is a no."""
    try:
        filled = _parse(answer)
    except UNPARSABLE:
        return "no"
    chosen = (filled.content or {}).get("decision")
    if filled.action != "accept" or chosen not in {"once", "always"}:
        return "no"
    return "once" if chosen == "once" else "always"
