"""The rows of the Access place: open questions, changed tools, tokens, the audit log."""

import time
from collections.abc import Iterator, Mapping

import msgspec

from multitap.gateway.fronts.access_messages import AuditRow, PinReview, TokenLine
from multitap.gateway.person_questions import OpenQuestion
from multitap.screens.live_view import LiveView
from multitap.screens.terminal.row_list import Row
from multitap.store.record_filter import RecordFilter

AccessItem = OpenQuestion | PinReview | TokenLine | AuditRow

_KINDS = {"policy": "policy question", "server": "question"}


def access_items(view: LiveView, wanted: RecordFilter) -> Iterator[tuple[str, AccessItem]]:
    """All items by their keys, those that wait for the person first."""
    items: tuple[AccessItem, ...] = (
        *view.questions,
        *view.access.pins,
        *view.access.tokens,
        *view.audit,
    )
    for item in items:
        if wanted.matches(_fields(item)):
            yield access_key(item), item


def access_key(item: AccessItem) -> str:
    # the cursor follows the key, so it must not depend on the position in the list
    match item:
        case OpenQuestion():
            return f"question {item.number}"
        case PinReview():
            return f"pins {item.server}"
        case TokenLine():
            return f"token {item.id}"
        case AuditRow():
            return f"audit {item.entry}"


def of_access(key: str, item: AccessItem) -> Row:
    """One item as a row."""
    match item:
        case OpenQuestion():
            cells = (_KINDS[item.kind], item.server, f"asked {_ago(item.asked)}", message_of(item))
            return Row(key, cells, "warning")
        case PinReview():
            changed = ", ".join(f"{one.tool} ({one.change})" for one in item.tools)
            return Row(key, ("changed tools", item.server, "to review", changed), "warning")
        case TokenLine():
            used = f"used {_ago(item.last_use)}" if item.last_use else "never used"
            return Row(key, ("token", item.name, item.state, f"{token_rights(item)}, {used}"))
        case AuditRow():
            one = item.record
            state = " ".join(filter(None, (one.decision, one.outcome)))
            return Row(key, ("audit", _clock(one.at), state, f"{item.what} {item.who}"))


def access_words(item: AccessItem) -> str:
    """The text below the list about one item."""
    match item:
        case OpenQuestion():
            who = f"for {item.client}\n" if item.client else ""
            return f"{who}{message_of(item)}\npress Enter to answer"
        case PinReview():
            return f"{item.server} no longer offers what you relied on\npress Enter to review"
        case TokenLine():
            expires = _clock(item.expires) if item.expires else "never"
            return f"id {item.id}, {token_rights(item)}, expires {expires}; x revokes it"
        case AuditRow():
            return f"entry {item.entry}: {item.record.detail or item.what}"


def review_text(review: PinReview) -> str:
    """Everything that a person needs to see before accepting it."""
    parts = [review.package] if review.package else []
    for tool in review.tools:
        parts += [f"{tool.tool} ({tool.change})", *(f"  {line}" for line in tool.difference)]
        parts += [f"  ! {finding}" for finding in tool.findings]
    return "\n".join(parts)


def message_of(question: OpenQuestion) -> str:
    """The text of a question."""
    asked: Mapping[str, object] = msgspec.json.decode(question.params)
    if question.method == "sampling/createMessage":
        return "asks for a model's answer"
    return str(asked.get("message") or question.method)


def token_rights(token: TokenLine) -> str:
    """The rights of a token."""
    if token.is_console:
        return "web console"
    rights = f"tools {', '.join(token.allow)}" if token.allow else "all tools"
    profile = f"profile {token.profile}" if token.profile else ""
    return ", ".join(filter(None, (profile, rights, token.rate)))


def _fields(item: AccessItem) -> Mapping[str, object]:
    """The fields for a `RecordFilter`."""
    match item:
        case OpenQuestion():
            return {"kind": "question", "server": item.server, "client": item.client}
        case PinReview():
            return {"kind": "pin", "server": item.server}
        case TokenLine():
            return {"kind": "token", "status": item.state, "text": f"{item.name} {item.id}"}
        case AuditRow():
            one = item.record
            return {
                "kind": one.kind,
                "server": one.server,
                "tool": one.tool,
                "client": one.client,
                "status": one.outcome,
                "text": f"{item.what} {item.who} {one.detail}",
                "at": one.at,
            }


def _clock(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def _ago(at: float) -> str:
    seconds = max(0.0, time.time() - at)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
