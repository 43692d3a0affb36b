import os

import pytest

from multitap.wire.process.read_receipt import ReadReceipt

LINE = b"x" * 100 + b"\n"


@pytest.fixture
def pipe():
    ours = {}
    ours["read"], ours["write"] = os.pipe()
    yield ours
    for fd in ours.values():
        os.close(fd)


@pytest.fixture
def receipt(pipe):
    receipt = ReadReceipt(pipe["write"])
    yield receipt
    receipt.close()


def write(receipt, pipe, data=LINE):
    if rest := receipt.write_first(data):
        os.write(pipe["write"], rest)


def test_what_stays_in_the_pipe_is_not_read(receipt, pipe):
    write(receipt, pipe)
    write(receipt, pipe)

    assert not receipt.is_read()
    assert os.read(pipe["read"], 1000) == LINE * 2
    assert receipt.is_read()


def test_a_single_byte_is_enough(receipt, pipe):
    write(receipt, pipe)
    os.read(pipe["read"], 1)
    write(receipt, pipe)

    assert receipt.is_read()


def test_nothing_is_read_of_what_came_too_late(receipt, pipe):
    os.close(pipe.pop("read"))

    assert receipt.write_first(LINE) == LINE
    assert not receipt.is_read()


@pytest.mark.parametrize("is_read", [False, True])
def test_the_answer_outlives_both_ends(receipt, pipe, is_read):
    write(receipt, pipe)
    if is_read:
        os.read(pipe["read"], 1000)
    os.close(pipe.pop("read"))
    receipt.close()

    assert receipt.is_read() is is_read
    assert receipt.write_first(LINE) == LINE


def test_the_reader_sees_the_end_once_the_receipt_is_closed(receipt, pipe):
    os.close(pipe.pop("write"))
    receipt.close()

    assert os.read(pipe["read"], 1) == b""
