"""Asks the user at the terminal servers' questions during a call."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from multitap.catalog.schemas.form_fields import MOST_FIELDS, FormField, InvalidInput, fields_of
from multitap.cli.terminal.browser import open_page
from multitap.cli.terminal.output import note
from multitap.cli.terminal.typed_lines import TypedLines, is_somebody_there
from multitap.errors import shorten_and_count
from multitap.gateway.fronts.control_messages import CommandReply, ServerQuestion
from multitap.http.browser_address import host_of
from multitap.trust.policy.shown_arguments import write_lines
from multitap.upstream.handlers import Permission, PermitRequest

LONGEST_WORDS = 4000  # characters; a longer text would scroll the question away
MODEL = "human"
"""The model name in a sampling answer that a person typed."""
_NOBODY = "there is no terminal to answer at"
_END = "."


class Declined(Exception):
    """The answer is no, or there is nobody to answer; says why."""


class ServerQuestions:
    """Answers elicitation and sampling requests of servers, one at a time.

    Args:
        lines: The user's input; a program that asks other questions passes its own.
    """

    def __init__(self, lines: TypedLines | None = None) -> None:
        self._lines = lines or TypedLines()

    def answer(
        self,
        server: str,
        method: str,
        params: Mapping[str, Any],
        is_over: Callable[[], object] = lambda: None,
    ) -> dict[str, Any]:
        """The result of a request of a server.

        Args:
            server: The server that asks.
            method: The method of the request.
            params: Its parameters.
            is_over: Called periodically; raises if the answer is no longer needed.

        Raises:
            Declined: The user declined, or cannot be asked.
        """

        def ask(words: str) -> str:
            return self._lines.ask(words, is_over)

        if method == "elicitation/create":
            return _elicit(params, ask)
        if method == "sampling/createMessage":
            return _sample(server, params, ask)
        raise Declined(f"{method} is not supported")

    def permission(
        self, request: PermitRequest, is_over: Callable[[], object] = lambda: None
    ) -> Permission:
        """Ask the user about a call that the policy asks about."""
        return _approve(request, lambda words: self._lines.ask(words, is_over))


_Ask = Callable[[str], str]


def at_the_prompt() -> Callable[[ServerQuestion], CommandReply]:
    """Answers servers' questions during a call of a running gateway."""
    questions = ServerQuestions()

    def reply(asked: ServerQuestion) -> CommandReply:
        params = msgspec.json.decode(asked.params)
        try:
            result = questions.answer(asked.server, asked.method, params)
        except Declined as exc:
            return CommandReply(asked.number, error=str(exc))
        return CommandReply(asked.number, Raw(msgspec.json.encode(result)))

    return reply


def _approve(request: PermitRequest, ask: _Ask) -> Permission:
    """The user's answer; anything but a yes is a no."""
    note(f"server: {request.server}")
    note(f"tool: {request.tool}")
    note(f"arguments:\n{write_lines(request.arguments)}")
    if request.rule or request.reason:
        note(f"asked by: {' '.join(filter(None, (request.rule, request.reason)))}")
    try:
        answer = ask("Call it? [y/N]: ").strip().lower()
    except EOFError:
        return "no"
    return "once" if answer in {"y", "yes"} else "no"


def _elicit(params: Mapping[str, Any], ask: _Ask) -> dict[str, Any]:
    if not is_somebody_there():
        note(f"{_cut(params.get('message'))} (declined: {_NOBODY})")
        return {"action": "decline"}
    note(_cut(params.get("message")))  # it says who asks
    try:
        if params.get("mode") == "url":
            return _visit(str(params.get("url")), ask)
        return _fill(params.get("requestedSchema") or {}, ask)
    except EOFError:
        note("declined")
        return {"action": "decline"}


def _fill(schema: Mapping[str, Any], ask: _Ask) -> dict[str, Any]:
    fields = fields_of(schema)
    # a hostile form with thousands of fields would block the terminal
    if len(fields) > MOST_FIELDS:
        note(f"declined: the form has {len(fields)} fields; {MOST_FIELDS} are the limit")
        return {"action": "decline"}
    if not fields:
        return {"action": "accept", "content": {}} if _agrees(ask) else {"action": "decline"}
    note("Enter takes the value in brackets or skips the field; Ctrl-D declines")
    content: dict[str, Any] = {}
    for field in fields:
        _put(content, field, ask)
    return {"action": "accept", "content": content}


def _put(content: dict[str, Any], field: FormField, ask: _Ask) -> None:
    """Ask for one field until the answer is valid."""
    if about := field.schema.get("description"):
        note(f"  {_cut(about)}")
    for number, (value, title) in enumerate(field.choices, start=1):
        note(f"    {number}. {value}" + (f": {title}" if title != value else ""))
    given = "" if field.default is None else f" [{_show(field.default)}]"
    need = ", required" if field.required and not given else ""
    while True:
        text = ask(f"  {field.name} ({field.words}{need}){given}: ").strip()
        if not text and field.default is not None:
            content[field.name] = field.default
            return
        # left out, because a schema may refuse an empty text
        if not text and not field.required:
            return
        try:
            content[field.name] = field.value(text)
        except InvalidInput as exc:
            note(f"  {exc}")
        else:
            return


def _visit(url: str, ask: _Ask) -> dict[str, Any]:
    """A page that the server wants the user to visit: shown in full, opened only on request."""
    note(f"  {_cut(url)}")
    if (host := host_of(url)) is None:
        # neither `file:` and handlers of other programs, nor a host that is not the one shown
        note("declined: it is not a plain web address (https, or http on this machine)")
        return {"action": "decline"}
    note(f"  on the host {host}; do not open what you do not trust")
    while True:
        choice = ask("  [o]pen it in the browser, [a]ccept without opening, or decline: ")
        match choice.strip().lower():
            case "o" | "open" if open_page(url):
                return {"action": "accept"}
            case "o" | "open":
                note("  there is no browser here: copy the address if you trust it")
            case "a" | "accept":
                return {"action": "accept"}
            case _:
                note("declined")
                return {"action": "decline"}


def _sample(server: str, params: Mapping[str, Any], ask: _Ask) -> dict[str, Any]:
    if not is_somebody_there():
        note(f"{server} asks for a model's answer, which is declined: {_NOBODY}")
        raise Declined(f"the request is declined: {_NOBODY}")
    note(f"{server} asks for a model's answer. You can answer in its place:")
    if system := params.get("systemPrompt"):
        note(f"  system: {_cut(system)}")
    for message in params.get("messages", ()):
        note(f"  {message.get('role')}: {_content(message.get('content'))}")
    note(f"Type the answer and end it with a line of a single `{_END}`; Ctrl-D declines")
    lines: list[str] = []
    try:
        while (line := ask("> ")) != _END:
            lines.append(line)
    except EOFError:
        note("declined")
        raise Declined("the person at the terminal declined to answer") from None
    return {
        "role": "assistant",
        "content": {"type": "text", "text": "\n".join(lines)},
        "model": MODEL,
        "stopReason": "endTurn",
    }


def _agrees(ask: _Ask) -> bool:
    return ask("  agree? [y/N]: ").strip().lower() in {"y", "yes"}


def _content(content: Any) -> str:
    if isinstance(content, list):
        return " ".join(map(_content, content))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    if isinstance(content, Mapping):
        return _cut(content.get("text") or f"({content.get('type')})")  # pyright: ignore[reportUnknownArgumentType,reportUnknownMemberType]
    return _cut(content)


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    return _cut(value)


def _cut(text: Any) -> str:
    return shorten_and_count(str(text), LONGEST_WORDS)
