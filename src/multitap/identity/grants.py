"""What one access rule gives."""

from typing import NamedTuple


class ToolGrant(NamedTuple):
    """The tools that one rule gives: those of a profile whose names match."""

    profile: str | None = None
    allow: tuple[str, ...] = ("*",)
    scopes: tuple[str, ...] = ()
    """Scopes that the token lacks for it."""
