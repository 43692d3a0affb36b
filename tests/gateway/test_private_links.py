"""One client at a time on a session with a server that does not say whose question it asks."""

import sys
from pathlib import Path

import anyio
import mcp_types as types
import pytest
from msgspec import Raw

from multitap.config import StdioServer
from multitap.errors import CallTimeout
from multitap.gateway.client import Client, session_request
from multitap.gateway.private_links import ExclusiveUse, PrivateLinks
from multitap.http.server.request import EventWriter
from multitap.wire.jsonrpc import EMPTY, RequestParams
from multitap.wire.request import Deadline
from tests.gateway.talking import (
    PATIENCE,
    Talker,
    gate,
    zoo,
)
from tests.waiting import until
from tests.zoo.ledger import Ledger

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


def in_flight(opened):
    return opened.hub.snapshot().server("zoo").in_flight


async def text(talker, tool, **arguments):
    with anyio.fail_after(PATIENCE):
        return (await talker.client.call_tool(f"zoo_{tool}", arguments)).content[0].text


def context():
    """A call of another client."""
    client = Client(EventWriter())
    client.introduce("2025-11-25", EMPTY, {})
    return session_request(client, Raw(b"1"), client.outlet, RequestParams()).context()


async def test_a_server_that_only_speaks_the_newer_era_is_not_reported_as_broken(settings, caplog):
    ends = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from plain_server import Plain, serve\n"
        "class Newer(Plain):\n"
        "    async def result(self, method, *rest):\n"
        "        assert method != 'initialize' or sys.exit(3)\n"
        "        return await super().result(method, *rest)\n"
        "serve(Newer('new'))\n"
    )
    newer = StdioServer(command=sys.executable, args=("-c", ends))
    async with gate(settings(newer=newer)) as opened, Talker("old", opened.url) as talker:
        with anyio.fail_after(PATIENCE):
            answer = await talker.client.call_tool("newer_log", {})

    assert answer.content[0].text == "info"
    assert not [record.message for record in caplog.records if record.levelname == "WARNING"]


async def test_a_server_that_never_asks_works_for_all_clients_at_once(settings):
    async with (
        gate(settings(zoo=zoo("good_legacy"))) as opened,
        Talker("old", opened.url) as one,
        Talker("new", opened.url) as other,
    ):
        await text(one, "sleep", seconds=0)
        async with anyio.create_task_group() as tasks:
            for talker in (one, other):
                tasks.start_soon(talker.client.call_tool, "zoo_sleep", {"seconds": 30})
            await until(lambda: in_flight(opened) == 2)
            answer = await text(other, "echo", text="hi")
            tasks.cancel_scope.cancel()
        await until(lambda: not in_flight(opened))

    assert answer == "hi"
    assert not len(opened.gateway.private)


async def test_a_server_that_only_logs_works_for_all_clients_at_once(settings):
    """What it logs for several of them at once reaches none, and the log of the gateway."""
    async with (
        gate(settings(zoo=zoo("good_legacy"))) as opened,
        Talker("old", opened.url) as one,
        Talker("old", opened.url) as other,
    ):
        for talker in (one, other):
            await talker.client.set_logging_level("info")
        await text(one, "log", level="error", text="mine")
        await text(one, "sleep", seconds=0)
        async with anyio.create_task_group() as tasks:
            for talker in (one, other):
                tasks.start_soon(talker.client.call_tool, "zoo_sleep", {"seconds": 30})
            await until(lambda: in_flight(opened) == 2)
            with anyio.fail_after(PATIENCE):
                await text(other, "log", level="error", text="whose?")
            tasks.cancel_scope.cancel()
        await until(lambda: not in_flight(opened))
        await text(other, "log", level="error", text="theirs")

        assert not len(opened.gateway.private)
        assert [words for _, _, words in one.logs] == ["mine"]
        assert [words for _, _, words in other.logs] == ["theirs"]


async def test_the_first_question_waits_until_it_is_certain_whose_it_is(settings):
    async with (
        gate(settings(zoo=zoo("good_legacy"))) as opened,
        Talker("old", opened.url) as one,
        Talker("old", opened.url) as other,
        anyio.create_task_group() as tasks,
    ):
        await text(other, "sleep", seconds=0)
        tasks.start_soon(other.client.call_tool, "zoo_sleep", {"seconds": 1})
        await until(lambda: in_flight(opened) == 1)
        answer = await text(one, "ask")

    assert "Ada 1" in answer
    assert not other.asked


async def test_that_a_server_asks_is_known_in_the_next_run(settings):
    servers = {"zoo": zoo("good_legacy")}
    async with gate(settings(**servers)) as opened, Talker("old", opened.url) as talker:
        before = opened.hub.links["zoo"].habits.asks
        await text(talker, "ask")
    async with gate(settings(**servers)) as opened:
        after = opened.hub.links["zoo"].habits.asks

    assert (before, after) == (False, True)


async def test_a_client_that_takes_its_time_holds_up_nobody(settings):
    async with (
        gate(settings(zoo=zoo("good_legacy"))) as opened,
        Talker("new", opened.url) as slow,
        Talker("new", opened.url, name="Grace") as quick,
        Talker("old", opened.url, name="Alan") as old,
    ):
        with anyio.fail_after(PATIENCE):
            asked = await slow.client.session.call_tool("zoo_ask", {}, allow_input_required=True)
        answers = [await text(talker, "ask") for talker in (quick, old)]
        responses = {
            key: types.ElicitResult(action="accept", content={"name": "Ada"})
            for key in asked.input_requests
        }
        with anyio.fail_after(PATIENCE):
            late = await slow.client.session.call_tool(
                "zoo_ask", {}, input_responses=responses, request_state=asked.request_state
            )

    assert "Grace 1" in answers[0]
    assert "Alan 1" in answers[1]
    assert "Ada" in late.content[0].text


async def test_a_caller_whose_turn_does_not_come_in_time_learns_what_to_do(settings):
    async with gate(settings(zoo=zoo("good_legacy"))) as opened:
        gateway, link = opened.gateway, opened.hub.links["zoo"]
        exclusive_use = ExclusiveUse(PrivateLinks(opened.hub, gateway.tasks, most=0), gateway.tasks)
        link.habits.learn()

        def turn(timeout):
            limit = Deadline.since(anyio.current_time(), timeout, None)
            return exclusive_use.turn(link, "ask", context(), "", limit)

        async with turn(None):
            with pytest.raises(CallTimeout, match="no turn within") as caught:
                async with turn(0.05):
                    pass

    assert "all 0 sessions of single clients" in str(caught.value)
    assert caught.value.hint == 'set `session = "per-client"` for the server'


async def test_another_session_that_cannot_be_had_does_not_end_the_waiting(settings, tmp_path):
    """There are programs that run only once."""
    ledger = Ledger(tmp_path)
    server = zoo("good_legacy", env=ledger.env)
    async with gate(settings(zoo=server)) as opened, anyio.create_task_group() as tasks:
        link, exclusive_use = opened.hub.links["zoo"], opened.gateway.exclusive_use
        link.habits.learn()
        only = link.config.replace(command="/nonexistent")
        spares = []

        async def wait():
            limit = Deadline.since(anyio.current_time(), PATIENCE, None)
            async with exclusive_use.turn(link, "ask", context(), "", limit) as found:
                spares.append(found)

        async with exclusive_use.turn(link, "ask", context(), "", Deadline.since(0, None, None)):
            real, link.config = link.config, only
            tasks.start_soon(wait)
            await until(lambda: exclusive_use._exclusive_use[link].refusal)
            link.config = real

    assert spares == [link]
    assert len(ledger.pids) == 1


@pytest.mark.parametrize(
    "later", [pytest.param({"timeout": 21}, id="replaced"), pytest.param(None, id="removed")]
)
async def test_another_session_ends_with_the_one_that_clients_share(settings, tmp_path, later):
    ledger = Ledger(tmp_path)
    servers = {"zoo": zoo("good_legacy", env=ledger.env)}
    async with gate(settings(**servers)) as opened:
        link, exclusive_use = opened.hub.links["zoo"], opened.gateway.exclusive_use
        link.habits.learn()
        limit = Deadline.since(0, None, None)
        async with (
            exclusive_use.turn(link, "ask", context(), "", limit),
            exclusive_use.turn(link, "ask", context(), "", limit) as other,
        ):
            assert other is not link
        spare = ledger.pids[1]
        changed = later and {"zoo": servers["zoo"].replace(**later)}
        opened.hub.apply(settings(**changed or {}))
        await until(lambda: not Path(f"/proc/{spare}").exists())

    assert not len(opened.gateway.private)


async def test_another_session_that_nobody_waited_for_is_used_by_the_next_one(settings):
    async with gate(settings(zoo=zoo("good_legacy"), other=zoo("good_legacy"))) as opened:
        link, exclusive_use = opened.hub.links["zoo"], opened.gateway.exclusive_use
        link.habits.learn()

        def turn(link):
            return exclusive_use.turn(link, "ask", context(), "", Deadline.since(0, None, None))

        async def wait():
            async with turn(link):
                pass

        async with turn(link):
            link.config = zoo("slow_init")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await until(lambda: len(opened.gateway.private))
                tasks.cancel_scope.cancel()
        async with turn(opened.hub.links["other"]):
            pass
        await until(
            lambda: (
                link in exclusive_use._exclusive_use and exclusive_use._exclusive_use[link].spares
            )
        )
        async with turn(link), turn(link) as spare:
            count = len(opened.gateway.private)

    assert (spare is link, count) == (False, 1)


async def test_nobody_waits_for_another_session_with_a_server_that_is_gone(settings):
    async with gate(settings(zoo=zoo("good_legacy"))) as opened:
        link = opened.hub.links["zoo"]
        link.config = zoo("never_init", connect_timeout=600)
        spare = opened.gateway.private.spare(link, "")
        opened.hub.apply(settings())
        with anyio.fail_after(PATIENCE):
            await spare.availability.first_settled.wait()

    assert spare.session is None


async def test_a_call_that_was_given_up_is_over_before_another_client_has_its_turn(
    settings, tmp_path
):
    ledger = Ledger(tmp_path)
    async with (
        gate(settings(zoo=zoo("good_legacy", env=ledger.env))) as opened,
        Talker("old", opened.url) as one,
        Talker("old", opened.url, name="Grace") as other,
    ):
        await text(one, "ask")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.client.call_tool, "zoo_sleep", {"seconds": 30})
            await until(lambda: in_flight(opened))
            tasks.cancel_scope.cancel()
        await until(lambda: not in_flight(opened))
        answer = await text(other, "ask")
        *_, cancelled, ping, called = [
            method
            for method in ledger.methods
            if method in {"notifications/cancelled", "ping", "tools/call"}
        ]

    assert "Grace 1" in answer
    assert (cancelled, ping, called) == ("notifications/cancelled", "ping", "tools/call")
