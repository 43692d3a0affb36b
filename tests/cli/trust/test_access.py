"""`multitap access`: who was here, which rules apply to them, and who may not come back."""

import time

import pytest
from anyio.from_thread import start_blocking_portal

from multitap.identity.people import People, PersonRecord
from multitap.principal import Person
from multitap.trust.personal_vault import PersonalVault, key_account
from multitap.trust.tokens import AccessTokens
from tests.identity.tiny_issuer import tiny_issuer

SETTINGS = """
[serve]
public_url = "https://tap.example.com"
[access.oidc.corp]
issuer = "{issuer}"
[[access.rules]]
name = "developers"
groups = ["dev"]
allow = ["github_*"]
[[access.rules]]
name = "writers"
groups = ["dev"]
scopes = ["write"]
[[access.rules]]
name = "careful"
subjects = ["alice"]
deny = ["*_delete"]
[[access.rules]]
name = "operators"
groups = ["ops"]
admin = true
"""
PERSONAL = """
[servers.mine]
command = "notes"
env = { KEY = "${auth:notes}", FOLDER = "/srv/${MULTITAP_PERSON}" }
credentials = "per-user"
[servers.ours]
command = "notes"
env = { KEY = "${auth:notes}" }
"""
ALICE = PersonRecord(
    provider="corp", issuer="https://login.example.com", subject="alice", name="Alice",
    clients={"claude": 5.0}, groups=("dev",), scopes=("tools",), rules=("developers",),
    first_use=1.0, last_use=time.time(),
)  # fmt: skip


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "multitap.toml"
    path.write_text(SETTINGS.format(issuer="https://login.example.com"))
    return f"--config {path}"


def test_people_are_listed_with_their_rules_clients_and_last_use(multitap):
    assert "nobody" in multitap("access list").err
    People().note([ALICE])

    listed = multitap("access list")
    assert listed.out.splitlines()[1].split()[:5] == [
        "corp:alice", "Alice", "active", "developers", "claude",
    ]  # fmt: skip
    [facts] = multitap("access list --json").json
    assert (facts["issuer"], facts["subject"]) == ("https://login.example.com", "alice")


def test_each_rule_says_whether_it_applies_to_a_person_and_why_not(multitap, config):
    People().note([ALICE])
    for who in ("alice", "corp:alice", "Alice"):
        explained = multitap(f"access explain {who} {config}")
        assert explained.code == 0, explained.err
        assert "admitted by developers, careful, without *_delete" in explained.out
        assert "lacks the scope write" in explained.out
        assert "not in one of the groups: ops" in explained.out
    facts = multitap(f"access explain alice --json {config}").json
    assert [rule["applies"] for rule in facts["rules"]] == [True, False, True, False]
    assert multitap(f"access explain bob {config}").code == 2


def test_a_revoked_person_is_out_until_the_decision_is_undone(multitap, config):
    People().note([ALICE])
    assert multitap(f"access revoke alice {config}").code == 0
    assert "revoked" in multitap("access list").out
    assert multitap(f"access explain alice {config}").code == 1
    assert multitap(f"access revoke alice --undo {config}").code == 0
    assert multitap(f"access explain alice {config}").code == 0
    kinds = {line["kind"] for line in multitap("audit --json").json}
    assert {"access.revoked", "access.restored"} <= kinds


def test_somebody_can_be_revoked_before_they_come(multitap, config):
    assert multitap(f"access revoke corp:mallory {config}").code == 0
    assert People().revocations().is_blocked("https://login.example.com", "mallory", "claude")
    assert multitap(f"access revoke nobody {config}").code == 2


def test_our_own_tokens_are_explained_and_revoked_as_well(multitap, config):
    text, token = AccessTokens().create("ci", allow=("zoo_*",))

    assert "'ci'" in multitap(f"access explain {text} {config}").out
    assert multitap(f"access revoke {text} {config}").code == 0
    assert multitap(f"access explain {text} {config}").code == 1
    assert AccessTokens().all()[0].revoked is not None
    assert token.id not in multitap(f"access explain mtap_x {config}").out


def test_a_token_is_verified_with_its_provider_before_it_is_explained(multitap, tmp_path):
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(tiny_issuer()) as issuer,
    ):
        path = tmp_path / "multitap.toml"
        path.write_text(SETTINGS.format(issuer=issuer.url))
        good, foreign = issuer.token(), issuer.token(aud="https://other.example.com")

        explained = multitap(f"access explain {good} --config {path}")
        assert explained.code == 0, explained.err
        assert "person alice of corp, with claude" in explained.out
        refused = multitap(f"access explain - --config {path}", stdin=f"{foreign}\n")
        assert refused.code == 1
        assert "another audience" in refused.out
        assert multitap(f"access revoke {good} --config {path}").code == 0
        assert "revoked" in multitap(f"access explain {good} --config {path}").out

        opaque = 'client_id = "tap"\nclient_secret = "s"\nintrospect = true\n[[access.rules]]'
        path.write_text(path.read_text().replace("[[access.rules]]", opaque, 1))
        issuer.active["opaque-token"] = {"active": True, **issuer.claims(sub="bob")}
        explained = multitap(f"access explain opaque-token --config {path}")
        assert "person bob of corp, with claude" in explained.out
        assert "unknown" in multitap(f"access explain another-token --config {path}").out


def test_accounts_of_people_are_listed_and_go_with_them(multitap, config):
    People().note([ALICE])
    alice, bob = (Person("https://login.example.com", name) for name in ("alice", "bob"))
    for owner in (alice, bob):
        PersonalVault().save(owner, key_account("wiki", "", {"key": "secret"}))
    assert multitap("access list --json").json[0]["accounts"] == ["wiki"]
    assert "wiki" in multitap("access list").out

    assert "deleted 1 account" in multitap(f"access revoke alice --forget {config}").err
    assert [account.person for account in PersonalVault().accounts()] == [bob]


def test_what_each_person_gives_is_not_missed_in_the_configuration(multitap, tmp_path):
    path = tmp_path / "people.toml"
    path.write_text(PERSONAL)

    checked = multitap(f"config check --config {path}")

    assert "1 of 2 servers can be used" in checked.err
    assert "ours cannot start here" in checked.err
