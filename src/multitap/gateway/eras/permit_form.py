"""The form that asks a client's user whether a call may be made."""

from typing import Any

import msgspec
from msgspec import Raw

from multitap.gateway.client_message import UNPARSABLE
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
    arguments = msgspec.json.format(msgspec.json.encode(request.arguments)).decode()
    lines = [
        f"Multitap asks: may the tool {request.tool!r} of the server {request.server!r} be called?",
        f"Arguments: {arguments}",
    ]
    if request.reason:
        lines.append(f"Reason: {request.reason}")
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
