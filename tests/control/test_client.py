"""A program that asks a gateway: it waits, follows, shows progress, and answers questions."""

import json
import threading

import anyio
import pytest
from msgspec import Raw

from multitap.control.client import ControlClient, follow, wait
from multitap.control.messages import PersonReply
from multitap.control.methods import ActionUser, method
from multitap.control.places import own_socket
from multitap.errors import MultitapError
from multitap.events import ServerLog
from tests.gateway.talking import zoo
from tests.waiting import PATIENCE


class Answering(ActionUser):
    """A person who says their name."""

    can_answer = True

    def __init__(self):
        self.steps = []
        self.questions = []

    def on_progress(self, step):
        self.steps.append(step)

    async def answer(self, question):
        self.questions.append(question)
        return PersonReply(Raw(b'{"action": "accept", "content": {"name": "Ada"}}'))


async def test_a_person_is_asked_during_their_call(gateway, client):
    person = Answering()
    async with gateway(zoo=zoo()) as running:
        delivery = await client.call("zoo_ask", person=person)
        (record,) = running.hub.calls.latest()

    assert "Ada" in json.loads(bytes(delivery.result))["content"][0]["text"]
    assert (delivery.server, delivery.tool, record.client) == ("zoo", "ask", "command line")
    assert [question.server for question in person.questions] == ["zoo"]


async def test_a_person_sees_how_far_their_call_is(gateway, client):
    person = Answering()
    async with gateway(zoo=zoo()):
        await client.call("zoo_progress", Raw(b'{"steps": 5, "interval": 0.1}'), person=person)

    assert person.steps


async def test_an_answer_reaches_only_the_action_that_has_its_id(gateway, client):
    async with gateway():
        assert not await client.answer("guessed", 1)


async def test_a_large_result_arrives_whole(gateway, client):
    text = "x" * (3 * 1024 * 1024)
    async with gateway(zoo=zoo()):
        delivery = await client.call("zoo_echo", Raw(json.dumps({"text": text}).encode()))

    assert text in bytes(delivery.result).decode()


async def test_a_stopped_gateway_is_reported(gateway, state, client):
    async with gateway():
        pass

    with pytest.raises(MultitapError, match="the gateway has stopped"):
        await client.about()


async def test_a_stream_ends_with_an_error_when_the_gateway_stops(gateway, client):
    async with anyio.create_task_group() as tasks:
        started, errors = anyio.Event(), []

        async def watch():
            async with client.events() as events:
                started.set()
                with pytest.raises(MultitapError, match="the gateway has stopped") as raised:
                    await anext(events)
                errors.append(raised.value)

        async with gateway():
            tasks.start_soon(watch)
            await started.wait()

    assert errors


async def test_programs_without_a_loop_wait_and_follow(gateway, state):
    client = ControlClient(own_socket(state))
    pids, lines, ended = [], [], threading.Event()

    def program():
        pids.append(wait(client.about()).pid)
        with follow(client.events()) as events:
            pids.append(wait(client.about()).pid)
            while not events.ended:
                lines.extend(event.text for event in events.within(0.05))
        ended.set()

    async with anyio.create_task_group() as tasks, gateway() as running:
        tasks.start_soon(anyio.to_thread.run_sync, program)
        with anyio.fail_after(PATIENCE):
            while len(pids) < 2:
                await anyio.sleep(0.01)
            running.hub.events.publish(ServerLog("calc", "info", None, "first"))
            while not lines:
                await anyio.sleep(0.01)

    assert (len(pids), lines, ended.is_set()) == (2, ["first"], True)


@pytest.mark.parametrize("name", sorted(method))
def test_each_method_has_a_schema(name):
    assert method[name].answer is not None or name in {"restart", "accept_pins", "login"}
    if name in {"about", "tools"}:
        assert method[name].unpack(b"{}") == {}
