"""Shows paths relative to the current folder or the home folder."""

from dataclasses import replace
from pathlib import Path

from multitap.config import Place


def near(place: Place) -> Place:
    """The place with a path relative to the current folder, if it is inside."""
    here = Path.cwd()
    inside = place.file.is_relative_to(here)
    return replace(place, file=place.file.relative_to(here)) if inside else place
