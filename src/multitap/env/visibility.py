"""Decides who sees which part of an environment."""

from multitap.config import Settings
from multitap.names import matches_any
from multitap.tools import ToolInfo
from multitap.tools.tool import server_of

SERVER = "env"
"""The environment's name in a hub; it gives the protocol's tools their usual names."""
TIMEOUT = 600.0
"""Seconds for a call; the tools that it calls have their own limits."""

Globs = tuple[str, ...]


def is_of(tool: ToolInfo, servers: Globs) -> bool:
    """Whether a tool comes from one of these servers, or from none at all."""
    server = server_of(tool)
    return server is None or matches_any(server, servers)


def shows_protocol(settings: Settings) -> bool:
    """Whether any client sees the tools of the protocol: all, or those of a profile."""
    return shows_protocol_to_all(settings) or any(
        profile.environment for profile in settings.profiles.values()
    )


def shows_protocol_to_all(settings: Settings) -> bool:
    """Whether every client sees them, because the configuration describes the environment."""
    return "environment" in settings.model_fields_set
