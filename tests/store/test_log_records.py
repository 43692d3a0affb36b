import pytest

from multitap.config import LocalServer, Settings
from multitap.errors import BadArguments
from multitap.events import (
    CatalogChanged,
    Failure,
    FailureCode,
    LinkChanged,
    LinkRemoved,
    LinkState,
    Outcome,
    Phase,
    Reloaded,
    ReloadFailed,
    ServerLog,
    Warned,
)
from multitap.hub.hub import open_hub
from multitap.store import CallRecord, LogRecord, open_store, tables

LOST = Failure(FailureCode.CRASH, Phase.CALL, "it ended by itself")


def call(at, outcome=Outcome.OK, **fields):
    plain = {"at": at, "server": "git", "tool": "log", "seconds": 0.1, "outcome": outcome}
    return CallRecord(**plain | fields)


def note(at, text="said", **fields):
    plain = {"at": at, "level": "info", "kind": "server", "server": "web", "text": text}
    return LogRecord(**plain | fields)


async def times(store, **conditions):
    return [record.at for record in (await store.logs(**conditions)).records]


@pytest.fixture
async def store(tmp_path):
    async with open_store(tmp_path) as store:
        yield store


@pytest.mark.parametrize(
    ("event", "level", "kind", "server", "text"),
    [
        (LinkChanged("a", LinkState.CONNECTED), "info", "state", "a", "connected"),
        (LinkChanged("a", LinkState.CONNECTING), "debug", "state", "a", "connecting"),
        (LinkChanged("a", LinkState.DISCONNECTED), "info", "state", "a", "disconnected"),
        (
            LinkChanged("a", LinkState.DISCONNECTED, LOST),
            *("warning", "state", "a", "disconnected: it ended by itself"),
        ),
        (
            LinkChanged("a", LinkState.ERROR, LOST),
            *("error", "state", "a", "error: it ended by itself"),
        ),
        (LinkRemoved("a"), "info", "state", "a", "removed"),
        (ServerLog("a", "critical", None, "fire"), "critical", "server", "a", "fire"),
        (ServerLog("a", "loud", "db", "fire"), "info", "server", "a", "db: fire"),
        (Warned("a", "odd"), "warning", "warning", "a", "odd"),
        (Reloaded("start a"), "info", "configuration", None, "reloaded: start a"),
        (Reloaded("nothing", ("b",)), "warning", "configuration", None, "reloaded: nothing; b"),
        (ReloadFailed(("x", "y")), "error", "configuration", None, "not reloaded; x; y"),
    ],
)
def test_an_event_becomes_an_entry(event, level, kind, server, text):
    expected = LogRecord(at=5.0, level=level, kind=kind, server=server, text=text)

    assert LogRecord.of(event, at=5.0) == expected


def test_other_events_are_not_kept():
    assert LogRecord.of(CatalogChanged(1), at=5.0) is None


async def test_calls_and_entries_come_as_one_log_newest_first(store):
    store.log(note(1.0))
    store.log_call(call(2.0, agent="bob"))
    store.log(note(3.0, server=None, kind="configuration"))

    newest, of_call, oldest = (await store.logs()).records

    assert (newest.kind, newest.server, newest.outcome) == ("configuration", None, None)
    assert (of_call.kind, of_call.tool, of_call.agent) == ("call", "log", "bob")
    assert (of_call.text, of_call.seconds, of_call.outcome) == ("log: ok", 0.1, Outcome.OK)
    assert (oldest.kind, oldest.text) == ("server", "said")


@pytest.mark.parametrize(
    ("outcome", "level"),
    [
        (Outcome.OK, "info"),
        (Outcome.CANCELLED, "notice"),
        (Outcome.ERROR, "warning"),
        (Outcome.REFUSED, "warning"),
        (Outcome.FAILED, "error"),
        (Outcome.TIMEOUT, "error"),
    ],
)
async def test_how_a_call_ended_decides_its_level(store, outcome, level):
    store.log_call(call(1.0, outcome))

    assert [record.level for record in (await store.logs()).records] == [level]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, [5.0, 4.0, 3.0, 2.0, 1.0]),
        ({"level": "info"}, [5.0, 3.0, 2.0, 1.0]),
        ({"level": "warning"}, [3.0, 2.0]),
        ({"level": "emergency"}, []),
        ({"since": 3.0}, [5.0, 4.0, 3.0]),
        ({"until": 3.0}, [2.0, 1.0]),
        ({"since": 2.0, "until": 4.0}, [3.0, 2.0]),
        ({"server": "git"}, [2.0, 1.0]),
        ({"server": "web"}, [4.0, 3.0]),
        ({"text": "REFUSED"}, [2.0]),
        ({"text": "100%"}, [3.0]),
        ({"text": "git"}, [2.0, 1.0]),
        ({"text": "refused", "level": "critical"}, []),
    ],
)
async def test_every_condition_must_hold(store, conditions, expected):
    store.log_call(call(1.0))
    store.log_call(call(2.0, Outcome.ERROR, error="connection refused"))
    store.log(note(3.0, "100% full", level="error"))
    store.log(note(4.0, "1000", level="debug"))
    store.log(note(5.0, "reloaded", kind="configuration", server=None))

    assert await times(store, **conditions) == expected


async def test_a_cursor_leads_through_both_exactly_once_while_more_comes(store):
    for number in range(12):
        at = float(number // 4)
        store.log(note(at)) if number % 2 else store.log_call(call(at))
    seen, cursor = [], None

    while True:
        page = await store.logs(limit=5, cursor=cursor)
        seen += page.records
        store.log(note(9.0))
        store.log_call(call(9.0))
        if (cursor := page.cursor) is None:
            break

    assert [record.at for record in seen] == [2.0] * 4 + [1.0] * 4 + [0.0] * 4
    assert sum(record.kind == "call" for record in seen) == 6


@pytest.mark.parametrize("cursor", ["", "x", "W10=", "WzEuMCwxXQ=="])
async def test_a_foreign_cursor_is_refused(store, cursor):
    with pytest.raises(BadArguments) as caught:
        await store.logs(cursor=cursor)

    assert caught.value.path == "/cursor"


async def test_the_log_outlives_the_store(tmp_path):
    async with open_store(tmp_path) as store:
        store.log(note(1.0, "before\ud800", server="a\udfff"))
    async with open_store(tmp_path) as store:
        store.log(note(2.0, "after"))
        records = (await store.logs()).records

    assert [record.text for record in records] == ["after", "before\\ud800"]


async def test_only_the_newest_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_RECORDS", 3)
    async with open_store(tmp_path) as store:
        for number in range(5):
            store.log(note(float(number)))
            await store.flush()

        assert await times(store) == [4.0, 3.0, 2.0]


async def test_a_long_text_is_cut(store):
    store.log(note(1.0, "x" * 5000))

    assert len((await store.logs()).records[0].text) == 2000


async def test_a_hub_keeps_what_happens_to_its_servers(tmp_path):
    settings = Settings(servers={"broken": LocalServer(server=None)}, state_dir=tmp_path)
    async with open_hub(settings) as hub:
        await hub.settled()
        hub.events.publish(ReloadFailed(("line 3",)))
        hub.apply(Settings(state_dir=tmp_path))
        records = (await hub.store.logs(level="info")).records

    assert [record.text for record in records[:2]] == ["removed", "not reloaded; line 3"]
    assert records[2].level == "error"
    assert records[2].text.startswith("error: ")
