"""Which folders a server may write to because they are arguments of its own."""

import pytest

from multitap.sandbox.folder_arguments import folder_arguments


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
