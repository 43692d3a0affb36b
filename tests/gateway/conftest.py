"""Fixtures for the tests of the gateway."""

import pytest

from multitap import Settings
from tests.http.loops import no_task_left  # noqa: F401 - a fixture


@pytest.fixture
def settings(tmp_path):
    def make(**servers):
        more = {key: servers.pop(key) for key in ("profiles", "naming", "serve") if key in servers}
        return Settings(state_dir=tmp_path / "state", servers=servers, **more)

    return make
