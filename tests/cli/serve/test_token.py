"""`multitap token`: shown once, listed without the secret, revoked by name or id."""

import re
import time
from contextlib import closing

import pytest

from multitap.config.sources import state_directory
from multitap.store.audit_log import AuditFile, AuditRecord
from multitap.trust.tokens import AccessTokens


def created(multitap, line):
    ended = multitap(f"token create {line}")
    assert ended.code == 0, ended.err
    return ended.out.strip()


def test_a_token_is_printed_alone_and_only_once(multitap):
    ended = multitap("token create ci")
    token = ended.out.strip()

    assert re.fullmatch(r"mtap_[a-z2-7]{12}_[A-Za-z0-9]{43}", token)
    assert token not in ended.err
    for line in ("token list", "token list --json"):
        assert token[-43:] not in multitap(line).out


def test_what_a_token_allows_is_listed(multitap):
    created(
        multitap, "ci --profile readonly --allow 'a_*' --allow b_c --expires 30d --rate 100/min"
    )
    listed = multitap("token list --json").json[0]

    assert listed["name"] == "ci"
    assert listed["state"] == "active"
    assert listed["profile"] == "readonly"
    assert listed["allow"] == ["a_*", "b_c"]
    assert listed["rate"] == "100/min"
    assert listed["expires"] == pytest.approx(time.time() + 30 * 86400, abs=600)
    assert listed["last_use"] is None
    head, row = multitap("token list").lines
    assert head.split() == [
        "NAME",
        "ID",
        "STATE",
        "PROFILE",
        "ALLOW",
        "RATE",
        "EXPIRES",
        "LAST",
        "USE",
    ]
    assert row.split()[:7] == ["ci", listed["id"], "active", "readonly", "a_*,", "b_c", "100/min"]
    assert row.endswith("never")


def test_the_last_use_is_shown(multitap):
    created(multitap, "ci")
    AccessTokens().note_uses({AccessTokens().all()[0].id: time.time()})

    assert multitap("token list").lines[1].split()[-2] == time.strftime("%Y-%m-%d")
    assert multitap("token list --json").json[0]["last_use"] == pytest.approx(time.time(), abs=600)


def test_a_token_is_revoked_by_name_or_id(multitap):
    for _ in range(3):
        created(multitap, "ci")
    first = AccessTokens().all()[0].id
    unclear = multitap("token revoke ci")
    words = (first, "ci --all", "ci")
    by_id, by_name, again = (multitap(f"token revoke {what}") for what in words)

    assert (unclear.code, by_id.code, by_name.code) == (2, 0, 0)
    assert "3 active tokens are named 'ci'" in unclear.err
    assert first in by_id.err
    assert by_name.err.count("revoked") == 2
    assert again.code == 2
    assert "no active token" in again.err
    assert {one["state"] for one in multitap("token list --json").json} == {"revoked"}


@pytest.mark.parametrize(
    "line",
    ["", "'a b'", "ci --expires soon", "ci --expires 0s", "ci --rate fast", "ci --rate 0/min"],
)
def test_impossible_options_are_refused(multitap, line):
    ended = multitap(f"token create {line}")

    assert ended.code != 0
    assert "error" in ended.err
    assert ended.out == ""
    assert multitap("token list --json").json == []


def test_without_tokens_the_way_to_one_is_shown(multitap):
    assert "multitap token create" in multitap("token list").err


def test_a_token_is_rotated_with_a_grace(multitap):
    created(multitap, "ci")

    ended = multitap("token rotate ci --grace 1h")
    old, new = AccessTokens().all()

    assert ended.code == 0
    assert ended.out.startswith(f"mtap_{new.id}_")
    assert f"the one with the id {old.id} is accepted until" in ended.err
    assert old.expires == pytest.approx(time.time() + 3600, abs=300)


def test_the_audit_shows_the_name_of_a_token(multitap):
    created(multitap, "ci")
    token = AccessTokens().all()[0]
    entry = AuditRecord("call", time.time(), principal=token.id, server="zoo", tool="echo")
    with closing(AuditFile(state_directory())) as file:
        file.append([entry.body()], keep=100)

    shown, plain = multitap("audit --kind call"), multitap("audit --kind call --json")

    assert shown.lines[1].split()[3:6] == ["ci", "call:", "zoo"]
    assert plain.json[0]["principal"] == token.id
