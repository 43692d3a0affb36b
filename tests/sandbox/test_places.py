"""What is private in a home folder, whatever a rule opens."""

import pytest

from multitap.sandbox.places import PrivatePaths, folder_arguments


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


@pytest.fixture
def home(tmp_path):
    home = tmp_path / "home"
    for name in ("docs/deep", "work", ".ssh", ".local/bin", ".config/autostart", "private/inner"):
        (home / name).mkdir(parents=True)
    (home / "docs" / "list.txt").write_text("x")
    (home / "keys").symlink_to(home / ".ssh")
    (home / "linked").symlink_to(home / "docs")
    return home


def writes(home, *args):
    private = (str(home / ".ssh"), str(home / "private" / "inner"))
    return [*folder_arguments(args, home / "work", home, private)]


def test_existing_folders_that_are_whole_arguments_are_writable(home):
    docs = str(home / "docs")

    assert writes(home, "-y", "server", docs, ".", "../docs/deep", "missing", f"{docs}/none") == [
        docs,
        str(home / "work"),
    ]


def test_a_link_counts_as_what_it_leads_to(home):
    assert writes(home, str(home / "linked")) == [str(home / "docs")]


@pytest.mark.parametrize(
    "word",
    [
        *("/", "/home", "/etc", "/usr/bin", "/proc/self", "/tmp", ".."),
        *("../.ssh", "../keys", "../.local/bin", "../.config", "../private", "../private/inner"),
        *("../docs/list.txt", "--root=../docs", "cat ../docs", "", "a\0b", "~/docs"),
    ],
)
def test_nothing_else_is(home, word):
    assert writes(home, word) == []


@pytest.mark.parametrize("option", ["-c", "-lc", "-e", "--eval"])
def test_no_folder_is_guessed_from_a_text(home, option):
    assert writes(home, option, str(home / "docs")) == []
    assert writes(home, "-cprint(1)", str(home / "docs" / "list.txt")) == []
