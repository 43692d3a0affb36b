"""The ways a login can fail; messages never contain secrets."""

from multitap.errors import shortened
from multitap.printable import printable

_MESSAGE_LIMIT = 200  # characters of an authorization server's message


class LoginFailed(Exception):
    """A login is not possible this way; retrying would not help."""


class GrantRefused(LoginFailed):
    """An authorization server refuses, with an OAuth error code."""

    def __init__(self, error: str, description: str = "") -> None:
        self.error = clean(error)
        super().__init__(f"{self.error}: {clean(description)}" if description else self.error)


def clean(text: object) -> str:
    """An untrusted text as one short printable line."""
    return printable(shortened(" ".join(str(text).split()), _MESSAGE_LIMIT))
