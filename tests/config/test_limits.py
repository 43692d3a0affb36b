"""What a hostile file can cost: little, whatever is in it."""

import sys
import tracemalloc
from pathlib import Path

import pytest

from multitap.agent.skills import read_skill
from multitap.config import Layer, Severity, merge, read_document, read_file
from multitap.config.dialects.draft import braces, secrets
from multitap.config.dialects.vscode import _rewrite
from multitap.config.documents import DEEPEST, LONGEST_KEY, MOST_SERVERS, MOST_VALUES
from multitap.config.secrets import masked_text
from multitap.config.variables import parse_env

MIB = 1024 * 1024
MOST_MEMORY = 64 * MIB

DEEP = f"is nested more than {DEEPEST} levels deep"
LONG = f"has a key of more than {LONGEST_KEY:,} characters"
BARE = f"has a key or number of more than {LONGEST_KEY:,} characters"
SERVERS = f"names more than {MOST_SERVERS:,} servers"


def many(kind):
    return f"has more than {MOST_VALUES[kind]:,} values"


def fill(unit, head="", tail="", size=MIB):
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail


def numbered(unit, head="", tail="", size=MIB):
    """The unit again and again, each time with another number in it."""
    width = len(unit.format(100_000))
    return head + "".join(map(unit.format, range((size - len(head) - len(tail)) // width))) + tail


def bomb(names="abcdefghij"):
    text = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for name, previous in zip(names[1:], names, strict=False):
        text += f"{name}: &{name} [{', '.join([f'*{previous}'] * 10)}]\n"
    return text


SMALL = 250 * 1024
"""Just below what YAML may have."""
SERVER_TABLE = '{"mcpServers": {'
PROGRAM = '{"mcpServers": {"a": {"command": "x", '


def cost(path):
    """Read a file as a configuration: its problems, and how much memory that took."""
    tracemalloc.start()
    try:
        document, problems = read_file(path)
        if document is not None:
            reading = read_document(document, path.parent)
            problems += merge([Layer(reading)]).problems
        return problems, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        pytest.param("a.json", fill("["), DEEP, id="json-lists"),
        pytest.param("a.json", fill('{"a":'), DEEP, id="json-tables"),
        pytest.param("a.json", f'{{"{"k" * MIB}": 1}}', LONG, id="json-key"),
        pytest.param(
            "a.json", fill("1,", "[", "1]"), many("json"), id="json-values", marks=pytest.mark.slow
        ),
        pytest.param(
            "a.json",
            fill('"a":1,', "{", '"a":1}'),
            many("json"),
            id="json-twice",
            marks=[pytest.mark.slow, pytest.mark.wide],
        ),
        pytest.param(
            "a.json",
            '{"a":' * 31 + fill("1,", "[", "1]"),
            many("json"),
            id="json-deep-values",
            marks=[pytest.mark.slow, pytest.mark.wide],
        ),
        pytest.param(
            "a.json",
            numbered('"s{}":{{"command":"x"}},', SERVER_TABLE, "}}", MIB // 8),
            SERVERS,
            id="json-servers",
        ),
        pytest.param("a.toml", "a" + ".a" * 12_000 + " = 1", DEEP, id="toml-dotted-key"),
        pytest.param("a.toml", fill(" . a", "[a", "]"), DEEP, id="toml-header"),
        pytest.param("a.toml", fill("{a=", "a="), DEEP, id="toml-tables"),
        pytest.param("a.toml", fill("[", "[a.b.c]\na="), DEEP, id="toml-lists"),
        pytest.param("a.toml", f"[{'a.' * 20}a]\n{'b.' * 20}b = 1", DEEP, id="toml-header-and-key"),
        pytest.param("a.toml", fill("[[a]]\n", size=MIB // 2), many("toml"), id="toml-arrays"),
        pytest.param(
            "a.toml",
            numbered("[a{}." + "a." * 28 + "a]\n"),
            many("toml"),
            id="toml-30",
            marks=pytest.mark.wide,
        ),
        pytest.param(
            "a.toml",
            fill("1,", "a=[", "1]", MIB // 2),
            many("toml"),
            id="toml-values",
            marks=pytest.mark.wide,
        ),
        pytest.param("a.toml", fill("k", tail="=1"), BARE, id="toml-bare-key"),
        pytest.param(
            "a.toml",
            f'"{"k" * MIB}'[: MIB // 4] + '"=1',
            LONG,
            id="toml-quoted-key",
            marks=pytest.mark.wide,
        ),
        pytest.param("a.toml", fill("9", "a="), BARE, id="toml-digits"),
        pytest.param("a.toml", fill("f", "a=0x"), BARE, id="toml-hexadecimal-digits"),
        pytest.param("a.toml", fill("9", "a=1."), BARE, id="toml-decimals"),
        pytest.param("a.yaml", fill("[", size=SMALL), DEEP, id="yaml-lists"),
        pytest.param("a.yaml", fill("? ", size=SMALL), DEEP, id="yaml-keys"),
        pytest.param("a.yaml", bomb(), many("yaml"), id="yaml-aliases"),
        pytest.param("a.yaml", "".join(" " * n + "a:\n" for n in range(600)), DEEP, id="yaml-nest"),
        pytest.param(
            "a.yaml",
            fill("- 1\n", size=SMALL),
            many("yaml"),
            id="yaml-values",
            marks=pytest.mark.wide,
        ),
        pytest.param("a.yaml", f'? "{"k" * 5000}"\n: 1', LONG, id="yaml-key"),
    ],
)
def test_what_is_too_much_is_refused_before_it_costs_anything(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)

    [problem], memory = cost(path)

    assert problem.severity is Severity.ERROR
    assert problem.message.startswith(message)
    assert problem.place.file == path
    assert memory < MOST_MEMORY


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("a.json", fill(" ", tail="{}"), id="json-blanks"),
        pytest.param("a.json", fill("/**/", tail="{}", size=MIB // 4), id="json-comments"),
        pytest.param("a.json", fill("\\n", '{"a": "', '"}', MIB // 4), id="json-escapes"),
        pytest.param(
            "a.json", numbered('"k{}":1,', PROGRAM, '"z":1}}}', MIB // 8), id="json-unknown"
        ),
        pytest.param(
            "a.json", numbered('"K{}":[],', f'{PROGRAM}"env":{{', '"z":"1"}}}}', MIB // 8), id="env"
        ),
        pytest.param(
            "a.toml", fill("#\n", size=MIB // 8), id="toml-comments", marks=pytest.mark.wide
        ),
        pytest.param("a.toml", fill("x", 'a="""', '"""'), id="toml-long-string"),
        pytest.param("a.toml", fill('""x', 'a="""', '"""', MIB // 4), id="toml-quotes"),
        pytest.param("a.toml", fill("\\n", 'a="""', '"""', MIB // 4), id="toml-escapes"),
        pytest.param("a.yaml", fill("x\n ", "a: ", size=SMALL // 4), id="yaml-plain"),
        pytest.param(
            "a.yaml", fill("|\n", size=SMALL // 4), id="yaml-bars", marks=pytest.mark.wide
        ),
        pytest.param("a.yaml", fill("!", size=SMALL // 4), id="yaml-tag"),
    ],
)
def test_what_is_not_too_much_costs_little(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)

    _, memory = cost(path)

    assert memory < MOST_MEMORY


def test_what_may_be_is(tmp_path):
    path = tmp_path / "a.json"
    servers = {f"s{number}": "x" * 100 for number in range(MOST_SERVERS)}
    entries = ", ".join(f'"{name}": {{"command": "{word}"}}' for name, word in servers.items())
    path.write_text(f'{{"{"/" * LONGEST_KEY}": {"[" * 30}{"]" * 30}, "mcpServers": {{{entries}}}}}')

    document, problems = read_file(path)
    merged = merge([Layer(read_document(document, tmp_path))])

    assert not problems
    assert merged.settings.servers.keys() == servers.keys()


def test_a_number_that_python_refuses_is_an_error_of_the_file(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("a = " + "9" * 1000)
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        document, [problem] = read_file(path)
    finally:
        sys.set_int_max_str_digits(limit)

    assert document is None
    assert problem.message == "not valid TOML: a number is too long"


def test_many_unknown_keys_are_counted_after_the_first_ones(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(numbered('"k{}":1,', PROGRAM, '"z":1}}}', 1000))
    document, _ = read_file(path)

    *first, last = read_document(document, tmp_path).problems

    assert len(first) == 20
    assert last.message == f"has {len(document.data['mcpServers']['a']) - 21} more unknown keys"


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (fill("[", "a: ", "\n", SMALL), DEEP),
        (bomb(), many("yaml")),
        (fill("x", "a: ", "\n", 300 * 1024), "is larger than 256 KiB"),
    ],
)
def test_the_header_of_a_skill_is_bounded_like_a_file(tmp_path, header, message):
    manual = tmp_path / "SKILL.md"
    manual.write_text(f"---\n{header}\n---\nText")

    skill, [problem] = read_skill(manual)

    assert skill is None
    assert problem.message == message


def test_a_line_of_an_environment_file_takes_time_by_its_length_only():
    blanks = " " * 500_000

    assert parse_env(f"A=x{blanks}x\n{blanks}B{blanks}={blanks}y{blanks}\nexport{blanks}C\n") == {
        "A": f"x{blanks}x",
        "B": "y",
    }


@pytest.mark.parametrize("end", ["", "}", ":x:}"])
@pytest.mark.parametrize(
    "start", ["${", "${a:-", "{env:", "{file:", "${input:", "${{secrets.", "${{ inputs."]
)
def test_a_text_full_of_beginnings_of_variables_takes_time_by_its_length_only(start, end):
    text = fill(start, tail=end)

    for rewrite in (secrets, braces(Path("/")), _rewrite):
        rewrite(text)
    masked_text(text)
