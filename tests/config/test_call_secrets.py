"""The secrets in the arguments of calls."""

import pytest
from msgspec import Raw

from multitap.config.secrets import in_call, is_telling, mask_members
from multitap.wire.jsonrpc import encode

CASES = [
    ({"password": "hunter2"}, {"hunter2"}),
    ({"login": {"user": "ada", "passWord": "hunter2"}}, {"hunter2"}),
    ({"steps": [{"api-key": "k-12345"}, {"text": "x"}]}, {"k-12345"}),
    ({"credentials": {"user": "grace", "value": ["love", 1815]}}, {"grace", "love", "1815"}),
    ({"pin": 4711}, {"4711"}),
    ({"url": "https://ada:lovelace@example.com"}, {"lovelace"}),
    ({"text": "Authorization: Bearer ntn_123456"}, {"ntn_123456"}),
    ({"token": True, "secret": None, "key": "/home/ada/key.pem", "auth": "basic"}, set()),
    ({"keywords": ["python"], "max_tokens": 1000, "keyboard": "dvorak", "author": "Ada"}, set()),
    ({}, set()),
]


@pytest.mark.parametrize(("arguments", "secrets"), CASES)
def test_values_under_telling_names_are_found_at_any_depth(arguments, secrets):
    assert {*in_call(arguments)} == secrets
    assert {*in_call(Raw(encode(arguments)))} == secrets


@pytest.mark.parametrize("arguments", [b"", b"[", b"[]", b'{"password": ', b"\xff", b"1"])
def test_arguments_that_cannot_be_read_have_none(arguments):
    assert not [*in_call(arguments)]


def test_every_value_under_a_telling_name_is_masked():
    data = {"a": 1, "password": "x", "auth": {"b": [1, True, None], "c": "y"}, "d": [{"pin": 5}]}

    assert mask_members(data, "***") == {
        "a": 1,
        "password": "***",
        "auth": {"b": ["***", True, None], "c": "***"},
        "d": [{"pin": "***"}],
    }


def test_values_that_are_nested_too_deep_to_be_looked_at_are_masked():
    data = {"pin": 1}
    for _ in range(100):
        data = {"a": data}

    assert "pin" not in str(mask_members(data, "***"))


@pytest.mark.parametrize("name", ["keyword", "keyboard", "max_tokens", "maxTokens", "token_count"])
def test_names_that_only_look_telling(name):
    assert not is_telling(name)


@pytest.mark.parametrize("name", ["key", "api_key", "tokens", "max_tokens_key", "monkey_token"])
def test_names_that_are_telling(name):
    assert is_telling(name)
