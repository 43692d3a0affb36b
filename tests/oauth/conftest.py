"""Logins in a store of their own, for every test of this folder."""

import pytest


@pytest.fixture(autouse=True)
def _only_own_logins(own_logins):
    """For every test of this folder."""
