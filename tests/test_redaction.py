"""Secrets are taken out of a text whatever form they have in it."""

import base64
import html
import json
import re
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.redaction import MARK, RedactedStream, Redactor

secrets = st.text(st.characters(codec="utf-8", exclude_characters="…*"), min_size=8, max_size=60)
secrets = secrets.filter(lambda secret: secret == secret.strip() and len({*secret}) > 2)
around = st.text(st.sampled_from("xyz 0\n"), max_size=12)


def spellings(secret: str, before: str = "", after: str = "") -> dict[str, str]:
    """How texts hold a secret; made without the code that looks for it."""
    whole = f"{before}{secret}{after}"
    raw = whole.encode()
    return {
        "plain": whole,
        "url": quote(whole, safe=""),
        "path": quote(whole),
        "url, lower case": re.sub("%..", lambda match: match[0].lower(), quote(whole, safe="")),
        "form": quote_plus(whole),
        "json": json.dumps(whole),
        "json, unicode": json.dumps(whole, ensure_ascii=False),
        "json in json": json.dumps(json.dumps(whole)),
        "repr": repr(whole),
        "repr of bytes": repr(raw),
        "html": html.escape(whole),
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
        "base64": base64.b64encode(raw).decode(),
        "base64, url-safe": base64.urlsafe_b64encode(raw).decode(),
    }


def bare(secret: str, spelling: str) -> str:
    """The part of a spelling that is the secret, as long as it can be told from the rest."""
    text = spellings(secret)[spelling].strip("\"'=")
    return text.removeprefix("b'").removeprefix('b"')


@given(secrets, around, around)
def test_no_spelling_of_a_secret_is_left(secret, before, after):
    redact = Redactor([secret])

    for name, text in spellings(secret, before, after).items():
        shown = redact(f"said {text} and more")
        assert MARK in shown, name
        assert secret not in shown
        assert bare(secret, name) not in shown, name


@given(secrets, around, around, st.data())
def test_a_secret_in_two_pieces_is_hidden_all_the_same(secret, before, after, data):
    text = data.draw(st.sampled_from([*spellings(secret, before, after).values()]))
    whole = f"said {text} and more".encode()
    cut = data.draw(st.integers(0, len(whole)))
    stream = RedactedStream(Redactor([secret]))

    shown = stream.feed(whole[:cut]) + stream.feed(whole[cut:]) + stream.end()

    assert shown == Redactor([secret]).replace_whole(whole.decode())
    assert MARK in shown


@given(secrets, st.integers(1, 5))
def test_a_secret_in_many_pieces_is_hidden_all_the_same(secret, size):
    whole = f"key={secret}; again {secret}\n".encode()
    stream = RedactedStream(Redactor([secret]))

    pieces = [stream.feed(whole[at : at + size]) for at in range(0, len(whole), size)]

    assert secret not in "".join([*pieces, stream.end()])


@given(st.text(max_size=200), st.integers(1, 7))
def test_a_stream_loses_nothing_but_secrets(text, size):
    stream = RedactedStream(Redactor(["hunter2hunter2"]))
    data = text.encode()

    pieces = [stream.feed(data[at : at + size]) for at in range(0, len(data), size)]

    assert "".join([*pieces, stream.end()]) == Redactor(["hunter2hunter2"])(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("the key is hunter2hun", "the key is ***"),
        ("the key is hunter2hun… and more", "the key is ***… and more"),
        ("'hunter2hun…' and 'hunter2h…'", "'***…' and '***…'"),
        ("go hun", "go hun"),
        ("a hunt ends", "a hunt ends"),
    ],
)
def test_a_secret_that_is_cut_off_is_hidden_too(text, shown):
    assert Redactor(["hunter2hunter2"])(text) == shown


def test_the_end_of_a_text_does_not_begin_within_a_secret():
    redact = Redactor(["hunter2hunter2"])
    text = "the key is hunter2hunter2, and more"

    assert [redact.tail(text, size) for size in (14, 20, 24, 30)] == [
        ", and more",
        ", and more",
        "***, and more",
        "ey is ***, and more",
    ]


def test_a_stream_that_never_ends_is_held_back_for_no_more_than_a_secret():
    stream = RedactedStream(Redactor(["ababab12"]))

    shown = sum(len(stream.feed(b"ab" * 1000)) for _ in range(10))

    assert shown > 19_900


def test_what_has_lines_is_hidden_line_by_line():
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n"
    redact = Redactor([key])

    assert redact("line MIIEvQIBADANBgkqhkiG9w0B, then AQEFAASCBKcwggSjAgEAAoIB") == (
        "line ***, then ***"
    )
    assert (
        redact("-----BEGIN PRIVATE KEY-----, but whose") == "-----BEGIN PRIVATE KEY-----, but whose"
    )


def test_data_is_replaced_only_where_it_holds_a_secret():
    redact = Redactor(["hunter2hunter2", "12345678"])
    clean = {"a": [1, None, True, {"b": "c"}]}

    assert redact.data(clean) is clean
    assert redact.data(None) is None
    assert redact.data({"k": ["Bearer hunter2hunter2", 12345678, 5], "hunter2hunter2": None}) == {
        "k": ["Bearer ***", "***", 5],
        "***": None,
    }


def test_short_values_are_no_secrets():
    assert Redactor(["", "1", "true", "info"])("1 is true: info") == "1 is true: info"


def test_a_secret_can_be_learned_later():
    redact = Redactor(["hunter2hunter2"])
    redact.learn(["later-later"])

    assert redact("hunter2hunter2, later-later") == "***, ***"
