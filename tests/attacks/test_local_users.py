"""Another user of the same machine, who can reach every port of loopback."""

import os

import pytest

from multitap.trust.access_tokens import AccessTokens
from tests.attacks.served import OTHER_USER, asked, asked_by, serving, status_of
from tests.gateway.hostile.raw import hello, http, stateless
from tests.waiting import wait_for

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
DOORS = (
    http("GET", "/health", connection="close"),
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


def test_the_own_user_needs_no_token(tmp_path):
    with serving(tmp_path) as (port, _):
        assert [status_of(asked(port, door)) for door in DOORS[:2]] == [200, 200]
        assert b'"tools":' in asked(port, DOORS[4])


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
