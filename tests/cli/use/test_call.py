"""One call: what goes in, what comes out, and how it ends."""

import sys

import pytest

from tests.cli.conftest import zoo
from tests.zoo.ledger import Ledger
from tests.zoo.modes import HERE

SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from tests.zoo.honest import Honest
from tests.zoo.tools import echo
server = Honest({{}})
server.tools = {{{tool!r}: echo.renamed({tool!r})}}
server.main()
"""


@pytest.fixture
def good(configure):
    configure(zoo="good")


@pytest.mark.usefixtures("good")
@pytest.mark.parametrize(
    ("line", "stdin", "printed"),
    [
        ("call zoo_add a=2 b=40", "", "42"),
        ("call zoo_add a:=2 b:=40.5", "", "42.5"),
        ("call zoo_echo text=5", "", "5"),
        ("""call zoo_echo '{"text": "hi"}'""", "", "hi"),
        ("call zoo_echo -", '{"text": "from standard input"}', "from standard input"),
        ("call zoo_echo text=@-", "all of it", "all of it"),
        ("call zoo_echo text=@note.txt", "", "a note"),
        ("call zoo_echo text=@@somebody", "", "@somebody"),
        ("call zoo_echo text=a=b:=c", "", "a=b:=c"),
        ("call zoo_spawn_daemon --help", "", None),
    ],
)
def test_arguments_come_in_many_ways(multitap, home, line, stdin, printed):
    (home / "note.txt").write_text("a note")

    ended = multitap(line, stdin=stdin)

    assert ended.code == 0, ended.err
    if printed is not None:
        assert ended.out == f"{printed}\n"


@pytest.mark.usefixtures("good")
@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        (
            "call zoo_add a=two b=1",
            "a: expected a number, got 'two'",
            "`multitap tools zoo_add --schema` shows its arguments",
        ),
        ("call zoo_add a=1 c=1", "there is no argument 'c'", "it takes a, b"),
        (
            "call zoo_echo txt=1",
            "there is no argument 'txt'",
            "did you mean 'text'? it takes text",
        ),
        ("call zoo_add a=1 a=2 b=1", "a: it is given more than once but takes one value", None),
        ("call zoo_add a", "expected key=value, got 'a'", "such as `path=README.md`"),
        ("call zoo_add a=1", '"b" is a required property', None),
        ("call zoo_add '[1]'", "expected key=value, got '[1]'", None),
        ("call zoo_add '{1}'", "the argument is not JSON: Expecting property name", None),
        ("call zoo_add -", "standard input is not JSON: Expecting value", None),
        ("call zoo_add a:=x b=1", "a: expected JSON, got 'x'", None),
        (
            "call zoo_echo text=@nowhere",
            "text: cannot read 'nowhere': No such file or directory",
            "`@` reads a file; write `@@` for a literal `@`",
        ),
        (
            "call zoo_ecko text=1",
            "no tool named 'zoo_ecko'",
            "did you mean 'zoo_echo'? `multitap tools` lists all tools",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_the_key_and_the_way_out(multitap, line, error, hint):
    ended = multitap(line)

    assert (ended.code, ended.out) == (2, "")
    assert f"error: {error}" in ended.err
    if hint:
        assert ended.err.count("hint:") == 1
        assert f"hint: {hint}" in ended.err


@pytest.mark.usefixtures("good")
def test_an_error_of_a_tool_is_printed_in_its_words(multitap):
    ended = multitap("call zoo_fail", "message=the disk is full")

    assert (ended.code, ended.out, ended.err) == (1, "", "error: the disk is full\n")


@pytest.mark.usefixtures("good")
def test_json_is_the_result_as_it_came(multitap):
    ended = multitap("call zoo_add --json", '{"a": 1, "b": 2}')
    failed = multitap("call zoo_fail message=no --json")

    assert ended.json["structuredContent"] == {"result": 3}
    assert ended.json["content"] == [{"type": "text", "text": "3"}]
    assert (failed.code, failed.json["isError"]) == (1, True)


@pytest.mark.usefixtures("good")
def test_selected_fields_are_printed_alone(multitap):
    number = multitap("call zoo_add a=1 b=2 --select result")
    missing = multitap("call zoo_add a=1 b=2 --select sum")
    wrong = multitap("call zoo_add a=1 b=2 --select result[")

    assert (number.code, number.out) == (0, "3\n")
    assert (missing.code, missing.err.splitlines()[0]) == (
        1,
        "error: `--select` failed: it matches nothing",
    )
    assert wrong.code == 2
    assert "not a JMESPath expression" in wrong.err


@pytest.mark.usefixtures("good")
def test_images_are_described_and_saved_where_asked(multitap, home):
    ended = multitap("call zoo_blocks --save pictures")
    again = multitap("call zoo_blocks --save pictures")

    assert "[image: image/png, 0.1 KB, 1x1 pixels]" in ended.out
    assert (home / "pictures" / "zoo_blocks-1.png").read_bytes().startswith(b"\x89PNG")
    assert (home / "pictures" / "zoo_blocks-2.png").is_file()
    assert "saved pictures/zoo_blocks-1.png\n" in ended.err
    assert again.code == 0


@pytest.mark.usefixtures("good")
def test_a_folder_that_cannot_be_written_is_an_error(multitap, home):
    (home / "file").write_text("")

    ended = multitap("call zoo_blocks --save file")

    assert (ended.code, ended.err) == (1, "error: cannot save to 'file': File exists\n")


@pytest.mark.usefixtures("good")
def test_a_long_result_is_cut_and_says_how_to_see_all(multitap):
    cut = multitap("call zoo_big bytes=20000")
    full = multitap("call zoo_big bytes=20000 --full")

    assert 4000 < len(cut.out) < 5001
    assert set(cut.out) == {"x", "\n"}
    assert cut.err.startswith("cut: 15,")
    assert cut.err.endswith(" more characters; `--full` prints all\n")
    assert (full.out, full.err) == ("x" * 20_000 + "\n", "")


def test_the_call_s_server_is_the_only_one_started_once_it_is_known(multitap, configure, tmp_path):
    one, two = Ledger(tmp_path / "one"), Ledger(tmp_path / "two")
    one.folder.mkdir()
    two.folder.mkdir()
    configure(one=zoo("good", env=one.env), two=zoo("good", env=two.env))
    multitap("tools")

    ended = multitap("call one_echo text=hi")

    assert ended.out == "hi\n"
    assert (len(one.starts), len(two.starts)) == (2, 1)


@pytest.fixture
def changing(home, configure):
    """A server with one tool that has another name, or no life, at each next start."""
    script = home / "server.py"
    configure(zoo={"command": sys.executable, "args": ["-I", "-S", str(script)]})

    def change(tool):
        script.write_text(SCRIPT.format(root=str(HERE.parent.parent), tool=tool))

    return change


def test_a_tool_that_came_since_the_last_time_is_found(multitap, changing):
    changing("old")
    multitap("tools")
    changing("new")

    found = multitap("call zoo_new text=hi")
    gone = multitap("call zoo_old text=hi")

    assert (found.code, found.out) == (0, "hi\n")
    assert gone.code == 2
    assert gone.err.startswith("error: no tool named 'zoo_old'\n")


def test_a_tool_is_taken_as_it_is_now_not_as_it_was(multitap, changing):
    changing("echo")
    multitap("tools")
    changing("add")

    assert multitap("call zoo_echo text=hi").code == 2
    assert multitap("call zoo_add text=hi").out == "hi\n"


def test_a_known_server_that_does_not_come_up_ends_it_with_4(multitap, changing, home):
    changing("echo")
    multitap("tools")
    (home / "server.py").write_text("raise SystemExit('out of order')")

    ended = multitap("call zoo_echo text=hi")

    assert ended.code == 4
    assert ended.err.startswith("error: zoo: it exited with code 1")


def test_a_server_that_hangs_does_not_keep_a_call_to_another_waiting(multitap, configure):
    configure(hanging="never_init", good="good")

    assert multitap("call good_echo text=hi").out == "hi\n"


def test_a_call_to_a_server_that_is_down_ends_with_4_and_the_reason(multitap, configure):
    configure(bad="exit_at_start", unset={"command": "x", "args": ["${NO_SUCH_TOKEN}"]})

    crashed = multitap("call bad_echo text=hi")
    unset = multitap("call unset_echo text=hi")

    assert (crashed.code, unset.code) == (4, 4)
    assert crashed.err.startswith("error: bad: it exited with code 1")
    assert "the variable `NO_SUCH_TOKEN` is not set" in unset.err
    assert "hint: set it, or write `${NO_SUCH_TOKEN:-default}`" in unset.err


def test_another_server_that_is_down_has_nothing_to_do_with_it(multitap, configure):
    configure(zoo="good", z="exit_at_start")

    assert multitap("call zoo_nothing").code == 2


def test_a_call_to_a_server_with_a_typo_ends_with_3(multitap, configure):
    configure(typo={"comand": "x"})

    ended = multitap("call typo_echo text=hi")

    assert ended.code == 3
    assert "neither `command` nor `url`" in ended.err


@pytest.mark.usefixtures("good")
def test_a_call_without_an_answer_is_given_up_after_the_timeout(multitap):
    ended = multitap("call zoo_sleep seconds=60 --timeout 0.5")

    assert ended.code == 4
    assert "0.5 s" in ended.err


def test_a_hidden_tool_cannot_be_called(multitap, configure):
    configure(zoo=zoo("good", filter={"deny": ["echo"]}))

    ended = multitap("call zoo_echo text=hi")

    assert ended.code == 2
    assert "is hidden by a filter" in ended.err


def test_text_goes_into_a_pipe_as_it_came(multitap, configure):
    configure(ansi="ansi_escapes")

    assert "\x1b" in multitap("call ansi_fault").out
