"""Whether the clients of a gateway see anything of an environment."""

from multitap.config import Settings

SERVER = "env"
"""What the hub calls it: its tools are the protocol's by their usual names."""


def shows_protocol(settings: Settings) -> bool:
    """Whether clients see the tools of the protocol: all of them do, or those of some profile."""
    return shows_protocol_to_all(settings) or any(
        profile.environment for profile in settings.profiles.values()
    )


def shows_protocol_to_all(settings: Settings) -> bool:
    """Whether they need not be asked for, because the environment is described."""
    return "environment" in settings.model_fields_set
