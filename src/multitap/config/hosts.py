"""Where other hosts keep their configuration."""

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
    ("opencode", ".config/opencode/opencode.json"),
    ("opencode", ".config/opencode/opencode.jsonc"),
    ("kode", ".kode.json"),
    ("excelmanus", ".excelmanus/mcp.json"),
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
        (where.home, OF_USER, True),
        (where.config.parent, OF_SYSTEM, True),
        (where.folder, OF_PROJECT, False),
    )
    sources = [
        Source(folder / path, dialect, trusted=trusted)
        for folder, files, trusted in places
        for dialect, path in files
    ]
    return tuple(source for source in sources if is_there(source.path))
