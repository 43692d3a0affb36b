"""Fixtures for modules whose servers live as long as the module; to be imported by it."""

import pytest

from tests.conftest import no_process_left


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def nothing_left():
    """What is left shows at the end of the module, not of each test."""
    yield from no_process_left()
