"""Asks the person at the terminal what servers want to know during a call."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw

from multitap.catalog.schemas.form_fields import MOST_FIELDS, FormField, InvalidInput, fields_of
from multitap.cli.browser import open_page
from multitap.cli.terminal import TypedLines, is_somebody_there, note
from multitap.control.messages import (
    PersonReply,
    ProgressStep,
    ServerQuestion,
    cut_text,
    sampling_answer,
    sampling_lines,
)
from multitap.control.methods import ActionUser
from multitap.http.addresses import host_of
from multitap.trust.shown_arguments import write_lines
from multitap.upstream.questions import Handlers, Permission, PermitRequest, RequestOrigin
from multitap.wire.jsonrpc import METHOD_NOT_FOUND

if TYPE_CHECKING:
    import mcp_types as types
    from pydantic import BaseModel

"""The model name in a sampling answer that a person typed."""
OnProgress = Callable[[float, float | None, str | None], None]
"""Called with the progress of a call."""
_NOBODY = "there is no terminal to answer at"
_END = "."


class Declined(Exception):
    """The answer is no, or there is nobody to answer; says why."""


class ServerQuestions:
    """Answers elicitation and sampling requests of servers, one at a time.

    A program that asks other questions, too, passes the user's input.
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

        `is_over` is called periodically, and raises if the answer is no longer needed.

        Raises:
            Declined: The user declined, or cannot be asked.
        """

        def ask(question: str) -> str:
            return self._lines.ask(question, is_over)

        if method == "elicitation/create":
            return _elicit(params, ask)
        if method == "sampling/createMessage":
            return _sample(server, params, ask)
        raise Declined(f"{method} is not supported")

    def permission(
        self, request: PermitRequest, is_over: Callable[[], object] = lambda: None
    ) -> Permission:
        """Ask the user about a call that the policy asks about."""
        return _approve(request, lambda question: self._lines.ask(question, is_over))


_Ask = Callable[[str], str]


class TerminalUser(ActionUser):
    """The user at the terminal, for a call of a running gateway."""

    def __init__(self, on_step: OnProgress | None = None) -> None:
        self.can_answer = is_somebody_there()
        self._on_step = on_step
        self._questions = ServerQuestions()

    def on_progress(self, step: ProgressStep) -> None:
        if self._on_step is not None:
            self._on_step(step.done, step.total, step.message)

    async def answer(self, question: ServerQuestion) -> PersonReply:
        params = msgspec.json.decode(question.params)
        try:
            # blocks: nothing else happens in this loop
            result = self._questions.answer(question.server, question.method, params)
        except Declined as exc:
            return PersonReply(error=str(exc))
        return PersonReply(Raw(msgspec.json.encode(result)))


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
        note(f"{cut_text(params.get('message'))} (declined: {_NOBODY})")
        return {"action": "decline"}
    note(cut_text(params.get("message")))  # it says who asks
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
        note(f"  {cut_text(about)}")
    for number, (value, title) in enumerate(field.choices, start=1):
        note(f"    {number}. {value}" + (f": {title}" if title != value else ""))
    default_text = "" if field.default is None else f" [{_show(field.default)}]"
    need = ", required" if field.required and not default_text else ""
    while True:
        text = ask(f"  {field.name} ({field.words}{need}){default_text}: ").strip()
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
    note(f"  {cut_text(url)}")
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
    for line in sampling_lines(params):
        note(f"  {line}")
    note(f"Type the answer and end it with a line of a single `{_END}`; Ctrl-D declines")
    lines: list[str] = []
    try:
        while (line := ask("> ")) != _END:
            lines.append(line)
    except EOFError:
        note("declined")
        raise Declined("the person at the terminal declined to answer") from None
    return sampling_answer("\n".join(lines))


def _agrees(ask: _Ask) -> bool:
    return ask("  agree? [y/N]: ").strip().lower() in {"y", "yes"}


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ",".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    return cut_text(value)


def listing_handlers() -> Handlers:
    """Handlers that declare what a gateway declares, and refuse everything.

    Servers may offer more tools to a client that they can ask. A command that lists them has to
    see what a gateway sees: otherwise those tools would look new to the pins.
    """

    async def refuse(*_: object) -> "types.ErrorData":
        import mcp_types as types  # noqa: PLC0415 - servers seldom ask while they are listed

        return types.ErrorData(code=METHOD_NOT_FOUND, message="this client only lists tools")

    return Handlers(
        elicit=refuse, sample=refuse, sample_tools=True, sample_context=True, roots=refuse
    )


def prompt_handlers(
    lines: TypedLines | None = None, turn: AbstractAsyncContextManager[object] | None = None
) -> Handlers:
    """Handlers that ask the user, one question at a time, while the hub continues.

    `lines` is the user's input, for a program that asks other questions, too; `turn` is held during
    a question, so that two never read the same line.
    """
    import anyio  # noqa: PLC0415 - at a running gateway, nobody needs any of this
    from anyio import from_thread, to_thread  # noqa: PLC0415 - see above

    questions, turn = ServerQuestions(lines), turn or anyio.Lock()

    async def ask(origin: RequestOrigin, method: str, params: "BaseModel") -> dict[str, Any]:
        fields = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        async with turn:
            # in a thread, because people take their time; it checks periodically whether the call
            # was cancelled, so that nothing waits for an answer that is no longer needed
            return await to_thread.run_sync(
                questions.answer, origin.server, method, fields, from_thread.check_cancelled
            )

    async def elicit(
        origin: RequestOrigin, params: "types.ElicitRequestParams"
    ) -> "types.ElicitResult | types.ErrorData":
        import mcp_types as types  # noqa: PLC0415 - a fifth of a second, and few calls ask

        return types.ElicitResult.model_validate(await ask(origin, "elicitation/create", params))

    async def sample(
        origin: RequestOrigin, params: "types.CreateMessageRequestParams"
    ) -> "types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData":
        import mcp_types as types  # noqa: PLC0415 - as above

        try:
            answer = await ask(origin, "sampling/createMessage", params)
        except Declined as exc:
            return types.ErrorData(code=types.INVALID_REQUEST, message=str(exc))
        return types.CreateMessageResult.model_validate(answer)

    async def permit(request: PermitRequest) -> Permission | None:
        if not is_somebody_there():
            return None
        async with turn:
            return await to_thread.run_sync(
                questions.permission, request, from_thread.check_cancelled
            )

    return Handlers(elicit=elicit, sample=sample, permit=permit)
