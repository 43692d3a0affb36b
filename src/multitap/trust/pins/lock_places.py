"""Where the lock files of a configuration are."""

import os
from hashlib import sha256
from pathlib import Path

from multitap.config.loading import Loaded
from multitap.config.models import ServerConfig
from multitap.records import dataclass
from multitap.trust.pins.lock_file import FILE, LockFile
from multitap.user_folders import USER_FOLDERS


@dataclass(frozen=True, slots=True)
class LockPlaces:
    """The files for the user's own servers and for those of a project."""

    own: LockFile
    """The user's pins for their own servers."""
    private: LockFile
    """The user's pins for the project's servers: a project's own lock proves nothing."""
    project: LockFile | None = None
    """The project's own lock, to be committed; it can withhold tools, never reveal one."""

    @property
    def files(self) -> tuple[LockFile, ...]:
        return tuple(dict.fromkeys(filter(None, (self.own, self.private, self.project))))

    def of(self, config: ServerConfig) -> tuple[LockFile, LockFile | None]:
        """The lock files of a server: this user's, and the project's."""
        if config.provenance == "project":
            return self.private, self.project
        return self.own, None


def places_in(folder: Path) -> LockPlaces:
    """For settings without files: one lock file for all servers."""
    lock = LockFile(folder / FILE)
    return LockPlaces(lock, lock)


def places_of(loaded: Loaded) -> LockPlaces:
    """For a configuration: beside the user's own file, and beside the project's.

    Explicitly named files may be anywhere, and several may be in one folder, so their pins are kept
    with the user's data.
    """
    project = next((source.project for source in loaded.search.sources if source.project), None)
    config = USER_FOLDERS.user_config_path
    named = [str(source.path) for source in loaded.search.sources if source.required]
    home = {source.path.parent for source in loaded.search.sources}
    own = LockFile(config / FILE) if config in home else _lock_for(named or [str(config)])
    if project is None:
        return LockPlaces(own, own)
    private = _lock_for([str(project)])
    return LockPlaces(own, private, LockFile(project / FILE, is_private=False))


def _lock_for(paths: list[str]) -> LockFile:
    data = USER_FOLDERS.user_data_path
    # one file may have several paths, but has one set of pins
    real = sorted(map(os.path.realpath, paths))
    mark = sha256("\n".join(real).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return LockFile(data / "pins" / f"{Path(real[0]).stem or 'root'}-{mark}.lock")
