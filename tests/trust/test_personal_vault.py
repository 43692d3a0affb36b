"""Accounts of people: who can open which entry, and with which key."""

import base64
import os
import secrets
import sqlite3
import stat
from contextlib import closing

import keyring
import pytest

from multitap.principal import TOKEN_ISSUER, Person
from multitap.trust.personal_vault import FILE_NAME, PersonalVault, key_account
from multitap.trust.vault import VaultError
from multitap.trust.vault_key import FILE_NAME as KEY_FILE
from multitap.trust.vault_key import FILE_VARIABLE, VARIABLE
from tests.trust.keyrings import FolderKeyring, no_keyring

ALICE = Person("https://login.example", "alice")
BOB = Person("https://login.example", "bob")
URL = "https://api.example/mcp"


@pytest.fixture(autouse=True)
def without_keyring(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    with no_keyring():
        yield


@pytest.fixture
def vault(tmp_path):
    return PersonalVault(tmp_path / "vault")


def new_key():
    return base64.b64encode(secrets.token_bytes(32)).decode()


def keys_of(vault, person, server="tickets", url=URL):
    login = vault.find(person, server, url)
    return None if login is None else dict(login.secrets.keys)


def test_an_entry_belongs_to_one_person_server_and_address(vault):
    vault.set_key(ALICE, "tickets", URL, "token", "alice-secret")

    assert keys_of(vault, ALICE) == {"token": "alice-secret"}
    assert keys_of(vault, BOB) is None
    assert keys_of(vault, Person("https://other.example", "alice")) is None
    assert keys_of(vault, ALICE, "other") is None
    assert keys_of(vault, ALICE, url="https://elsewhere.example/mcp") is None


def test_several_keys_of_one_server_are_kept_together(vault):
    vault.set_key(ALICE, "tickets", URL, "user", "alice")
    vault.set_key(ALICE, "tickets", URL, "password", "s3cret")

    assert keys_of(vault, ALICE) == {"user": "alice", "password": "s3cret"}
    assert [entry.server for entry in vault.accounts(ALICE)] == ["tickets"]


def test_no_secret_is_readable_on_disk_and_the_files_are_private(vault):
    vault.set_key(ALICE, "tickets", URL, "token", "alice-secret")

    for path in vault.folder.iterdir():
        assert b"alice-secret" not in path.read_bytes()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(vault.folder.stat().st_mode) == 0o700


def test_a_row_that_was_moved_to_another_person_cannot_be_opened(vault):
    vault.set_key(ALICE, "tickets", URL, "token", "alice-secret")
    with closing(sqlite3.connect(vault.folder / FILE_NAME)) as connection, connection:
        connection.execute("UPDATE accounts SET subject = 'bob'")

    assert keys_of(vault, BOB) is None


def test_rotating_the_key_keeps_every_entry_and_forgets_the_old_key(vault):
    vault.set_key(ALICE, "tickets", URL, "token", "a")
    vault.set_key(BOB, "tickets", URL, "token", "b")
    before = (vault.folder / KEY_FILE).read_text()

    assert vault.rotate() == 2

    assert before not in (vault.folder / KEY_FILE).read_text()
    # this one has read the old key, and notices that another process changed it
    assert [keys_of(vault, person) for person in (ALICE, BOB)] == [{"token": "a"}, {"token": "b"}]
    assert keys_of(PersonalVault(vault.folder), BOB) == {"token": "b"}


def test_a_running_gateway_follows_a_key_that_another_process_rotates(vault):
    vault.set_key(ALICE, "tickets", URL, "token", "a")
    PersonalVault(vault.folder).rotate()

    assert keys_of(vault, ALICE) == {"token": "a"}


def test_the_key_can_come_from_the_environment(vault, monkeypatch):
    old, new = new_key(), new_key()
    monkeypatch.setenv(VARIABLE, old)
    vault.set_key(ALICE, "tickets", URL, "token", "a")
    assert not (vault.folder / KEY_FILE).exists()

    monkeypatch.setenv(VARIABLE, f"{new} {old}")
    assert PersonalVault(vault.folder).rotate() == 1

    monkeypatch.setenv(VARIABLE, new)
    assert keys_of(PersonalVault(vault.folder), ALICE) == {"token": "a"}


def test_the_key_can_come_from_a_named_file(tmp_path, monkeypatch):
    path = tmp_path / "key"
    path.touch(mode=0o600)
    path.write_text(new_key())
    tmp_path.chmod(0o700)
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    vault = PersonalVault(tmp_path / "vault")
    vault.set_key(ALICE, "tickets", URL, "token", "a")

    assert keys_of(PersonalVault(vault.folder), ALICE) == {"token": "a"}
    assert not (vault.folder / KEY_FILE).exists()


def test_the_key_is_in_the_keyring_where_one_works(vault, tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_KEYRING", str(tmp_path / "keyring"))
    keyring.set_keyring(FolderKeyring())
    vault.set_key(ALICE, "tickets", URL, "token", "a")
    vault.rotate()

    assert not (vault.folder / KEY_FILE).exists()
    assert keys_of(PersonalVault(vault.folder), ALICE) == {"token": "a"}


@pytest.mark.parametrize("bad", ["short", "!" * 44, base64.b64encode(b"x" * 16).decode()])
def test_a_bad_key_is_refused_without_being_quoted(vault, monkeypatch, bad):
    monkeypatch.setenv(VARIABLE, bad)

    with pytest.raises(VaultError) as refused:
        vault.set_key(ALICE, "tickets", URL, "token", "a")

    assert VARIABLE in str(refused.value)
    assert bad not in str(refused.value)
    assert "base64" in (refused.value.hint or "")


def test_entries_of_a_lost_key_are_as_good_as_gone_but_rotation_refuses(vault, monkeypatch):
    monkeypatch.setenv(VARIABLE, new_key())
    vault.set_key(ALICE, "tickets", URL, "token", "a")
    monkeypatch.setenv(VARIABLE, new_key())
    other = PersonalVault(vault.folder)

    assert keys_of(other, ALICE) is None
    with pytest.raises(VaultError, match="cannot be opened"):
        other.rotate()


def test_removing_a_person_removes_nothing_of_others(vault):
    vault.save(ALICE, key_account("tickets", URL, {"token": "a"}))
    vault.save(ALICE, key_account("notes", "", {"token": "a"}))
    vault.save(BOB, key_account("tickets", URL, {"token": "b"}))

    assert vault.remove_person(ALICE) == 2
    assert [entry.person for entry in vault.accounts()] == [BOB]


def test_a_file_that_others_can_read_is_refused(vault):
    vault.set_key(ALICE, "tickets", URL, "token", "a")
    os.chmod(vault.folder / KEY_FILE, 0o644)  # noqa: PTH101

    with pytest.raises(VaultError, match="others can read"):
        PersonalVault(vault.folder).find(ALICE, "tickets", URL)


def test_the_mark_of_a_person_names_neither_issuer_nor_subject():
    person = Person(TOKEN_ISSUER, "alice")

    assert "alice" not in person.mark
    assert person.mark != Person(TOKEN_ISSUER, "bob").mark
    assert Person("a", "bc").mark != Person("ab", "c").mark


def test_what_is_saved_after_another_process_rotated_the_key_can_be_opened(
    vault, tmp_path, monkeypatch
):
    monkeypatch.setenv("TEST_KEYRING", str(tmp_path / "keyring"))
    keyring.set_keyring(FolderKeyring())
    vault.set_key(ALICE, "tickets", URL, "token", "a")
    PersonalVault(vault.folder).rotate()
    vault.save(BOB, key_account("tickets", URL, {"token": "b"}))

    assert keys_of(PersonalVault(vault.folder), BOB) == {"token": "b"}


def test_a_database_that_others_can_read_is_refused(vault):
    vault.set_key(ALICE, "tickets", URL, "token", "a")
    (vault.folder / FILE_NAME).chmod(0o644)

    with pytest.raises(VaultError, match="others can read"):
        vault.find(ALICE, "tickets", URL)
