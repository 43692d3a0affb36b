"""Tokens at rest: hashed, private, and changed by one at a time."""

import re
import stat
import subprocess
import sys
import time

import msgspec
import pytest

from multitap.errors import UnknownName
from multitap.principal import token_principal
from multitap.trust import tokens as access_tokens
from multitap.trust.tokens import AccessTokens, TokenError, TokenNames, parts

CREATE_MANY = """
import sys
from pathlib import Path
from multitap.trust.tokens import AccessTokens
store = AccessTokens(Path(sys.argv[1]))
for number in range(20):
    _, token = store.create(f"{sys.argv[2]}-{number}")
    if number % 2:
        store.revoke(token.id)
    store.note_uses({token.id: float(number + 1)})
"""


@pytest.fixture
def store(tmp_path):
    return AccessTokens(tmp_path / "tokens")


def test_a_token_has_a_known_shape_and_256_random_bits(store):
    text, token = store.create("ci")
    another, _ = store.create("ci")

    assert re.fullmatch(r"mtap_[a-z2-7]{12}_[A-Za-z0-9]{43}", text)
    assert parts(text.encode()) == (token.id, text[-43:].encode())
    assert text != another


def test_nothing_that_is_kept_or_shown_holds_the_token(store):
    text, token = store.create("ci", profile="some", allow=("a_*",), expires=1e12, rate="5/s")

    kept = b"".join(path.read_bytes() for path in store.folder.iterdir())
    for part in (text, text[-43:], text[-43:-20]):
        assert part.encode() not in kept
        assert part not in repr(token)
    assert token.digest not in repr(token)
    assert token.opens_with(text[-43:].encode())
    assert not token.opens_with(text[-43:].swapcase().encode())


def test_the_files_are_the_users_alone(store):
    store.create("ci")
    store.note_uses({store.all()[0].id: 1.0})

    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in store.folder.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_a_file_that_others_can_read_is_not_used(store, mode):
    store.create("ci")
    (store.folder / "tokens.json").chmod(mode)

    with pytest.raises(TokenError, match="others can read") as caught:
        store.all()
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize("text", ["", "[]", "{", '{"tokens": [{"id": 1}]}', "\udcff"])
def test_a_damaged_file_is_said_to_be_damaged(store, text):
    text_of, _ = store.create("ci")
    (store.folder / "tokens.json").write_bytes(text.encode("utf-8", "surrogateescape"))

    with pytest.raises(TokenError, match="damaged") as caught:
        store.all()
    assert text_of[-43:] not in str(caught.value)


def test_a_rate_that_is_none_counts_as_damage(store):
    store.create("ci", rate="5/s")
    file = store.folder / "tokens.json"
    file.write_bytes(file.read_bytes().replace(b"5/s", b"5/fortnight"))

    with pytest.raises(TokenError, match="damaged"):
        store.all()


def test_a_token_ends_when_it_is_revoked_or_too_old(store):
    _, lasting = store.create("lasting")
    _, brief = store.create("brief", expires=1000.0)
    _, taken = store.create("taken")
    store.revoke("taken")

    states = {token.id: token.state(time.time()) for token in store.all()}
    assert states == {lasting.id: "active", brief.id: "expired", taken.id: "revoked"}
    assert brief.state(999.9) == "active"
    assert brief.state(1000.0) == "expired"


def test_a_name_that_several_tokens_have_revokes_them_only_if_all_are_meant(store):
    (_, first), (_, second), (_, other) = (store.create(name) for name in ("ci", "ci", "other"))
    assert [token.id for token in store.revoke(first.id)] == [first.id]
    store.create("ci")

    with pytest.raises(UnknownName, match="2 active tokens are named 'ci'") as caught:
        store.revoke("ci")
    assert second.id in caught.value.hint
    assert len(store.revoke("ci", all_of_name=True)) == 2
    assert [token.id for token in store.all() if token.revoked is None] == [other.id]
    assert {token.id for token in store.all() if token.name == "ci"} > {first.id, second.id}


def test_a_rotated_token_is_accepted_for_a_while_and_its_successor_has_its_rights(store):
    _, first = store.create("ci", profile="dev", allow=("a_*",), rate="5/min")
    text, second, ending = store.rotate("ci", grace=3600)

    assert text.startswith(f"mtap_{second.id}_")
    assert (second.profile, second.allow, second.rate) == ("dev", ("a_*",), "5/min")
    assert second.expires is None
    assert ending.id == first.id
    assert ending.state(time.time()) == "active"
    assert ending.state(time.time() + 3601) == "expired"
    _, third, gone = store.rotate(second.id)
    assert gone.id == second.id
    states = {token.id: token.state(time.time()) for token in store.all()}
    assert states == {first.id: "active", second.id: "revoked", third.id: "active"}


def test_ids_in_records_are_shown_as_names(store):
    _, token = store.create("ci")

    assert TokenNames(store.all())(f"cursor 1.0 ({token.id})") == "cursor 1.0 (ci)"
    assert TokenNames(())(token.id) == token.id


@pytest.mark.parametrize("name", ["ci", "", "nobody", "mtap"])
def test_what_is_not_active_cannot_be_revoked(store, name):
    store.create("ci")
    store.revoke("ci")

    with pytest.raises(UnknownName):
        store.revoke(name)


@pytest.mark.parametrize("name", ["", " ", "-x", "a b", "a\nb", "\x1b[31m", "x" * 65, "ä"])
def test_a_name_is_one_that_can_be_typed_and_shown(store, name):
    with pytest.raises(TokenError, match="cannot name a token"):
        store.create(name)

    assert store.all() == []


def test_two_who_write_at_the_same_time_lose_nothing(store):
    command = [sys.executable, "-c", CREATE_MANY, str(store.folder)]
    both = [subprocess.Popen([*command, name]) for name in ("a", "b")]

    assert [one.wait() for one in both] == [0, 0]
    tokens = store.all()
    assert len(tokens) == len({token.id for token in tokens}) == 40
    assert sum(token.revoked is not None for token in tokens) == 20
    assert store.uses().keys() == {token.id for token in tokens}


def test_the_last_use_is_the_latest_of_all_gateways(store):
    _, token = store.create("ci")
    store.note_uses({token.id: 20.0, "unknown": 1.0})
    store.note_uses({token.id: 10.0})

    assert store.uses() == {token.id: 20.0}


def test_a_damaged_note_of_uses_harms_nobody(store):
    _, token = store.create("ci")
    store.note_uses({token.id: 20.0})
    (store.folder / "uses.json").write_bytes(b"{")

    assert store.uses() == {}
    store.note_uses({token.id: 30.0})
    assert store.uses() == {token.id: 30.0}


def test_old_tokens_make_room_and_active_ones_do_not(store, tmp_path):
    _, sample = store.create("sample")
    many = [
        msgspec.structs.replace(sample, id=f"{number:012}", revoked=1.0 if number == 7 else None)
        for number in range(access_tokens.MOST_TOKENS)
    ]
    full = msgspec.json.encode({"tokens": many})
    (store.folder / "tokens.json").write_bytes(full)

    store.create("newcomer")

    assert {f"{7:012}"} == {one.id for one in many} - {one.id for one in store.all()}
    with pytest.raises(TokenError, match="1000 tokens"):
        store.create("one-too-many")


@pytest.mark.parametrize(
    "given",
    [b"", b"mtap_", b"mtap_abc_def", b"mtap_abcdefghijkl_" + b"x" * 42, b"x" * 61, b"\xff" * 61,
     b"mtap_abcdefghijk1_" + b"x" * 43, b"mtap_abcdefghijkl_" + b"x" * 43 + b"\n"],
)  # fmt: skip
def test_what_does_not_look_like_a_token_is_none(given):
    assert parts(given) is None


def test_accounts_stay_with_a_token_however_often_it_is_rotated(store):
    _, first = store.create("ann")
    _, second, _ = store.rotate("ann")
    _, third, _ = store.rotate("ann", grace=60)
    _, other = store.create("bob")

    assert (second.owner, third.owner, other.owner) == (first.id, first.id, "")
    assert token_principal(third.id, third.owner).person == token_principal(first.id).person
    assert token_principal(third.id, third.owner).key == third.id
