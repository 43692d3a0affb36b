import os
import signal
import sys
from contextlib import contextmanager
from itertools import product

import anyio
import mcp_types as types
import pytest

from multitap import Settings, SyncHub, open_hub
from multitap.config import HttpServer, StdioServer
from multitap.errors import CallTimeout, MultitapError, Unavailable
from multitap.upstream.questions import CallContext, Handlers
from multitap.upstream.tasks import plain_result, read_created, read_state
from tests.gateway import task_server
from tests.gateway.talking import zoo
from tests.waiting import PATIENCE
from tests.wire.sdk_web import served

CELLS = [*product(("stdio", "http"), ("old", "new"))]
cells = pytest.mark.parametrize(("transport", "era"), CELLS)


@contextmanager
def server(transport, era):
    if transport == "stdio":
        yield StdioServer(command=sys.executable, args=(task_server.__file__, era))
    else:
        with served(task_server.app(era)) as url:
            yield HttpServer(url=f"{url}/mcp")


@contextmanager
def settings(tmp_path, transport, era):
    with server(transport, era) as config:
        yield Settings(state_dir=tmp_path, servers={"s": config})


async def accept(_, params):
    name = next(iter(params.requested_schema["properties"]))
    return types.ElicitResult(action="accept", content={name: "Ada" if name == "name" else True})


@cells
async def test_a_tool_that_only_runs_as_a_task_can_be_called(tmp_path, transport, era):
    with settings(tmp_path, transport, era) as given:
        async with open_hub(given) as hub:
            with anyio.fail_after(PATIENCE):
                result = await hub.call("s_failing_job")

    assert result.is_error
    assert result.text == "it failed"
    assert b"related-task" not in bytes(result.raw)


@cells
async def test_a_protocol_error_of_a_task_is_that_of_its_call(tmp_path, transport, era):
    with settings(tmp_path, transport, era) as given:
        async with open_hub(given) as hub:
            with anyio.fail_after(PATIENCE):
                result = await hub.call("s_protocol_error_job")

    assert (result.is_error, result.code) == (True, -32099)


@cells
async def test_what_is_asked_for_a_task_reaches_the_host(tmp_path, transport, era):
    with settings(tmp_path, transport, era) as given:
        async with open_hub(given, handlers=Handlers(elicit=accept)) as hub:
            with anyio.fail_after(PATIENCE):
                result = await hub.call("s_test_tool_with_task")

    assert result.text == "done for Ada"


@cells
async def test_a_call_that_is_abandoned_cancels_its_task(tmp_path, transport, era):
    with settings(tmp_path, transport, era) as given:
        async with open_hub(given) as hub:
            steps = []

            def give_up(_done, _total, message):
                steps.append(message)
                calling.cancel()

            with anyio.fail_after(PATIENCE), anyio.CancelScope() as calling:
                await hub.call("s_endless", context=CallContext(on_progress=give_up))
            with anyio.fail_after(PATIENCE):
                await hub.call("s_greet")

    assert steps == ["for ever"]


@pytest.mark.parametrize("era", ["old", "new"])
async def test_a_task_that_is_lost_with_its_server_is_reported_as_lost(tmp_path, era):
    with settings(tmp_path, "stdio", era) as given:
        async with open_hub(given) as hub:
            await hub.call("s_greet")

            def kill(*_):
                os.kill(hub.links["s"].pid, signal.SIGKILL)

            with anyio.fail_after(PATIENCE), pytest.raises(Unavailable, match="no longer knows"):
                await hub.call("s_endless", context=CallContext(on_progress=kill))


async def test_the_callers_own_limit_ends_the_wait_for_a_task(tmp_path):
    with settings(tmp_path, "stdio", "new") as given:
        async with open_hub(given) as hub:
            limit = CallContext(timeout=0.3, hard_timeout=0.4)
            await hub.call("s_greet")
            with anyio.fail_after(PATIENCE), pytest.raises(CallTimeout):
                await hub.call("s_endless", context=limit)


def test_both_spellings_of_a_new_task_are_read():
    old = read_created(b'{"task":{"taskId":"1","status":"working","ttl":5.5,"pollInterval":0}}')
    new = read_created(b'{"resultType":"task","taskId":"1","status":"working","ttlMs":5}')

    assert old is not None
    assert new is not None
    assert (old.ttl, old.poll, new.ttl) == (6, 1, 5)


@pytest.mark.parametrize(
    "result",
    [
        b'{"content":[],"task":{"taskId":"1","status":"working"}}',
        b'{"resultType":"complete"}',
        b"[",
    ],
)
def test_other_results_are_no_tasks(result):
    assert read_created(result) is None


@pytest.mark.parametrize(
    "task",
    [b"{}", b'{"taskId":"","status":"working"}', b'{"taskId":"1","status":"odd"}', b'{"taskId":1}'],
)
def test_a_task_that_cannot_be_read_is_refused(task):
    with pytest.raises(ValueError, match="task"):
        read_state(task)


def test_the_id_of_a_task_does_not_stay_in_its_result():
    result = b'{"content":[],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"1"},"a":1}}'

    assert bytes(plain_result(result)) == b'{"content":[],"_meta":{"a":1}}'


@cells
async def test_a_started_call_is_followed_by_its_handle(tmp_path, transport, era):
    with settings(tmp_path, transport, era) as given:
        async with open_hub(given) as hub:
            with anyio.fail_after(PATIENCE):
                first = await hub.start("s_slow_compute", {"label": "x"})
                result = await first.result()
                endless = await hub.start("s_endless")
                while endless.message != "for ever":
                    await anyio.sleep(0.05)
                assert endless.status == "working"
                await endless.cancel()
                with pytest.raises(MultitapError, match="cancelled"):
                    await endless.result()

    assert (first.status, result.text) == ("completed", "computed x")
    assert endless.status == "cancelled"


ASKING = Handlers(callers_answer_within=30)
zoos = pytest.mark.parametrize("mode", ["good_legacy", "good_modern"])


def with_zoo(tmp_path, mode):
    return Settings(state_dir=tmp_path, servers={"z": zoo(mode)})


@cells
async def test_what_a_started_call_asks_is_answered_at_its_handle(tmp_path, transport, era):
    with settings(tmp_path, transport, era) as given:
        async with open_hub(given, handlers=ASKING) as hub:
            seen = []
            with anyio.fail_after(PATIENCE):
                started = await hub.start("s_multi_input")
                async for question in started.questions():
                    seen.append((started.status, question.params["message"]))
                    name = next(iter(question.params["requestedSchema"]["properties"]))
                    content = {name: "Ada" if name == "name" else True}
                    started.answer(question, types.ElicitResult(action="accept", content=content))
                    with pytest.raises(MultitapError, match="not open"):
                        started.answer(question, {"action": "decline"})
                result = await started.result()

    asks = ["s asks: really?", "s asks: who are you?"]
    assert sorted(seen) == [("input_required", message) for message in asks]
    assert result.text == "{'name': 'Ada'} {'confirm': True}"
    assert started.status == "completed"


@zoos
async def test_a_started_call_without_a_task_asks_the_callers_model(tmp_path, mode):
    async with open_hub(with_zoo(tmp_path, mode), handlers=ASKING) as hub:
        with anyio.fail_after(PATIENCE):
            started = await hub.start("z_sample")
            async for question in started.questions():
                assert question.method == "sampling/createMessage"
                text = question.params["messages"][0]["content"]["text"]
                content = {"type": "text", "text": f"{text}: hello"}
                started.answer(question, {"role": "assistant", "content": content, "model": "m"})
            result = await started.result()

    assert "Say hello: hello" in result.text


@zoos
async def test_a_question_that_nobody_answers_is_refused_with_the_reason(tmp_path, mode):
    impatient = Handlers(callers_answer_within=1)
    async with open_hub(with_zoo(tmp_path, mode), handlers=impatient) as hub:
        with anyio.fail_after(PATIENCE):
            started = await hub.start("z_ask")
            questions = [question.method async for question in started.questions()]
            result = await started.result()
            called = await hub.call("z_ask")

    assert questions == ["elicitation/create"]
    assert (result.is_error, called.is_error) == (True, True)
    assert "nobody answered the question in 1 seconds" in result.text
    assert "nobody answers for this call" in called.text


@zoos
async def test_a_question_is_refused_at_the_handle(tmp_path, mode):
    async with open_hub(with_zoo(tmp_path, mode), handlers=ASKING) as hub:
        with anyio.fail_after(PATIENCE):
            started = await hub.start("z_ask")
            async for question in started.questions():
                started.answer(question, types.ErrorData(code=-1, message="not today"))
            invalid = await hub.start("z_ask")
            async for question in invalid.questions():
                invalid.answer(question, {"action": "perhaps"})
            results = [await started.result(), await invalid.result()]

    assert "not today" in results[0].text
    assert "the answer to the question is invalid" in results[1].text


@pytest.mark.parametrize("era", ["old", "new"])
def test_a_started_call_of_a_synchronous_hub_asks_too(tmp_path, era):
    with settings(tmp_path, "stdio", era) as given, SyncHub(given, handlers=ASKING) as hub:
        started = hub.start("s_test_tool_with_task")
        for question in started.questions():
            assert started.status == "input_required"
            started.answer(question, {"action": "accept", "content": {"name": "Ada"}})

        assert started.result().text == "done for Ada"


def test_a_started_call_of_a_synchronous_hub_is_followed_too(tmp_path):
    with settings(tmp_path, "stdio", "old") as given, SyncHub(given) as hub:
        started = hub.start("s_greet", {"name": "Ada"})

        assert started.result().text == "Hello, Ada!"
        assert started.status == "completed"
