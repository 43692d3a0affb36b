"""Conversations saved on disk, to continue later."""

import os
import time
from pathlib import Path

from multitap.agent.conversation import Conversation
from multitap.errors import MultitapError

MOST = 100
"""The maximum number of saved conversations."""


class SavedChats:
    """The conversations of one user."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "chats"

    def new(self) -> Path:
        """The path of a new conversation."""
        return self._folder / f"{time.strftime('%Y-%m-%d-%H%M%S')}-{os.getpid()}.json"

    def latest(self) -> Path:
        """The conversation that was saved last.

        Raises:
            MultitapError: There is none.
        """
        found = self._all()
        if not found:
            raise MultitapError("there is no conversation to continue", hint="run `multitap chat`")
        return found[-1]

    def load(self, path: Path) -> Conversation:
        """Read a conversation.

        Raises:
            MultitapError: It cannot be read, or is not a conversation.
        """
        try:
            return Conversation.from_json(path.read_bytes())
        except OSError as exc:
            raise MultitapError(f"{path} cannot be read: {exc.strerror}") from None

    def save(self, history: Conversation, path: Path) -> None:
        """Write a conversation atomically, readable only by its owner.

        Raises:
            MultitapError: It cannot be written.
        """
        # the dot keeps an incomplete one out of `_all`
        fresh = path.with_name(f".{path.name}.new")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(fresh, flags, 0o600), "wb") as file:  # noqa: PTH123 - for its mode
                file.write(history.to_json())
            fresh.replace(path)
            # results of tools can be large, and nobody else removes them
            for old in self._all()[:-MOST]:
                old.unlink(missing_ok=True)
        except OSError as exc:
            fresh.unlink(missing_ok=True)
            raise MultitapError(f"{path} cannot be written: {exc.strerror}") from None

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
