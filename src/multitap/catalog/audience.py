"""Clients that see the same part of the catalog: their profiles, and what their token gives."""

from collections.abc import Mapping
from typing import NamedTuple

from multitap.catalog.catalog import allowed
from multitap.config.access import ToolGrant
from multitap.config.models import Profile
from multitap.names import ToolNames, matches_any
from multitap.principal import Person

_NOTHING = Profile(servers=(), agents=())
"""Stands for a profile that no longer exists: it shows nothing."""


class AudienceLimits(NamedTuple):
    """What an audience may see with the current profiles."""

    profiles: tuple[Profile, ...] = ()
    """All of them must allow it."""
    allow: tuple[str, ...] = ()
    """Globs over the names of tools; if empty, all are allowed."""
    grants: "tuple[GrantLimits, ...] | None" = None
    """One of them must allow it, too; None if no access rules apply."""
    deny: tuple[str, ...] = ()
    """Globs over the names of tools that are hidden in any case."""

    @property
    def is_everything(self) -> bool:
        """Whether nothing is hidden but what a profile has to ask for."""
        return self.has_all_servers and not self.allow and not self.deny and self.grants is None

    @property
    def has_all_servers(self) -> bool:
        return not self.profiles and self.grants is None

    @property
    def all_profiles(self) -> tuple[Profile, ...]:
        """Its profiles, and those of its grants."""
        granted = (grant.limits.profiles for grant in self.grants or ())
        return (*self.profiles, *(profile for profiles in granted for profile in profiles))

    @property
    def shows_environment(self) -> bool:
        """Whether a profile asks for the tools of the Env protocol."""
        return any(profile.environment for profile in self.all_profiles) and all(
            profile.environment for profile in self.profiles
        )

    def has(self, server: str) -> bool:
        """Whether a server is visible."""
        if "*" in self.deny:
            return False
        if not all(matches_any(server, profile.servers) for profile in self.profiles):
            return False
        # only tools can ask for scopes: what else a server has is not shown without them
        return self.grants is None or any(
            grant.limits.has(server) for grant in self.grants if not grant.scopes
        )

    def has_agent(self, name: str) -> bool:
        if not all(matches_any(name, profile.agents) for profile in self.profiles):
            return False
        return self.grants is None or any(
            grant.limits.has_agent(name) for grant in self.grants if not grant.scopes
        )

    def shows(self, tool: ToolNames) -> bool:
        """Whether a tool may be seen; it may be called unless scopes are missing."""
        if self.allow and not tool.surely_matches(self.allow):
            return False
        if self.deny and tool.may_match(self.deny):
            return False
        if self.grants is not None and not any(grant.limits.shows(tool) for grant in self.grants):
            return False
        return all(
            matches_any(tool.server, profile.servers)
            and allowed(tool, profile, servers=profile.servers)
            for profile in self.profiles
        )

    def may_call(self, tool: ToolNames) -> bool:
        """Whether a tool may be seen and called."""
        return self.shows(tool) and not self.missing_scopes(tool)

    def missing_scopes(self, tool: ToolNames) -> tuple[str, ...]:
        """The scopes that a token needs besides its own to call a visible tool."""
        giving = [grant for grant in self.grants or () if grant.limits.shows(tool)]
        if not giving or any(not grant.scopes for grant in giving):
            return ()
        # the fewest: the person is asked for as little as possible
        return min((grant.scopes for grant in giving), key=len)


class GrantLimits(NamedTuple):
    """What one access rule gives with the current profiles."""

    limits: AudienceLimits
    scopes: tuple[str, ...] = ()
    """The scopes that the token lacks for it."""


class Audience(NamedTuple):
    """Which profiles apply, by name, what a token allows besides, and what the clients declare.

    All profiles apply, so naming one more can only narrow the view. Each grant adds to it.
    """

    profiles: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    declared: str = ""
    """The extensions that its clients support, as JSON: servers may offer them other things."""
    grants: tuple[ToolGrant, ...] | None = None
    """What access rules give; None if there are no rules for this client."""
    deny: tuple[str, ...] = ()
    person: Person | None = None
    """Whose accounts are used; None for those of the user who runs the gateway."""

    @classmethod
    def of(
        cls,
        *profiles: str | None,
        allow: tuple[str, ...] = (),
        grants: tuple[ToolGrant, ...] | None = None,
        deny: tuple[str, ...] = (),
    ) -> "Audience":
        """The audience of these profiles; None entries are ignored."""
        named = tuple(dict.fromkeys(profile for profile in profiles if profile is not None))
        return cls(named, allow, grants=grants, deny=deny)

    @property
    def profile(self) -> str | None:
        """Its profiles as text; None if it sees everything."""
        granted = " | ".join(sorted({grant.profile or "" for grant in self.grants or ()} - {""}))
        return " + ".join(filter(None, (*self.profiles, granted))) or None

    @property
    def profile_names(self) -> frozenset[str]:
        """All profiles that it refers to."""
        granted = (grant.profile for grant in self.grants or ())
        return frozenset(self.profiles) | {name for name in granted if name is not None}

    def limits(self, profiles: Mapping[str, Profile]) -> AudienceLimits:
        """What it may see with these profiles."""

        def named(*names: str | None) -> tuple[Profile, ...]:
            return tuple(profiles.get(name, _NOTHING) for name in names if name is not None)

        grants = None
        if self.grants is not None:
            grants = tuple(
                GrantLimits(AudienceLimits(named(grant.profile), grant.allow), grant.scopes)
                for grant in self.grants
            )
        return AudienceLimits(named(*self.profiles), self.allow, grants, self.deny)


EVERYBODY = Audience()
"""The audience that sees everything."""
