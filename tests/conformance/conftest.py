import pytest

from tests.conformance import kit as kits
from tests.conftest import no_process_left


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
    yield from no_process_left()
