"""What servers may ask people and models: each question names its asker."""

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from typing import Any

import msgspec

from multitap.config.documents import is_list, is_table
from multitap.config.models import Sampling, ServerConfig
from multitap.config.provenance import STANDINGS
from multitap.printable import printable, remove_unseen

MINUTE, HOUR = 60.0, 3600.0
LARGEST_SHARE = 10
"""The part of the hourly budget that one request may take."""


class OverBudget(Exception):
    """A server asked for more than its budget."""


class SamplingBudget:
    """The sampling budget of one server, for all its sessions.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._asked: deque[float] = deque()
        self._spent: deque[tuple[float, int]] = deque()
        self._total = 0

    def take(self, prompt: int, answer: int, *, rate: int, tokens: int) -> int:
        """Count a request before it is made; returns the maximum tokens of the answer.

        Args:
            prompt: Tokens in the request.
            answer: The requested maximum tokens of the answer.
            rate: Requests allowed per minute.
            tokens: Tokens allowed per hour.

        Raises:
            OverBudget: There is nothing left.
        """
        now = self._clock()
        self._forget(now)
        if len(self._asked) >= rate:
            raise OverBudget(f"it may ask a model {rate} times a minute (`sampling.rate`)")
        share = tokens // LARGEST_SHARE
        left = min(share, tokens - self._total) - prompt
        if left < 1:
            raise OverBudget(f"it may use {tokens:,} tokens an hour (`sampling.tokens`)")
        granted = max(1, min(answer, left))
        # Counted before it is made, with all granted tokens: concurrent requests cannot spend
        # the same tokens.
        self._asked.append(now)
        self._spent.append((now, prompt + granted))
        self._total += prompt + granted
        return granted

    def _forget(self, now: float) -> None:
        while self._asked and self._asked[0] <= now - MINUTE:
            self._asked.popleft()
        while self._spent and self._spent[0][0] <= now - HOUR:
            self._total -= self._spent.popleft()[1]


LONGEST = 16 * 1024
"""Characters of a form's texts that are searched."""

# Look-alikes of Latin letters: Cyrillic, Greek, and digits among letters.
_LOOKALIKES = str.maketrans(
    {
        **dict(zip("аеорсухіјѕԁһӏкмтвн", "aeopcyxijsdhlkmtbh", strict=True)),
        **dict(zip("αοερικντυχ", "aoepikvtux", strict=True)),
        **dict(zip("@013$5|", "aoiessl", strict=True)),
    }
)
_ONE_AS_L = str.maketrans("1", "l")
# `p a s s w o r d` and `p.a.s.s` read the same to a person.
_SPACED = re.compile(r"\b(?:[^\W_][\s._*-]+){3,}[^\W_]\b")

# In plain letters, as `_spellings` makes them, and in scripts of their own.
_KINDS: Mapping[str, tuple[str, ...]] = {
    "a password": (
        r"pass ?(?:wor[dt]|phrase|code)|passwd|\bpwd\b|\bpass ?keys?\b",
        r"kennwort|losungswort|contrasena|mot de passe|code secret|palavra passe|\bsenha\b|parola",
        r"\bclave (?:de acceso|secreta|personal)|wachtwoord|losenord|adgangskode|\bpassord\b",
        r"salasana|hasło|haslo|\bheslo\b|jelszo|lozinka|\bsifre(?:n|niz)?\b|mat khau|kata sandi",
        r"парол|κωδικοσ|κωδικόσ|كلمة (?:المرور|السر)|סיסמה|סיסמא|पासवर्ड|รหัสผ่าน",
        r"密码|密碼|口令|パスワード|비밀번호|암호",
    ),
    "a key or token": (
        r"(?:api|access|secret|private|signing|encryption|ssh|license|bearer) ?(?:key|token)",
        r"(?:auth\w{0,12}|refresh|session|github|personal|bot|id) ?(?:key|token)",
        r"secrets?\b|secret ?keys?|credential|\bjwt\b|\bpat\b|\bid (?:rsa|ed25519|ecdsa)\b",
        r"\bbearer\b|authorization header|(?:session|auth\w{0,12}|login) cookie|connection string",
        r"\bdsn\b|(?:api|geheimer|privater) ?schlussel|\bcle (?:d.?|de l.?)?api\b|cle privee",
        r"(?:clave|chave|llave) (?:de |da )?(?:api|privada|secreta)|chiave (?:api|privata|segreta)",
        r"ключ\w* api|api ключ|секретн\w+ ключ|密钥|密鑰|秘密鍵|シークレット|비밀 ?키",
    ),
    "a card or account number": (
        r"(?:credit|debit|bank|payment) ?card|card ?(?:number|no\b|num)|kreditkarte|tarjeta de",
        r"card verification|\bcvv2?\b|\bcvc2?\b|\bcsc\b|security code|back of (?:your|the) card",
        r"carte (?:bancaire|de credit)|\biban\b|account number|routing number|\bsort code\b",
        r"kontonummer|номер карты|卡号|卡號|カード番号|카드 ?번호",
    ),
    "a one-time code": (
        r"(?:one ?time|verification|authenticat\w{1,8}|sms|access) ?(?:pass)?codes?\b",
        r"(?:log ?in|sign ?in|(?:two|2) ?factor|2 ?fa|mfa|\d ?digit|back ?up|recovery) ?codes?\b",
        r"codes? (?:that )?(?:(?:we|i) )?(?:just )?(?:sent|texted|e ?mailed)\b|one ?time pass\w*",
        r"codes? from your (?:\w+ )?(?:app|phone|authenticator)|\botp\b|\b[2t]fa\b|\bmfa\b",
        r"\bpin(?: ?code)?\b|geheimzahl|codigo de verificacion|code de verification",
        r"bestatigungscode|код (?:подтверждения|из смс)|验证码|驗證碼|认证码|確認コード|暗証番号",
        r"인증 ?(?:번호|코드)",
    ),
    "a recovery phrase": (
        r"(?:seed|recovery|mnemonic|backup) ?(?:phrase|words?|key)|mnemonic|助记词|助記詞",
        r"\b(?:12|24|twelve|twenty four) ?words? (?:of|from|phrase)|words of your wallet",
    ),
    "an identity number": (r"social security|\bssn\b|passport n|tax ?id|national id",),
}
_PATTERNS = {kind: re.compile("|".join(patterns)) for kind, patterns in _KINDS.items()}
_BARE_TOKEN = re.compile(r"\btokens?\b")
_COUNTED = re.compile(
    r"(?:max|min|number|count|limit|budget|total|many|input|output)\w{0,12}\W{1,9}(?:of\W{1,9})?"
    r"tokens?"
    r"|tokens?\W{1,9}(?:limit|count|budget|per|usage|length)"
)


def asked_secrets(message: str, schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Which kinds of secrets a form asks for, in words.

    The message counts only if there is a field to type into; choices and check boxes cannot
    contain a secret.
    """
    fields = [*_free_fields(schema)]
    if not fields:
        return ()
    texts = [message, *fields]
    kinds = {kind for text in texts for kind in _kinds(text)}
    return tuple(kind for kind in _KINDS if kind in kinds)


def _free_fields(schema: Mapping[str, Any]) -> Iterator[str]:
    """The texts of each field that a person can type into."""
    properties = schema.get("properties")
    for name, field in properties.items() if is_table(properties) else ():
        if not is_table(field):
            yield name
        elif field.get("type") != "boolean" and {"enum", "oneOf", "const"}.isdisjoint(field):
            texts = [field.get(key) for key in ("title", "description", "format", "default")]
            yield " ".join(
                (_separate_words(name), *(text for text in texts if isinstance(text, str)))
            )


def _separate_words(name: str) -> str:
    """`apiKey` as `api Key`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)


def _spellings(text: str) -> set[str]:
    """A text as a person may read it: as it is, and with disguised words made plain."""
    written = unicodedata.normalize("NFKC", text[:LONGEST])
    # without accents, marks and whatever takes no room
    parts = unicodedata.normalize("NFKD", written)
    bare = "".join(char for char in parts if unicodedata.category(char) not in {"Cf", "Mn"})
    bare = remove_unseen(bare)
    plain = _separate(bare)
    return {
        _separate(written),
        plain,
        plain.translate(_LOOKALIKES),
        plain.translate(_ONE_AS_L).translate(_LOOKALIKES),
    }


def _separate(text: str) -> str:
    """A text in small letters, with single blanks between its words."""
    text = _SPACED.sub(lambda match: re.sub(r"[\s._*-]", "", match[0]), text)
    return re.sub(r"[\s._-]+", " ", text.casefold())


def _kinds(text: str) -> Iterator[str]:
    for spelled in _spellings(text):
        for kind, pattern in _PATTERNS.items():
            if pattern.search(spelled):
                yield kind
        if _BARE_TOKEN.search(_COUNTED.sub("", spelled)):
            yield "a key or token"


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
        message_shown = f"{server} asks: {printable(message[:LONGEST_MESSAGE])}"
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
                message_shown = (
                    f"{warning} What you enter goes to the server {server!r}.\n\n{message_shown}"
                )
                self._on_refusal(server, "elicitation/create", f"asks for {what} in a form")
        return {**params, "message": message_shown}

    def _sampling(
        self, server: str, params: Mapping[str, Any], *, for_client: bool
    ) -> Mapping[str, Any]:
        config = self._servers().get(server)
        limits = _limits(config)
        tokens = params.get("maxTokens")
        estimate = tokens if isinstance(tokens, int) and tokens > 0 else 1
        prompt = _prompt_tokens(params)
        budget = self._budgets.setdefault(server, SamplingBudget())
        try:
            granted = budget.take(prompt, estimate, rate=limits.rate, tokens=limits.tokens)
        except OverBudget as exc:
            raise QuestionRefused(f"{server!r} asks for too much: {exc}") from None
        meta = params.get("_meta")
        meta_table: Mapping[str, Any] = meta if is_table(meta) else {}
        signed = {**params, "_meta": {**meta_table, SERVER_KEY: server}}
        if isinstance(tokens, int):
            signed["maxTokens"] = min(tokens, granted)
        if for_client:
            signed["systemPrompt"] = sign(server, params.get("systemPrompt"))
        return signed


def sign(server: str, prompt: object) -> str:
    """A system prompt that names the server, for the person who reviews it."""
    sentence = f"[The MCP server {server!r} asks.]"
    return f"{sentence}\n\n{prompt}" if isinstance(prompt, str) and prompt else sentence


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
    texts = [block for block in blocks if not (is_table(block) and "data" in block)]
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
    limits = config.sampling
    return Sampling(rate=min(usual.rate, limits.rate), tokens=min(usual.tokens, limits.tokens))
