"""Clients that see the same part of the catalog: their profiles and their token's scope."""

from collections.abc import Mapping
from typing import NamedTuple

from multitap.catalog.catalog import allowed
from multitap.config import Profile
from multitap.names import ToolNames, matches_any

_NOTHING = Profile(servers=(), agents=())
"""Stands for a profile that no longer exists: it shows nothing."""


class AudienceLimits(NamedTuple):
    """What an audience may see with the current profiles."""

    profiles: tuple[Profile, ...] = ()
    """All of them must allow it."""
    allow: tuple[str, ...] = ()
    """Globs over the names of tools; if empty, all are allowed."""

    @property
    def is_everything(self) -> bool:
        """Whether nothing is hidden but what a profile has to ask for."""
        return not self.profiles and not self.allow

    @property
    def shows_environment(self) -> bool:
        """Whether a profile asks for the tools of the Env protocol."""
        return bool(self.profiles) and all(profile.environment for profile in self.profiles)

    def has(self, server: str) -> bool:
        """Whether a server is visible."""
        return all(matches_any(server, profile.servers) for profile in self.profiles)

    def has_agent(self, name: str) -> bool:
        return all(matches_any(name, profile.agents) for profile in self.profiles)

    def shows(self, tool: ToolNames) -> bool:
        """Whether a tool may be seen and called."""
        if self.allow and not tool.surely_matches(self.allow):
            return False
        return self.has(tool.server) and all(
            allowed(tool, profile, servers=profile.servers) for profile in self.profiles
        )


class Audience(NamedTuple):
    """Which profiles apply, by name, what a token allows besides, and what the clients declare.

    All profiles apply, so naming one more can only narrow the view.
    """

    profiles: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    declared: str = ""
    """The extensions that its clients support, as JSON: servers may offer them other things."""

    @classmethod
    def of(cls, *profiles: str | None, allow: tuple[str, ...] = ()) -> "Audience":
        """The audience of these profiles; None entries are ignored."""
        return cls(
            tuple(dict.fromkeys(profile for profile in profiles if profile is not None)), allow
        )

    @property
    def profile(self) -> str | None:
        """Its profiles as text; None if it sees everything."""
        return " + ".join(self.profiles) or None

    def limits(self, profiles: Mapping[str, Profile]) -> AudienceLimits:
        """What it may see with these profiles."""
        return AudienceLimits(
            tuple(profiles.get(name, _NOTHING) for name in self.profiles), self.allow
        )


EVERYBODY = Audience()
"""The audience that sees everything."""
