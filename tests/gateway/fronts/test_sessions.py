"""Which sessions end when there is no room: never the new one, never one in use."""

import itertools
import json
from contextlib import AsyncExitStack

from hypothesis import given
from hypothesis import strategies as st

from multitap.gateway.fronts.sessions import SessionLimits, SessionUse, choose_to_end
from multitap.limits import Shares
from tests.gateway.hostile.raw import hello, http, in_session, shake_hands
from tests.gateway.hostile.stage import BEARER, OTHER_BEARER, TOKENS, open_stage

HOLDERS = st.sampled_from(("ann", "bob", "eve"))
ADDRESSES = st.sampled_from(("10.0.0.1", "10.0.0.2", "10.0.0.3"))
USES = st.lists(st.tuples(HOLDERS, ADDRESSES, st.floats(0, 2), st.booleans()), max_size=300).map(
    lambda rows: [SessionUse(str(at), *row) for at, row in enumerate(rows)]
)
PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()


@given(USES, HOLDERS, st.booleans())
def test_room_is_made_by_the_longest_unused(uses, holder, is_full):
    ending = choose_to_end(uses, holder, is_full=is_full)

    idle = [use for use in uses if not use.is_busy]
    own = [use for use in idle if use.holder == holder]
    assert {use.id for use in ending} <= {use.id for use in idle}
    assert bool(ending) == bool(own or (is_full and idle))
    assert len(ending) <= 1 + len(idle) // 100
    if own:
        assert {use.holder for use in ending} <= {holder}
    for gone, stays in itertools.product(ending, set(idle) - set(ending)):
        if (gone.holder, gone.address) == (stays.holder, stays.address):
            assert gone.spent >= stays.spent


@given(USES, HOLDERS, st.booleans())
def test_room_is_made_by_those_who_have_most(uses, holder, is_full):
    ending = choose_to_end(uses, holder, is_full=is_full)

    idle = [use for use in uses if not use.is_busy]
    if own := [use for use in idle if use.holder == holder]:
        groups = {use.id: use.address for use in own}
    else:
        groups = {use.id: use.holder for use in idle}
    counts = [*groups.values()]
    for use in ending:
        assert counts.count(groups[use.id]) * len(set(counts)) >= len(counts)


@given(st.lists(st.tuples(HOLDERS, st.integers(0, 3), st.booleans()), max_size=150))
def test_every_client_gets_in_while_any_session_is_idle(steps):
    """Sessions that come one after the other; some are in use, the rest are abandoned."""
    shares, table = Shares(20, "sessions"), {}
    for at, (holder, delay, is_busy) in enumerate(steps):
        table = {name: use._replace(spent=use.spent + delay / 10) for name, use in table.items()}
        if not shares.take(holder):
            has_idle = any(use.holder == holder and not use.is_busy for use in table.values())
            ending = choose_to_end([*table.values()], holder, is_full=shares.total >= shares.most)
            assert ending or not has_idle
            for use in ending:
                assert use.spent == max(
                    other.spent
                    for other in table.values()
                    if not other.is_busy and other.holder == use.holder
                )
                shares.give(table.pop(use.id).holder)
            if not ending:
                continue
            shares.replace(holder)
        table[str(at)] = SessionUse(str(at), holder, "10.0.0.1", 0.0, is_busy)

        assert shares.total == len(table) <= shares.most


async def test_a_newcomer_among_abandoned_sessions_can_call(tmp_path):
    limits = SessionLimits(most=40)
    async with (
        open_stage(tmp_path, sessions=limits) as stage,
        stage.dial() as line,
        stage.dial() as crowd,
    ):
        statuses = []
        for _ in range(12):
            session = (await line.asks(http(body=hello()))).headers["mcp-session-id"]
            for _ in range(8):
                await shake_hands(crowd)
            statuses.append((await line.asks(in_session(session, PING))).status)

        assert statuses == [200] * 12
        assert len(stage.front.sessions) <= limits.most


async def test_newcomers_get_in_though_all_sessions_are_used(tmp_path):
    limits = SessionLimits(most=8, recent=0.0)
    async with open_stage(tmp_path, sessions=limits) as stage, stage.dial() as line:
        statuses = []
        for _ in range(30):
            opened = await line.asks(http(body=hello()))
            session = opened.headers["mcp-session-id"]
            statuses += [opened.status, (await line.asks(in_session(session, PING))).status]

    assert statuses == [200] * 60


async def test_a_session_that_was_just_used_is_not_ended_for_a_newcomer(tmp_path):
    limits = SessionLimits(most=8, recent=60.0)
    async with open_stage(tmp_path, sessions=limits) as stage, stage.dial() as line:
        sessions = []
        for _ in range(6):
            sessions.append(await shake_hands(line))
            await line.asks(in_session(sessions[-1], PING))
        refused = await line.asks(http(body=hello()))
        statuses = [(await line.asks(in_session(session, PING))).status for session in sessions]

    assert refused.status == 503
    assert statuses == [200] * 6


async def test_an_abandoned_handshake_goes_before_a_session_that_is_used(tmp_path):
    limits = SessionLimits(most=8, unused=1.0, recent=0.0, newcomer=0.0)
    async with open_stage(tmp_path, sessions=limits) as stage, stage.dial() as line:
        used = await shake_hands(line)
        await line.asks(in_session(used, PING))
        for _ in range(50):
            await shake_hands(line)

        assert (await line.asks(in_session(used, PING))).status == 200


async def test_an_abandoned_handshake_ends_long_before_an_idle_session(tmp_path):
    limits = SessionLimits(unused=1.0, look=0.01)  # what three requests may take
    async with open_stage(tmp_path, sessions=limits) as stage, stage.dial() as line:
        used = await shake_hands(line)
        await line.asks(in_session(used, PING))
        await shake_hands(line)
        await stage.until(lambda: len(stage.front.sessions) == 1)

        assert (await line.asks(in_session(used, PING))).status == 200


async def test_the_life_of_a_session_begins_again_when_its_stream_ends(tmp_path):
    limits = SessionLimits(idle=0.3, look=0.01)
    async with open_stage(tmp_path, sessions=limits) as stage, stage.dial() as line:
        session_id = await shake_hands(line)
        session = stage.front.sessions.of(session_id)
        async with stage.dial() as listening:
            await listening.send(http("GET", mcp_session_id=session_id))
            assert (await listening.head())[0] == 200
            opened = session.used
            await stage.until(lambda: session.used > opened + limits.idle)
        resumed = await line.asks(in_session(session_id, PING))

    assert resumed.status == 200


async def test_one_client_that_has_many_is_not_refused_when_others_have_the_rest(tmp_path):
    limits = SessionLimits(most=8)
    async with (
        open_stage(tmp_path, tokens=TOKENS, sessions=limits) as stage,
        AsyncExitStack() as stack,
        stage.dial() as line,
    ):
        for _ in range(5):
            await line.asks(http(body=hello(), authorization=BEARER))
        for _ in range(2):
            other = await stack.enter_async_context(stage.dial())
            await other.send(http("GET", "/sse", authorization=OTHER_BEARER))
            assert (await other.head())[0] == 200
        statuses = [
            (await line.asks(http(body=hello(), authorization=BEARER))).status for _ in range(10)
        ]

    assert statuses == [200] * 10
