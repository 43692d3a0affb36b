"""A home of its own for each test: the seeds' files and our state are looked for there."""

import pytest

from multitap.config import Surroundings


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    home = tmp_path / "home"
    (tmp_path / "project").mkdir()
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("STATE", "CONFIG", "DATA", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    monkeypatch.delenv("EXCELMANUS_MCP_CONFIG", raising=False)
    return home


@pytest.fixture
def project(tmp_path):
    return tmp_path / "project"


@pytest.fixture
def where(project):
    return Surroundings.here(project)
