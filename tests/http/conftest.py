"""What tests of our HTTP share."""

from tests.http.loops import no_task_left  # noqa: F401 - a fixture
