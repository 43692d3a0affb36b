"""Paths that no sandbox rule may open, and what remains of a rule around them."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from multitap.records import dataclass
from multitap.user_folders import USER_FOLDERS

_NEVER = (".ssh", ".aws", ".gnupg")
"""In the home folder: keys to other machines."""
_ONLY_BY_NAME = (
    *(".azure", ".config/gcloud", ".config/gh", ".config/op", ".docker", ".kube", ".terraform.d"),
    *(".cargo/credentials", ".cargo/credentials.toml", ".config/rclone", ".git-credentials"),
    *(".config/git/credentials", ".gem/credentials", ".m2/settings.xml", ".netrc", ".npmrc"),
    *(".pgpass", ".pypirc", ".vault-token", ".password-store", ".local/share/keyrings"),
    *(".bash_history", ".zsh_history", ".python_history", ".node_repl_history", ".claude"),
    *(".config/google-chrome", ".config/chromium", ".mozilla", ".config/mcp", ".cursor", ".codex"),
)
"""In the home folder: opened only by a rule for the place itself, not for a folder around it."""
_SYSTEM = ("/boot", "/dev", "/proc", "/run", "/sys", "/var/run", "/var/lib/docker")
"""The same for the whole machine: devices, other programs' sockets and memory."""
_MOST = 10_000  # the maximum number of rules that replace one rule


@dataclass(frozen=True, slots=True)
class PrivatePaths:
    """What is private on this machine; all paths are real ones, without links."""

    never: tuple[str, ...]
    by_name: tuple[str, ...]

    @classmethod
    def of_user(cls, home: Path, state: Path) -> "PrivatePaths":
        """The user's private paths, and ours: vault, tokens, audit, configuration, servers' data.

        Args:
            home: The user's home folder.
            state: The state folder of this hub, with the folders of all servers.
        """
        ours = (
            USER_FOLDERS.user_data_path,
            USER_FOLDERS.user_config_path,
            USER_FOLDERS.user_state_path,
            USER_FOLDERS.user_cache_path,
            state,
        )
        never = (*(home / name for name in _NEVER), *ours)
        by_name = (*(home / name for name in _ONLY_BY_NAME), *map(Path, _SYSTEM))
        return cls(tuple(map(os.path.realpath, never)), tuple(map(os.path.realpath, by_name)))

    def openable(self, path: str) -> tuple[str, ...]:
        """The paths that a rule for `path` opens: itself, or its entries that are not private.

        The kernel has no exceptions below an open folder, so a folder with private entries is
        opened entry by entry. Entries that are created later open at the next start.
        """
        real = os.path.realpath(path)
        # By real path: a link to `.ssh` with a harmless name opens nothing.
        if any(is_within(real, one) for one in self.never):
            return ()
        below = real if real.endswith("/") else f"{real}/"
        holes = [one for one in (*self.never, *self.by_name) if one.startswith(below)]
        return tuple(_around(real, holes))


def _around(path: str, holes: list[str]) -> Iterator[str]:
    if path in holes:
        return
    if not holes:
        yield path
        return
    try:
        entries = sorted(os.listdir(path))[:_MOST]
    except OSError:
        return
    for entry in entries:
        inner = os.path.join(path, entry)
        if os.path.islink(inner):  # its target is not what the rule names
            continue
        yield from _around(inner, [hole for hole in holes if is_within(hole, inner)])


def is_within(path: str, folder: str) -> bool:
    """Whether a path is a folder, or somewhere in it."""
    return folder in {path, "/"} or path.startswith(f"{folder}/")


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths that are not inside another one."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not kept or not is_within(path, kept[-1]):
            kept.append(path)
    return tuple(kept)
