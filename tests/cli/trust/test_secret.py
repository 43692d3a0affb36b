"""`multitap secret`: from standard input to the server that names it."""

import json
import os
import pty
import subprocess
import sys

import pytest

from tests.trust.keyrings import no_keyring
from tests.zoo.modes import command


@pytest.fixture(autouse=True)
def without_keyring(monkeypatch):
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    with no_keyring():
        yield


def test_a_secret_from_standard_input_reaches_the_server_that_names_it(multitap, home):
    ended = multitap("secret set greeting", stdin="hello there\n")
    program, *args = command("good")
    config = {"command": program, "args": args, "env": {"GREETING": "${auth:greeting}"}}
    (home / "servers.json").write_text(json.dumps({"mcpServers": {"zoo": config}}))

    assert ended.code == 0
    assert "hello" not in ended.out + ended.err
    called = multitap("call -c servers.json zoo_env name=GREETING")
    assert called.code == 0, called.err
    assert "hello there" in called.out or "***" in called.out


def test_names_are_listed_without_values(multitap):
    multitap("secret set gh --server files --origin https://api.example.com/x", stdin="s3cret")
    listed = multitap("secret list")
    data = multitap("secret list --json").json

    assert "s3cret" not in listed.out
    assert listed.lines[1].split()[0] == "gh"
    assert data[0]["servers"] == ["files"]
    assert data[0]["origins"] == ["https://api.example.com"]


def test_a_secret_that_is_removed_is_missing_in_words(multitap, home):
    multitap("secret set gh", stdin="s3cret")
    assert multitap("secret remove gh").code == 0
    (home / "servers.json").write_text(
        json.dumps({"mcpServers": {"a": {"command": "true", "env": {"T": "${auth:gh}"}}}})
    )
    ended = multitap("doctor -c servers.json")

    assert "the secret `gh` is not set" in ended.out
    assert "multitap secret set gh" in ended.out
    assert multitap("secret remove gh").code == 2


@pytest.mark.parametrize("stdin", ["", "\n"])
def test_an_empty_value_is_refused(multitap, stdin):
    ended = multitap("secret set gh", stdin=stdin)

    assert ended.code == 1
    assert "a secret has 1 to" in ended.err
    assert multitap("secret list --json").json == []


def test_a_person_types_the_value_unseen(home):
    ours, theirs = pty.openpty()
    typed = [sys.executable, "-m", "multitap", "secret", "set", "gh"]
    with subprocess.Popen(typed, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        shown = b""
        while b"Value of gh" not in shown:
            shown += os.read(ours, 1024)
        os.write(ours, b"s3cret\n")
        assert process.wait(60) == 0
    while b"stored" not in shown:
        shown += os.read(ours, 1024)
    os.close(ours)
    os.close(theirs)

    assert b"s3cret" not in shown
