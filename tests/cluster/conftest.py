import pytest

from tests.cluster.redis_server import running_redis


@pytest.fixture(scope="module")
def redis_server():
    """One for all tests of a module; each uses a namespace of its own."""
    with running_redis() as server:
        yield server
