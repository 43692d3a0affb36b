"""Detects forms that ask people for secrets."""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from multitap.config.documents import is_table
from multitap.look_alikes import remove_unseen

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
            said = [field.get(key) for key in ("title", "description", "format", "default")]
            yield " ".join((_separate_words(name), *(one for one in said if isinstance(one, str))))


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
