"""Every dialect, both ways: what it writes is read as it was, and the rest is reported."""

from functools import reduce
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multitap.config import DIALECTS, HttpServer, StdioServer, merge, read_document, read_text
from multitap.config.dialects.draft import canonical
from multitap.config.documents import read_text as document_of
from multitap.config.edit.changes import SetValue, apply_edits
from multitap.config.edit.servers import entry_place, fields_of, write_entry
from multitap.config.layers import Layer

WORD = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=10)
REFERENCE = st.sampled_from(
    ["${TOKEN}", "${env:TOKEN}", "${TOKEN:-none}", "${auth:TOKEN}", "${file:/k}", "${userHome}"]
)
PLAIN = st.text(st.characters(exclude_categories=["C"]), max_size=10)
TEXT = st.one_of(
    PLAIN.map(lambda text: text.replace("${", "$${")),
    REFERENCE,
    REFERENCE.map(lambda one: f"Bearer {one}"),
    st.sampled_from(["$${x}", "$HOME", "{env:A}", "npx -y", "${{ secrets.A }}", 'a"b\\c', "'"]),
)
NAME = st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True)
SPAN = st.integers(1, 600_000).map(lambda thousandths: thousandths / 1000)
PATH = st.sampled_from(["/srv/data", "~/x", "${workspaceFolder}/y", "/with space/z"])
COMMON = {
    "enabled": st.booleans(),
    "description": PLAIN,
    "timeout": SPAN,
    "connect_timeout": SPAN,
    "reconnect": st.booleans(),
    "timeouts": st.dictionaries(WORD, SPAN, max_size=2),
    "filter": st.fixed_dictionaries(
        {}, optional={"allow": st.lists(PLAIN, max_size=2), "deny": st.lists(PLAIN, max_size=2)}
    ),
    "era": st.sampled_from(["auto", "stateless"]),
    "start": st.sampled_from(["eager", "lazy"]),
    "limits": st.fixed_dictionaries({}, optional={"queue": st.integers(0, 9)}),
}
PROGRAMS = st.fixed_dictionaries(
    {"command": TEXT.filter(bool)},
    optional={
        "args": st.lists(TEXT, max_size=4),
        "env": st.dictionaries(NAME, TEXT, max_size=3),
        "cwd": PATH,
        "env_file": PATH,
        "sandbox": st.sampled_from([True, False, "auto", "bubblewrap"]),
        **COMMON,
    },
).map(lambda given: StdioServer(**given))
REMOTES = st.fixed_dictionaries(
    {"url": st.sampled_from(["https://x.io/mcp", "http://localhost:1/a b", "https://${HOST}/"])},
    optional={
        "transport": st.sampled_from(["http", "streamable-http", "sse"]),
        "headers": st.dictionaries(st.sampled_from(["Authorization", "X-Key", "A"]), TEXT),
        "oauth": st.just(False)
        | st.fixed_dictionaries(
            {},
            optional={
                "client_id": WORD.filter(lambda word: "$" not in word),
                "client_secret": TEXT,
                "scope": st.sampled_from(["a", "a b", "a  b"]),
                "callback_port": st.integers(1, 65535),
                "redirect_uri": st.just("http://localhost:1/cb"),
                "metadata_url": st.just("https://x.io/meta"),
            },
        ),
        **COMMON,
    },
)
REMOTES = REMOTES.filter(lambda given: " " not in given["url"]).map(
    lambda given: HttpServer(**given)
)


def file_of(dialect, name, entry):
    """A whole file with one server in it, as text and read again."""
    path = Path("/etc/of").with_suffix(dialect.writing.suffix)
    empty = document_of("{}" if dialect.writing.suffix.startswith(".json") else "# new", path)[0]
    text = apply_edits("", path, [SetValue(entry_place(dialect, empty, name), entry)])
    document, problems = read_text(text, path)
    assert not problems
    return text, document


def plain(value):
    if isinstance(value, str | Path):
        return canonical(str(value))
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value


def compared(config):
    """What a server says, but for what every server says unless told otherwise."""
    least = {"command": "?"} if isinstance(config, StdioServer) else {"url": "http://?"}
    silent = type(config)(**least)
    said = {path: plain(value) for path, value in fields_of(config).items()}
    return {
        path: value
        for path, value in said.items()
        if path == ("transport",) or value != plain(reduce(default, path, silent))
    }


def default(holder, name):
    return getattr(holder, name, None)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@settings(max_examples=25)
@given(config=PROGRAMS | REMOTES)
def test_what_is_written_is_read_again_but_for_what_was_reported(dialect, config):
    written = write_entry("one", config, dialect)
    reported = {loss.key for loss in written.losses}

    if written.entry is None:
        assert reported
        return
    _, document = file_of(dialect, "one", written.entry)
    merged = merge([Layer(read_document(document, Path("/"), dialect_name=dialect.name))])
    before, after = compared(config), compared(merged.settings.servers["one"])
    different = {
        ".".join(path)
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
    }
    assert different <= reported


@settings(max_examples=25)
@given(config=PROGRAMS | REMOTES)
def test_our_own_file_loses_nothing(config):
    written = write_entry("one", config, DIALECTS["multitap"])

    assert written.entry is not None
    assert not written.losses


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_every_dialect_can_describe_a_plain_program(dialect):
    config = StdioServer(command="npx", args=("-y", "server"), env={"LOG": "1"})

    written = write_entry("one", config, dialect)

    assert written.entry is not None
    assert [loss for loss in written.losses if loss.key != "cwd"] == []


def test_a_secret_never_shows_in_what_is_reported():
    config = HttpServer(
        url="https://x.io", headers={"A": "Bearer sk-abcdefghijklmnopqrst${auth:X}"}
    )

    for dialect in DIALECTS.values():
        assert "sk-abc" not in repr(write_entry("one", config, dialect).losses)


def test_codex_names_variables_instead_of_values():
    config = HttpServer(
        url="https://x.io/mcp",
        transport="streamable-http",
        headers={"Authorization": "Bearer ${env:TOK}", "X-Key": "${KEY}", "X": "1"},
    )

    written = write_entry("one", config, DIALECTS["codex"])

    assert written.entry == {
        "url": "https://x.io/mcp",
        "bearer_token_env_var": "TOK",
        "env_http_headers": {"X-Key": "KEY"},
        "http_headers": {"X": "1"},
    }
    assert not written.losses
