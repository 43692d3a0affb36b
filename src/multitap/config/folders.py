"""Lists folders that a stranger may have filled: with too many entries, or too deep."""

import os
from collections.abc import Callable, Iterator
from errno import EFBIG
from itertools import islice
from pathlib import Path

MOST_ENTRIES = 1000
"""Entries of a folder of servers, skills or environments, each of which is opened."""


def entries_of(folder: Path) -> list[Path]:
    """The entries of a folder, in the order of names.

    Raises:
        OSError: It is not a folder, cannot be read, or has more entries.
    """
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, MOST_ENTRIES + 1)]
    if len(names) > MOST_ENTRIES:
        raise OSError(EFBIG, f"it has more than {MOST_ENTRIES:,} entries")
    return [folder / name for name in sorted(names)]


def files_below(folder: Path, *, skips: Callable[[str], bool]) -> Iterator[Path]:
    """All files below a folder, in a fixed order; links to folders are not followed.

    Args:
        folder: The top folder.
        skips: Whether a folder of this name is left out.
    """
    # Not `os.walk`, which recurses for each level before Python 3.12 and fails with a thousand
    # nested folders.
    waiting = [folder]
    while waiting:
        place = waiting.pop()
        try:
            with os.scandir(place) as entries:
                found = sorted((one.name, one.is_dir(follow_symlinks=False)) for one in entries)
        except OSError:
            continue
        yield from (place / name for name, is_folder in found if not is_folder)
        inside = (name for name, is_folder in found if is_folder and not skips(name))
        waiting += (place / name for name in sorted(inside, reverse=True))
