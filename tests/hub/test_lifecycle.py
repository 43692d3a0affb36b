"""Real processes that are asked, killed, stopped, changed and reloaded."""

import os
import signal
from collections import Counter

import anyio
import mcp_types as types
import pytest

from multitap import CallContext, Handlers, Settings, StdioServer, open_hub
from multitap.config import Limits
from multitap.errors import CallTimeout, MultitapError, Overloaded, Unavailable
from multitap.events import FailureCode, LinkState, ResourceUpdated, ServerLog
from multitap.upstream.handshake import Era
from tests.waiting import PATIENCE, until
from tests.zoo.ledger import Ledger
from tests.zoo.modes import command

ERAS = ["handshake", "stateless"]


def zoo(mode, *options, env=None, **settings):
    program, *args = command(mode, *options)
    return StdioServer(command=program, args=tuple(args), env=env or {}, **settings)


@pytest.fixture
def hub_of(tmp_path):
    def make(handlers=Handlers(), **servers):
        return open_hub(Settings(servers=servers, state_dir=tmp_path / "state"), handlers=handlers)

    return make


@pytest.mark.parametrize("era", ERAS)
async def test_what_a_server_asks_goes_to_the_hosts_handlers(hub_of, era):
    asked = []

    async def elicit(origin, params):
        asked.append((origin.server, origin.call.agent_id, params.message))
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(origin, params):
        asked.append((origin.server, origin.call.agent_id, params.messages[0].content.text))
        text = types.TextContent(type="text", text="hello")
        return types.CreateMessageResult(role="assistant", content=text, model="m")

    async def roots(origin):
        asked.append((origin.server, origin.call.agent_id, "roots"))
        return types.ListRootsResult(roots=[types.Root(uri="file:///home")])

    handlers = Handlers(elicit=elicit, sample=sample, roots=roots)
    context = CallContext(agent_id="me")
    async with hub_of(handlers, zoo=zoo("good", "--era", era)) as hub:
        await hub.settled()
        named = await hub.call("zoo_ask", context=context)
        said = await hub.call("zoo_sample", context=context)
        rooted = await hub.call("zoo_roots", context=context)

    assert "Ada" in named.text
    assert "hello" in said.text
    assert "file:///home" in rooted.text
    assert asked == [
        ("zoo", "me", "zoo asks: What is your name?"),
        ("zoo", "me", "Say hello"),
        ("zoo", "me", "roots"),
    ]


@pytest.mark.parametrize("era", ERAS)
async def test_without_handlers_a_server_is_told_that_nobody_can_be_asked(hub_of, era):
    async with hub_of(zoo=zoo("good", "--era", era)) as hub:
        await hub.settled()
        result = await hub.call("zoo_ask")

    assert "cannot be asked" in result.error


async def test_the_time_a_person_takes_to_answer_does_not_count(hub_of):
    async def elicit(origin, params):
        await anyio.sleep(0.6)  # longer than the call's time
        return types.ElicitResult(action="decline")

    server = zoo("good", "--era", "handshake", timeout=0.3)
    async with hub_of(Handlers(elicit=elicit), zoo=server) as hub:
        await hub.settled()

        assert "decline" in (await hub.call("zoo_ask")).text


@pytest.mark.parametrize("era", ERAS)
async def test_a_changed_list_reaches_the_catalog(hub_of, era):
    async with hub_of(zoo=zoo("good", "--era", era)) as hub:
        await hub.settled()
        before = set(hub.catalog.tools)
        name = (await hub.call("zoo_change_tools")).text
        await until(lambda: f"zoo_{name}" in hub.catalog.tools)

        assert before < set(hub.catalog.tools)
        assert (await hub.call(f"zoo_{name}", {"text": "new"})).text == "new"


@pytest.mark.parametrize("era", ERAS)
async def test_a_subscription_outlives_a_restart(hub_of, era):
    async with hub_of(zoo=zoo("good", "--era", era)) as hub:
        await hub.settled()
        await hub.subscribe("zoo://text")
        with hub.events.subscribe() as events:

            async def touched():
                while True:
                    await hub.call("zoo_touch", {"uri": "zoo://text"})
                    with anyio.move_on_after(0.2):
                        async for event in events:
                            if event == ResourceUpdated("zoo", "zoo://text"):
                                return

            with anyio.fail_after(PATIENCE):
                await touched()
                os.kill(hub.snapshot().server("zoo").pid, signal.SIGKILL)
                await until(lambda: hub.snapshot().server("zoo").starts == 2)
                await hub.settled()
                await touched()


async def test_a_subscription_that_a_server_refused_is_asked_for_again(hub_of):
    async with hub_of(zoo=zoo("good", "--era", "handshake")) as hub:
        await hub.settled()

        for _ in range(2):
            with pytest.raises(Exception, match="Unknown resource"):
                await hub.subscribe("zoo://refused", server="zoo")


@pytest.mark.parametrize("era", ERAS)
async def test_log_messages_become_events(hub_of, era):
    async with hub_of(zoo=zoo("good", "--era", era, log_level="info")) as hub:
        await hub.settled()
        with hub.events.subscribe() as events, anyio.fail_after(PATIENCE):
            await hub.call("zoo_log", {"level": "info", "text": "hello"})
            logs = [event async for event in _until_log(events)]

    assert logs[0].server == "zoo"
    assert "hello" in logs[0].text


async def _until_log(events):
    async for event in events:
        if isinstance(event, ServerLog):
            yield event
            return


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_a_killed_server_is_back_for_the_next_call(hub_of, number):
    async with hub_of(zoo=zoo("good")) as hub:
        await hub.settled()
        first = (await hub.call("zoo_pid")).text
        os.kill(int(first), number)
        await until(lambda: hub.links["zoo"].failure is not None)
        second = (await hub.call("zoo_pid")).text

        assert second != first
        assert hub.snapshot().server("zoo").starts == 2


async def test_a_stopped_server_is_found_named_and_replaced(hub_of):
    async with hub_of(zoo=zoo("good")) as hub:
        await hub.settled()
        first = int((await hub.call("zoo_pid")).text)
        os.kill(first, signal.SIGSTOP)
        await until(lambda: hub.links["zoo"].failure is not None)
        failure = hub.links["zoo"].failure
        await until(lambda: hub.links["zoo"].state is LinkState.CONNECTED)

        assert failure.code is FailureCode.STOPPED
        assert "SIGSTOP" in str(failure)
        assert int((await hub.call("zoo_pid")).text) != first


async def test_a_deaf_server_is_found_by_its_health_checks(hub_of):
    async with hub_of(zoo=zoo("deaf_idle", health_interval=0.2)) as hub:
        await hub.settled()
        await hub.call("zoo_fault")
        await until(lambda: hub.snapshot().server("zoo").starts >= 2)
        await hub.settled()

        assert (await hub.call("zoo_echo", {"text": "back"})).text == "back"


async def test_a_busy_server_is_not_taken_for_a_deaf_one(hub_of):
    async with hub_of(zoo=zoo("ping_unanswered", health_interval=0.1)) as hub:
        await hub.settled()
        await hub.call("zoo_sleep", {"seconds": 1.0})

        assert hub.snapshot().server("zoo").starts == 1


@pytest.mark.slow
async def test_a_crash_loop_opens_the_breaker_and_a_person_closes_it(hub_of, tmp_path):
    ledger = Ledger(tmp_path)
    async with hub_of(zoo=zoo("exit_at_start", env=ledger.env)) as hub:
        await until(
            lambda: (
                (failure := hub.links["zoo"].failure) is not None
                and failure.code is FailureCode.CRASH_LOOP
            )
        )  # five pauses, up to 31 s together
        snapshot = hub.snapshot().server("zoo")
        starts = len(ledger.starts)
        with pytest.raises(MultitapError):
            await hub.call("zoo_echo", {"text": "x"})
        hub.restart("zoo")
        await until(lambda: len(ledger.starts) > starts)

    assert starts == 6  # it never read the question: the other era is not tried
    assert snapshot.state is LinkState.ERROR
    assert snapshot.failure.exit_code == 1
    assert "cannot open the database" in snapshot.failure.stderr
    assert snapshot.retry_at is not None


async def test_a_lost_call_is_not_silently_run_again(hub_of, tmp_path):
    ledger = Ledger(tmp_path)
    async with hub_of(zoo=zoo("exit_mid_call", "--once", env=ledger.env)) as hub:
        await hub.settled()
        with pytest.raises(Unavailable) as caught:
            await hub.call("zoo_fault")

    assert Counter(ledger.calls)["fault"] == 1
    assert "exited with code" in str(caught.value)


async def test_a_lost_call_of_an_idempotent_tool_is_repeated_once(hub_of, tmp_path):
    ledger = Ledger(tmp_path)
    async with hub_of(zoo=zoo("exit_mid_call", "--once", env=ledger.env)) as hub:
        await hub.settled()
        result = await hub.call("zoo_fault_hinted")

        assert result.success
    assert Counter(ledger.calls)["fault_hinted"] == 2


async def test_hints_are_not_believed_where_the_configuration_says_so(hub_of, tmp_path):
    ledger = Ledger(tmp_path)
    server = zoo("exit_mid_call", "--once", env=ledger.env, retry="never")
    async with hub_of(zoo=server) as hub:
        await hub.settled()
        with pytest.raises(Unavailable):
            await hub.call("zoo_fault_hinted")

    assert Counter(ledger.calls)["fault_hinted"] == 1


async def test_more_calls_than_the_queue_holds_are_refused_at_once(hub_of):
    server = zoo("good", limits=Limits(in_flight=1, queue=1), timeout=0.5)
    async with hub_of(zoo=server) as hub, anyio.create_task_group() as tasks:
        await hub.settled()
        failures = []

        async def call():
            try:
                await hub.call("zoo_sleep", {"seconds": 5})
            except MultitapError as exc:
                failures.append(type(exc))

        for _ in range(3):
            tasks.start_soon(call)

    assert sorted(failure.__name__ for failure in failures) == [
        CallTimeout.__name__,
        CallTimeout.__name__,
        Overloaded.__name__,
    ]


async def test_a_reload_at_a_hundred_calls_a_second_fails_none_of_them(tmp_path):
    steady, other = zoo("good"), zoo("good_legacy")
    settings = Settings(servers={"steady": steady, "other": other}, state_dir=tmp_path)
    async with open_hub(settings) as hub, anyio.create_task_group() as tasks:
        await hub.settled()
        before = hub.snapshot().server("steady").pid
        replaced = hub.snapshot().server("other").pid
        answers = []

        async def call(name):
            answers.append((await hub.call(f"{name}_echo", {"text": name})).text == name)

        async def traffic():
            while True:
                tasks.start_soon(call, "steady")
                tasks.start_soon(call, "other")
                await anyio.sleep(0.01)  # its pace

        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as clients:
                clients.start_soon(traffic)
                for timeout in (10, 20, 30):
                    changed = other.replace(timeout=timeout)
                    servers = {"steady": steady, "other": changed}
                    plan = hub.apply(settings.replace(servers=servers))
                    assert str(plan) == "replace other; keep steady"
                    await hub.settled()
                scope.cancel()
        await until(lambda: hub.snapshot().server("other").in_flight == 0)

        assert hub.snapshot().server("steady").pid == before
        assert hub.snapshot().server("other").pid != replaced

    assert len(answers) > 5
    assert all(answers)


async def test_a_lazy_server_starts_with_the_first_call_and_sleeps_again(hub_of, tmp_path):
    ledger = Ledger(tmp_path)
    lazy = zoo("good", env=ledger.env, start="lazy", idle_timeout=0.3)
    async with hub_of(zoo=lazy) as hub:
        await hub.settled()  # nothing is stored yet: it has to be asked once
        tools = set(hub.catalog.tools)
        await until(lambda: hub.links["zoo"].availability.is_asleep)
        assert set(hub.catalog.tools) == tools
    assert len(ledger.starts) == 1

    async with hub_of(zoo=lazy, eager=zoo("good")) as hub:
        assert set(hub.catalog.tools) == tools
        assert hub.snapshot().server("zoo").stale
        await until(lambda: hub.links["eager"].state is LinkState.CONNECTED)
        assert len(ledger.starts) == 1
        assert (await hub.call("zoo_echo", {"text": "awake"})).text == "awake"
        assert len(ledger.starts) == 2
        await until(lambda: hub.links["zoo"].availability.is_asleep)
        assert (await hub.call("zoo_echo", {"text": "again"})).text == "again"

    assert len(ledger.starts) == 3


async def test_the_era_of_a_server_is_remembered(hub_of, tmp_path):
    ledger = Ledger(tmp_path)
    server = zoo("exits_on_discover", env=ledger.env)
    async with hub_of(zoo=server) as hub:
        await hub.settled()
    async with hub_of(zoo=server) as hub:
        await hub.settled()

    assert len(ledger.starts) == 3  # asked in the new era only once
    assert ledger.methods.count("initialize") == 2


async def test_thirty_servers_with_bad_ones_among_them_give_exactly_the_good_ones(hub_of):
    bad = {"hangs": zoo("never_init"), "dies": zoo("exit_at_start"), "lies": zoo("list_error")}
    good = {f"good{n}": zoo("good") for n in range(12)}
    async with hub_of(**bad, **good) as hub:
        await until(lambda: len({tool.server for tool in hub.tools}) == len(good))

        assert {tool.server for tool in hub.tools} == set(good)


async def test_a_hundred_calls_at_once_each_get_their_own_answer(hub_of):
    async with hub_of(zoo=zoo("dup_answer")) as hub, anyio.create_task_group() as tasks:
        await hub.settled()
        right = []

        async def call(n):
            right.append((await hub.call("zoo_nonce", {"n": n})).text == str(n))

        for n in range(100):
            tasks.start_soon(call, n)

    assert right == [True] * 100


async def test_a_slow_server_of_both_eras_is_held_to_the_handshake_that_it_was_sent(
    hub_of, tmp_path
):
    ledger = Ledger(tmp_path)
    async with hub_of(zoo=zoo("slow_in_both", env=ledger.env)) as hub:
        await hub.settled()
        result = await hub.call("zoo_echo", {"text": "x"})

        assert hub.links["zoo"].era is Era.HANDSHAKE
    assert result.text == "x"
    assert ledger.methods[:3] == ["server/discover", "initialize", "notifications/initialized"]
    assert len(ledger.pids) == 1


async def test_a_program_that_has_not_read_the_probe_is_not_sent_a_handshake_as_well(
    hub_of, tmp_path
):
    ledger = Ledger(tmp_path)
    async with hub_of(zoo=zoo("busy_start", "--seconds", "2", env=ledger.env)) as hub:
        await hub.settled()

        assert hub.links["zoo"].era is Era.STATELESS
    assert "initialize" not in ledger.methods


async def test_a_server_that_agreed_to_one_era_and_was_sent_the_other_starts_again(
    hub_of, tmp_path
):
    ledger = Ledger(tmp_path)
    async with hub_of(zoo=zoo("silent_on_initialize", env=ledger.env)) as hub:
        await hub.settled()

        assert hub.links["zoo"].era is Era.STATELESS
    assert len(ledger.pids) == 2


async def test_completions_and_subscriptions_wait_for_a_server_that_starts(hub_of, tmp_path):
    ledger = Ledger(tmp_path)
    async with hub_of(zoo=zoo("slow_init", env=ledger.env)) as hub, anyio.create_task_group() as go:
        go.start_soon(hub.subscribe, "zoo://text")
        completed = await hub.complete("zoo_greet", "name", "A")
        template = await hub.complete("zoo://item/{id}", "id", "1")

    assert completed.completion.values
    assert template is not None


async def test_a_restart_that_waits_for_its_turn_is_not_restarted_once_more(hub_of, tmp_path):
    """A failed server shows its failure meanwhile, and calls of the new session would be lost."""
    program, *args = command("good")
    place = tmp_path / "program"
    async with hub_of(zoo=StdioServer(command=str(place), args=tuple(args))) as hub:
        await hub.settled()
        link, queue = hub.links["zoo"], hub._starts
        assert link.failure is not None
        place.symlink_to(program)
        limit, queue.limit = queue.limit, 0
        hub.restart("zoo")
        await until(lambda: queue._waiting)
        hub.restart("zoo")
        queue.limit = limit
        queue._decide_soon()
        await until(lambda: link.session is not None)

        for _ in range(20):
            assert "here" in (await hub.call("zoo_echo", {"text": "here"})).text
        assert link.starts == 2
