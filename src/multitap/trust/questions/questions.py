"""What servers may ask people and models: each question names its asker."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from multitap.config.documents import is_list, is_table
from multitap.config.models import Sampling, ServerConfig
from multitap.config.provenance import STANDINGS
from multitap.printable import printable
from multitap.trust.questions.sampling_budget import OverBudget, SamplingBudget
from multitap.trust.questions.secret_forms import asked_secrets

SERVER_KEY = "multitap/server"
"""The member of `_meta` that names the server that asks."""
# A longer text could push who asks, and what for, off the screen.
LONGEST_MESSAGE = 16 * 1024

_BYTES_PER_TOKEN = 4
_TOKENS_OF_MEDIA = 1500
"""Estimated tokens of a picture or a sound, whatever its size."""


class QuestionRefused(Exception):
    """A request that a server must not make; the message says why."""


class Questions:
    """Checks every question of every server before anybody is asked.

    Args:
        servers: The current configuration of each server.
        on_refusal: Called for refused and flagged questions with server, method and reason.
    """

    def __init__(
        self,
        servers: Callable[[], Mapping[str, ServerConfig]],
        on_refusal: Callable[[str, str, str], None],
    ) -> None:
        self._servers = servers
        self._on_refusal = on_refusal
        self._budgets: dict[str, SamplingBudget] = {}

    def screen(
        self, server: str, method: str, params: Mapping[str, Any], *, for_client: bool
    ) -> Mapping[str, Any]:
        """The question as it may be asked.

        Args:
            server: The server that asks.
            method: The method of the request.
            params: Its parameters, as received.
            for_client: Whether they are passed on to a client.

        Raises:
            QuestionRefused: It must not be asked.
        """
        try:
            match method:
                case "elicitation/create":
                    return self._elicitation(server, params)
                case "sampling/createMessage":
                    return self._sampling(server, params, for_client=for_client)
                case _:
                    return params
        except QuestionRefused as exc:
            self._on_refusal(server, method, str(exc))
            raise

    def _elicitation(self, server: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        message, schema = params.get("message"), params.get("requestedSchema")
        if not isinstance(message, str):
            return params  # malformed requests are handled elsewhere
        # The name comes first: a server must not be able to pose as Multitap or as another
        # server.
        words = f"{server} asks: {printable(message[:LONGEST_MESSAGE])}"
        form: Mapping[str, Any] = schema if is_table(schema) else {}
        if params.get("mode") != "url" and (secrets := asked_secrets(message, form)):
            what, rule = " and ".join(secrets), _secrets_rule(self._servers().get(server))
            if rule == "refuse":
                raise QuestionRefused(
                    f"a form must not ask for {what}; set `elicitation.secrets` of {server!r} to "
                    '"flag" if you trust it'
                )
            if rule == "flag":
                warning = f"Warning by Multitap: this form asks for {what}."
                words = f"{warning} What you enter goes to the server {server!r}.\n\n{words}"
                self._on_refusal(server, "elicitation/create", f"asks for {what} in a form")
        return {**params, "message": words}

    def _sampling(
        self, server: str, params: Mapping[str, Any], *, for_client: bool
    ) -> Mapping[str, Any]:
        config = self._servers().get(server)
        limits = _limits(config)
        asked = params.get("maxTokens")
        wanted = asked if isinstance(asked, int) and asked > 0 else 1
        prompt = _prompt_tokens(params)
        budget = self._budgets.setdefault(server, SamplingBudget())
        try:
            granted = budget.take(prompt, wanted, rate=limits.rate, tokens=limits.tokens)
        except OverBudget as exc:
            raise QuestionRefused(f"{server!r} asks for too much: {exc}") from None
        meta = params.get("_meta")
        known: Mapping[str, Any] = meta if is_table(meta) else {}
        told = {**params, "_meta": {**known, SERVER_KEY: server}}
        if isinstance(asked, int):
            told["maxTokens"] = min(asked, granted)
        if for_client:
            told["systemPrompt"] = sign(server, params.get("systemPrompt"))
        return told


def sign(server: str, prompt: object) -> str:
    """A system prompt that names the server, for the person who reviews it."""
    words = f"[The MCP server {server!r} asks.]"
    return f"{words}\n\n{prompt}" if isinstance(prompt, str) and prompt else words


def name_places(server: str, data: Any) -> Any:
    """The data of a URL elicitation error, with the name of the server."""
    places = data.get("elicitations") if is_table(data) else None
    if not is_list(places):
        return data
    named = [
        {**place, "message": f"{server} asks: {printable(str(place.get('message', '')))}"}
        if is_table(place)
        else place
        for place in places
    ]
    return {**data, "elicitations": named}


def _prompt_tokens(params: Mapping[str, Any]) -> int:
    """The approximate number of tokens of a request."""
    messages: Any = params.get("messages")
    blocks: list[Any] = []
    for message in messages if is_list(messages) else ():
        content: Any = message.get("content") if is_table(message) else message
        blocks += content if is_list(content) else [content]
    texts = [one for one in blocks if not (is_table(one) and "data" in one)]
    read = len(msgspec.json.encode({**params, "messages": texts})) // _BYTES_PER_TOKEN
    return read + (len(blocks) - len(texts)) * _TOKENS_OF_MEDIA


def _secrets_rule(config: ServerConfig | None) -> str:
    """How to treat forms that ask for secrets; a project cannot change it."""
    if config is None:
        return "refuse"
    standing = STANDINGS[config.provenance]
    wish = config.elicitation.secrets if standing.may_loosen else None
    return wish or standing.risky_forms


def _limits(config: ServerConfig | None) -> Sampling:
    """How much a server may use models; a project's file can only lower it."""
    usual = Sampling()
    if config is None or STANDINGS[config.provenance].may_loosen:
        return usual if config is None else config.sampling
    given = config.sampling
    return Sampling(rate=min(usual.rate, given.rate), tokens=min(usual.tokens, given.tokens))
