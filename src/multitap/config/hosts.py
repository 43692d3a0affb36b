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
    ("continue", ".continue/mcpServers/*.yaml"),
    ("opencode", ".config/opencode/opencode.json"),
    ("opencode", ".config/opencode/opencode.jsonc"),
    ("kode", ".kode.json"),
    ("excelmanus", ".excelmanus/mcp.json"),
    ("agent-core", ".config/tong_work/agent-core/tong_work.jsonc"),
    ("agent-core", ".config/tong_work/agent-core/environments/*/config.jsonc"),
)
"""Below the home directory."""
OF_SYSTEM = (
    ("claude-desktop", "Claude/claude_desktop_config.json"),
    ("vscode", "Code/User/mcp.json"),
    ("otter", "otter/config.toml"),
)
"""Below the directory where this system keeps configurations."""
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
)


def host_files(where: Surroundings) -> tuple[Source, ...]:
    """The configurations of other hosts that are there, the user's before the project's."""
    places = (
        (where.home, OF_USER, None),
        (where.config.parent, OF_SYSTEM, None),
        (where.folder, OF_PROJECT, where.folder),
    )
    sources = [
        Source(path, dialect, project=project)
        for folder, files, project in places
        for dialect, pattern in files
        for path in _matching(folder, pattern)
    ]
    return tuple(source for source in sources if is_there(source.path))


def host_file(dialect: str, where: Surroundings) -> Path | None:
    """The file in which a host keeps its user's servers, there or not; None: in no file."""
    below_home = [where.home / path for host, path in OF_USER if host == dialect]
    below_config = [where.config.parent / path for host, path in OF_SYSTEM if host == dialect]
    plain = [path for path in (*below_home, *below_config) if "*" not in str(path)]
    return next((path for path in plain if is_there(path)), next(iter(plain), None))


def _matching(folder: Path, pattern: str) -> Iterable[Path]:
    if "*" not in pattern:
        return (folder / pattern,)
    try:
        return sorted(folder.glob(pattern))
    except OSError:  # a folder that may not be looked into
        return ()
