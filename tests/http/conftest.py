"""Fixtures for the tests of our HTTP."""

from tests.http.loops import no_task_left  # noqa: F401 - a fixture
