import pytest

from tests.conformance import kit as kits
from tests.module_life import anyio_backend, nothing_left  # noqa: F401 - fixtures


@pytest.fixture(scope="session")
def kit(pytestconfig):
    try:
        return kits.fetch(pytestconfig.cache.mkdir("conformance"))
    except kits.NotFetched as exc:
        pytest.skip(f"the conformance suite cannot be fetched: {exc}")
