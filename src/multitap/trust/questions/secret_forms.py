"""Detects forms that ask people for secrets."""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from multitap.config.documents import is_table

LONGEST = 16 * 1024
"""Characters of a form's texts that are searched."""

# Look-alikes of Latin letters: Cyrillic, Greek, and digits among letters.
_LOOKALIKES = str.maketrans(
    {
        **dict(zip("аеорсухіјѕԁһӏкмтвн", "aeopcyxijsdhlkmtbh", strict=True)),
        **dict(zip("αοεριкντυχ", "aoepiкvtux", strict=True)),
        **dict(zip("@013$5|", "aoiessl", strict=True)),
    }
)
# `p a s s w o r d` and `p.a.s.s` read the same to a person.
_SPACED = re.compile(r"\b(?:\w[\s._*-]+){3,}\w\b")

_KINDS: Mapping[str, tuple[str, ...]] = {
    "a password": (
        r"pass ?(?:word|wort|phrase|code)|passwd|\bpwd\b|contrasen?ñ?a|mot de passe|kennwort",
        r"senha|wachtwoord|пароль|密码|密碼|パスワード|비밀번호|hasło|parola|lozinka",
    ),
    "a key or token": (
        r"(?:api|access|secret|private|signing|encryption|ssh|license|bearer) ?(?:key|token)",
        r"(?:auth\w*|refresh|session|github|personal|bot|id) ?(?:key|token)",
        r"secret|credential|\bjwt\b|\bpat\b|schlussel",
    ),
    "a card or account number": (
        r"(?:credit|debit|bank|payment) ?card|card ?(?:number|no\b|num)|kreditkarte|tarjeta",
        r"\bcvv2?\b|\bcvc2?\b|\bcsc\b|security code|\biban\b|account number|routing number",
    ),
    "a one-time code": (
        r"one ?time (?:code|pass\w*)|verification code",
        r"\botp\b|\b[2t]fa\b|\bmfa\b|\bpin(?: ?code)?\b",
    ),
    "a recovery phrase": (
        r"(?:seed|recovery|mnemonic|backup) ?(?:phrase|words?|codes?|key)|mnemonic",
    ),
    "an identity number": (r"social security|\bssn\b|passport n|tax ?id|national id",),
}
_PATTERNS = {kind: re.compile("|".join(patterns)) for kind, patterns in _KINDS.items()}
_BARE_TOKEN = re.compile(r"\btokens?\b")
_COUNTED = re.compile(
    r"(?:max|min|number|count|limit|budget|total|many)\w*\W+(?:of\W+)?tokens?"
    r"|tokens?\W+(?:limit|count|budget|per)"
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
    found = {kind for text in texts for kind in _kinds(_plain(text))}
    return tuple(kind for kind in _KINDS if kind in found)


def _free_fields(schema: Mapping[str, Any]) -> Iterator[str]:
    """The texts of each field that a person can type into."""
    properties = schema.get("properties")
    for name, field in properties.items() if is_table(properties) else ():
        if not is_table(field):
            yield name
        elif field.get("type") != "boolean" and {"enum", "oneOf", "const"}.isdisjoint(field):
            said = [field.get(key) for key in ("title", "description", "format", "default")]
            yield " ".join((_separate_words(name), *(one for one in said if isinstance(one, str))))


def _separate_words(name: str) -> str:
    """`apiKey` as `api Key`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)


def _plain(text: str) -> str:
    """A text with disguised words made plain, as a person reads them."""
    text = unicodedata.normalize("NFKC", text[:LONGEST])
    text = "".join(char for char in text if unicodedata.category(char) not in {"Cf", "Mn"})
    text = _SPACED.sub(lambda match: re.sub(r"[\s._*-]", "", match[0]), text)
    return re.sub(r"[\s._-]+", " ", text.casefold())


def _kinds(text: str) -> Iterator[str]:
    for spelled in {text, text.translate(_LOOKALIKES)}:
        for kind, pattern in _PATTERNS.items():
            if pattern.search(spelled):
                yield kind
        if _BARE_TOKEN.search(_COUNTED.sub("", spelled)):
            yield "a key or token"
