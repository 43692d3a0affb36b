"""Decisions about trust are in the audit log, and cannot be taken out of it unnoticed."""

import json
import sqlite3
from contextlib import closing

import pytest

from multitap.trust.stored_logins import LoginSecrets, StoredLogin, TokenStore
from tests.cli.conftest import toml, zoo
from tests.trust.keyrings import no_keyring

VALUE = "s3cret-value"
URL = "http://127.0.0.1:1/mcp"


@pytest.fixture
def decided(multitap, home, tmp_path):
    """A person who has decided about everything there is."""
    with no_keyring():
        multitap("secret set key --server files", stdin=VALUE)
        multitap("secret remove key")
        token = multitap("token create ci --allow 'a_*' --rate 5/min").out.strip()
        multitap("token revoke ci")
        (home / "multitap.toml").write_text('[servers.a]\ncommand = "true"\n')
        multitap("trust")  # nobody is there to say yes
        multitap("trust --yes")
        multitap("trust --remove")
        multitap("config check --trust")
        kept = StoredLogin(
            server="far",
            url=URL,
            issuer="https://login.example",
            resource=URL,
            token_endpoint="https://login.example/token",
            client_id="us",
            secrets=LoginSecrets(access_token=VALUE),
        )
        TokenStore().add(kept)
        (home / "far.toml").write_text(f'[servers.far]\nurl = "{URL}"\n')
        multitap("logout -c far.toml far")
        ledger = tmp_path / "ledger"
        ledger.mkdir()
        table = zoo("rug_pull_silent", env={"ZOO_DIR": str(ledger)}, provenance="registry")
        lines = ["[servers.zoo]", *(f"{key} = {toml(value)}" for key, value in table.items())]
        (home / "pins.toml").write_text("\n".join(lines))
        multitap("call -c pins.toml zoo_fault")
        multitap("pins review -c pins.toml --accept")
        multitap("pins reset -c pins.toml zoo")
        return token


def test_every_decision_is_recorded_with_who_and_what(multitap, decided):
    found = multitap("audit --json").json
    said = {one["kind"]: one for one in found if one["kind"] != "call"}

    assert list(reversed([one["kind"] for one in found if one["kind"] != "call"])) == [
        *("secret.set", "secret.removed", "token.created", "token.revoked"),
        *("trust.refused", "trust.given", "trust.withdrawn", "trust.given_once"),
        *("login", "logout", "pins.accepted", "pins.reset"),
    ]
    assert all(one["principal"] and one["at"] and one["pid"] for one in said.values())
    assert {kind for kind, one in said.items() if one.get("decision") == "deny"} == {
        *("token.revoked", "trust.refused", "trust.withdrawn", "logout")
    }
    assert said["secret.set"]["subject"] == "key"
    assert "tools a_*; rate 5/min" in said["token.created"]["detail"]
    assert "server a" in said["trust.given"]["detail"]
    assert "echo " in said["pins.accepted"]["detail"]
    assert said["login"]["server"] == "far"
    assert decided not in json.dumps(found)
    assert VALUE not in json.dumps(found)
    assert [one["kind"] for one in multitap("audit --kind pins --json").json] == [
        *("pins.reset", "pins.accepted")
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM audit WHERE body LIKE '%token.revoked%'",
        "UPDATE audit SET body = replace(body, 'trust.refused', 'trust.given')",
        "DELETE FROM audit WHERE seq = (SELECT max(seq) FROM audit)",
    ],
)
def test_a_decision_that_is_changed_or_removed_is_missed(multitap, tmp_path, home, statement):
    multitap("token create ci")
    multitap("token revoke ci")
    (home / "multitap.toml").write_text('[servers.a]\ncommand = "true"\n')
    multitap("trust")
    assert multitap("audit --verify").code == 0
    with closing(sqlite3.connect(tmp_path / "state" / "multitap" / "audit.sqlite3")) as log:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            log.execute(statement)
        for action in ("update", "delete"):
            log.execute(f"DROP TRIGGER audit_refuses_{action}")
        log.execute(statement)
        log.commit()

    assert multitap("audit --verify").code == 1


def test_a_configuration_with_its_own_log_hides_no_decision(multitap, home):
    (home / "own.toml").write_text(f'state_dir = "{home}/elsewhere"\n')
    multitap("token create ci")

    assert [one["kind"] for one in multitap("audit -c own.toml --json").json] == ["token.created"]
    assert len(multitap("audit -c own.toml --verify --json").json) == 2


def test_recorded_arguments_are_shown(multitap, configure, home):
    configure(zoo=zoo("good"))
    with (home / "multitap.toml").open("a") as file:
        file.write("\n[audit]\narguments = true\n")

    multitap("call zoo_add a=1 b=2")
    (entry,) = [entry for entry in multitap("audit --json").json if entry["kind"] == "call"]

    assert entry["arguments"] == {"a": 1, "b": 2}
