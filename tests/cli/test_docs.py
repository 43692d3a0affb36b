"""Every command on a page does what the page shows."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.trusting import trust

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "cli.md"
PAGES = [PAGE, ROOT / "README.md", ROOT / "docs" / "config.md"]
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
@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_prints_what_the_page_shows(page, multitap, home, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    config, *_ = blocks(page, "toml")
    (home / "multitap.toml").write_text(config)
    if page == PAGE:
        monkeypatch.setenv("MULTITAP_CONFIG", "multitap.toml")
    else:
        trust(home)
    multitap("doctor")  # from now on it is known what there is

    for line, text in shown(page):
        ended = multitap(line)

        for ours, theirs in ELSEWHERE.items():
            text = text.replace(ours, theirs.format(home=home))  # noqa: PLW2901 - the same text
        assert pattern(text).fullmatch(ended.err + ended.out) or pattern(text).fullmatch(
            ended.out + ended.err
        ), f"{line}\n{ended.out}{ended.err}"


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
