"""Secrets at rest, and who may use them."""

import stat
import subprocess
import sys

import keyring
import pytest
from keyring.backends import null

from multitap.config import HttpServer, StdioServer, Unresolved, expand_server
from multitap.errors import UnknownName
from multitap.trust.vault import Vault, VaultError, model_scope, scope_for
from tests.trust.keyrings import FolderKeyring, no_keyring


@pytest.fixture(autouse=True)
def without_keyring():
    with no_keyring():
        yield


@pytest.fixture
def vault(tmp_path, monkeypatch):
    """The vault of a user whose home is empty."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return Vault()


@pytest.fixture
def a_keyring(tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_KEYRING", str(tmp_path / "keyring"))
    keyring.set_keyring(FolderKeyring())
    return tmp_path / "keyring"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def program(**env):
    return StdioServer(command="x", env=env)


def site(url, **headers):
    return HttpServer(url=url, headers=headers)


def expanded(name, config, **more):
    return expand_server(config, scope_for(name, config, **more))


def test_without_a_keyring_a_secret_is_in_a_file_that_only_its_owner_reads(vault):
    vault.set("gh", "s3cret")

    assert vault.value("gh") == "s3cret"
    assert (mode(vault.file.parent), mode(vault.file)) == (0o700, 0o600)
    assert "s3cret" not in repr(vault.secrets())


def test_a_keyring_keeps_the_value_and_the_file_does_not_have_it(vault, a_keyring):
    vault.set("gh", "s3cret")

    assert "s3cret" not in vault.file.read_text()
    assert "s3cret" in a_keyring.read_text()
    assert Vault().value("gh") == "s3cret"
    vault.remove("gh")
    assert "s3cret" not in a_keyring.read_text()


def test_a_keyring_that_keeps_nothing_is_not_believed(vault):
    keyring.set_keyring(null.Keyring())
    vault.set("gh", "s3cret")

    assert vault.value("gh") == "s3cret"


def test_a_value_that_the_keyring_lost_is_reported(vault, a_keyring):
    vault.set("gh", "s3cret")
    a_keyring.unlink()

    with pytest.raises(VaultError, match="lost the secret 'gh'") as caught:
        vault.value("gh")
    assert caught.value.hint == "run `multitap secret set gh`"


@pytest.mark.parametrize("which", ["file", "folder"])
def test_a_vault_that_others_can_read_is_refused(vault, which):
    vault.set("gh", "s3cret")
    path = vault.file if which == "file" else vault.file.parent
    path.chmod(0o755 if which == "folder" else 0o640)

    with pytest.raises(VaultError, match="others can read") as caught:
        vault.value("gh")
    assert "chmod" in caught.value.hint


def test_a_link_to_another_file_is_refused(vault, tmp_path):
    vault.set("gh", "s3cret")
    moved = tmp_path / "moved"
    vault.file.rename(moved)
    vault.file.symlink_to(moved)

    with pytest.raises(VaultError, match="cannot be read"):
        vault.value("gh")


def test_a_damaged_vault_is_reported_and_not_overwritten(vault):
    vault.set("gh", "s3cret")
    vault.file.write_bytes(b'{"secrets": {"gh"')

    with pytest.raises(VaultError, match="is damaged"):
        vault.set("other", "x")
    assert vault.file.read_bytes() == b'{"secrets": {"gh"'


@pytest.mark.parametrize("name", ["", " gh", "a}b", "a:-b", "a\nb", "x" * 129])
def test_a_name_that_no_variable_can_have_is_refused(vault, name):
    with pytest.raises(VaultError, match="cannot name a secret"):
        vault.set(name, "x")


def test_removing_what_is_not_there_says_so(vault):
    with pytest.raises(UnknownName, match="no secret named 'gh'"):
        vault.remove("gh")


def test_a_server_gets_the_secret_it_names(vault):
    vault.set("gh", "s3cret")

    assert expanded("files", program(TOKEN="${auth:gh}")).env == {"TOKEN": "s3cret"}


def test_a_secret_is_only_for_the_servers_that_it_is_bound_to(vault):
    vault.set("gh", "s3cret", servers=("files",))

    assert expanded("files", program(TOKEN="${auth:gh}")).env == {"TOKEN": "s3cret"}
    with pytest.raises(Unresolved, match="is not for the server 'other'"):
        expanded("other", program(TOKEN="${auth:gh}"))


def test_a_secret_is_only_sent_to_the_origins_that_it_is_bound_to(vault, monkeypatch):
    monkeypatch.setenv("PLACE", "api.example.com")
    vault.set("gh", "s3cret", origins=("https://api.example.com/mcp",))
    headers = {"Authorization": "Bearer ${auth:gh}"}

    sent = expanded("api", site("https://${PLACE}:443/v2", **headers))
    assert sent.headers["Authorization"] == "Bearer s3cret"
    for config in (
        site("https://api.example.com.evil.example/", **headers),
        site("http://api.example.com/", **headers),
        site("https://${auth:gh}/", **headers),
        program(TOKEN="${auth:gh}"),
    ):
        with pytest.raises(Unresolved, match="is not for"):
            expanded("api", config)


def test_a_projects_server_gets_only_secrets_that_were_granted(vault):
    vault.set("gh", "s3cret")
    vault.set("bound", "x", servers=("other",))
    config = program(TOKEN="${auth:gh}").replace(provenance="project")
    bound = program(TOKEN="${auth:bound}").replace(provenance="project")

    with pytest.raises(Unresolved, match="you have not granted it the secret"):
        expanded("files", config)
    with pytest.raises(Unresolved, match="you have not granted it the secret"):
        expanded("files", config, granted={"other"})
    with pytest.raises(Unresolved, match="is not for the server"):
        expanded("files", bound, granted={"bound"})
    assert expanded("files", config, granted={"gh"}).env["TOKEN"] == "s3cret"


def test_a_model_uses_secrets_under_its_own_name(vault):
    vault.set("key", "s3cret", servers=("model",))
    vault.set("other", "x", servers=("files",))

    assert model_scope().auth("key") == "s3cret"
    with pytest.raises(Unresolved):
        model_scope().auth("other")


@pytest.mark.parametrize("use", [Vault.secrets, lambda vault: vault.set("b", "value-of-b")])
def test_what_a_killed_writer_left_is_removed_by_whoever_uses_the_vault_next(vault, use):
    vault.set("a", "value-of-a")
    left = vault.folder / ".secrets.json.new"
    left.write_bytes(vault.file.read_bytes())

    use(vault)

    assert not left.exists()
    assert vault.value("a") == "value-of-a"


def test_many_writers_at_once_lose_nothing(vault):
    code = (
        "import sys, keyring; from keyring.backends import fail\n"
        "keyring.set_keyring(fail.Keyring())\n"
        "from multitap.trust.vault import Vault\n"
        "for number in range(10): Vault().set(f'{sys.argv[1]}-{number}', 'x')\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(n)]) for n in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4

    assert len(vault.secrets()) == 40
    assert [path.name for path in vault.file.parent.iterdir() if path.name.startswith(".")] == []
