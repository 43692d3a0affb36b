"""Whose files are used, and how far up they are looked for."""

import os

import pytest

from multitap.config import Surroundings, load, native
from multitap.config.sources import project_folder
from tests.trusting import Gullible

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def where(tmp_path):
    for name in ("home", "project", "config"):
        (tmp_path / name).mkdir()
    (tmp_path / "project" / "multitap.toml").write_text("[servers.a]\ncommand = 'x'\n")
    return Surroundings(tmp_path / "project", tmp_path / "home", tmp_path / "config", {})


def read(where, *files):
    return load(native(where, files), approval=Gullible())


def test_a_file_that_everybody_can_write_is_not_used_even_by_name(where):
    file = where.folder / "multitap.toml"
    file.chmod(0o666)
    for loaded in (read(where), read(where, file)):
        [problem] = loaded.problems

        assert not loaded.settings.servers
        assert problem.message == "can be changed by everybody, so it is not used"
        assert problem.hint == f"run `chmod go-w {file}`"
    assert read(where).intact


@as_root
def test_a_file_that_a_group_of_others_can_write_is_not_used(where):
    file = where.folder / "multitap.toml"
    file.chmod(0o664)
    own = read(where).settings.servers.keys()
    os.chown(file, 0, STRANGER)

    assert own == {"a"}
    assert f"the group {STRANGER}" in read(where).problems[0].message


@as_root
def test_a_strangers_file_is_used_only_if_it_is_named(where):
    file = where.folder / "multitap.toml"
    os.chown(file, STRANGER, STRANGER)

    assert f"belongs to the user {STRANGER}" in read(where).problems[0].message
    assert not read(where).settings.servers
    assert read(where, file).settings.servers.keys() == {"a"}


def test_a_folder_that_everybody_can_write_makes_its_files_unsafe_unless_it_is_sticky(where):
    where.folder.parent.chmod(0o777)
    refused = read(where)
    where.folder.parent.chmod(0o1777)
    sticky = read(where)
    where.folder.parent.chmod(0o700)

    assert "which can be changed by everybody" in refused.problems[0].message
    assert (sticky.problems, sticky.settings.servers.keys()) == ((), {"a"})


def test_an_unsafe_file_of_the_users_own_is_missed(where):
    file = where.config / "multitap.toml"
    file.write_text("[servers.mine]\ncommand = 'x'\n")
    file.chmod(0o666)

    assert not read(where).intact


def test_a_projects_file_that_leads_out_of_it_is_not_read(where, tmp_path):
    outside = tmp_path / "outside.toml"
    outside.write_text("[servers.b]\ncommand = 'x'\n")
    (where.folder / "multitap.toml").unlink()
    (where.folder / "multitap.toml").symlink_to(outside)
    server = where.folder / "mcpservers" / "s"
    server.mkdir(parents=True)
    (server / "server.py").symlink_to(outside)
    loaded = read(where)

    assert not loaded.settings.servers
    assert {problem.message for problem in loaded.problems} == {
        "leads out of the project and is not read"
    }


def test_the_search_ends_below_the_home_directory(tmp_path):
    home = tmp_path / "home"
    inner = home / "a" / "b"
    inner.mkdir(parents=True)
    (home / ".git").mkdir()
    (home / "multitap.toml").write_text("")
    where = Surroundings(inner, home, tmp_path / "config", {})

    assert project_folder(where) == inner
    (home / "a" / "multitap.toml").write_text("")
    (home / "a" / ".git").mkdir()
    assert project_folder(where) == home / "a"


@as_root
def test_the_search_ends_at_a_strangers_folder(tmp_path):
    outer = tmp_path / "outer"
    inner = outer / "mine"
    inner.mkdir(parents=True)
    (outer / ".git").mkdir()
    (outer / "multitap.toml").write_text("")
    where = Surroundings(inner, tmp_path / "home", tmp_path / "config", {})
    found = project_folder(where)
    os.chown(outer, STRANGER, STRANGER)

    assert found == outer
    assert project_folder(where) == inner
