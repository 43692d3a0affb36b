"""Another user of the same machine, who can reach every port of loopback."""

import json
import os
import sys

import pytest

from multitap.trust.tokens import AccessTokens
from tests.attacks.served import (
    OTHER_USER,
    asked,
    asked_by,
    console_key,
    folders,
    serving,
    status_of,
)
from tests.gateway.hostile.raw import hello, http, stateless
from tests.terminals import terminal
from tests.waiting import wait_for

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
PROBES = tuple(http("GET", path, connection="close") for path in ("/health", "/ready"))
"""Open to everybody: machines look whether it works, and learn nothing else."""
DOORS = (
    http("GET", "/metrics", connection="close"),
    http("GET", "/sse", connection="close"),
    http(body=hello(), connection="close"),
    stateless(1, "tools/list", headers={"connection": "close"}),
    http("GET", "/nowhere", connection="close"),
)


@as_root
def test_another_local_user_is_refused_everywhere_and_a_token_lets_them_in(tmp_path):
    with serving(tmp_path) as (port, _):
        for door in DOORS:
            answer = asked_by(OTHER_USER, port, door)
            assert status_of(answer) == 403, answer
            assert b"calculator" not in answer
        for probe in PROBES:
            answer = asked_by(OTHER_USER, port, probe)
            assert json.loads(answer.partition(b"\r\n\r\n")[2]).keys() <= {"status", "ready"}
        assert status_of(asked(port, DOORS[0])) == 200

        text, _ = AccessTokens(tmp_path / "data" / "multitap" / "tokens").create("guest")
        header = {"authorization": f"Bearer {text}", "connection": "close"}
        for _ in range(100):
            answer = asked_by(OTHER_USER, port, stateless(1, "tools/list", headers=header))
            if status_of(answer) == 200:
                break
        assert b'"tools":' in answer


@as_root
def test_another_local_user_cannot_use_a_stolen_cookie_of_the_console(tmp_path):
    with serving(tmp_path) as (port, _):
        store = AccessTokens(tmp_path / "data" / "multitap" / "tokens")
        text, _ = store.create("console", is_console=True)
        door = http("GET", "/console", connection="close", cookie=f"multitap_console={text}")
        wait_for(lambda: b"calculator" in asked(port, door))
        stolen = asked_by(OTHER_USER, port, door)

    assert status_of(stolen) == 403
    assert b"calculator" not in stolen


@as_root
@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="alone"),
        pytest.param(("--require-token",), id="with tokens"),
        pytest.param(("--insecure",), id="for everybody"),
        pytest.param(("--require-token", "--http", "0.0.0.0:0"), id="on all addresses"),
        pytest.param(("--require-token", "--workers", "2"), id="workers"),
    ],
)
def test_another_local_user_gets_nothing_for_a_key_of_the_console(tmp_path, options):
    with serving(tmp_path, *options) as (port, _):
        key = console_key(tmp_path)
        door = http("GET", f"/console/enter?key={key}", connection="close")
        stolen = asked_by(OTHER_USER, port, door)
        form = {"content_type": "application/x-www-form-urlencoded", "connection": "close"}
        posted = asked_by(
            OTHER_USER,
            port,
            http(
                "POST", "/console/enter", f"key={key}".encode(),
                origin=f"http://127.0.0.1:{port}", host=f"127.0.0.1:{port}", **form,
            ),
        )  # fmt: skip

        assert [status_of(stolen), status_of(posted)] == [403, 403]
        assert b"set-cookie" not in (stolen + posted).lower()
        # the key is not used up by that
        entered = asked(port, door)
        assert status_of(entered) in {200, 303}
        assert b"set-cookie" in entered.lower()


@pytest.mark.parametrize("options", [(), ("--require-token",), ("--workers", "2")])
def test_no_key_of_the_console_is_in_a_log(tmp_path, options):
    with serving(tmp_path, *options) as (_, process):
        said = ""
        while "console" not in said:
            said += process.stderr.readline()
        # one that a person asks for is theirs alone
        assert console_key(tmp_path)
        process.terminate()
        said += process.stderr.read()

    assert "multitap console" in said
    assert "key=" not in said


def test_a_person_at_a_terminal_gets_a_link(tmp_path):
    command = [sys.executable, "-m", "multitap", "serve", "--demo", "--http", "127.0.0.1:0"]
    with terminal(command, **folders(tmp_path)) as person:
        assert person.reads(r"/console/enter\?key=\S{40}")


def test_the_own_user_needs_no_token(tmp_path):
    with serving(tmp_path) as (port, _):
        assert [status_of(asked(port, door)) for door in (PROBES[0], DOORS[0])] == [200, 200]
        assert b'"tools":' in asked(port, DOORS[3])


def test_everybody_needs_a_token_if_the_person_says_so(tmp_path):
    with serving(tmp_path, "--require-token") as (port, process):
        assert {status_of(asked(port, door)) for door in DOORS} == {401}
        said = "".join(process.stderr.readline() for _ in range(3))

    assert "there is none yet" in said
    assert "multitap token create" in said


@as_root
def test_insecure_means_everybody(tmp_path):
    with serving(tmp_path, "--insecure") as (port, _):
        assert status_of(asked_by(OTHER_USER, port, DOORS[0])) == 200
