from multitap.config import DIALECTS, Search, Surroundings, host_files, load
from multitap.config.sources import OF_PROJECT, OF_SYSTEM, OF_USER, host_file
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
        home / ".config" / "Claude" / "claude_desktop_config.json": "claude.json",
        folder / ".vscode" / "mcp.json": "vscode.jsonc",
    }.items():
        path.parent.mkdir(parents=True)
        path.write_text((FIXTURES / sample).read_text())

    found = host_files(where)

    assert [(source.dialect, source.project) for source in found] == [
        ("codex", None),
        ("claude", None),
        ("vscode", folder),
    ]
    servers = load(Search(found, folder), approval=Gullible()).settings.servers
    assert servers.keys() == {"docs", "figma", "fs", "perplexity", "slack"}


def test_hosts_that_are_told_to_keep_their_files_elsewhere_are_found_there(tmp_path):
    moved = {
        "CODEX_HOME": "codex/config.toml",
        "CLAUDE_CONFIG_DIR": "claude/.claude.json",
        "XDG_CONFIG_HOME": "xdg/goose/config.yaml",
        "CONTINUE_GLOBAL_DIR": "continue/config.yaml",
    }
    env = {name: str(tmp_path / path.partition("/")[0]) for name, path in moved.items()}
    where = Surroundings(tmp_path / "work", tmp_path, tmp_path / "xdg" / "multitap", env)
    for path in moved.values():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "config.toml").touch()  # nobody reads it any more

    assert {source.path for source in host_files(where)} == {
        tmp_path / path for path in moved.values()
    }
    assert host_file("codex", where) == tmp_path / "codex" / "config.toml"


def test_of_several_editions_the_one_that_is_installed_gets_new_servers(tmp_path):
    where = Surroundings(tmp_path, tmp_path, tmp_path / "config" / "multitap", {})
    assert host_file("vscode", where) == tmp_path / "config" / "Code" / "User" / "mcp.json"

    insiders = tmp_path / "config" / "Code - Insiders" / "User"
    insiders.mkdir(parents=True)

    assert host_file("vscode", where) == insiders / "mcp.json"


def test_continue_takes_json_of_other_clients_from_its_folder(tmp_path):
    path = tmp_path / ".continue" / "mcpServers" / "mcp.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"mcpServers": {"one": {"command": "x"}}}')
    where = Surroundings(tmp_path / "work", tmp_path, tmp_path / "config" / "multitap", {})

    found = host_files(where)

    assert load(Search(found, tmp_path)).settings.servers.keys() == {"one"}
