"""Forms that ask for secrets are recognised, and honest ones are not."""

import pytest

from multitap.trust.questions import asked_secrets


def form(*fields, **typed):
    named = {name: {"type": "string"} for name in fields}
    return {"type": "object", "properties": {**named, **typed}}


SECRET = [
    ("Sign in", form("password")),
    ("Sign in", form("user_password")),
    ("Sign in", form(field={"type": "string", "title": "Passphrase"})),
    ("Sign in", form(field={"type": "string", "description": "your API key"})),
    ("Sign in", form("apiKey")),
    ("Sign in", form("api-key")),
    ("Sign in", form("token")),
    ("Sign in", form("secret")),
    ("Please type your password", form("value")),
    ("Please type your p a s s w o r d", form("value")),
    ("Please type your p@ssw0rd", form("value")),
    ("Please type your pass\u200bword", form("value")),
    ("Please type your \u0440\u0430ssword", form("value")),
    ("Please type your \uff30\uff21\uff33\uff33word", form("value")),
    ("Bitte das Passwort", form("wert")),
    ("contraseña", form("valor")),
    ("Pay", form(n={"type": "integer", "title": "Card number"})),
    ("Pay", form("cvv")),
    ("The code we sent", form("otp")),
    ("Restore the wallet", form(words={"type": "string", "title": "Seed phrase"})),
    ("Who are you?", form("ssn")),
    ("x", form(field={"type": "string", "format": "password"})),
    ("x", form(field={"title": "PIN", "type": ["string"]})),
]


@pytest.mark.parametrize(("message", "schema"), SECRET)
def test_forms_that_ask_for_secrets(message, schema):
    assert asked_secrets(message, schema)


HONEST = [
    ("Who are you?", form("name", "email")),
    ("Which branch?", form("branch", "keyboard", "monkey")),
    ("Reset your password?", form(sure={"type": "boolean"})),
    ("Which password manager?", form(tool={"type": "string", "enum": ["a", "b"]})),
    ("How long may it be?", form(max_tokens={"type": "integer", "title": "Max tokens"})),
    ("Which column is the primary key?", form("column")),
    ("Spinning opinion", form("shopping")),
    ("", {}),
    ("password", {"properties": "password"}),
]


@pytest.mark.parametrize(("message", "schema"), HONEST)
def test_honest_forms_are_left_alone(message, schema):
    assert not asked_secrets(message, schema)


WORDINGS = [
    "One-time code",
    "one time passcode",
    "Enter the 6-digit code from your authenticator app",
    "The code we sent to your phone",
    "SMS code",
    "2FA code",
    "two-factor code",
    "Verification code",
    "Login code",
    "Backup codes",
    "Your recovery phrase",
    "secret recovery phrase",
    "The 12 words of your wallet",
    "seed words",
    "mnemonic",
    "CVV",
    "CVC2",
    "card verification value",
    "the three digits on the back of your card",
    "credit-card no.",
    "IBAN",
    "Sort code and account number",
    "Social Security number",
    "login credentials",
    "access code",
    "pass-code",
    "passkey",
    "private key (PEM)",
    "paste your id_rsa",
    "SSH key",
    "client_secret",
    "clientSecret",
    "apikey",
    "API-Key",
    "access token",
    "Bearer ...",
    "session cookie",
    "Authorization header",
    "connection string",
    "database DSN",
    "PIN",
    # other languages
    "Kennwort",
    "Paßwort",
    "API-Schlüssel",
    "Geheimzahl",
    "mot de passe",
    "clé d\u2019API",
    "code secret",
    "contraseña",
    "contrasena",
    "clave de acceso",
    "senha",
    "palavra-passe",
    "parola d'ordine",
    "wachtwoord",
    "lösenord",
    "adgangskode",
    "salasana",
    "hasło",
    "heslo",
    "jelszó",
    "şifre",
    "пароль",
    "ключ API",
    "κωδικός πρόσβασης",
    "كلمة المرور",
    "סיסמה",
    "पासवर्ड",
    "mật khẩu",
    "kata sandi",
    "รหัสผ่าน",
    "密码",
    "密碼",
    "验证码",
    "パスワード",
    "暗証番号",
    "비밀번호",
    # in disguise
    "p a s s w o r d",
    "P-A-S-S-W-O-R-D",
    "p.a.s.s.w.o.r.d",
    "p\u200ba\u200bs\u200bs\u200bw\u200bo\u200br\u200bd",
    "pass\u00adword",
    "pass\u3164word",
    "pass\U000e0020word",
    "pa$$word",
    "pa55w0rd",
    "pässwörd",
    "pa\u0301ssword",
    "\u0420\u0410SSWORD",  # Cyrillic
    "passw\u03bfrd",  # Greek
    "api \u043aey",  # Cyrillic
    "api \u03baey",  # Greek
    "\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44",  # full width
    "\U0001d429\U0001d41a\U0001d42c\U0001d42cword",  # mathematical
    "credentia1s",
    "s e c r e t",
]


@pytest.mark.parametrize("words", WORDINGS)
@pytest.mark.parametrize("place", ["message", "title", "description"])
def test_every_wording_is_recognised(words, place):
    field = {"type": "string", **({} if place == "message" else {place: words})}
    message = words if place == "message" else "Please fill in"

    assert asked_secrets(message, form(field=field))


ORDINARY = [
    "token count",
    "Number of tokens",
    "input tokens",
    "token limit",
    "keyboard layout",
    "keywords",
    "passenger name",
    "Passengers",
    "bypass the cache",
    "compass direction",
    "primary key column",
    "foreign key",
    "sort key",
    "key of the song",
    "secretary",
    "secretariat",
    "author",
    "authority",
    "spinning",
    "opinion",
    "shopping list",
    "postal code",
    "zip code",
    "country code",
    "promo code",
    "error code",
    "source code",
    "QR code",
    "language code",
    "card title",
    "business card layout",
    "account name",
    "session title",
    "cookie recipe",
    "header text",
    "string to search",
    "seed for the random generator",
    "backup folder",
    "recovery plan",
    "words to translate",
    "signature dish",
    "tokenizer",
    "hash tag",
    "pass or fail",
    "pass rate",
    "passage",
    "island",
    "Schlüsselwörter",
    "the code I wrote",
    "code was reviewed",
    "Summary in 12 words",
    "key takeaways",
    "Contrast",
    "hotpot",
    "Description of the authentication problem",
]


@pytest.mark.parametrize("words", ORDINARY)
def test_ordinary_forms_raise_no_alarm(words):
    assert not asked_secrets(words, form("value"))
    assert not asked_secrets("Please fill in", form(field={"type": "string", "title": words}))
    assert not asked_secrets("Please fill in", form(words.replace(" ", "_")))
