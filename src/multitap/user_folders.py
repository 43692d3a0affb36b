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
        status = place.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return is_own and not stat.S_IMODE(status.st_mode) & 0o077
