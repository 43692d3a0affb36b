"""Requests: each ends once, and its waiter is notified."""

import asyncio
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from multitap.errors import AnswerTimeout, WireClosed
from multitap.tasks import Tasks
from multitap.wire.jsonrpc import RpcError
from multitap.wire.pending import PendingRequests, RequestNumbers, UnclearOwner, common
from multitap.wire.request import make_request
from multitap.wire.wire import SEVERAL, OwnedCall
from tests.waiting import until
from tests.wire.asking import Launched
from tests.wire.test_exchange import exchange_with


@pytest.fixture
async def launching():
    """A wire, what was written to it, and a way to launch on it whose outcomes are kept."""
    written, outcomes = [], []
    async with Tasks() as tasks, exchange_with(written) as (exchange, wire, _):

        async def launch(on_end=outcomes.append, timeout=60):
            launched = Launched(wire, tasks, "x", {}, timeout=timeout, on_end=on_end)
            await _turn()
            return launched

        yield exchange, written, launch, outcomes


async def _turn():
    """Let what is ready run."""
    for _ in range(3):
        await asyncio.sleep(0)


def answered(message, **more):
    return msgspec.json.encode({"id": msgspec.json.decode(message)["id"], **more})


async def test_the_outcome_is_reported_once(launching):
    exchange, written, launch, outcomes = launching
    await launch()
    await launch()

    for message in (*written, *written):
        exchange.feed(answered(message, result={}))
    await _turn()

    assert outcomes == [Raw(b"{}"), Raw(b"{}")]
    assert not len(exchange.pending_requests)


async def test_an_error_of_the_server_is_an_outcome(launching):
    exchange, written, launch, outcomes = launching
    await launch()
    exchange.feed(answered(written[0], error={"code": -7, "message": "no"}))
    await _turn()

    (outcome,) = outcomes
    assert isinstance(outcome, RpcError)
    assert (outcome.code, str(outcome)) == (-7, "no")


async def test_only_the_server_is_notified_of_an_abandoned_request(launching):
    exchange, written, launch, outcomes = launching
    pending = await launch()
    pending.give_up()
    pending.give_up()
    await _turn()

    asked, called_off = map(msgspec.json.decode, written)
    assert called_off["method"] == "notifications/cancelled"
    assert called_off["params"]["requestId"] == asked["id"]
    exchange.feed(answered(written[0], result={}))
    assert outcomes == []
    assert exchange.inbound_messages.evidence().noise == 0


async def test_what_takes_too_long_ends_and_is_called_off(launching):
    exchange, written, launch, outcomes = launching
    await launch(timeout=0.01)
    await until(lambda: outcomes)

    assert isinstance(outcomes[0], AnswerTimeout)
    assert msgspec.json.decode(written[1])["params"]["reason"] == "timed out"
    assert not len(exchange.pending_requests)


async def test_what_is_under_way_ends_with_the_wire(launching):
    exchange, _, launch, outcomes = launching
    await launch()
    exchange.close(WireClosed("the program exited", sent=True))
    await _turn()

    (outcome,) = outcomes
    assert isinstance(outcome, WireClosed)
    assert outcome.sent
    await launch()
    assert isinstance(outcomes[1], WireClosed)
    assert not outcomes[1].sent


async def test_an_answer_to_a_question_of_ours_is_never_junk_however_late(launching):
    exchange, written, launch, outcomes = launching
    for _ in range(1000):
        (await launch()).give_up()
    await _turn()
    asked = [line for line in written if b'"method":"x"' in line]

    for message in asked:
        exchange.feed(answered(message, result={}))

    assert len(asked) == 1000
    assert outcomes == []
    assert exchange.inbound_messages.evidence().noise == 0


def nameless(message):
    """An error that names no request."""
    return b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}'


def as_text(message):
    """An answer with its id as a text."""
    return b'{"id":"%d","result":{}}' % msgspec.json.decode(message)["id"]


def not_json(message):
    """An answer with a number that JSON does not know."""
    return b'{"result":{"x":NaN},"id":%d}' % msgspec.json.decode(message)["id"]


def as_float(message):
    """An answer with its id as a number with a point."""
    return b'{"id":%d.0,"result":{}}' % msgspec.json.decode(message)["id"]


def cut(message):
    """The end of an answer."""
    return b'"result":{}}'


@pytest.mark.parametrize("begin", [None, nameless, as_text, as_float, not_json, cut])
@pytest.mark.parametrize("end", [partial(answered, result={}), as_float, not_json])
async def test_an_answer_is_not_junk_whatever_came_before_it(launching, begin, end):
    exchange, written, launch, outcomes = launching
    launched = await launch()
    if begin is None:
        launched.give_up()
    else:
        exchange.feed(begin(written[0]))
    await _turn()

    exchange.feed(end(written[0]))

    assert len(outcomes) == (begin is not None)
    assert exchange.inbound_messages.evidence().noise == 0
    exchange.feed(end(written[0]))
    assert exchange.inbound_messages.evidence().noise == 1


async def test_an_answer_that_is_repeated_is_junk(launching):
    exchange, written, launch, _ = launching
    (await launch()).give_up()
    await _turn()

    for _ in range(3):
        exchange.feed(answered(written[0], result={}))

    assert exchange.inbound_messages.evidence().noise == 2


async def test_an_answer_with_a_forged_id_is_junk(launching):
    exchange, written, launch, _ = launching
    (await launch()).give_up()
    await _turn()
    ours = msgspec.json.decode(written[0])["id"]

    for forged in (ours + 1, ours - 1, -ours, ours + 2**31, 0, 1, 2**63, str(ours)):
        exchange.feed(msgspec.json.encode({"id": forged, "result": {}}))

    assert exchange.inbound_messages.evidence().noise == 8
    exchange.feed(answered(written[0], result={}))
    assert exchange.inbound_messages.evidence().noise == 8


@given(st.integers(1, 3000))
def test_exactly_the_ids_that_were_issued_are_recognised(count):
    numbers = RequestNumbers()
    ids = [numbers.issue() for _ in range(count)]

    assert len(set(ids)) == count
    assert all(0 < one < 2**31 and numbers.is_issued(one) for one in ids)
    later = RequestNumbers()
    later._factors, later._inverses = numbers._factors, numbers._inverses
    assert not any(map(later.is_issued, ids))


class Call(OwnedCall):
    """A call with an owner."""

    def __init__(self, owner):
        self._owner = owner

    @property
    def owner(self):
        return self._owner


ADA, BOB = object(), object()
FIRST, SECOND, OTHER = Call(ADA), Call(ADA), Call(BOB)


@pytest.mark.parametrize(
    ("calls", "meant"),
    [
        pytest.param({}, None, id="there are none"),
        pytest.param({1: FIRST}, FIRST, id="one"),
        pytest.param({1: FIRST, 2: SECOND}, SECOND, id="two of one party"),
        pytest.param({1: FIRST, 2: OTHER}, SEVERAL, id="two of two parties"),
    ],
)
def test_a_message_belongs_to_a_call_if_all_are_of_one_party(calls, meant):
    assert common(calls) is meant


async def test_it_is_the_party_s_whose_calls_remain():
    doubt = UnclearOwner({1: FIRST, 2: OTHER, 3: SECOND})
    doubt.on_end(1, answered=True)
    assert not doubt.outcome.done()
    doubt.on_end(2, answered=True)

    assert doubt.outcome.result() is SECOND


async def test_it_is_never_certain_once_a_call_was_given_up():
    doubt = UnclearOwner({1: FIRST, 2: OTHER})
    doubt.on_end(2, answered=False)

    assert doubt.outcome.result() is SEVERAL


async def test_calls_that_came_later_do_not_matter():
    doubt = UnclearOwner({1: FIRST, 2: OTHER})
    doubt.on_end(3, answered=False)

    assert not doubt.outcome.done()


@pytest.mark.parametrize(
    ("params", "on_progress"),
    [
        pytest.param({"name": "rm"}, None, id="params"),
        pytest.param({"name": "rm"}, print, id="progress"),
        pytest.param(None, None, id="bare"),
    ],
)
async def test_the_method_of_a_client_cannot_become_another_one(params, on_progress):
    method = 'acme/x","method":"tools/call","z":"'
    request = make_request(method, params, 5.0, on_progress=on_progress)
    message = msgspec.json.decode(PendingRequests().begin(request).message())

    assert message["method"] == method
    assert message.keys() <= {"jsonrpc", "id", "method", "params"}
