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
