"""One connection to a server, and who gets which answer on it."""

import asyncio
from typing import Any

import anyio
import pytest
from yarl import URL

from multitap.errors import RequestFailed
from multitap.http.client.client import HttpClient, PreparedHead
from multitap.http.client.connection import ClientConnection
from multitap.http.client.messages import Response
from tests.waiting import PATIENCE

HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhi"
WHOLE = HALF + b"ho"


class Wire(asyncio.Transport):
    """The other end is this test."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Setup:
    """A client with one idle connection."""

    def __init__(self) -> None:
        self.client = HttpClient("zoo")
        self.head: PreparedHead = self.client.head("POST", URL("http://zoo.invalid/"), {})
        self.pool = self.head.pool
        self.wire = Wire()
        self.connection = ClientConnection(self.pool)
        self.connection.connection_made(self.wire)
        self.pool.give_back(self.connection)

    async def ask(self) -> Response:
        return await self.client.send(self.head, b"{}")

    async def close(self) -> None:
        self.connection.abort()
        self.connection.connection_lost(None)
        await self.client.aclose()


async def read(response: Response) -> bytes:
    pieces: list[bytes] = []
    with anyio.fail_after(PATIENCE):
        while chunk := await response.chunk():
            pieces.append(chunk)
    return b"".join(pieces)


@pytest.fixture
async def setup():
    made = Setup()
    yield made
    await made.close()


@pytest.mark.parametrize("first", ["the answer", "the asker"])
@pytest.mark.parametrize("answer", [HALF, WHOLE], ids=["half", "whole"])
async def test_an_answer_that_comes_as_its_asker_gives_up_is_nobodys(
    setup: Setup, first: str, answer: bytes
):
    async with asyncio.TaskGroup() as tasks:
        asker = tasks.create_task(setup.ask())
        await anyio.wait_all_tasks_blocked()
        if first == "the answer":
            setup.connection.data_received(answer)
            asker.cancel()
        else:
            asker.cancel()
            setup.connection.data_received(answer)

    assert asker.cancelled()
    assert setup.wire.aborted == (answer == HALF)
    assert (setup.pool.take() is setup.connection) == (answer == WHOLE)


async def test_a_connection_whose_request_is_still_on_its_way_is_not_used_again(setup: Setup):
    heard: list[Any] = []
    connection = setup.pool.take()
    assert connection is not None
    connection.send(b"POST / HTTP/1.1\r\n", b"x" * 2**20, heard.append)
    connection.pause_writing()
    connection.data_received(WHOLE)

    assert heard[0].whole() == b"hiho"
    assert setup.wire.aborted


async def test_an_answer_needs_no_task(setup: Setup):
    heard: list[Any] = []
    news: list[bool] = []
    connection = setup.pool.take()
    assert connection is not None
    connection.send(b"POST / HTTP/1.1\r\n", b"{}", heard.append)
    connection.data_received(HALF)
    (response,) = heard
    response.heed(lambda: news.append(response.ended))

    assert setup.wire.written == [b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"]
    assert response.whole() is None
    connection.data_received(b"ho")
    assert news == [True]
    assert response.whole() == b"hiho"
    assert setup.pool.take() is connection


async def test_a_long_head_is_refused_though_it_comes_in_one_piece(setup: Setup):
    heard: list[Any] = []
    connection = setup.pool.take()
    assert connection is not None
    connection.send(b"POST / HTTP/1.1\r\n", b"{}", heard.append)
    connection.data_received(b"HTTP/1.1 200 OK\r\nX: %b\r\n\r\n" % (b"x" * 70_000))

    assert "its head has more than 65,536 bytes" in str(heard[0])
    assert setup.wire.aborted


async def test_a_long_body_may_come_with_its_head(setup: Setup):
    heard: list[Any] = []
    connection = setup.pool.take()
    assert connection is not None
    connection.send(b"POST / HTTP/1.1\r\n", b"{}", heard.append)
    connection.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000)

    assert await read(heard[0]) == b"x" * 70_000


async def test_who_forgets_a_request_hears_no_more_of_it(setup: Setup):
    heard: list[Any] = []
    hear = heard.append
    connection = setup.pool.take()
    assert connection is not None
    connection.send(b"POST / HTTP/1.1\r\n", b"{}", hear)
    connection.forget(hear)
    connection.connection_lost(None)

    assert not heard
    assert setup.wire.aborted


async def test_a_connection_that_is_closing_is_not_handed_out(setup: Setup):
    setup.wire.aborted = True

    assert setup.pool.take() is None


TINY = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 200_000
"""What takes many turns to parse."""
END = b"0\r\n\r\n"


async def asked(setup: Setup) -> tuple[ClientConnection, list[Any]]:
    heard: list[Any] = []
    connection = setup.pool.take()
    assert connection is not None
    connection.send(b"POST / HTTP/1.1\r\n", b"{}", heard.append)
    return connection, heard


async def test_what_takes_too_long_is_parsed_in_later_turns(setup: Setup):
    connection, heard = await asked(setup)
    connection.data_received(TINY + END)

    assert not heard[0].ended
    assert await read(heard[0]) == b"x" * 200_000
    assert setup.pool.take() is connection


async def test_an_answer_is_whole_though_its_connection_is_gone_before_it_is_parsed(setup: Setup):
    connection, heard = await asked(setup)
    connection.data_received(TINY + END)
    connection.connection_lost(None)

    assert not heard[0].ended
    assert await read(heard[0]) == b"x" * 200_000


async def test_an_answer_that_broke_off_is_read_to_where_it_did(setup: Setup):
    connection, heard = await asked(setup)
    connection.data_received(TINY)
    connection.connection_lost(None)
    until_now = 0

    with anyio.fail_after(PATIENCE):
        while until_now < 200_000:
            until_now += len(await heard[0].chunk())
        with pytest.raises(RequestFailed, match="broke off"):
            await heard[0].chunk()

    assert until_now == 200_000


@pytest.mark.parametrize("parts", [1, 2], ids=["at once", "in two reads, as TLS may"])
async def test_what_follows_an_answer_never_passes_for_the_next_one(setup: Setup, parts: int):
    connection, heard = await asked(setup)
    said = TINY + END + WHOLE
    for start in range(0, len(said), len(said) // parts + 1):
        connection.data_received(said[start : start + len(said) // parts + 1])

    assert await read(heard[0]) == b"x" * 200_000
    assert setup.wire.aborted
    assert setup.pool.take() is None


async def test_closing_an_answer_stops_its_parsing(setup: Setup):
    connection, heard = await asked(setup)
    connection.data_received(TINY + END)
    heard[0].close()

    assert setup.wire.aborted
    with pytest.raises(RequestFailed):
        await read(heard[0])
