"""Stores texts in the system keyring, where one works."""

import contextlib

from multitap.errors import MultitapError

SERVICE = "multitap"
"""Our service name in a keyring."""


class KeyringUnavailable(MultitapError):
    """The keyring cannot be read."""


def keep(name: str, value: str) -> bool:
    """Store a text; returns whether the keyring has it now.

    The text is read back: some keyrings accept everything and store nothing.
    """
    import keyring  # noqa: PLC0415 - slow, and seldom needed
    from keyring.errors import KeyringError  # noqa: PLC0415

    try:
        keyring.set_password(SERVICE, name, value)
        return keyring.get_password(SERVICE, name) == value
    except (KeyringError, OSError, RuntimeError):
        return False


def recall(name: str) -> str | None:
    """The text of that name; None if it is lost.

    Raises:
        KeyringUnavailable: It does not answer.
    """
    import keyring  # noqa: PLC0415 - see above
    from keyring.errors import KeyringError  # noqa: PLC0415

    try:
        return keyring.get_password(SERVICE, name)
    except (KeyringError, OSError, RuntimeError) as exc:
        raise KeyringUnavailable(f"the keyring does not answer: {exc}", hint="unlock it") from None


def forget(name: str) -> None:
    """Delete a text."""
    import keyring  # noqa: PLC0415 - see above
    from keyring.errors import KeyringError  # noqa: PLC0415

    with contextlib.suppress(KeyringError, OSError, RuntimeError):
        keyring.delete_password(SERVICE, name)
