"""Where other hosts keep their configuration files."""

from collections.abc import Iterable
from pathlib import Path

from multitap.config.files import is_there
from multitap.config.search import Source, Surroundings

OF_USER = (
    ("claude-code", ".claude.json"),
    ("cursor", ".cursor/mcp.json"),
    ("windsurf", ".codeium/windsurf/mcp_config.json"),
    ("windsurf", ".codeium/mcp_config.json"),
    ("zed", ".config/zed/settings.json"),
    ("cline", ".cline/data/settings/cline_mcp_settings.json"),
    ("cline", ".cline/mcp.json"),
    ("codex", ".codex/config.toml"),
    ("gemini", ".gemini/settings.json"),
    ("goose", ".config/goose/config.yaml"),
    ("continue", ".continue/config.yaml"),
    *(("continue", f".continue/mcpServers/*.{suffix}") for suffix in ("yaml", "yml", "json")),
    ("opencode", ".config/opencode/opencode.json"),
    ("opencode", ".config/opencode/opencode.jsonc"),
    ("kode", ".kode.json"),
    ("excelmanus", ".excelmanus/mcp.json"),
    ("agent-core", ".config/tong_work/agent-core/tong_work.jsonc"),
    ("agent-core", ".config/tong_work/agent-core/environments/*/config.jsonc"),
)
"""Paths below the home directory."""
OF_SYSTEM = (
    ("claude-desktop", "Claude/claude_desktop_config.json"),
    ("vscode", "Code/User/mcp.json"),
    ("vscode", "Code/User/profiles/*/mcp.json"),
    ("vscode", "Code - Insiders/User/mcp.json"),
    ("vscode", "VSCodium/User/mcp.json"),
    ("cline", "*/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"),
    ("otter", "otter/config.toml"),
)
"""Paths below the system's configuration directory."""
OF_PROJECT = (
    ("claude-code", ".mcp.json"),
    ("cursor", ".cursor/mcp.json"),
    ("vscode", ".vscode/mcp.json"),
    ("zed", ".zed/settings.json"),
    ("codex", ".codex/config.toml"),
    ("gemini", ".gemini/settings.json"),
    ("opencode", "opencode.json"),
    ("opencode", "opencode.jsonc"),
    ("kode", ".kode.json"),
    ("otter", "otter.toml"),
    ("excelmanus", "mcp.json"),
    *(("continue", f".continue/mcpServers/*.{suffix}") for suffix in ("yaml", "yml", "json")),
)
_MOVABLE = (
    ("CODEX_HOME", ".codex/"),
    ("CLINE_DATA_DIR", ".cline/data/"),
    ("CONTINUE_GLOBAL_DIR", ".continue/"),
    ("XDG_CONFIG_HOME", ".config/"),
)
"""Variables that relocate a host's folder."""


def host_files(where: Surroundings) -> tuple[Source, ...]:
    """The existing configurations of other hosts, the user's before the project's."""
    of_user = [(dialect, *_of_user(where, pattern)) for dialect, pattern in OF_USER]
    of_system = [(dialect, where.config.parent, pattern) for dialect, pattern in OF_SYSTEM]
    of_project = [(dialect, where.folder, pattern) for dialect, pattern in OF_PROJECT]
    sources = [
        Source(path, dialect, project=project)
        for places, project in (
            (of_user, None),
            (of_system, None),
            (of_project, where.folder),
        )
        for dialect, folder, pattern in places
        for path in _matching(folder, pattern)
    ]
    return tuple(source for source in sources if is_there(source.path))


def host_file(dialect: str, where: Surroundings) -> Path | None:
    """The file for a host's user-level servers, which may not exist; None if it has no file.

    If a host has several editions, the file of the installed one.
    """
    of_user = [_of_user(where, path) for host, path in OF_USER if host == dialect]
    of_system = [(where.config.parent, path) for host, path in OF_SYSTEM if host == dialect]
    files = [folder / path for folder, path in of_user if "*" not in path]
    editions = [folder / path for folder, path in of_system if "*" not in path]
    there = [path for path in (*files, *editions) if is_there(path)]
    installed = [path for path in editions if is_there(path.parent)]
    return next(iter((*there, *files, *installed, *editions)), None)


def _of_user(where: Surroundings, pattern: str) -> tuple[Path, str]:
    """The base folder of a pattern below the home directory, and the rest of it."""
    if pattern == ".claude.json" and (folder := where.env.get("CLAUDE_CONFIG_DIR")):
        return Path(folder), pattern
    for variable, prefix in _MOVABLE:
        folder = where.env.get(variable)
        if folder and pattern.startswith(prefix):
            return Path(folder), pattern.removeprefix(prefix)
    return where.home, pattern


def _matching(folder: Path, pattern: str) -> Iterable[Path]:
    if "*" not in pattern:
        return (folder / pattern,)
    try:
        return sorted(folder.glob(pattern))
    except OSError:  # a folder without permission
        return ()
