import pytest

from multitap.config import Severity
from multitap.config.durations import EXAMPLES
from multitap.config.problems import did_you_mean, nearest

from .reading import errors, merged, said


def entry(text):
    return f'{{"mcpServers": {{"s": {text}}}}}'


@pytest.mark.parametrize(
    ("dialect", "text", "place", "key", "message"),
    [
        (
            "mcpservers",
            '{"command": 5}',
            (1, 34),
            "mcpServers.s.command",
            "expected a string, got a number",
        ),
        (
            "mcpservers",
            '{"command": ""}',
            (1, 34),
            "mcpServers.s.command",
            "expected the name of a program, got an empty string",
        ),
        (
            "mcpservers",
            '{"command": "x", "args": "y"}',
            (1, 47),
            "mcpServers.s.args",
            "expected a list of strings, got a string",
        ),
        (
            "mcpservers",
            '{"command": "x", "args": ["y", 8080]}',
            (1, 53),
            "mcpServers.s.args.1",
            "expected a string, got a number",
        ),
        (
            "mcpservers",
            '{"command": "x", "env": ["A"]}',
            (1, 46),
            "mcpServers.s.env",
            "expected a table of strings, got a list",
        ),
        (
            "mcpservers",
            '{"command": "x", "env": {"A": {}}}',
            (1, 52),
            "mcpServers.s.env.A",
            "expected a string, got a table",
        ),
        (
            "mcpservers",
            '{"command": "x", "env": {"A": 1.10}}',
            (1, 52),
            "mcpServers.s.env.A",
            "expected a string, got a number",
        ),
        (
            "mcpservers",
            '{"command": "x", "disabled": "no"}',
            (1, 51),
            "mcpServers.s.disabled",
            "expected `true` or `false`, got a string",
        ),
        (
            "mcpservers",
            '{"url": "ftp://x"}',
            (1, 30),
            "mcpServers.s.url",
            "expected an address that starts with http:// or https://",
        ),
        (
            "mcpservers",
            '{"type": "ws", "url": "wss://x"}',
            (1, 31),
            "mcpServers.s.type",
            "WebSocket servers are not supported",
        ),
        (
            "mcpservers",
            '{"type": "htp", "url": "https://x"}',
            (1, 31),
            "mcpServers.s.type",
            "no transport is named 'htp'",
        ),
        (
            "mcpservers",
            '{"type": "http", "command": "x"}',
            (1, 17),
            "mcpServers.s.url",
            "`url` is missing",
        ),
        (
            "mcpservers",
            '{"type": "stdio", "url": "https://x"}',
            (1, 17),
            "mcpServers.s.command",
            "`command` is missing",
        ),
        (
            "mcpservers",
            '{"command": "x", "url": "https://x"}',
            (1, 17),
            "mcpServers.s",
            "has both `command` and `url`",
        ),
        ("mcpservers", "{}", (1, 17), "mcpServers.s", "neither `command` nor `url`"),
        ("mcpservers", "5", (1, 22), "mcpServers.s", "expected a table, got a number"),
        (
            "claude-code",
            '{"command": "x", "timeout": "1"}',
            (1, 50),
            "mcpServers.s.timeout",
            f"expected a number of milliseconds or a duration such as {EXAMPLES}, got a string",
        ),
        (
            "claude-code",
            '{"command": "x", "timeout": 0}',
            (1, 50),
            "mcpServers.s.timeout",
            "expected more than 0",
        ),
        (
            "excelmanus",
            '{"command": "x"}',
            (1, 17),
            "mcpServers.s.transport",
            "`transport` is missing",
        ),
        (
            "excelmanus",
            '{"transport": "sse", "command": "x"}',
            (1, 17),
            "mcpServers.s.url",
            "`url` is missing",
        ),
        ("kode", '{"command": "x"}', (1, 17), "mcpServers.s.args", "`args` is missing"),
        (
            "mcpservers",
            '{"command": "x\\u0000"}',
            (1, 34),
            "mcpServers.s.command",
            "contains a NUL character",
        ),
        (
            "mcpservers",
            '{"url": "https://x", "headers": {"A": "b\\n"}}',
            (1, 54),
            "mcpServers.s.headers",
            "a header with a line break or NUL character",
        ),
    ],
)
def test_a_bad_entry_is_named_with_its_place(dialect, text, place, key, message):
    result = merged(entry(text), dialect=dialect)

    assert errors(result.problems) == [(*place, key, message)]
    assert [problem.server for problem in result.problems] == ["s"]
    assert not result.settings.servers


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ('{"a": {"type": "lokal", "command": ["x"]}}', "a.type", 'expected "local" or "remote"'),
        ('{"a": {"command": ["x"]}}', "a.type", "`type` is missing"),
        ('{"a": {"type": "local"}}', "a.command", "`command` is missing"),
        (
            '{"a": {"type": "local", "command": []}}',
            "a.command",
            "expected a program and its arguments, got a list",
        ),
        (
            '{"a": {"type": "local", "command": "x"}}',
            "a.command",
            "expected a list of strings, got a string",
        ),
        ('{"a": {"type": "remote"}}', "a.url", "`url` is missing"),
    ],
)
def test_a3_a_wrong_config_is_rejected_with_the_name_of_the_field(text, key, message):
    result = merged(text, dialect="spec07")

    assert [(problem.key, problem.message) for problem in result.problems] == [(key, message)]
    assert not result.settings.servers


@pytest.mark.parametrize(
    ("dialect", "text", "key", "expected"),
    [
        ("zed", '{"context_servers": []}', "context_servers", "a table of servers"),
        ("goose", '{"extensions": 5}', "extensions", "a table of servers"),
        ("gemini", '{"mcp": {"allowed": "a"}}', "mcp.allowed", "a list of servers"),
        ("gemini", '{"mcp": {"excluded": "a"}}', "mcp.excluded", "a list of servers"),
    ],
)
def test_what_holds_no_servers_is_an_error(dialect, text, key, expected):
    [problem] = merged(text, dialect=dialect).problems

    assert (problem.key, problem.message) == (key, f"expected {expected}")


def test_a_dialect_names_missing_keys_in_its_own_words():
    result = merged("extensions:\n  a:\n    type: stdio\n", "config.yaml", "goose")

    assert errors(result.problems) == [(2, 3, "extensions.a.cmd", "`cmd` is missing")]


def test_an_unknown_key_is_kept_and_warned_of_with_the_nearest_one():
    result = merged(entry('{\n "command": "x",\n "tiemout": 5,\n "zzz": 1}'), dialect="cline")

    assert said(result.problems, Severity.WARNING) == [
        (3, 2, "mcpServers.s.tiemout", "unknown key; kept, but without effect"),
        (4, 2, "mcpServers.s.zzz", "unknown key; kept, but without effect"),
    ]
    assert [problem.hint for problem in result.problems] == ["did you mean `timeout`?", None]
    assert result.settings.servers["s"].command == "x"
    kept = result.servers["s"].merge_entries().extra
    assert {key: node.value for key, node in kept.items()} == {"tiemout": 5, "zzz": 1}


def test_a_misspelled_command_is_explained_by_its_misspelling():
    result = merged(entry('{"comand": "x"}'))

    [unknown, missing] = result.problems
    assert (unknown.severity, unknown.hint) == (Severity.WARNING, "did you mean `command`?")
    assert missing.message == "neither `command` nor `url`"
    assert missing.hint == "did you mean `command` instead of `comand`?"


def test_a_number_without_a_unit_is_not_guessed():
    result = merged(entry('{"command": "x", "timeout": 60}'))

    [problem] = result.problems
    assert problem.message == "seconds or milliseconds? hosts differ, so it is not used"
    assert (problem.severity, problem.place.column) == (Severity.WARNING, 39)
    assert result.settings.servers["s"].timeout == 30


@pytest.mark.parametrize(
    ("dialect", "seconds"),
    [
        ("claude-code", 0.06),
        ("gemini", 0.06),
        ("cline", 60),
        ("excelmanus", 60),
        ("mcpservers", 30),
    ],
)
def test_the_same_number_means_what_its_dialect_says(dialect, seconds):
    text = entry('{"transport": "stdio", "command": "x", "timeout": 60}')

    assert merged(text, dialect=dialect).settings.servers["s"].timeout == pytest.approx(seconds)


def test_d18_otter_durations_have_their_unit_in_the_text():
    text = '[[mcp.servers]]\nname = "a"\ncommand = "x"\ntimeout = {}\n'

    assert merged(text.format('"1m30s"'), "otter.toml").settings.servers["a"].timeout == 90
    [problem] = merged(text.format("30"), "otter.toml").problems
    assert (problem.place.line, problem.place.column) == (4, 11)
    assert problem.expected == 'a duration such as "30s", "1m30s" or "500ms"'


def test_otter_servers_need_a_name_and_the_last_of_two_counts():
    text = """
[[mcp_servers]]
command = "nameless"
[[mcp_servers]]
name = "a"
command = "first"
[[mcp_servers]]
name = "a"
command = "second"
"""
    result = merged(text, "otter.toml")

    assert said(result.problems) == [
        (2, 3, "mcp_servers.0", "expected a server with a `name`"),
        (7, 3, "mcp_servers.2", "a second server named 'a'; this one is used"),
    ]
    assert result.settings.servers["a"].command == "second"


def test_a_value_of_the_hub_that_is_wrong_costs_only_itself():
    result = merged(
        'naming = "klaude"\nresult_cap = 5\nstart_concurrency = 3\nstart_concurency = 3\n',
        "multitap.toml",
    )

    [typo, naming, cap] = result.problems
    assert (typo.key, typo.severity) == ("start_concurency", Severity.WARNING)
    assert naming.message.startswith("expected '{server}_{tool}', '{server}:{tool}', ")
    assert (cap.key, cap.message) == ("result_cap", "expected at least 100")
    assert (result.settings.start_concurrency, result.settings.result_cap) == (3, 5000)


def test_our_own_file_tells_slips_with_a_hint():
    text = '[servers.a]\ncommand = "x"\nera = "handshak"\nstart = "lasy"\n'
    text += '[servers.b]\ntransport = "htpp"\nurl = "https://x"\n'

    problems = merged(text, "multitap.toml").problems

    assert [(problem.key, problem.hint) for problem in problems] == [
        ("servers.b.transport", "did you mean `http`?"),
        ("servers.a.start", "did you mean `lazy`?"),
        ("servers.a.era", "did you mean `handshake`?"),
    ]


def test_a_field_of_the_other_kind_is_a_warning():
    text = '[servers.a]\ncommand = "x"\nheaders = { A = "b" }\n'
    text += '[servers.b]\nurl = "https://x"\ncwd = "y"\n'

    result = merged(text, "multitap.toml")

    assert said(result.problems) == [
        (3, 13, "servers.a.headers.A", "has no effect for a program"),
        (6, 1, "servers.b.cwd", "has no effect for a remote server"),
    ]
    assert result.settings.servers.keys() == {"a", "b"}


def test_a_server_needs_a_name_that_can_be_shown():
    result = merged('{"mcpServers": {"": {"command": "x"}, "a\\u0007": {"command": "x"}}}')

    assert {problem.message for problem in result.problems} == {
        "a server's name has 1 to 200 printable characters"
    }
    assert not result.settings.servers


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{"mcpserver": {}}', "did you mean `mcpServers`?"),
        ('{"theme": "dark"}', "name the dialect if it is one of ours"),
    ],
)
def test_a_file_without_servers_says_so(text, hint):
    [problem] = merged(text).problems

    assert (problem.message, problem.hint) == ("no MCP servers in this file", hint)


def test_a_file_that_is_no_table_says_so():
    [problem] = merged("[1]").problems

    assert problem.message == "expected a table at the top"


def test_problems_never_carry_values_that_could_be_secret():
    text = entry(
        '{"command": "x", "url": 5, "env": {"A": ["hunter2"]}, "headers": {"B": {"hunter2": 1}},'
        ' "timeout": "hunter2", "oauth": "hunter2", "args": [["hunter2"]], "bearer": "hunter2"}'
    )

    problems = merged(text, dialect="cline").problems

    assert len(problems) >= 6
    assert "hunter2" not in "".join(f"{problem!r}{problem}" for problem in problems).replace(
        "headers.B", ""
    )


@pytest.mark.parametrize(
    ("word", "candidate", "is_near"),
    [
        ("everything_no-such-tool", "everything_echo", False),
        ("no-such-tool", "everything_echo", False),
        ("github_list_nothing", "github_list_issues", False),
        ("github_list_issue", "github_list_issues", True),
        ("github_lst_issues", "github_list_issues", True),
        ("githb_list_issues", "github_list_issues", True),
        ("everything_ehco", "everything_echo", True),
        ("everything-Echo", "everything_echo", True),
    ],
)
def test_a_name_is_near_by_more_than_the_server_that_it_shares(word, candidate, is_near):
    assert (nearest(word, [candidate]) is not None) is is_near


def test_the_nearest_name_ignores_case_and_separators():
    assert nearest("server_url", ["serverUrl", "url"]) == "serverUrl"
    assert nearest("Command", ["command"]) == "command"
    assert nearest("xyz", ["command"]) is None
    assert did_you_mean("xyz", ["command"]) is None
