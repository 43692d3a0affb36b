import json
import threading

import pytest

from multitap.trust.pins.lock_file import LockError, LockFile, LockNotWritten, ServerPins
from multitap.trust.pins.pins import pins_of

ECHO = {"name": "echo", "description": "Gives it back.", "inputSchema": {"type": "object"}}


@pytest.fixture
def lock(tmp_path):
    return LockFile(tmp_path / "multitap.lock")


def fill(lock, **servers):
    with lock.changing() as content:
        for server, definition in servers.items():
            content.servers[server] = ServerPins(tools=pins_of([("x_echo", definition)]))


def test_what_is_written_is_read_back(lock):
    fill(lock, zoo=ECHO)

    [pin] = lock.read().servers["zoo"].tools.values()
    assert (pin.definition, pin.exposed) == (ECHO, "x_echo")
    assert lock.path.stat().st_mode & 0o777 == 0o600
    assert [*lock.path.parent.iterdir()] == [lock.path]


def test_the_same_content_has_the_same_text_in_sorted_lines(lock):
    fill(lock, b=ECHO, a=ECHO)
    text = lock.path.read_text()
    fill(lock, a=dict(reversed(ECHO.items())), b=ECHO)

    assert lock.path.read_text() == text
    assert text.index('"a": {') < text.index('"b": {')
    assert max(map(len, text.splitlines())) < 100


def test_hidden_characters_are_visible_in_the_file(lock):
    odd = {**ECHO, "description": "a\u200b\u202e\U000e0041\ud800\x1b[8m é 中"}
    fill(lock, zoo=odd)

    text = lock.path.read_text()
    assert r"a\u200b\u202e\udb40\udc41\ud800\u001b[8m é 中" in text
    assert lock.read().servers["zoo"].tools["echo"].definition == odd


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda text: text.replace('"servers"', "<<<<<<< HEAD", 1), 2),
        (lambda text: text[: len(text) // 2], None),
        (lambda text: text.replace("Gives it back.", "Gives it to me."), None),
        (lambda text: text.replace('"version": 1', '"version": 99'), 1),
        (lambda text: text.replace('"version": 1', '"version": 1, "trust": true'), 1),
        (lambda text: "[" * 100_000, None),
        (lambda text: "", 1),
    ],
    ids=["conflict", "cut", "edited", "newer", "unknown key", "deep", "empty"],
)
def test_a_damaged_lock_is_reported_with_its_line_and_never_overwritten(lock, damage, line):
    fill(lock, zoo=ECHO)
    lock.path.write_text(damage(lock.path.read_text()))
    before = lock.path.read_bytes()

    with pytest.raises(LockError, match=rf"multitap\.lock:{line or ''}"):
        lock.read()
    with pytest.raises(LockError), lock.changing() as content:
        content.servers.clear()
    assert lock.path.read_bytes() == before


def test_a_link_in_place_of_a_lock_is_not_followed(lock, tmp_path):
    target = tmp_path / "target"
    target.write_text("{}")
    lock.path.symlink_to(target)

    with pytest.raises(LockError):
        fill(lock, zoo=ECHO)
    assert target.read_text() == "{}"


def test_writers_at_the_same_time_lose_nothing(lock):
    names = [f"s{number}" for number in range(24)]
    threads = [threading.Thread(target=fill, args=(lock,), kwargs={one: ECHO}) for one in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(lock.read().servers) == sorted(names)


def test_a_folder_that_cannot_be_written_is_not_damage(tmp_path):
    (tmp_path / "file").write_text("")
    lock = LockFile(tmp_path / "file" / "multitap.lock")

    assert lock.read().servers == {}
    with pytest.raises(LockNotWritten):
        fill(lock, zoo=ECHO)


def test_the_text_is_plain_json(lock):
    fill(lock, zoo=ECHO)

    data = json.loads(lock.path.read_text())
    assert data["servers"]["zoo"]["tools"]["echo"]["definition"] == ECHO
