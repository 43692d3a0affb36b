import pytest

from multitap.config import Surroundings, load, native
from multitap.trust.pins.lock_places import places_of


@pytest.fixture
def where(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("MULTITAP_CONFIG", raising=False)
    (tmp_path / "project").mkdir()
    return Surroundings.here(tmp_path / "project")


def test_pins_are_beside_the_user_s_file_and_the_project_s(where, tmp_path):
    places = places_of(load(native(where)))

    assert places.own.path == tmp_path / "config/multitap/multitap.lock"
    assert places.project.path == tmp_path / "project/multitap.lock"
    assert places.private.path.parent == tmp_path / "data/multitap/pins"


def test_a_file_that_is_named_has_one_set_of_pins_however_it_is_reached(where, tmp_path):
    (where.folder / "a.toml").write_text("# no servers\n")
    (where.folder / "link.toml").symlink_to("a.toml")
    found = {
        places_of(load(native(where, [path]))).own.path
        for path in (
            where.folder / "a.toml",
            where.folder / "../project/a.toml",
            where.folder / "link.toml",
        )
    }

    assert len(found) == 1
    assert found.pop().parent == tmp_path / "data/multitap/pins"
