from pathlib import Path

import pytest

from multitap.config import (
    DIALECTS,
    Agent,
    HttpServer,
    OAuth,
    Serve,
    Settings,
    StdioServer,
    ToolFilter,
    read_file,
)
from multitap.config.dialects import detect, native
from multitap.config.models import Limits
from multitap.names import Naming
from tests.config.reading import FIXTURES, FOLDER, fixture, given, said

NPX = {"command": "npx", "transport": "stdio"}
SERVERS = {
    "spec07.json": {
        "memory": {**NPX, "args": ("mcp-memory",), "env": {"LOG": "1"}},
        "api": {
            "transport": "http",
            "url": "https://example.com/mcp",
            "headers": {"Authorization": "Bearer ${API_TOKEN}"},
            "enabled": False,
            "timeout": 5.0,
        },
    },
    "kode.json": {
        "files": {**NPX, "args": ("-y", "files-server"), "env": {"ROOT": "/srv"}},
        "events": {
            "transport": "sse",
            "url": "http://localhost:8080/sse",
            "headers": {"Authorization": "Bearer ${TOKEN}"},
        },
    },
    "agent-core.jsonc": {
        "filesystem": {
            "transport": "stdio",
            "command": "bun",
            "args": ("run", "./mcpservers/filesystem/server.mjs"),
            "cwd": FIXTURES,
            "enabled": True,
            "timeout": 30.0,
        },
        "context7": {
            "transport": "http",
            "url": "https://mcp.context7.com/mcp",
            "headers": {"CONTEXT7_API_KEY": "${auth:context7}"},
            "enabled": True,
        },
        "sentry": {
            "transport": "http",
            "url": "https://mcp.sentry.dev/mcp",
            "oauth": OAuth(),
            "enabled": True,
        },
        "github": {
            "transport": "http",
            "url": "https://api.github.com/mcp",
            "oauth": OAuth(
                client_id="${env:GITHUB_CLIENT_ID}",
                client_secret="${env:GITHUB_CLIENT_SECRET}",
                scope="repo read:user",
            ),
        },
        "custom-api": {
            "transport": "http",
            "url": "https://mcp.example.com",
            "headers": {"Authorization": "Bearer ${auth:custom-api}"},
            "oauth": False,
        },
    },
    "otter.toml": {
        "filesystem": {
            **NPX,
            "args": ("-y", "@modelcontextprotocol/server-filesystem", "/home/user/projects"),
            "env": {"NODE_ENV": "production"},
            "enabled": True,
        },
        "browser": {**NPX, "args": ("-y", "@anthropic-ai/mcp-server-browser")},
        "github": {
            "transport": "sse",
            "url": "https://api.github.com/mcp/sse",
            "headers": {"Authorization": "Bearer ${GITHUB_TOKEN}"},
            "timeout": 90.0,
        },
    },
    "excelmanus.json": {
        "filesystem": {**NPX, "args": ("-y", "@modelcontextprotocol/server-filesystem", "/tmp")},
        "web-search": {"transport": "sse", "url": "http://localhost:8080/sse", "timeout": 60.0},
    },
    "claude.json": {
        "fs": {
            "command": "npx",
            "args": ("-y", "@modelcontextprotocol/server-filesystem", "/tmp"),
            "env": {"LOG": "1"},
        }
    },
    "claude-code.json": {
        "db": {
            "transport": "stdio",
            "command": "${CLAUDE_PROJECT_DIR:-.}/bin/db",
            "args": ("--ro",),
            "env": {"DB_URL": "${DB_URL}"},
            "timeout": 600.0,
        },
        "api": {
            "transport": "http",
            "url": "${API_BASE_URL:-https://api.example.com}/mcp",
            "headers": {"Authorization": "Bearer ${API_KEY}"},
            "oauth": OAuth(
                client_id="id",
                callback_port=8080,
                scope="channels:read chat:write",
                metadata_url="https://auth.example.com/.well-known/openid-configuration",
            ),
        },
    },
    "claude-user.json": {
        "shared": {"command": "shop-server"},
        "notes": {"transport": "http", "url": "https://notes.example.com/mcp", "enabled": False},
    },
    "cursor.json": {
        "local": {
            "transport": "stdio",
            "command": "python",
            "args": ("${workspaceFolder}/tools/mcp_server.py",),
            "env": {"API_KEY": "${env:API_KEY}"},
            "env_file": Path("${workspaceFolder}/.env"),
        },
        "remote": {
            "url": "https://api.example.com/mcp",
            "headers": {"Authorization": "Bearer ${env:TOK}"},
            "oauth": OAuth(client_id="${env:CID}", client_secret="${env:CS}", scope="read write"),
        },
    },
    "vscode.jsonc": {
        "perplexity": {
            **NPX,
            "args": ("-y", "server-perplexity-ask"),
            "cwd": Path("${workspaceFolder}"),
            "env": {"PERPLEXITY_API_KEY": "${auth:pk}"},
            "env_file": Path("${workspaceFolder}/.env"),
        },
        "slack": {
            "transport": "http",
            "url": "https://mcp.slack.com/mcp",
            "headers": {"X": "1"},
            "oauth": OAuth(client_id="example-client-id"),
        },
    },
    "zed.jsonc": {
        "local": {"command": "some-command", "args": ("a",), "enabled": True, "timeout": 120.0},
        "remote": {
            "url": "https://example.com/mcp",
            "headers": {"Authorization": "Bearer <token>"},
            "oauth": OAuth(client_id="x", client_secret="y"),
            "timeout": 60.0,
        },
        "old": {"command": "npx", "args": ("-y", "x"), "timeout": 60.0},
    },
    "opencode.jsonc": {
        "local": {
            **NPX,
            "args": ("-y", "my-mcp"),
            "cwd": FOLDER / "sub",
            "env": {"K": "${env:K}"},
            "enabled": True,
            "timeout": 5.0,
        },
        "remote": {
            "transport": "http",
            "url": "https://mcp.sentry.dev/mcp",
            "headers": {"A": "Bearer ${file:~/.tok}"},
            "oauth": OAuth(
                client_id="${env:CID}",
                client_secret="${env:CS}",
                scope="tools:read",
                callback_port=19876,
            ),
            "timeout": 30.0,
        },
    },
    "opencode-v2.jsonc": {
        "a": {
            "transport": "stdio",
            "command": "x",
            "args": (),
            "enabled": False,
            "connect_timeout": 30.0,
            "timeout": 60.0,
        },
        "b": {
            "transport": "http",
            "url": "https://x/mcp",
            "oauth": OAuth(client_id="c", client_secret="s"),
            "connect_timeout": 30.0,
            "timeout": 5.0,
        },
    },
    "codex.toml": {
        "docs": {
            "command": "npx",
            "args": ("-y", "@upstash/context7-mcp"),
            "env": {
                "LOCAL_TOKEN": "${env:LOCAL_TOKEN}",
                "REMOTE_TOKEN": "${env:REMOTE_TOKEN}",
                "DEBUG": "mcp:*",
            },
            "cwd": Path("/repo"),
            "connect_timeout": 20.0,
            "timeout": 45.0,
            "filter": ToolFilter(allow=("search",), deny=("delete",)),
        },
        "figma": {
            "transport": "streamable-http",
            "url": "https://mcp.figma.com/mcp",
            "headers": {
                "Authorization": "Bearer ${env:FIGMA_OAUTH_TOKEN}",
                "X-Region": "us-east-1",
                "X-Key": "${env:FIGMA_KEY}",
            },
            "oauth": OAuth(client_id="abc", callback_port=8765, scope="read"),
            "enabled": False,
        },
    },
    "gemini.json": {
        "py": {
            "command": "python",
            "args": ("-m", "srv"),
            "cwd": FOLDER / "srv",
            "env": {"DB": "${DB_URL}", "K": "${K:-x}"},
            "timeout": 15.0,
            "filter": ToolFilter(allow=("safe",), deny=("rm",)),
            "description": "d",
            "enabled": False,
        },
        "h": {
            "transport": "streamable-http",
            "url": "http://localhost:3000/mcp",
            "headers": {"Authorization": "Bearer t"},
            "timeout": 5.0,
            "enabled": False,
        },
        "u": {
            "transport": "http",
            "url": "https://x/mcp",
            "oauth": OAuth(
                client_id="c", scope="s", redirect_uri="http://localhost:7777/oauth/callback"
            ),
            "enabled": False,
        },
        "iap": {"url": "https://x.run.app/sse", "enabled": False},
    },
    "goose.yaml": {
        "github": {
            **NPX,
            "args": ("-y", "@modelcontextprotocol/server-github"),
            "env": {
                "LOG": "1",
                "GITHUB_PERSONAL_ACCESS_TOKEN": "${auth:GITHUB_PERSONAL_ACCESS_TOKEN}",
            },
            "enabled": True,
            "timeout": 300.0,
        },
        "remote": {
            "transport": "streamable-http",
            "url": "https://example.com/mcp",
            "headers": {"Authorization": "Bearer ${auth:TOKEN}"},
            "enabled": True,
            "timeout": 60.0,
        },
    },
    "continue.yaml": {
        "SQLite": {
            **NPX,
            "args": ("-y", "mcp-sqlite", "/db"),
            "env": {"TOKEN": "${env:TOKEN}"},
            "cwd": Path("/p"),
            "connect_timeout": 20.0,
        },
        "Remote": {
            "transport": "streamable-http",
            "url": "https://x/mcp",
            "headers": {"Authorization": "Bearer ${env:K}", "X": "1"},
        },
    },
    "continue-old.json": {
        "mcp-1": {"transport": "stdio", "command": "uvx", "args": ("mcp-server-sqlite",)}
    },
    "cline.json": {
        "a": {
            "command": "node",
            "args": ("/s.js",),
            "env": {"K": "${env:K}"},
            "cwd": Path("/w"),
            "enabled": True,
            "timeout": 60.0,
        },
        "b": {
            "transport": "streamable-http",
            "url": "https://x/mcp",
            "headers": {"Authorization": "Bearer t"},
            "enabled": True,
        },
        "c": {
            "transport": "streamable-http",
            "url": "https://x/mcp",
            "oauth": OAuth(client_id="c"),
            "enabled": True,
        },
    },
    "windsurf.json": {
        "github": {
            "command": "npx",
            "args": ("-y", "@modelcontextprotocol/server-github"),
            "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": "${env:GH}"},
        },
        "r": {
            "url": "https://x/mcp",
            "headers": {"Authorization": "Bearer ${env:AUTH_TOKEN}"},
        },
    },
    "multitap.toml": {
        "files": {
            "command": "npx",
            "args": ("-y", "files-server", "${workspaceFolder}"),
            "env": {"LEVEL": "3", "TOKEN": "${auth:files}"},
            "env_file": FIXTURES / ".env",
            "cwd": FIXTURES / "data",
            "description": "Files of the project",
            "start": "lazy",
            "idle_timeout": 300.0,
            "timeout": 45.0,
            "timeouts": {"index_all": 300.0},
            "hard_timeout": 600.0,
            "connect_timeout": 20.0,
            "health_interval": 15.0,
            "retry": "never",
            "result_cap": 500,
            "result_caps": {"read_file": 20000},
            "era": "handshake",
            "log_level": "warning",
            "filter": ToolFilter(allow=("read_*",), deny=("read_secret",)),
            "limits": Limits(message=1048576, in_flight=2, queue=0, tools=50),
        },
        "issues": {
            "transport": "streamable-http",
            "url": "https://issues.example.com/mcp",
            "headers": {"X-Team": "core"},
            "enabled": False,
            "oauth": OAuth(
                client_id="cli",
                client_secret="${auth:issues}",
                scope="read write",
                callback_port=8123,
                redirect_uri="http://127.0.0.1:8123/callback",
                metadata_url="https://login.example.com/.well-known/oauth-authorization-server",
            ),
        },
    },
}


# Some of their entries could be of any host, and the others do not decide for them.
UNIT_UNKNOWN = {"claude-code.json", "cline.json"}


@pytest.mark.parametrize("name", sorted(SERVERS.keys() - UNIT_UNKNOWN))
def test_a_real_sample_says_what_its_host_understands(name):
    servers = fixture(name).settings.servers

    assert {server: given(config) for server, config in servers.items()} == SERVERS[name]


@pytest.mark.parametrize("name", SERVERS)
def test_a_sample_reads_the_same_when_its_dialect_is_named(name):
    dialect = {"claude-user": "claude-code", "opencode-v2": "opencode", "continue-old": "continue"}
    stem = Path(name).stem

    told = fixture(name, dialect.get(stem, stem))

    assert {server: given(config) for server, config in told.settings.servers.items()} == SERVERS[
        name
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("agent-core.jsonc", "agent-core"),
        ("claude-code.json", "mcpservers"),
        ("claude.json", "mcpservers"),
        ("claude-user.json", "claude-code"),
        ("cline.json", "mcpservers"),
        ("codex.toml", "codex"),
        ("continue-old.json", "continue"),
        ("continue.yaml", "continue"),
        ("cursor.json", "cursor"),
        ("excelmanus.json", "excelmanus"),
        ("gemini.json", "gemini"),
        ("goose.yaml", "goose"),
        ("kode.json", "mcpservers"),
        ("multitap.toml", "multitap"),
        ("opencode-v2.jsonc", "opencode"),
        ("opencode.jsonc", "opencode"),
        ("otter.toml", "otter"),
        ("spec07.json", "spec07"),
        ("vscode.jsonc", "vscode"),
        ("windsurf.json", "mcpservers"),
        ("zed.jsonc", "zed"),
    ],
)
def test_a_sample_is_known_by_its_content(name, expected):
    document, _ = read_file(FIXTURES / name)

    assert detect(document).name == expected


def test_there_is_a_sample_of_every_dialect():
    assert {Path(name).stem.removesuffix(".old") for name in SERVERS} >= DIALECTS.keys() - {
        "mcpservers"
    }


def test_our_own_file_says_everything_about_the_hub():
    settings = fixture("multitap.toml").settings

    assert settings.naming is Naming.CLAUDE
    assert settings.serve == Serve(transport="http", port=4000)
    assert settings.agents == {"writer": Agent(allow=("mcp__files__*",), deny=("*delete*",))}
    assert (settings.health_interval, settings.drain_timeout) == (60, 0)
    assert settings.state_dir == Path("/var/lib/multitap")


def test_our_own_file_can_say_everything_the_models_know():
    fields = {*StdioServer.__struct_fields__, *HttpServer.__struct_fields__}

    assert native.SERVER.keys() == fields
    assert native.GENERAL.keys() == {*Settings.__struct_fields__, "$schema"}


def test_agent_core_says_how_the_hub_shows_itself():
    serve = fixture("agent-core.jsonc").settings.serve

    assert serve == Serve(enabled=True, transport="http", host="0.0.0.0", port=3000)


def test_otter_says_how_the_hub_runs():
    assert given(fixture("otter.toml").settings) == {
        "enabled": True,
        "auto_reload": True,
        "health_interval": 30.0,
        "servers": fixture("otter.toml").settings.servers,
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "claude-code.json",
            [
                (4, 9, "mcpServers.api.headersHelper", "is not run; write the headers instead"),
                (4, 43, "mcpServers.api.alwaysLoad", "has no effect here; kept"),
                (6, 15, "mcpServers.ev.type", "WebSocket servers are not supported"),
            ],
        ),
        (
            "cline.json",
            [
                (2, 92, "mcpServers.a.autoApprove", "has no effect here; kept"),
                (4, 115, "mcpServers.c.oauth", "is the host's own state; left there"),
            ],
        ),
        (
            "zed.jsonc",
            [
                (3, 27, "context_servers.local.remote", "has no effect here; kept"),
                (5, 9, "context_servers.ext", "comes from an extension of Zed; left there"),
                (6, 10, "context_servers.old.source", "has no effect here; kept"),
            ],
        ),
        (
            "opencode.jsonc",
            [(5, 11, "mcp.jira.enabled", "disables a server that no file defines")],
        ),
    ],
)
def test_ineffective_keys_of_a_sample_are_reported(name, expected):
    told = Path(name).stem if name in UNIT_UNKNOWN else None

    assert said(fixture(name, told).problems) == expected
