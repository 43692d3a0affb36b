import os
import threading
import time

import pytest

from tests.conformance import kit as kits
from tests.conftest import descendants


@pytest.fixture(scope="session")
def kit(pytestconfig):
    try:
        return kits.fetch(pytestconfig.cache.mkdir("conformance"))
    except kits.NotFetched as exc:
        pytest.skip(f"the conformance suite can not be fetched: {exc}")


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def nothing_left():
    """Servers live as long as a module; the suite says `localhost`, and a lookup keeps a thread."""
    before = descendants(os.getpid())
    yield
    deadline = time.monotonic() + 3
    while (left := descendants(os.getpid()) - before) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert not left, f"left behind: {left}"
