import anyio
import pytest

from multitap.authorization.grants import FILE_NAME, FileRecords, RecordsUnavailable

pytestmark = pytest.mark.anyio


async def test_a_value_is_replaced_only_by_who_knows_it(tmp_path):
    records = FileRecords(tmp_path)

    assert await records.swap("a", None, b"1")
    assert not await records.swap("a", None, b"2")
    assert not await records.swap("a", b"0", b"2")
    assert await records.swap("a", b"1", b"2")
    assert await FileRecords(tmp_path).read("a") == b"2"
    assert await records.delete("a")
    assert not await records.delete("a")


async def test_of_many_at_the_same_time_one_is_first(tmp_path):
    won = []

    async def take():
        if await FileRecords(tmp_path).swap("once", None, b"1"):
            won.append(1)

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(take)

    assert len(won) == 1


async def test_what_has_expired_is_gone(tmp_path):
    now = [0.0]
    records = FileRecords(tmp_path, clock=lambda: now[0])
    await records.swap("a", None, b"1", ttl=10)
    now[0] = 10.0

    assert await records.read("a") is None
    assert await records.swap("a", None, b"2", ttl=10)


async def test_only_its_owner_can_read_the_file(tmp_path):
    await FileRecords(tmp_path / "own").swap("a", None, b"1")

    assert (tmp_path / "own" / FILE_NAME).stat().st_mode & 0o077 == 0


async def test_a_broken_file_is_an_error(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"not a database" * 100)
    (tmp_path / FILE_NAME).chmod(0o600)

    with pytest.raises(RecordsUnavailable, match="cannot be used"):
        await FileRecords(tmp_path).read("a")


async def test_a_file_that_others_can_read_is_not_used(tmp_path):
    records = FileRecords(tmp_path)
    await records.swap("a", None, b"1")
    records.path.chmod(0o644)

    with pytest.raises(RecordsUnavailable, match="others can read"):
        await FileRecords(tmp_path).read("a")
