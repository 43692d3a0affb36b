"""The program as a person runs it, for attacks on that person."""

from tests.cli.conftest import home, multitap  # noqa: F401 - fixtures
