import pytest

from tests.clients.doors import open_door
from tests.clients.shelf import Shelf
from tests.conformance.kit import NotFetched


@pytest.fixture(scope="session")
def shelf(pytestconfig):
    return Shelf(pytestconfig.cache.mkdir("clients"))


@pytest.fixture(params=["stdio", "http"])
async def door(request, tmp_path):
    async with open_door(request.param, tmp_path) as opened:
        yield opened


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    try:
        return (yield)
    except NotFetched as exc:
        pytest.skip(f"the client cannot be fetched: {exc}")
