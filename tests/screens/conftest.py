"""The home of the program under test."""

from tests.cli.conftest import home

__all__ = ["home"]
