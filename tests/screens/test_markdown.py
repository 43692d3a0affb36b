"""Markdown in a terminal: recognised, formatted as it arrives, and harmless."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from multitap.screens.markdown import MarkdownStream, ShownMarkdown, count_rows, is_markdown

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize(
    "text",
    [
        "# Title\n\nSome words.",
        "Intro\n\n## Part\n\nmore",
        "It is **important**.",
        "See [the page](https://example.com/a).",
        "```python\nprint(1)\n```",
        "| a | b |\n|---|---|\n| 1 | 2 |",
    ],
)
def test_markdown_is_recognised(text):
    assert is_markdown(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain words\nin two lines",
        '{"a": "**b**"}',
        "# a comment\nimport os\n",
        "a * b * c",
        "-rw-r--r-- 1 root root\n-rw-r--r-- 2 root root",
        "<html># no\n\n</html>",
    ],
)
def test_code_data_and_plain_text_stay_as_they_are(text):
    assert not is_markdown(text)


def shown(text, *pieces, width=40, height=20):
    """What a terminal shows in the end."""
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=True, no_color=True)
    stream = MarkdownStream(file, console)
    for piece in pieces or (text,):
        stream.feed(piece)
    stream.end()
    return on_screen(file.getvalue())


def on_screen(written):
    rows = [""]
    for part in re.split(r"(\x1b\[\d+A\x1b\[J|\n)", ESCAPES.sub("", written)):
        if part == "\n":
            rows.append("")
        elif up := re.fullmatch(r"\x1b\[(\d+)A\x1b\[J", part):
            rows[len(rows) - 1 - int(up[1]) :] = [""]
        else:
            rows[-1] += part
    return [row.rstrip() for row in rows]


def test_an_answer_is_formatted_block_by_block_as_it_arrives():
    text = "Here **it** is:\n\n- one\n- two\n\n```sh\nls -l\n```\nDone."

    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    assert shown(text) == shown(text, *pieces)
    assert shown(text) == ["Here it is:", "", " • one", " • two", "", " ls -l", "Done.", ""]


def test_a_block_longer_than_the_screen_stays_as_it_was_written():
    text = "- line\n" * 30

    assert shown(text, height=20)[:2] == ["- line", "- line"]


def test_nothing_in_it_controls_the_terminal_or_can_be_clicked():
    file = io.StringIO()
    console = Console(file=file, width=60, force_terminal=True, no_color=True)

    console.print(ShownMarkdown("**a**\x1b]0;title\x07 [x](https://evil.example/)"))

    written = file.getvalue()
    assert "\x1b]" not in written
    assert "https://evil.example/" in written


@given(st.text("ab é漢\n", max_size=60), st.integers(2, 12))
def test_rows_are_counted_as_a_terminal_wraps(text, width):
    rows = count_rows(text + "\n", width)

    assert count_rows("a\t\tb\n", 10) == 1

    assert rows >= text.count("\n") + 1
    assert count_rows(text.replace("漢", "") + "\n", width) <= rows
