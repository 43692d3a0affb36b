import pytest

from tests.trust.keyrings import no_keyring


@pytest.fixture(autouse=True)
def own_logins(tmp_path, monkeypatch):
    """Nobody's logins but those of the test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with no_keyring():
        yield
