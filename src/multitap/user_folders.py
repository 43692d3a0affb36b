"""The folders of this user that belong to Multitap."""

from platformdirs import PlatformDirs

USER_FOLDERS = PlatformDirs("multitap", appauthor=False)
"""Each is looked up when it is asked for: the environment may change it."""
