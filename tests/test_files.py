"""Files are read up to a limit, and the limit itself costs no memory."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multitap.files import read_regular, read_up_to
from multitap.trust.lock_file import LockFile

MIB = 1024 * 1024


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 5000])
def test_one_byte_more_than_the_limit_is_read(tmp_path, size):
    path = tmp_path / "x"
    path.write_bytes(b"x" * size)

    with path.open("rb") as file:
        assert len(read_up_to(file, 100)) == min(size, 101)


@given(st.integers(0, 300_000), st.integers(0, 300_000), st.integers(0, 500_000))
def test_a_file_that_grows_is_read_to_its_end_or_the_limit(tmp_path_factory, before, more, largest):
    path = tmp_path_factory.mktemp("growing") / "x"
    path.write_bytes(b"x" * before)
    with path.open("rb") as file, path.open("ab") as writer:

        class Growing:
            """The same file, to which somebody adds right before the first byte is read."""

            fileno = file.fileno

            def read(self, count):
                writer.write(b"x" * (more - writer.tell() + before))
                writer.flush()
                return file.read(count)

        content = read_up_to(Growing(), largest)

    # at least what it had, at most what it has
    assert min(before, largest + 1) <= len(content) <= min(before + more, largest + 1)
    assert more == 0 or len(content) == min(before + more, largest + 1)


def test_a_small_file_needs_little_memory_whatever_the_limit(tmp_path):
    path = tmp_path / "multitap.lock"
    path.write_text('{"version": 1}')
    tracemalloc.start()
    try:
        LockFile(path).read()
        read_regular(path, 64 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < MIB
