"""Every command on a page does what the page shows."""

import os
import re
import sys
from pathlib import Path

import pytest

from multitap.sandbox import landlock
from tests.trusting import trust

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "cli.md"
PAGES = [PAGE, ROOT / "README.md", ROOT / "docs" / "config.md"]
FROM_NOTHING = [ROOT / "docs" / "tutorial.md", ROOT / "docs" / "cookbook.md"]
"""Pages that begin with nothing configured."""
ELSEWHERE = {
    "/home/you/project": "{home}",
    "/home/you/.local/state": "{home.parent}/state",
}


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def shown(page):
    """Each command of a page with what it prints."""
    for block in blocks(page, "console"):
        for command in re.split(r"^\$ multitap ", block, flags=re.MULTILINE)[1:]:
            line, _, text = command.partition("\n")
            yield line, text


def pattern(text):
    """What fits the text; `…` stands for anything, and times differ."""
    fits = re.escape(text).replace("…\n", ".*\n").replace("…", ".*")
    return re.compile(re.sub(r"(\\ )*\d+\\ ms", r"\\s*\\d+ ms", fits), re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_prints_what_the_page_shows(page, multitap, home, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    config, *_ = blocks(page, "toml")
    (home / "multitap.toml").write_text(config)
    if page == PAGE:
        monkeypatch.setenv("MULTITAP_CONFIG", "multitap.toml")
    else:
        trust(home)
    if page.stem == "README":  # what somebody sees who has just cloned a project
        if not landlock.version():
            pytest.skip("its servers cannot be confined here")
        monkeypatch.delenv("MULTITAP_SANDBOX")
    else:
        multitap("doctor")  # from now on it is known what there is

    follow(page, multitap, home)


def follow(page, multitap, home):
    """Run the commands of a page in order; each must print what the page shows."""
    for line, text in shown(page):
        ended = multitap(line)

        for ours, theirs in ELSEWHERE.items():
            text = text.replace(ours, theirs.format(home=home))  # noqa: PLW2901 - the same text
        assert pattern(text).fullmatch(ended.err + ended.out) or pattern(text).fullmatch(
            ended.out + ended.err
        ), f"{line}\n{ended.out}{ended.err}"


@pytest.mark.slow
@pytest.mark.parametrize("page", FROM_NOTHING, ids=lambda page: page.stem)
def test_a_new_user_sees_what_the_page_shows(page, multitap, home, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    for number, block in enumerate(blocks(page, "toml")):
        (home / f"{number}.toml").write_text(f'[servers.notes]\ncommand = "true"\n{block}')
        assert "1 of 1 server can be used" in multitap(f"-c {number}.toml config check").err
    for line, text in shown(page):
        ended = multitap(line)

        assert is_interleaved(text, ended.out, ended.err), f"{line}\n{ended.out}{ended.err}"


def is_interleaved(text, *streams):
    """Whether a text has the lines of all streams, each in its order; `…` is any rest."""
    left = [stream.splitlines() for stream in streams]
    for line in text.splitlines():
        if line == "…":
            return True
        fits = pattern(line)
        stream = next((rest for rest in left if rest and fits.fullmatch(rest[0])), None)
        if stream is None:
            return False
        del stream[0]
    return not any(left)


def test_make_removes_nothing_that_the_readme_told_a_user_to_make():
    made = re.findall(r"-m venv (\S+)", (ROOT / "README.md").read_text())
    makefile = (ROOT / "Makefile").read_text()
    own = re.findall(r"^(?:VENV|TRIAL|SITE) := (\S+)", makefile, re.MULTILINE)

    assert made
    assert len(own) == 3
    assert not {*made} & {*own}


def test_the_first_screen_of_the_readme_says_what_to_install_run_and_test():
    first = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])

    for command in ("apt install", "make run", "make test", "pipx install ."):
        assert command in first


def test_the_index_names_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}

    assert not [page for page in sorted(pages) if f"({page})" not in index]


def test_every_command_is_on_the_page(multitap):
    page = PAGE.read_text()
    commands = re.findall(r"^  (\w+)  ", multitap("help commands").out, re.MULTILINE)
    parts = re.findall(
        r"^  (\w+)  ", multitap("config -h").out.partition("Commands:")[2], re.MULTILINE
    )

    assert not [name for name in commands if f"multitap {name}" not in page]
    assert not [name for name in parts if f"`{name}`" not in page]


def test_the_script_for_the_shell_is_click_s_own(multitap, monkeypatch):
    monkeypatch.setenv("_MULTITAP_COMPLETE", "bash_source")

    assert "_MULTITAP_COMPLETE=bash_complete" in multitap("").out


@pytest.mark.slow
def test_the_demo_is_a_command_too(multitap):
    ended = multitap("demo")

    assert ended.code == 0
    assert ended.out.endswith("no process of it is left.\n")
