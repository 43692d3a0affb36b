"""Rules over all inputs: nothing is lost, nothing bad gets in, nothing breaks us."""

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multitap.config import DIALECTS, Layer, Severity, merge, read_document, read_text

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
SPELLED = st.fixed_dictionaries(
    {},
    optional={
        "command": st.sampled_from(["x", ["x", "{env:A}"], "${env:A}", 5]),
        "url": st.sampled_from(["https://x", "https://${A}", "file:///x", 5]),
        "args": st.sampled_from([["$A", "${A}", "{env:A}"], "x"]),
        "env": st.just({"K": "${A:-b}"}),
        "timeout": st.sampled_from([60, 60_000, "5s", 0, "soon"]),
        "type": st.sampled_from(["local", "remote", "stdio", "http", "streamableHttp", "ws", 5]),
        "transport": st.sampled_from(["stdio", "sse", "http", {"type": "stdio"}, "pigeon"]),
        "transportType": st.just("stdio"),
        "httpUrl": st.just("https://x"),
        "serverUrl": st.just("https://x"),
        "includeTools": st.just(["a"]),
        "trust": st.booleans(),
        "envFile": st.just(".env"),
        "auth": st.just({"CLIENT_ID": "a"}),
        "headersHelper": st.just("x"),
        "environment": st.just({"K": "v"}),
        "settings": st.just({}),
        "disabled": st.booleans(),
        "uri": st.just("https://x"),
        "cmd": st.just("x"),
    },
)
AROUND = {
    "mcpServers": ("x.json", lambda servers: {"mcpServers": servers}),
    "gemini": ("x.json", lambda servers: {"mcpServers": servers, "mcp": {"excluded": ["z"]}}),
    "claude": ("x.json", lambda servers: {"mcpServers": servers, "projects": {}}),
    "claude-file": (".mcp.json", lambda servers: {"mcpServers": servers}),
    "kode-file": (".kode.json", lambda servers: {"mcpServers": servers}),
    "bare": ("x.json", lambda servers: servers),
    "mcp": ("x.json", lambda servers: {"mcp": servers}),
    "opencode-file": ("opencode.json", lambda servers: {"mcp": servers}),
    "mcp.servers": ("x.json", lambda servers: {"mcp": {"servers": servers}}),
    "servers": ("x.json", lambda servers: {"servers": servers}),
    "clients": ("x.json", lambda servers: {"mcp": {"clients": servers}}),
    "context_servers": ("x.json", lambda servers: {"context_servers": servers}),
    "extensions": ("x.json", lambda servers: {"extensions": servers}),
    "mcp_servers": ("x.json", lambda servers: {"mcp_servers": servers}),
    "mcpServers-list": (
        "x.json",
        lambda servers: {
            "mcpServers": [{"name": name, **entry} for name, entry in servers.items()]
        },
    ),
}


def results(around, servers):
    """The result for each server: its settings, or its problems; None if the file is no file."""
    name, wrap = AROUND[around]
    document, _ = read_text(json.dumps(wrap(servers)), Path("/c") / name)
    reading = read_document(document, FOLDER)
    if not reading.dialect:
        return None
    result = merge([Layer(reading)])
    return {
        server: (
            repr(result.settings.servers.get(server)),
            [
                (one.severity, one.message, one.hint)
                for one in result.problems
                if one.server == server
            ],
        )
        for server in servers
    }


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(sorted(AROUND)), st.lists(SPELLED, min_size=2, max_size=4))
def test_one_entry_never_decides_about_its_neighbours(around, entries):
    servers = {f"s{number}": entry for number, entry in enumerate(entries)}

    together = results(around, servers)

    for name, entry in servers.items():
        if (alone := results(around, {name: entry})) is not None:
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
