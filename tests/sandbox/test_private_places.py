import pytest

from multitap.sandbox.private_places import PrivatePaths


def private(tmp_path):
    home = tmp_path / "home"
    for name in (".ssh", ".kube", "work"):
        (home / name).mkdir(parents=True)
    return home, PrivatePaths.of_user(home, tmp_path / "state")


def test_a_rule_for_the_home_folder_opens_all_but_what_is_private(tmp_path):
    home, paths = private(tmp_path)

    assert paths.openable(str(home)) == (str(home / "work"),)


def test_no_rule_opens_a_key(tmp_path):
    home, paths = private(tmp_path)
    (home / "work/link").symlink_to(home / ".ssh")

    assert paths.openable(str(home / ".ssh")) == ()
    assert paths.openable(str(home / "work/link")) == ()


def test_a_private_place_is_opened_by_its_own_name_only(tmp_path):
    home, paths = private(tmp_path)

    assert paths.openable(str(home / ".kube")) == (str(home / ".kube"),)


@pytest.mark.parametrize(
    "name",
    [
        ".local/share/jupyter/runtime/jpserver-1.json",
        ".config/pypoetry/auth.toml",
        ".bunfig.toml",
        ".zhistory",
        ".local/share/atuin/key",
    ],
)
def test_keys_and_histories_are_private_wherever_programs_put_them(tmp_path, name):
    home, paths = private(tmp_path)
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).touch()

    assert paths.holds(str(home / name))
    assert str(home / name) not in paths.openable(str(home))
