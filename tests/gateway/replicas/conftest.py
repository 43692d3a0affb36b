from tests.cluster.conftest import redis_server  # noqa: F401 - a fixture
