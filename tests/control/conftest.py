"""Fixtures for the tests of the control of a gateway."""

from contextlib import asynccontextmanager

import pytest

from multitap import Settings, open_hub
from multitap.control.client import ControlClient
from multitap.control.places import own_socket
from multitap.control.server import LIMITS, open_control
from multitap.control.service import ControlService
from multitap.gateway.gateway import open_gateway


@pytest.fixture
def state(tmp_path_factory):
    """A state directory with a short path: its sockets are in it."""
    return tmp_path_factory.mktemp("s") / "state"


@pytest.fixture
def gateway(state):
    """Runs a gateway with a control socket."""

    @asynccontextmanager
    async def run(limits=LIMITS, record="errors", **servers):
        settings = Settings(state_dir=state, servers=servers, record=record)
        async with (
            open_gateway(lambda host: open_hub(settings, handlers=host, recall=True)) as running,
            open_control(lambda: ControlService(running), state, limits),
        ):
            yield running

    return run


@pytest.fixture
def client(state):
    return ControlClient(own_socket(state))
