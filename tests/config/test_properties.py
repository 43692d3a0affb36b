"""Rules over all inputs: nothing is lost, nothing bad gets in, nothing breaks us."""

import json
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from multitap.config import DIALECTS, Document, Layer, Severity, merge, read_document, read_text
from multitap.config.dialects.mcp_servers import FAMILY
from multitap.config.documents import SUFFIXES

from .reading import FIXTURES, FOLDER

WORD = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters="$"), min_size=1, max_size=12
)
NAME = WORD
ENV = st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), WORD, max_size=3)
STDIO = st.fixed_dictionaries(
    {"transport": st.just("stdio"), "command": WORD},
    optional={"args": st.lists(WORD, max_size=4), "env": ENV, "timeout": st.integers(1, 86400)},
)
SSE = st.fixed_dictionaries(
    {"transport": st.just("sse"), "url": WORD.map(lambda word: f"http://localhost/{word}")},
    optional={"headers": ENV, "timeout": st.integers(1, 86400)},
)
GOOD = STDIO | SSE
BAD = st.one_of(
    GOOD.map(lambda entry: {key: value for key, value in entry.items() if key != "transport"}),
    STDIO.map(lambda entry: {key: value for key, value in entry.items() if key != "command"}),
    SSE.map(lambda entry: {key: value for key, value in entry.items() if key != "url"}),
    GOOD.map(lambda entry: entry | {"transport": "carrier-pigeon"}),
    GOOD.map(lambda entry: entry | {"timeout": 0}),
    GOOD.map(lambda entry: entry | {"timeout": "soon"}),
    STDIO.map(lambda entry: entry | {"args": "x"}),
    STDIO.map(lambda entry: entry | {"command": 5}),
    SSE.map(lambda entry: entry | {"url": "file:///x"}),
    st.integers() | st.none() | st.lists(st.integers()) | st.text(),
)


def excelmanus(servers):
    document, problems = read_text(json.dumps({"mcpServers": servers}), Path("mcp.json"))
    assert not problems
    return merge([Layer(read_document(document, FOLDER, dialect_name="excelmanus"))])


@given(st.dictionaries(NAME, GOOD, max_size=5))
def test_e12_parsing_keeps_every_field(servers):
    result = excelmanus(servers)

    assert not result.problems
    assert result.settings.servers.keys() == servers.keys()
    for name, entry in servers.items():
        config = result.settings.servers[name]
        kept = {key: getattr(config, key) for key in entry}
        assert kept == entry | ({"args": tuple(entry["args"])} if "args" in entry else {})
        assert config.timeout == entry.get("timeout", 30)


@given(st.dictionaries(NAME, GOOD, max_size=4), st.dictionaries(NAME, BAD, max_size=4))
def test_e13_exactly_the_valid_entries_survive(good, bad):
    bad = {name: entry for name, entry in bad.items() if name not in good}

    result = excelmanus(good | bad)

    assert result.settings.servers.keys() == good.keys()
    assert {problem.server for problem in result.problems} == bad.keys()
    assert all(problem.severity is Severity.ERROR for problem in result.problems)


# Every key that some host knows, with values of the right and of the wrong kind: any two of
# these may stand side by side in one file.
KNOWN = {
    "command": ["x", ["x", "{env:A}"], "${env:A}", {"path": "x"}, 5, []],
    "url": ["https://x", "https://${A}", "file:///x", 5],
    "args": [["$A", "${A}", "{env:A}"], "x"],
    "env": [{"K": "${A:-b}"}, {"K": 1.5}, 5],
    "timeout": [60, 60_000, "5s", 0, "soon"],
    "type": ["local", "remote", "stdio", "http", "streamableHttp", "ws", 5, [], {"a": 1}],
    "transport": ["stdio", "sse", "http", {"type": "stdio"}, "pigeon", None],
    "transportType": ["stdio"],
    "httpUrl": ["https://x"],
    "serverUrl": ["https://x"],
    "includeTools": [["a"]],
    "trust": [True, False],
    "envFile": [".env"],
    "auth": [{"CLIENT_ID": "a"}, 5],
    "oauth": [{}, False, {"clientId": "a"}, {"tokens": {}}, 5],
    "headersHelper": ["x"],
    "environment": [{"K": "v"}],
    "settings": [{}],
    "disabled": [True, False, "yes"],
    "enabled": [True, False, None],
    "uri": ["https://x"],
    "cmd": ["x"],
    "policy": [[5], 5],
    "requestOptions": [{"timeout": 5}, 5],
    "env_vars": [["A"], [5]],
}
SPELLED = st.fixed_dictionaries(
    {}, optional={key: st.sampled_from(values) for key, values in KNOWN.items()}
)
# also what is no server at all
ANY_ENTRY = SPELLED | st.sampled_from([None, 5, "npx -y x", True, [], ["x"], [{}]])


def by_name(servers):
    return [
        entry | {"name": name} if isinstance(entry, dict) else entry
        for name, entry in servers.items()
    ]


AROUND = {
    "mcpServers": ("x.json", lambda servers: {"mcpServers": servers}),
    "gemini": ("x.json", lambda servers: {"mcpServers": servers, "mcp": {"excluded": ["z"]}}),
    "claude": ("x.json", lambda servers: {"mcpServers": servers, "projects": {}}),
    "claude-project": (
        ".claude.json",
        lambda servers: {"mcpServers": 5, "projects": {str(FOLDER): {"mcpServers": servers}}},
    ),
    "bare": ("x.json", lambda servers: servers),
    "mcp": ("x.json", lambda servers: {"mcp": servers}),
    "agent-core-file": ("tong_work.jsonc", lambda servers: {"mcp": servers, "mcpServer": 5}),
    "opencode-file": ("opencode.json", lambda servers: {"mcp": servers}),
    "mcp.servers": ("x.json", lambda servers: {"mcp": {"servers": servers, "timeout": 5000}}),
    "servers": ("x.json", lambda servers: {"servers": servers}),
    "clients": ("x.json", lambda servers: {"mcp": {"clients": servers, "server": 5}}),
    "context_servers": ("x.json", lambda servers: {"context_servers": servers}),
    "zed-file": (
        ".zed/settings.json",
        lambda servers: {"context_servers": servers, "context_server_timeout": "soon"},
    ),
    "extensions": ("x.json", lambda servers: {"extensions": servers}),
    "goose-file": ("goose/config.yaml", lambda servers: {"extensions": servers}),
    "codex-file": (".codex/config.toml", lambda servers: {"mcp_servers": servers}),
    "continue-file": (".continue/config.yaml", lambda servers: {"mcpServers": by_name(servers)}),
    "otter-file": ("otter.toml", lambda servers: {"mcp": {"servers": by_name(servers)}}),
    "multitap-file": ("multitap.toml", lambda servers: {"servers": servers, "policy": 5}),
    "mcpServers-list": ("x.json", lambda servers: {"mcpServers": by_name(servers)}),
    **{
        f"{dialect.name}: {path}": (path, lambda servers: {"mcpServers": servers})
        for dialect in FAMILY
        for path in dialect.files
    },
}


def results(around, servers):
    """The settings of each server, and whether it has an error; None if the file is no file."""
    name, wrap = AROUND[around]
    kind = SUFFIXES[Path(name).suffix]
    reading = read_document(
        Document(path=Path("/c", name), data=wrap(servers), format=kind), FOLDER
    )
    if not reading.dialect:
        return None
    result = merge([Layer(reading)])
    lost = {problem.server for problem in result.problems if problem.severity is Severity.ERROR}
    return {
        server: (repr(result.settings.servers.get(server)), server in lost) for server in servers
    }


def test_every_dialect_is_tried_with_mixed_entries():
    containers = {
        name: read_document(
            Document(
                path=Path("/c", path),
                data=wrap({"s": {"type": "local", "command": "x"}}),
                format=SUFFIXES[Path(path).suffix],
            ),
            FOLDER,
        ).dialect
        for name, (path, wrap) in AROUND.items()
    }

    assert {*DIALECTS} - {*containers.values()} == set()


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.sampled_from(sorted(AROUND)),
    st.lists(ANY_ENTRY, min_size=2, max_size=4),
    # names that other files have for something else
    st.sampled_from([None, "server", "clients", "servers", "type", "S0", "s\u00b9", ""]),
)
@example("goose-file", [{"type": []}, {"type": "stdio", "cmd": "x"}], None)
@example("cursor: .cursor/mcp.json", [{"oauth": False, "auth": {"CLIENT_ID": "a"}}, 5], None)
@example("mcp", [{"type": "local", "command": ["x"]}, {"command": ["x"]}], "server")
@example("clients", [{"type": "local", "command": ["x"]}, {"command": "x"}], "type")
@example(
    "mcp.servers", [{"type": "local", "command": ["x"]}, {"type": "http", "url": "https://x"}], None
)
def test_one_entry_never_decides_about_its_neighbours(around, entries, last):
    names = [f"s{number}" for number in range(len(entries))]
    servers = dict(zip([*names[:-1], last or names[-1]], entries, strict=True))

    together = results(around, servers)

    for name in names[:-1]:
        # a table of nothing usable may be anything
        if (alone := results(around, {name: servers[name]})) is not None and alone[name][
            0
        ] != "None":
            assert together is not None
            assert together[name] == alone[name]


def test_a_stated_transport_leaves_the_entries_beside_it_alone():
    servers = {
        "a": {"transport": "stdio", "command": "x", "timeout": 5},
        "b": {"command": "x"},
        "c": {"type": "http", "url": "https://x"},
        "d": {"httpUrl": "https://x", "timeout": 5000},
    }
    document, _ = read_text(json.dumps({"mcpServers": servers}), Path("mcp.json"))

    result = merge([Layer(read_document(document, FOLDER))])

    assert not result.problems
    assert result.settings.servers.keys() == servers.keys()
    assert (result.settings.servers["a"].timeout, result.settings.servers["d"].timeout) == (5, 5)


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "mcp",
                        "mcpServers",
                        "servers",
                        "clients",
                        "server",
                        "context_servers",
                        "extensions",
                    ),
                    *(
                        "type",
                        "transport",
                        "command",
                        "cmd",
                        "args",
                        "env",
                        "url",
                        "uri",
                        "headers",
                        "oauth",
                    ),
                    *(
                        "timeout",
                        "enabled",
                        "disabled",
                        "name",
                        "a",
                        "projects",
                        str(FOLDER),
                        "auth",
                        "path",
                    ),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=25,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(VALUE, st.sampled_from([None, *DIALECTS]))
def test_no_data_whatever_breaks_a_dialect(data, told):
    document, _ = read_text(
        json.dumps(data, allow_nan=False, default=str) if _finite(data) else "{}", Path("x.json")
    )
    if document is None:
        assert data is None
        return

    result = merge([Layer(read_document(document, FOLDER, dialect_name=told))])

    assert all(problem.place.file == Path("x.json") for problem in result.problems)


def _finite(data):
    try:
        json.dumps(data, allow_nan=False)
    except ValueError:
        return False
    return True


SAMPLES = [path for path in sorted(FIXTURES.iterdir()) if path.is_file()]


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SAMPLES), st.data())
def test_no_damage_to_a_sample_breaks_us(path, data):
    text = path.read_text(encoding="utf-8")
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 8)))
        text = text[:start] + data.draw(st.text('{}[]":,=\n#/*&-x0', max_size=4)) + text[end:]

    document, problems = read_text(text, path)
    if document is not None:
        problems += merge([Layer(read_document(document, FOLDER))]).problems

    lines = text.split("\n")
    for problem in problems:
        assert problem.place.line <= len(lines)
        assert (
            problem.place.column <= len(lines[problem.place.line - 1]) + 1 or not problem.place.line
        )
