import pytest


@pytest.fixture(autouse=True)
def _only_own_logins(own_logins):
    """For every test of this folder."""
