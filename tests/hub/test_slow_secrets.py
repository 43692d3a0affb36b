"""A keyring that waits for its person holds up one server, and nothing else."""

import threading

import anyio
import keyring
import pytest

from multitap import Settings, StdioServer, open_hub
from multitap.trust.vault import Vault
from tests.trust.keyrings import FolderKeyring
from tests.waiting import PATIENCE, until
from tests.zoo.modes import command


class LockedKeyring(FolderKeyring):
    """Answers once the password is entered."""

    def __init__(self):
        super().__init__()
        self.asked, self.unlocked = threading.Event(), threading.Event()

    def get_password(self, service, username):
        self.asked.set()
        self.unlocked.wait(60)
        return super().get_password(service, username)


@pytest.fixture
def locked(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TEST_KEYRING", str(tmp_path / "keyring"))
    before = keyring.get_keyring()
    keyring.set_keyring(FolderKeyring())
    Vault().set("key", "s3cret")
    waiting = LockedKeyring()
    keyring.set_keyring(waiting)
    yield waiting
    waiting.unlocked.set()
    keyring.set_keyring(before)


def zoo(**more):
    program, *args = command("good")
    return StdioServer(command=program, args=tuple(args), **more)


async def test_the_others_are_served_while_a_keyring_waits(tmp_path, locked):
    servers = {"needy": zoo(env={"KEY": "${auth:key}"}), "other": zoo()}
    async with open_hub(Settings(servers=servers, state_dir=tmp_path / "hub")) as hub:
        await until(lambda: locked.asked.is_set() and "other_echo" in hub.catalog.tools)
        result = await hub.call("other_echo", {"text": "hello"})

        assert result.output == "hello"
        assert "needy_env" not in hub.catalog.tools
        locked.unlocked.set()
        await until(lambda: "needy_env" in hub.catalog.tools)
        told = await hub.call("needy_env", {"name": "KEY"})
        assert "s3cret" in told.output


async def test_a_keyring_that_never_answers_is_an_error_in_words(tmp_path, locked):
    needy = zoo(env={"KEY": "${auth:key}"}, connect_timeout=0.3)
    async with open_hub(Settings(servers={"s": needy}, state_dir=tmp_path / "hub")) as hub:
        with anyio.fail_after(PATIENCE):
            await hub.settled()
        failure = hub.snapshot().server("s").failure

        assert "could not be resolved within 0.3 s" in str(failure)
        assert "unlock the keyring" in failure.hint
        locked.unlocked.set()
