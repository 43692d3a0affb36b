import pytest

from tests.clients.shelf import Shelf
from tests.conformance import kit as kits

PROVIDER = "oidc-provider@9.13.3"


@pytest.fixture(scope="session")
def packages(pytestconfig):
    home = pytestconfig.cache.mkdir("sign-in")
    try:
        with kits.locked(home / "lock"):
            kits.fill_once(home / "provider", lambda target: kits.npm_install(target, PROVIDER))
    except kits.NotFetched as exc:
        pytest.skip(f"the provider cannot be fetched: {exc}")
    return home / "provider"


@pytest.fixture(scope="session")
def shelf(pytestconfig):
    return Shelf(pytestconfig.cache.mkdir("clients"))
