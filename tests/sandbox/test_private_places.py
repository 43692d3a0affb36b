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
