from multitap.config import DIALECTS, Search, Surroundings, host_files, load
from multitap.config.hosts import OF_PROJECT, OF_SYSTEM, OF_USER
from tests.trusting import Gullible

from .reading import FIXTURES


def test_every_host_is_one_we_can_read():
    hosts = {dialect for dialect, _ in (*OF_USER, *OF_SYSTEM, *OF_PROJECT)}

    assert len(hosts) == 16  # Claude has two
    assert hosts <= DIALECTS.keys()


def test_the_files_that_are_there_are_found_and_can_be_read(tmp_path):
    home, folder = tmp_path / "home", tmp_path / "project"
    where = Surroundings(folder, home, home / ".config" / "multitap", {})
    for path, sample in {
        home / ".codex" / "config.toml": "codex.toml",
        home / ".config" / "Claude" / "claude_desktop_config.json": "claude-desktop.json",
        folder / ".vscode" / "mcp.json": "vscode.jsonc",
    }.items():
        path.parent.mkdir(parents=True)
        path.write_text((FIXTURES / sample).read_text())

    found = host_files(where)

    assert [(source.dialect, source.project) for source in found] == [
        ("codex", None),
        ("claude-desktop", None),
        ("vscode", folder),
    ]
    servers = load(Search(found, folder), approval=Gullible()).settings.servers
    assert servers.keys() == {"docs", "figma", "fs", "perplexity", "slack"}
