"""The reference pages, against the code they are made from."""

import inspect
import json
import re

import pytest
from scripts.reference import DOCS, PAGES

from multitap import errors
from multitap.cli.problems.help import explanations
from multitap.events import FailureCode
from multitap.gateway import client_errors
from multitap.upstream import diagnosis
from tests.cli.conftest import zoo

EXPLAINED = {one.code: one for one in explanations()}


@pytest.mark.parametrize("name", PAGES)
def test_a_reference_page_is_up_to_date(name):
    assert (DOCS / name).read_text() == PAGES[name](), "`make reference` writes it again"


@pytest.mark.parametrize("code", [*FailureCode, *(reason for _, _, reason in client_errors._KINDS)])
def test_every_failure_code_is_explained(code):
    assert EXPLAINED[str(code)].text


def test_every_exception_is_explained():
    page = (DOCS / "troubleshooting.md").read_text()
    raised = [
        name
        for name, found in vars(errors).items()
        if inspect.isclass(found) and issubclass(found, errors.MultitapError)
    ]

    bases = {"MultitapError", "UpstreamError"}
    assert not [name for name in raised if name not in bases and f"\n`{name}`." not in page]


def test_everything_that_is_recognised_in_a_program_s_words_is_explained():
    said = [message for one in EXPLAINED.values() for message in one.messages]

    assert not [
        pattern
        for pattern, _ in diagnosis._ADVICE
        if not any(re.search(pattern, message, re.MULTILINE) for message in said)
    ]


def test_help_explains_a_code(multitap):
    ended = multitap("help crash_loop")

    assert ended.code == 0
    assert ended.out.startswith("crash_loop\n  | it keeps crashing")
    assert "`multitap restart NAME`" in ended.out


def test_help_finds_an_error_by_its_words(multitap):
    ended = multitap("help the program 'uvx' is not on the PATH")

    assert ended.out.startswith("missing_program\n")


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("npm error 404 Not Found", "no_such_package"),
        ("npm error code E404", "no_such_package"),
        ("npm ERR! 404 Not Found - GET https://127.0.0.1/nosuch", "no_such_package"),
        ("npm error notarget No matching version found for x@9.9.9.", "no_such_version"),
        ("ERROR: No matching distribution found for nosuch", "no_such_package"),
        ("Could not find a version that satisfies the requirement x==9", "no_such_version"),
        ("error: externally-managed-environment", "externally_managed"),
        ("npm error code EACCES", "cannot_install"),
        ("npm error code ERESOLVE", "conflict"),
        (
            "  \N{MULTIPLICATION SIGN} No solution found when resolving tool dependencies:",
            "conflict",
        ),
        ("zsh: command not found: npx", "missing_command"),
        ("bash: npx: command not found", "missing_command"),
        ("ERROR: Failed building wheel for lxml", "build_failed"),
        ("  \N{MULTIPLICATION SIGN} Failed to build `lxml==4.9.0`", "build_failed"),
        ("error: Failed to spawn: `nosuch`", "missing_command"),
        ("OSError: [Errno 28] No space left on device", "cannot_install"),
        ("it is waiting for its turn; use `--wait 1m` to wait longer", "connecting"),
        ("lazy: it starts on the first call", "asleep"),
        ("run `multitap login team`", "needs_auth"),
        ("run `multitap trust` in /x: it comes with a project", "untrusted"),
        ("the files now name other servers", "pending"),
        ("degraded: the server a keeps failing: it exited with code 1", "degraded"),
        ("only the first 5,000 tools are used", "long_list"),
    ],
)
def test_help_knows_what_status_and_package_managers_say(multitap, message, code):
    ended = multitap("help", message)

    explained = [line for line in ended.lines if line in EXPLAINED]
    assert code in explained


@pytest.mark.parametrize(
    "state", ["asleep", "changed", "connecting", "disabled", "needs auth", "not trusted", "error"]
)
def test_help_explains_every_state(multitap, state):
    assert multitap("help", state).code == 0


def test_help_explains_every_note_of_status(multitap, configure):
    configure(
        lazy=zoo("good", start="lazy"),
        off=zoo("good", enabled=False),
        missing={"command": "nosuch-program"},
        crashed="exit_at_start",
        unset={"command": "x", "env": {"A": "${NOSUCH_VARIABLE}"}},
        gone={"url": "http://127.0.0.1:1/mcp"},
    )

    notes = [server["note"] for server in multitap("status --json").json["servers"]]

    assert len([*filter(None, notes)]) == 5
    assert [note for note in notes if note and multitap("help", note).code] == []


def test_help_shows_the_options_of_a_command(multitap):
    assert multitap("help status").out == multitap("status --help").out


def test_help_for_nonsense_says_where_the_codes_are(multitap):
    ended = multitap("help nonsense")

    assert ended.code == 2
    assert ended.err == (
        "error: there is no explanation for 'nonsense'\n"
        "hint: `multitap help codes` lists all codes\n"
    )


def test_help_codes_lists_every_code(multitap):
    listed = {line.split()[0] for line in multitap("help codes").out.splitlines()}

    assert listed == EXPLAINED.keys()


def test_doctor_names_the_code_of_a_failure(multitap, configure):
    configure(bad="exit_at_start")

    told, data = multitap("doctor bad"), multitap("doctor bad --json")

    assert "                     more: `multitap help crash`\n" in told.out
    checks = [check for found in json.loads(data.out) for check in found["checks"]]
    assert [check["code"] for check in checks if check["verdict"] == "failed"] == ["crash"]
