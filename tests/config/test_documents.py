from pathlib import Path

import pytest

from multitap.config import Severity, read_file, read_text

DEEP = "is nested more than 32 levels deep"
FILES = ("a.json", "a.jsonc", "a.toml", "a.yaml", "config")
BOM = b"\xef\xbb\xbf"


def test_a_missing_file_is_no_problem_by_itself(tmp_path):
    assert read_file(tmp_path / "none.json") == (None, ())


@pytest.mark.parametrize(
    ("name", "content", "message", "place"),
    [
        ("a.json", b'{\n "a": "\xff"}', "is not UTF-8 text", (2, 8)),
        (
            "a.json",
            b"{",
            "not valid JSON: the file ends where a name in double quotes or `}` was expected",
            (1, 2),
        ),
        ("a.toml", b"a = = 1", "not valid TOML: invalid value", (1, 5)),
        (
            "a.yaml",
            b"a: [",
            "not valid YAML: expected the node content, but found '<stream end>'",
            (1, 5),
        ),
        ("a.json", b"[" * 100_000, DEEP, (1, 34)),
        ("a.toml", b"a=" + b"[" * 100_000, DEEP, (1, 35)),
        ("a.toml", b"[" + b"a." * 100_000, DEEP, (1, 67)),
        ("a.yaml", b"[" * 200_000, DEEP, (1, 34)),
        ("a.yaml", b"- " * 100_000, DEEP, (1, 67)),
        ("a.yaml", b"a: &a [*a]", DEEP, (1, 4)),
        ("a.json", b'{"a": "' + b"x" * 16 * 1024 * 1024, "is larger than 16,384 KiB", (0, 0)),
        ("a.toml", b"#" * (1024 * 1024 + 1), "is larger than 1,024 KiB", (0, 0)),
        ("a.yaml", b"#" * 300_000, "is larger than 256 KiB", (0, 0)),
    ],
)
def test_a_bad_file_costs_itself_and_says_why(tmp_path, name, content, message, place):
    path = tmp_path / name
    path.write_bytes(content)

    document, [problem] = read_file(path)

    assert document is None
    assert (problem.severity, problem.message) == (Severity.ERROR, message)
    assert (problem.place.file, problem.place.line, problem.place.column) == (path, *place)


def test_a_folder_is_not_read_as_a_file(tmp_path):
    document, [problem] = read_file(tmp_path)

    assert document is None
    assert problem.message == "is not a file"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *((name, blank, "is empty") for name in FILES for blank in (b"", b" \n\t\r\n", BOM)),
        *(
            (name, b"null\n", "contains only `null`")
            for name in ("a.json", "a.jsonc", "a.yaml", "a.yml")
        ),
        ("a.json", BOM + b"// nothing\nnull", "contains only `null`"),
        ("a.yaml", b"---\n", "contains only `null`"),
        ("a.yaml", b"~", "contains only `null`"),
    ],
)
def test_a_file_without_content_cannot_be_read(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)

    document, [problem] = read_file(path)

    assert document is None
    assert (problem.severity, problem.message) == (Severity.ERROR, message)
    assert problem.place.file == path
    assert "to configure no servers" in problem.hint


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{}"),
        ("a.jsonc", "// none\n{ }\n"),
        ("a.toml", "# no servers"),
        ("a.yaml", "# no servers\n"),
        ("a.yaml", "{}"),
    ],
)
def test_a_file_may_say_that_there_are_no_servers(name, text):
    document, problems = read_text(text, Path(name))

    assert (document.data, problems) == ({}, ())


def test_a_byte_order_mark_does_not_move_columns(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')

    document, _ = read_file(path)

    assert document.root.child("a").place.column == 7


@pytest.mark.parametrize(
    ("name", "text"),
    [("config", '// c\n{"a": 1}'), ("config", "a = 1"), (".kode.json", '{"a": 1}')],
)
def test_a_file_without_a_telling_name_is_known_by_how_it_starts(name, text):
    document, problems = read_text(text, Path(name))

    assert (document.data, problems) == ({"a": 1}, ())


def test_a_key_written_twice_is_a_warning_at_the_second_one():
    _, [problem] = read_text('{"m": {"a": 1,\n  "a": 2}}', Path("a.json"))

    assert str(problem) == "a.json:2:3: warning: `m.a`: appears twice; this one is used"
