from pathlib import Path

import pytest

from multitap.config import DIALECTS, detect, dialect, read_text
from multitap.errors import ConfigError
from tests.config.reading import merged

PLAIN = '{"mcpServers": {"a": {"command": "x"}}}'


def found(text, path):
    document, _ = read_text(text, Path(path))
    match = detect(document)
    return match and match.name


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/h/.config/Claude/claude_desktop_config.json", "claude"),
        ("/p/.mcp.json", "claude-code"),
        ("/h/.claude.json", "claude-code"),
        ("/p/.cursor/mcp.json", "cursor"),
        ("/h/.codeium/windsurf/mcp_config.json", "windsurf"),
        ("/h/.codeium/mcp_config.json", "windsurf"),
        ("/h/.cline/data/settings/cline_mcp_settings.json", "cline"),
        ("/p/.gemini/settings.json", "gemini"),
        ("/h/.kode.json", "kode"),
        ("/h/.excelmanus/mcp.json", "excelmanus"),
        ("/p/mcp.json", "mcpservers"),
        ("/p/.vscode/mcp.json", "mcpservers"),
    ],
)
def test_where_the_content_fits_many_hosts_the_file_name_decides(path, expected):
    assert found(PLAIN, path) == expected


def test_content_wins_over_a_name_that_does_not_fit():
    vscode = '{"servers": {"a": {"type": "stdio", "command": "x"}}}'

    assert found(vscode, "/p/.cursor/mcp.json") == "vscode"


def test_one_host_s_keys_in_another_host_s_file_keep_that_file_s_units():
    text = '{"mcpServers": {"a": {"serverUrl": "https://x", "timeout": 5000}}}'

    assert found(text, "/p/.mcp.json") == "claude-code"
    assert merged(text, "/p/.mcp.json").settings.servers["a"].timeout == 5


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ('{"a": {"command": "x"}, "b": {"url": "https://x"}}', "x.json", "mcpservers"),
        ('{"command": "x", "args": []}', "x.json", "mcpservers"),
        ('{"mcp": {"servers": {"a": {"command": "x"}}}}', "settings.json", "vscode"),
        (
            '{"customizations": {"vscode": {"mcp": {"servers": {"a": {"url": "https://x"}}}}}}',
            "devcontainer.json",
            "vscode",
        ),
        ('{"mcp": {"a": {"type": "local", "command": ["x"]}}}', "x.jsonc", "agent-core"),
        ('{"mcp": {"a": {"type": "local", "command": ["x"]}}}', "opencode.json", "opencode"),
        ('{"mcp": {"server": {"enabled": true}, "clients": {}}}', "x.jsonc", "agent-core"),
        ('{"mcp": {"a": {"type": "local", "command": ["{env:X}"]}}}', "x.json", "opencode"),
        ("[mcp]\nenabled = false\n", "x.toml", "otter"),
        ("[servers.a]\ncommand = 'x'\n", "x.toml", "multitap"),
        ("naming = 'claude'\n", "x.toml", "multitap"),
        ("# no servers", "multitap.toml", "multitap"),
        ("{}", "x.json", None),
        ('{"theme": "dark"}', "/h/.config/zed/settings.json", "zed"),
        ("[]", "x.json", None),
        ('{"extensions": {"recommendations": ["a"]}}', "x.json", None),
    ],
)
def test_other_shapes_are_known_too(text, path, expected):
    assert found(text, path) == expected


def test_one_bare_server_is_named_like_its_file():
    assert merged(
        '{"command": "x"}', "/c/.continue/mcpServers/sqlite.json"
    ).settings.servers.keys() == {"sqlite"}


def test_a_dialect_can_be_chosen_by_name():
    assert dialect("zed") is DIALECTS["zed"]
    with pytest.raises(ConfigError) as caught:
        dialect("claud")
    assert str(caught.value) == "no client or format named 'claud'"
    assert caught.value.hint == "did you mean `claude`?"
    assert dialect("claude-desktop") is DIALECTS["claude"]


@pytest.mark.parametrize(
    ("dialect_name", "text", "expected"),
    [
        ("claude-code", "${A} ${B:-c} $D", "${A} ${B:-c} $D"),
        ("cursor", "${env:A} ${userHome}${/}x ${B}", "${env:A} ${userHome}${/}x $${B}"),
        ("windsurf", "${env:A} ${file:/b} ${C}", "${env:A} ${file:/b} $${C}"),
        ("cline", "${env:A} ${B}", "${env:A} $${B}"),
        ("gemini", "$A ${B} ${C:-d} $$E 5$", "${A} ${B} ${C:-d} $$E 5$"),
        ("continue", "${{ secrets.A }}-${{inputs.B}}", "${env:A}-${env:B}"),
    ],
)
def test_variables_are_put_in_our_words_as_the_host_understands_them(dialect_name, text, expected):
    servers = (
        '[{"name": "a", "command": "x", "args": ["%s"]}]'
        if dialect_name == "continue"
        else '{"a": {"command": "x", "args": ["%s"]}}'
    )

    result = merged('{"mcpServers": ' + servers % text + "}", dialect=dialect_name)

    assert result.settings.servers["a"].args == (expected,)


def test_codex_and_zed_know_no_variables():
    codex = merged("[mcp_servers.a]\ncommand = 'sh'\nargs = ['-c', 'echo ${A}']\n", "x.toml")
    zed = merged('{"context_servers": {"a": {"command": "sh", "args": ["-c", "echo ${A}"]}}}')

    assert (
        codex.settings.servers["a"].args == zed.settings.servers["a"].args == ("-c", "echo $${A}")
    )


def test_opencode_files_are_relative_to_its_own():
    headers = '{"A": "{file:tok}", "B": "${env:X} ${Y}"}'
    text = f'{{"mcp": {{"a": {{"type": "remote", "url": "https://x", "headers": {headers}}}}}}}'

    headers = merged(text, "/c/opencode.json").settings.servers["a"].headers

    assert headers == {"A": "${file:/c/tok}", "B": "${env:X} $${Y}"}


def test_vs_code_inputs_are_secrets_here():
    env = '{"K": "${input:my key}", "L": "${B}", "N": null, "P": 80, "Q": true}'
    text = f'{{"servers": {{"a": {{"command": "x", "env": {env}}}}}}}'

    env = merged(text).settings.servers["a"].env

    assert env == {"K": "${auth:my key}", "L": "$${B}", "P": "80", "Q": "true"}


def test_goose_fills_headers_from_its_own_variables_only():
    text = """
extensions:
  a:
    type: streamable_http
    uri: https://x
    envs: { REGION: "e${u}" }
    env_keys: [TOKEN]
    headers: { A: "$TOKEN ${REGION} ${HOME}" }
  memory: { type: builtin, enabled: true }
"""
    result = merged(text, "config.yaml")

    assert result.settings.servers["a"].headers == {"A": "${auth:TOKEN} e$${u} $${HOME}"}
    assert result.settings.servers.keys() == {"a"}
    assert not hasattr(result.settings.servers["a"], "env")


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ('{"command": "npx -y \'a b\'"}', ("npx", "-y", "a b")),
        ('{"command": "npx -y", "args": ["c"]}', ("npx -y", "c")),
        ('{"command": "/Applications/My Server/run"}', ("/Applications/My Server/run",)),
        ('{"command": "say \'hello"}', ("say 'hello",)),
        ('{"command": ["uvx", "a"], "args": ["b"]}', ("uvx", "a", "b")),
        ('{"args": ["b"], "command": ["uvx", "a"]}', ("uvx", "a", "b")),
    ],
)
def test_a_command_may_be_a_line_or_a_list(text, argv):
    server = merged('{"mcpServers": {"a": ' + text + "}}").settings.servers["a"]

    assert (server.command, *server.args) == argv


@pytest.mark.parametrize(
    ("word", "transport"),
    [
        ("http", "http"),
        ("remote", "http"),
        ("streamable-http", "streamable-http"),
        ("streamable_http", "streamable-http"),
        ("streamableHttp", "streamable-http"),
        ("sse", "sse"),
    ],
)
@pytest.mark.parametrize("key", ["type", "transport", "transportType"])
def test_a_transport_has_many_names(key, word, transport):
    text = f'{{"mcpServers": {{"a": {{"{key}": "{word}", "url": "https://x"}}}}}}'

    assert merged(text, dialect="mcpservers").settings.servers["a"].transport == transport


def test_cline_tokens_are_not_even_kept():
    text = '{"mcpServers": {"a": {"url": "https://x", "oauth": {"tokens": {"access": "hunter2"}}}}}'

    result = merged(text)

    assert not result.servers["a"].merge_entries().extra
    assert result.settings.servers["a"].oauth is None


def test_codex_refuses_a_token_in_the_file():
    [problem] = merged(
        "[mcp_servers.a]\nurl = 'https://x'\nbearer_token = 'hunter2'\n", "x.toml"
    ).problems

    assert (problem.message, problem.hint) == (
        "a token is not allowed here",
        "use `bearer_token_env_var`",
    )
