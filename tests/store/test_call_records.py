import time

import pytest

from multitap.errors import BadArguments
from multitap.events import Outcome
from multitap.redaction import Redactor
from multitap.store import CallRecord, open_store
from multitap.store.queries import RecordFilter
from multitap.store.tables import LONGEST, keep_exchange


def call(at, **fields):
    return CallRecord(
        **{"at": at, "server": "git", "tool": "log", "seconds": 0.1, "outcome": Outcome.OK} | fields
    )


async def times(store, **conditions):
    page = await store.calls(**conditions)
    return [record.at for record in page.records]


@pytest.fixture
async def store(tmp_path):
    async with open_store(tmp_path) as store:
        yield store


async def test_a_call_is_read_back_as_it_was_logged(store):
    record = call(
        1.5,
        bytes_in=10,
        bytes_out=20,
        error="went wrong",
        agent="bob",
        session="monday",
        outcome=Outcome.ERROR,
        trace="4bf92f3577b34da6a3ce929d0e0e4736",
    )

    store.log_call(record)
    page = await store.calls()

    assert page.records == (record,)
    assert page.cursor is None
    for text, is_shown in (("trace:4bf92f35", True), ("trace:92f35", False), ("", True)):
        assert RecordFilter.parse(text).matches(record.fields) is is_shown


async def test_calls_come_newest_first_whatever_their_order(store):
    for at in (2.0, 3.0, 1.0):
        store.log_call(call(at))

    assert await times(store) == [3.0, 2.0, 1.0]


async def test_a_cursor_leads_through_all_calls_exactly_once(store):
    for number in range(10):
        store.log_call(call(float(number // 3)))
    seen, cursor = [], None

    while True:
        page = await store.calls(limit=3, cursor=cursor)
        seen += page.records
        if (cursor := page.cursor) is None:
            break

    assert len(seen) == 10
    assert [record.at for record in seen] == sorted((n // 3 for n in range(10)), reverse=True)


async def test_a_cursor_is_not_disturbed_by_newer_calls(store):
    for at in (1.0, 2.0, 3.0):
        store.log_call(call(at))
    page = await store.calls(limit=1)

    store.log_call(call(4.0))

    assert await times(store, cursor=page.cursor) == [2.0, 1.0]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({"server": "web"}, [4.0]),
        ({"tool": "log"}, [2.0, 1.0]),
        ({"since": 2.0}, [4.0, 3.0, 2.0]),
        ({"until": 2.0}, [1.0]),
        ({"since": 2.0, "until": 4.0}, [3.0, 2.0]),
        ({"outcomes": [Outcome.ERROR, Outcome.TIMEOUT]}, [4.0, 2.0]),
        ({"outcomes": []}, []),
        ({"text": "REFUSED"}, [2.0]),
        ({"text": "100%"}, [4.0]),
        ({"text": "_"}, []),
        ({"text": "dif"}, [3.0]),
        ({"server": "git", "outcomes": [Outcome.ERROR], "text": "refused"}, [2.0]),
        ({"server": "nobody"}, []),
        ({"server": "\ud800"}, []),
    ],
)
async def test_only_calls_that_fit_every_condition_are_found(store, conditions, expected):
    store.log_call(call(1.0))
    store.log_call(call(2.0, outcome=Outcome.ERROR, error="connection refused"))
    store.log_call(call(3.0, tool="diff"))
    store.log_call(
        call(4.0, server="web", tool="get", outcome=Outcome.TIMEOUT, error="disk 100% full")
    )

    assert await times(store, **conditions) == expected


@pytest.mark.parametrize("cursor", ["", "x", "é", "bnVsbA==", "WyJhIiwgMV0="])
async def test_a_cursor_that_is_none_of_ours_is_refused(store, cursor):
    with pytest.raises(BadArguments) as caught:
        await store.calls(cursor=cursor)

    assert caught.value.path == "/cursor"


@pytest.mark.parametrize(("limit", "count"), [(-5, 1), (0, 1), (2, 2), (10**9, 1000)])
async def test_a_page_has_bounds(store, limit, count):
    for number in range(1200):
        store.log_call(call(float(number)))

    assert len(await times(store, limit=limit)) == count


async def test_long_errors_are_cut_and_odd_characters_made_storable(store):
    store.log_call(call(1.0, server="a\ud800", error="x" * 1000, tool="日本", agent="\udfff"))

    (record,) = (await store.calls()).records

    assert record.server == r"a\ud800"
    assert record.agent == r"\udfff"
    assert record.tool == "日本"
    assert record.error == "x" * 500


async def test_recorded_exchanges_are_found_by_their_call(store):
    exchange = keep_exchange(
        b'{"key":"hunter2-secret"}', b'{"content":[]}', Redactor(["hunter2-secret"])
    )
    store.log_call(call(time.time(), exchange=exchange))

    page = await store.calls()
    found = await store.exchange(page.records[0].exchange)

    assert (found.arguments, found.result) == ('{"key":"***"}', '{"content":[]}')
    assert await store.exchange("nothing") is None


def test_an_exchange_is_bounded_and_a_secret_across_the_cut_is_not_shown():
    secret = "s3cret-" * 10
    text = "x" * (LONGEST - 20) + secret

    exchange = keep_exchange(text.encode(), b"", Redactor([secret]))

    assert len(exchange.arguments) <= LONGEST + 1
    assert "s3cret" not in exchange.arguments


async def test_a_filter_is_applied_page_by_page(store):
    for number in range(2500):
        server = "rare" if number % 500 == 0 else "often"
        store.log_call(CallRecord(float(number), server, "t", 0.1, Outcome.OK))

    wanted = RecordFilter.parse("server:rare")
    first = await store.calls(filter=wanted, limit=3)
    second = await store.calls(filter=wanted, limit=3, cursor=first.cursor)

    assert [record.at for record in first.records] == [2000.0, 1500.0, 1000.0]
    assert [record.at for record in second.records] == [500.0, 0.0]
    assert second.cursor is None
