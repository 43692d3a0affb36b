import pytest

from multitap.wire.jsonrpc.unclear_owner import UnclearOwner, common
from multitap.wire.wire import SEVERAL, OwnedCall


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
