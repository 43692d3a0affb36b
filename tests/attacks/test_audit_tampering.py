"""Threat: somebody changes the audit log to hide what was done."""

import sqlite3
from contextlib import closing

import pytest

from multitap.store.audit_log import HEAD_NAME, AuditFile, ChainHead, chain_hash


@pytest.fixture
def file(tmp_path):
    file = AuditFile(tmp_path)
    file.append([f'{{"kind":"call","at":{number}}}' for number in range(10)], keep=1000)
    file.close()
    assert file.verify()[0] == []
    return file


def tamper(file, *statements):
    with closing(sqlite3.connect(file.path, isolation_level=None)) as connection:
        for action in ("update", "delete"):
            connection.execute(f"DROP TRIGGER audit_refuses_{action}")
        for statement in statements:
            connection.execute(statement)
        for action in ("update", "delete"):
            connection.execute(
                f"CREATE TRIGGER audit_refuses_{action} BEFORE {action} ON audit "
                "BEGIN SELECT RAISE(ABORT, 'no'); END"
            )


ATTACKS = {
    "change": ["UPDATE audit SET body = replace(body, 'call', 'none') WHERE seq = 4"],
    "change the last": ["UPDATE audit SET body = '{}' WHERE seq = 10"],
    "change a hash": ["UPDATE audit SET hash = 'x' WHERE seq = 4"],
    "remove one": ["DELETE FROM audit WHERE seq = 4"],
    "remove the first": ["DELETE FROM audit WHERE seq <= 3"],
    "cut the end": ["DELETE FROM audit WHERE seq > 7"],
    "remove all": ["DELETE FROM audit"],
    "swap": [
        "UPDATE audit SET seq = 100 WHERE seq = 4",
        "UPDATE audit SET seq = 4 WHERE seq = 5",
        "UPDATE audit SET seq = 5 WHERE seq = 100",
    ],
    "close the gap": [
        "DELETE FROM audit WHERE seq = 4",
        "UPDATE audit SET seq = seq - 1 WHERE seq > 4",
    ],
    "add": ["INSERT INTO audit VALUES (11, '{}', 'x')"],
    "pretend to rotate": [
        "DELETE FROM audit WHERE seq <= 3",
        """UPDATE audit SET body = '{"kind":"audit.rotated","at":1,"through":3,"hash":"0"}'
           WHERE seq = 9""",
    ],
}


@pytest.mark.parametrize("name", ATTACKS)
def test_the_log_shows_that_somebody_tried_to(file, name):
    tamper(file, *ATTACKS[name])

    assert file.verify()[0]


BLOCK = """UPDATE audit SET body = replace(body, '"at":150}', '"at":151}')"""
SHORTER = """UPDATE audit SET body = replace(body, '{"kind":"call","at":150}' || char(10), '')"""


@pytest.mark.parametrize("statement", [BLOCK, SHORTER, "DELETE FROM audit WHERE seq = 256"])
def test_entries_that_were_written_as_a_block_cannot_be_changed_either(tmp_path, statement):
    file = AuditFile(tmp_path)
    file.append([f'{{"kind":"call","at":{number}}}' for number in range(300)], keep=1000)
    file.close()
    assert file.verify()[0] == []

    tamper(file, statement)

    assert "129" in file.verify()[0][0]


def test_a_chain_that_is_made_again_does_not_fit_the_last_entry_that_is_known(file):
    entries = [*file.entries()][::-1]
    last, rows = ChainHead(0, "0" * 64), []
    for entry in entries:
        body = entry.body.replace("call", "none")
        last = ChainHead(entry.seq, chain_hash(last.hash, entry.seq, body))
        rows.append((entry.seq, body, last.hash))
    values = ", ".join(f"({seq}, '{body}', '{hash_}')" for seq, body, hash_ in rows)

    tamper(file, "DELETE FROM audit", f"INSERT INTO audit VALUES {values}")

    assert any("was rewritten" in problem for problem in file.verify()[0])


def test_missing_triggers_and_a_missing_head_are_reported(file):
    with closing(sqlite3.connect(file.path)) as connection:
        connection.execute("DROP TRIGGER audit_refuses_update")
    file.path.with_name(HEAD_NAME).unlink()

    assert len(file.verify()[0]) == 2


def test_a_log_that_is_gone_is_missed_and_its_successor_says_so(file):
    file.path.unlink()
    assert "is gone" in file.verify()[0][0]

    file.append(["{}"], keep=1000)
    file.close()

    problems, last = file.verify()
    assert problems
    assert last.seq == 12


def test_a_cut_that_is_written_over_stays_visible(file):
    tamper(file, "DELETE FROM audit WHERE seq > 7")

    file.append(["{}"], keep=1000)
    file.close()

    assert any("8 to 10" in problem for problem in file.verify()[0])
