"""The folders of this user that belong to Multitap."""

import os
import stat
from pathlib import Path

from platformdirs import PlatformDirs

USER_FOLDERS = PlatformDirs("multitap", appauthor=False)
"""Each is looked up when it is asked for: the environment may change it."""


def is_private(place: Path) -> bool:
    """Whether only the user can access a folder; one in `/tmp` may belong to anyone."""
    try:
        seen = place.lstat()
    except OSError:
        return False
    mine = stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.getuid()
    return mine and not stat.S_IMODE(seen.st_mode) & 0o077
