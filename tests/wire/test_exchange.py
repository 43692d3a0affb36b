"""Whatever a server writes, the reader goes on (P12, P13, P22)."""

from contextlib import asynccontextmanager

import anyio
import msgspec
from hypothesis import given
from hypothesis import strategies as st

from multitap.config import Limits
from multitap.errors import AnswerInvalid
from multitap.redaction import Redactor
from multitap.wire.exchange import Exchange
from multitap.wire.jsonrpc import RpcError
from multitap.wire.lines import LineReader
from multitap.wire.stdio import LineWriter, StdioWire, _Output
from tests.waiting import PATIENCE
from tests.wire.asking import ask as ask_on

json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
messages = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | json,
        "id": st.integers() | st.text() | json,
        "method": st.sampled_from(["notifications/progress", "notifications/cancelled", "x"])
        | json,
        "params": json,
        "result": json,
        "error": json,
    },
)
lines = st.one_of(
    st.binary(max_size=200),
    messages.map(msgspec.json.encode),
    st.tuples(messages, st.binary(max_size=5), st.integers(0, 60)).map(
        lambda parts: _damage(msgspec.json.encode(parts[0]), parts[1], parts[2])
    ),
)


def _damage(line, noise, place):
    return line[:place] + noise + line[place:]


class _Lines:
    def __init__(self, written):
        self._written = written

    def write(self, data):
        self._written += data.splitlines()


@asynccontextmanager
async def exchange_with(written):
    async with anyio.create_task_group() as tasks:
        writer = LineWriter()
        writer.connection_made(_Lines(written))
        exchange = Exchange(writer.respond, tasks, "test", Limits().junk, Redactor())
        writer.serves(exchange)
        yield (
            exchange,
            StdioWire(exchange, writer, child=None, stderr=None, receipt=None, launch=None),
            tasks,
        )
        exchange.close(None)
        tasks.cancel_scope.cancel()


@given(st.lists(lines, max_size=20))
def test_no_line_stops_the_reader(stream):
    async def run():
        written, answer = [], []
        async with exchange_with(written) as (exchange, wire, tasks):
            output = _Output(exchange, limit=1000)
            reader = LineReader(1000, exchange.feed, output.on_oversized, output.on_end)
            for line in stream:
                reader.data_received(line + b"\n")

            async def ask():
                answer.append(await ask_on(wire, "ping", None, timeout=PATIENCE))

            tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            # what the reader puts off on a busy machine may be answered after that
            (asked,) = (msgspec.json.decode(line) for line in written if b'"ping"' in line)
            exchange.feed(msgspec.json.encode({"id": asked["id"], "result": {"ok": True}}))
            await anyio.wait_all_tasks_blocked()
        return answer

    (result,) = anyio.run(run)
    assert msgspec.json.decode(result) == {"ok": True}


async def ask(line):
    """The outcome of a request that is answered with `line`."""
    written, outcome = [], []
    async with exchange_with(written) as (exchange, wire, tasks):

        async def request():
            try:
                outcome.append(await ask_on(wire, "x", None, timeout=PATIENCE))
            except (AnswerInvalid, RpcError) as exc:
                outcome.append(exc)

        tasks.start_soon(request)
        await anyio.wait_all_tasks_blocked()
        exchange.feed(line(msgspec.json.decode(written[0])["id"]))
        await anyio.wait_all_tasks_blocked()
    return outcome[0]


async def test_ids_are_not_guessable():
    written = []
    async with exchange_with(written) as (_, wire, tasks):
        for _ in range(20):
            tasks.start_soon(_ask_and_forget, wire)
        await anyio.wait_all_tasks_blocked()
        await anyio.lowlevel.checkpoint()  # several are sent together, in the next turn
        ids = [msgspec.json.decode(line)["id"] for line in written]
        tasks.cancel_scope.cancel()

    assert len(set(ids)) == 20
    assert min(ids) > 20


async def _ask_and_forget(wire):
    await ask_on(wire, "x", None, timeout=PATIENCE, cancellable=False)


async def test_an_answer_under_the_id_as_text_fails_at_once():
    outcome = await ask(lambda n: msgspec.json.encode({"id": str(n), "result": {}}))

    assert isinstance(outcome, AnswerInvalid)


async def test_an_error_for_nobody_belongs_to_the_only_call():
    error = {"id": None, "error": {"code": -32700, "message": "what?"}}
    outcome = await ask(lambda _: msgspec.json.encode(error))

    assert isinstance(outcome, RpcError)
    assert str(outcome) == "what?"


async def test_an_answer_is_taken_once():
    twice = b'{"id":%d,"result":{"n":1}}\n{"id":%d,"result":{"n":2}}'

    async with exchange_with(written := []) as (exchange, wire, tasks):
        answers = []

        async def request():
            answers.append(await ask_on(wire, "x", None, timeout=PATIENCE))

        tasks.start_soon(request)
        await anyio.wait_all_tasks_blocked()
        request_id = msgspec.json.decode(written[0])["id"]
        for line in (twice % (request_id, request_id)).split(b"\n"):
            exchange.feed(line)
        await anyio.wait_all_tasks_blocked()

    assert [msgspec.json.decode(answer) for answer in answers] == [{"n": 1}]
