"""The log of a gateway, as programs that collect logs read it."""

import json
import signal
import subprocess
import sys

import pytest

from multitap.telemetry.logs import parse_levels
from tests.zoo.modes import command

SET_UP = "import logging; from multitap.telemetry.logs import set_up_logs\n"


def logged(program, form="json", levels="{}"):
    """The lines that a program logs, and its exit code."""
    setting = f"set_up_logs({form!r}, {levels}, notes='notes')\n"
    ended = subprocess.run(
        [sys.executable, "-c", SET_UP + setting + program],
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.stderr.splitlines(), ended.returncode


def test_a_record_is_one_line_of_json_whatever_it_says():
    texts = ["a\nb\r\nc", "\x1b[2Jgone\x7f", "\udcff", "\u2028\u202e", "日本", "x" * 100_000]
    program = f"for text in {texts!r}: logging.getLogger('a.b').warning('%s', text)"

    lines, _ = logged(program)

    assert len(lines) == len(texts)
    assert all(line.isprintable() for line in lines)
    records = [json.loads(line) for line in lines]
    assert [record["message"] for record in records[:2]] == texts[:2]
    assert [record["message"] for record in records[3:5]] == texts[3:5]
    assert len(records[5]["message"]) == 16 * 1024
    assert {record["logger"] for record in records} == {"a.b"}
    assert {record["level"] for record in records} == {"warning"}


def test_an_exception_has_its_type_message_and_stack_trace():
    program = """
try:
    raise LookupError("nothing\\nthere")
except LookupError:
    logging.getLogger("a").exception("failed")
"""

    (line,), _ = logged(program)

    record = json.loads(line)
    assert (record["level"], record["message"]) == ("error", "failed")
    assert (record["exception.type"], record["exception.message"]) == (
        "LookupError",
        "nothing\nthere",
    )
    assert record["exception.stacktrace"].startswith("Traceback")


def test_the_error_that_ends_the_program_is_a_record():
    (line,), code = logged("raise ValueError('bad')")

    assert code == 1
    assert json.loads(line)["exception.message"] == "bad"


def test_warnings_of_python_are_records():
    (line,), _ = logged("import warnings; warnings.warn('old', UserWarning, stacklevel=1)")

    assert "UserWarning: old" in json.loads(line)["message"]


def test_each_package_has_its_own_level():
    program = """
for name in ("multitap.hub", "multitap.cluster.bus", "asyncio"):
    logging.getLogger(name).info("info of %s", name)
    logging.getLogger(name).error("error of %s", name)
"""
    levels = '{"": "error", "multitap.cluster": "info"}'

    lines, _ = logged(program, "text", levels)

    assert lines == [
        "error of multitap.hub",
        "info of multitap.cluster.bus",
        "error of multitap.cluster.bus",
        "error of asyncio",
    ]


def test_levels_are_parsed():
    assert parse_levels(["INFO", "a.b=debug"]) == {"": "info", "a.b": "debug"}


@pytest.mark.parametrize("text", ["loud", "a=", "=", ""])
def test_an_unknown_level_is_refused(text):
    with pytest.raises(ValueError, match="is not a level; there are debug"):
        parse_levels([text])


def test_every_line_of_a_gateway_is_a_record_from_its_start_to_its_end(tmp_path):
    config = tmp_path / "multitap.json"
    bad = command("exit_at_start")
    config.write_text(json.dumps({"mcpServers": {"bad": {"command": bad[0], "args": bad[1:]}}}))
    serve = ["--config", config, "serve", "--http", "127.0.0.1:0", "--log-format", "json"]
    lines = []
    with subprocess.Popen(
        [sys.executable, "-m", "multitap", *serve],
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    ) as gateway:
        try:
            for line in gateway.stderr:
                lines.append(line)
                # it says where it listens, and that the server failed, in any order
                if {"info", "warning"} <= {json.loads(line)["level"] for line in lines}:
                    gateway.send_signal(signal.SIGTERM)
        finally:
            gateway.kill()

    records = [json.loads(line) for line in lines]
    notes = [record["message"] for record in records if record["logger"] == "multitap.notes"]
    assert any(note.startswith("at http://127.0.0.1:") for note in notes)
    assert any(record["logger"].startswith("multitap.upstream") for record in records)
    assert gateway.returncode == 0


def test_a_gateway_that_cannot_start_says_so_in_a_record(tmp_path):
    serve = ["serve", "--demo", "--http", "nowhere:x", "--log-format", "json"]
    ended = subprocess.run(
        [sys.executable, "-m", "multitap", *serve],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )

    error, hint = map(json.loads, ended.stderr.splitlines())

    assert (error["level"], error["message"]) == ("error", "'nowhere:x' is not an address")
    assert hint["message"] == "use `--http PORT` or `--http HOST:PORT`"
    assert ended.returncode == 3
