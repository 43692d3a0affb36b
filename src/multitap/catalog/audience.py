"""Clients that see the same part of the catalog: their profiles and their token's scope."""

from collections.abc import Mapping
from typing import NamedTuple

from multitap.catalog.catalog import allowed
from multitap.config import Profile
from multitap.names import matches_any

_NOTHING = Profile(servers=(), agents=())
"""What is seen through a profile that no longer exists."""


class AudienceLimits(NamedTuple):
    """What an audience may see, as far as the profiles say now."""

    profiles: tuple[Profile, ...] = ()
    """All of them hold."""
    allow: tuple[str, ...] = ()
    """Globs over the names of tools; empty: any."""

    @property
    def shows_environment(self) -> bool:
        """Whether the tools of the Env protocol are asked for."""
        return bool(self.profiles) and all(one.environment for one in self.profiles)

    def has(self, server: str) -> bool:
        """Whether anything of a server is seen."""
        return all(matches_any(server, one.servers) for one in self.profiles)

    def has_agent(self, name: str) -> bool:
        return all(matches_any(name, one.agents) for one in self.profiles)

    def shows(self, server: str, tool: str) -> bool:
        """Whether a tool, by the name that callers see, may be seen and called."""
        if self.allow and not matches_any(tool, self.allow):
            return False
        return self.has(server) and all(allowed(tool, one) for one in self.profiles)


class Audience(NamedTuple):
    """Which profiles apply, by name, and what a token allows besides.

    All of them apply, so that who names one more sees less, and never more.
    """

    profiles: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()

    @classmethod
    def of(cls, *profiles: str | None, allow: tuple[str, ...] = ()) -> "Audience":
        """Those that see through each of these profiles; None is none."""
        return cls(tuple(dict.fromkeys(one for one in profiles if one is not None)), allow)

    @property
    def profile(self) -> str | None:
        """The name of what it sees through, to show; None if it sees everything."""
        return " + ".join(self.profiles) or None

    def limits(self, profiles: Mapping[str, Profile]) -> AudienceLimits:
        """What it may see, given what the profiles are."""
        return AudienceLimits(
            tuple(profiles.get(name, _NOTHING) for name in self.profiles), self.allow
        )


EVERYBODY = Audience()
"""Those that see everything."""
