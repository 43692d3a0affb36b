import traceback

import pytest

from multitap.errors import CallTimeout, MultitapError, UnknownName, shorten_and_count


def shown(exc):
    return "".join(traceback.format_exception(exc))


@pytest.mark.parametrize("kind", [MultitapError, UnknownName])
def test_a_traceback_ends_with_the_hint(kind):
    assert shown(kind("no tool named 'x'", hint="look again")).endswith(
        "no tool named 'x'\nhint: look again\n"
    )


def test_the_message_itself_is_without_the_hint():
    assert str(CallTimeout("files", "no answer", hint="wait longer")) == "files: no answer"


def test_another_hint_takes_the_place_of_the_first_and_leaves_other_notes():
    exc = MultitapError("no", hint="first")
    exc.add_note("seen in the morning")
    exc.hint = "second"
    changed = shown(exc)
    exc.hint = None

    assert changed.endswith("no\nseen in the morning\nhint: second\n")
    assert shown(exc).endswith("no\nseen in the morning\n")


def test_without_a_hint_there_is_no_note():
    assert not hasattr(MultitapError("no"), "__notes__")


def test_a_text_that_is_cut_for_a_person_says_how_much_is_missing():
    assert shorten_and_count("abc", 3) == "abc"
    assert shorten_and_count("abcd", 3) == "abc… (1 more character)"
    assert shorten_and_count("x" * 5003, 3) == "xxx… (5,000 more characters)"
