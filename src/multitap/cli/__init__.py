"""What a person types, and what they get to see."""

from multitap.cli.program import main

__all__ = ["main"]
