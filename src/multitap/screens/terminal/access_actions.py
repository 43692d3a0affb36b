"""Actions in the Access place: answer questions, accept tools, manage tokens."""

from collections.abc import Mapping
from typing import Any

import msgspec
from textual.app import App

from multitap.config.durations import seconds
from multitap.errors import MultitapError
from multitap.gateway.fronts.access_messages import AuditRow, NewTokenText, PinReview, TokenLine
from multitap.gateway.fronts.control_messages import (
    AskAcceptPins,
    AskCreateToken,
    AskReply,
    AskRevokeToken,
)
from multitap.gateway.person_questions import OpenQuestion
from multitap.printable import printable
from multitap.screens.desktop import Desktop
from multitap.screens.live_view import LiveView
from multitap.screens.terminal.access_rows import AccessItem, review_text, token_rights
from multitap.screens.terminal.question_windows import ask_person
from multitap.screens.terminal.windows import FormWindow, ReviewWindow, TextWindow

_NEW_TOKEN: Mapping[str, Any] = {
    "properties": {
        "name": {"type": "string", "description": "who gets it", "maxLength": 64},
        "profile": {"type": "string", "description": "of the configuration; all if not given"},
        "allow": {"type": "string", "description": "tools, as globs separated by commas"},
        "expires": {"type": "string", "description": "after how long, such as 12h or 90d"},
        "rate": {"type": "string", "description": "of its calls, such as 10/s"},
    },
    "required": ["name"],
}


class AccessActions:
    """Acts on the rows of the Access place.

    Every method may raise a `MultitapError`, which says why it could not be done.

    Args:
        app: Where windows open.
        view: The state of the gateway.
        desktop: Opens the browser, for pages that servers ask to visit.
    """

    def __init__(self, app: App[None], view: LiveView, desktop: Desktop) -> None:
        self._app = app
        self._view = view
        self._desktop = desktop

    async def act(self, verb: str, item: AccessItem | None) -> None:
        """Run the action of a key; does nothing if it does not apply."""
        match verb, item:
            case "new", _:
                await self._create()
            case "revoke", TokenLine():
                self._ask_to_revoke(item)
            case "open", OpenQuestion():
                await self._answer(item)
            case "open", PinReview():
                self._review(item)
            case "open", TokenLine():
                self._app.push_screen(TextWindow(f"token {item.name}", _list_fields(item)))
            case "open", AuditRow():
                self._app.push_screen(TextWindow(f"entry {item.entry}", _list_fields(item.record)))
            case _:
                pass

    async def _answer(self, question: OpenQuestion) -> None:
        result, refusal = await ask_person(
            self._app, self._desktop, question.server, question.method, question.params
        )
        reply = AskReply(question.number, result, refusal)
        if not await self._view.client.ask(reply, bool):
            raise MultitapError("the question was answered elsewhere, or cancelled")

    def _review(self, review: PinReview) -> None:
        async def decide(accepted: bool) -> None:  # noqa: FBT001 - as windows say it
            if accepted:
                # the digest of what was shown: if it has changed meanwhile, nothing is accepted
                wish = AskAcceptPins(review.server, review.digest)
                await self._view.client.ask(wish, type(None))
                self._say(f"the tools of {review.server} are accepted as shown")
            else:
                self._say("they stay withheld; e in Servers disables the whole server")

        words = ("accept", "keep them withheld")
        title = f"changed tools of {review.server}"
        self._app.push_screen(ReviewWindow(title, review_text(review), words, decide))

    def _ask_to_revoke(self, token: TokenLine) -> None:
        async def decide(accepted: bool) -> None:  # noqa: FBT001 - as windows say it
            if accepted:
                await self._view.client.ask(AskRevokeToken(token.id), list[str])
                self._say(f"{token.name} is revoked; its clients are refused from now on")

        text = f"{token.name} (id {token.id}): {token_rights(token)}"
        self._app.push_screen(ReviewWindow("Revoke a token", text, ("revoke", "keep"), decide))

    async def _create(self) -> None:
        form = FormWindow("New token", "A client sends it to be let in.", _NEW_TOKEN)
        filled = await self._app.push_screen_wait(form)
        if filled is None:
            return
        made = await self._view.client.ask(_token_request(filled), NewTokenText)
        text = f"{made.token}\n\nIt is not shown again. Send it as `Authorization: Bearer TOKEN`."
        self._app.push_screen(TextWindow(f"token {filled['name']}", text))

    def _say(self, words: str) -> None:
        self._app.notify(printable(words), markup=False)


def _token_request(filled: Mapping[str, Any]) -> AskCreateToken:
    expires = filled.get("expires")
    try:
        lasts = None if expires is None else seconds(expires, bare="s")
    except ValueError:
        raise MultitapError(f"{expires!r} is not a duration", hint="such as 12h") from None
    allow = str(filled.get("allow") or "").split(",")
    return AskCreateToken(
        name=filled["name"],
        profile=filled.get("profile"),
        allow=tuple(one.strip() for one in allow if one.strip()),
        lasts=lasts,
        rate=filled.get("rate"),
    )


def _list_fields(value: msgspec.Struct) -> str:
    fields: Mapping[str, object] = msgspec.to_builtins(value)
    return "\n".join(f"{name}: {said}" for name, said in fields.items() if said)
