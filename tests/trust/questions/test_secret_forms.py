"""Forms that ask for secrets are recognised, and honest ones are not."""

import pytest

from multitap.trust.questions.secret_forms import asked_secrets


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
