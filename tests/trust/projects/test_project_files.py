"""Which changes of a project's files are noticed."""

import pytest

from multitap.trust.projects import project_files
from multitap.trust.projects.project_files import digests


def files(folder, count):
    found = [folder / f"{number:05}.py" for number in range(count)]
    for path in found:
        path.write_text("1")
    return found


@pytest.mark.parametrize("number", [0, 3, 5], ids=["first", "last that is read", "beyond"])
def test_a_change_of_any_file_is_noticed(tmp_path, monkeypatch, number):
    monkeypatch.setattr(project_files, "MAX_FILES", 4)
    paths = files(tmp_path, 6)
    before = digests(paths, tmp_path)
    assert digests(paths, tmp_path) == before

    paths[number].write_text("2")

    assert digests(paths, tmp_path) != before


def test_more_files_than_are_looked_at_are_never_unchanged(tmp_path, monkeypatch):
    monkeypatch.setattr(project_files, "MAX_FILES", 1)
    monkeypatch.setattr(project_files, "MOST_FILES", 2)
    paths = files(tmp_path, 5)

    assert digests(paths, tmp_path) != digests(paths, tmp_path)
