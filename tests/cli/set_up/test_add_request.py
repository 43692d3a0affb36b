"""Lines such as `npx -y PACKAGE`: typed by the person, but the program is a registry's."""

import shlex
import sys
import tomllib

import pytest

from multitap.cli.set_up.add_request import parse_words, read_launcher_line, resolve
from tests.cli.conftest import zoo
from tests.cli.test_questions import Terminal

FILESYSTEM = "@modelcontextprotocol/server-filesystem"


@pytest.mark.parametrize(
    ("line", "package", "name"),
    [
        (f"npx -y {FILESYSTEM} .", FILESYSTEM, "filesystem"),
        (f"npx {FILESYSTEM}@2026.1.1", f"{FILESYSTEM}@2026.1.1", "filesystem"),
        ("npx -y -p thing --registry https://x.dev @playwright/mcp@latest", None, "playwright"),
        ("/usr/bin/npx --yes -- brave-search-mcp-server", None, "brave-search"),
        ("npx.cmd -y thing", "thing", "thing"),
        ("npm exec -y -- thing-mcp", "thing-mcp", "thing"),
        ("bunx --bun mcp-thing", "mcp-thing", "thing"),
        ("bun x thing", "thing", "thing"),
        ("pnpm dlx @x/server-thing", None, "thing"),
        ("yarn dlx -p a thing", "thing", "thing"),
        ("uvx mcp-server-git --repository .", "mcp-server-git", "git"),
        ("uvx mcp-server-git@1.0", None, "git"),
        ("uvx --python 3.12 'thing[x]==1.0'", "thing[x]==1.0", "thing"),
        ("uvx --from git+https://example.com/x/serena serena start", "serena", "serena"),
        ("uv tool run mcp-server-time", "mcp-server-time", "time"),
        ("pipx run --spec x mcp-server-fetch", "mcp-server-fetch", "fetch"),
        ("docker run -i --rm -e KEY mcp/fetch", "mcp/fetch", "fetch"),
        ("docker run -i ghcr.io/github/github-mcp-server:1", None, "github"),
        ("podman run -itv/:/h example.com:5000/thing/mcp", None, "thing"),
        ("dnx Thing.Mcp@1.0 --yes", "Thing.Mcp@1.0", "Thing-Mcp"),
    ],
)
def test_a_line_is_named_after_its_package(line, package, name):
    launcher = read_launcher_line(shlex.split(line))

    assert launcher.name == name
    assert package in {None, launcher.package}


@pytest.mark.parametrize(
    "line",
    ["", "npx", "npx -y", "docker", "docker ps", "docker compose up", "pipx install x", "uv run x",
     "python -m x", "yarn x", "npm install x", "./server.py"],
)  # fmt: skip
def test_other_lines_are_not_a_launcher_s(line):
    assert read_launcher_line(shlex.split(line)) is None


@pytest.fixture
def npx(home, monkeypatch):
    """A launcher on the PATH that notes its arguments, and starts a server whatever they are."""
    server = zoo("good")
    folder = home.parent / "bin"
    folder.mkdir()
    file = folder / "npx"
    command = shlex.join([server["command"], *server["args"]])
    file.write_text(f'#!/bin/sh\necho "$@" >> {home}/started\nexec {command}\n')
    file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return home / "started"


def entries(home):
    file = home.parent / "config/multitap/multitap.toml"
    return tomllib.loads(file.read_text())["servers"] if file.exists() else {}


LINE = ["npx", "-y", FILESYSTEM, "x"]
WAYS = (
    LINE,
    [shlex.join(LINE)],
    [f"$ {shlex.join(LINE)}"],
    ["--", *LINE],
    ["filesystem", *LINE],
    ["filesystem", "--", *LINE],
    ["filesystem", shlex.join(LINE)],
    ["claude", "mcp", "add", "filesystem", "--", *LINE],
    ["claude", "mcp", "add", "filesystem", *LINE],
)


@pytest.mark.parametrize("words", WAYS, ids=shlex.join)
def test_its_options_are_its_own(multitap, home, npx, words):
    refused = multitap("add", *words)

    assert refused.code == 3
    assert f"`{shlex.join(['multitap', 'add', '--yes', *words])}`" in refused.err
    assert not npx.exists()

    added = multitap("add --yes --timeout 60s", *words)

    assert added.code == 0, added.err
    assert npx.read_text() == f"-y {FILESYSTEM} x\n"
    assert entries(home) == {
        "filesystem": {"command": "npx", "args": LINE[1:], "provenance": "registry"}
    }


def test_a_person_is_asked_and_enter_means_no(home, npx):
    for answer, code in (("\n", 130), ("y\n", 0)):
        terminal = Terminal("add", *LINE, cwd=home)
        try:
            terminal.wait("filesystem is a package of a registry")
            terminal.wait("Start it once, and add it if it works? [y/N]: ")
            assert not npx.exists()
            terminal.type(answer)

            assert terminal.end() == code, terminal.seen
        finally:
            terminal.close()
    assert [*entries(home)] == ["filesystem"]


def test_our_options_come_before_it(multitap, home, npx):
    ended = multitap("add --yes --no-check -e KEY=value mine", *LINE, "--no-check", "-e", "A=b")

    assert ended.code == 0, ended.err
    assert entries(home)["mine"]["args"] == [*LINE[1:], "--no-check", "-e", "A=b"]
    assert entries(home)["mine"]["env"] == {"KEY": "value"}
    assert not npx.exists()


def test_typed_variables_are_the_person_s_own(multitap, home, npx):
    multitap("add --yes --no-check npx -y thing", "${HOME}/x")

    assert entries(home)["thing"]["args"] == ["-y", "thing", "${HOME}/x"]


def test_a_piped_line_is_a_pasted_text(multitap, home, npx):
    multitap("add --yes --no-check -", stdin="npx -y thing ${HOME}/x\n")

    assert entries(home)["thing"] == {
        "command": "npx",
        "args": ["-y", "thing", "$${HOME}/x"],
        "provenance": "pipe",
    }


def test_a_name_or_a_value_that_is_called_like_a_launcher_is_one():
    [draft] = resolve(parse_words(("docker", "https://x.dev/mcp")))
    [program] = resolve(parse_words(("npx",), command=(sys.executable, "x.py")))

    assert (draft.name, draft.provenance) == ("docker", "user")
    assert (program.name, program.provenance) == ("npx", "user")


def test_a_container_that_opens_this_machine_is_warned_of(multitap):
    line = "add --dry-run docker run -i -v/:/h --net=host --env-file=.env image"

    ended = multitap(line)

    assert "warning: it may use / of this machine" in ended.err
    assert "warning: `--network=host`: it shares a namespace" in ended.err
    assert "warning: it gets the variables in the file .env" in ended.err


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("fielsystem", "did you mean `filesystem`? `npm:fielsystem` or `pypi:fielsystem`"),
        ("filesystem /tmp", "`multitap add filesystem --root VALUE` adds the one of the catalog"),
    ],
)
def test_a_name_that_is_nearly_one_of_the_catalog_is_no_package(multitap, line, hint):
    ended = multitap(f"add {line}")

    assert ended.code == 3
    assert hint in ended.err


def test_a_missing_command_is_no_package(multitap):
    ended = multitap("add x --")

    assert ended.code == 2
    assert "a command is expected after `--`" in ended.err
