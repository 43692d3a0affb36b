"""What a client hears of changes, and from when on."""

import json
import sys
from pathlib import Path

import anyio
import pytest

from multitap import Settings
from multitap.catalog.audience import EVERYBODY
from multitap.config import StdioServer
from multitap.gateway.subscriptions import MOST_EARLY, Listener
from tests.gateway import plain_client
from tests.gateway.plain_server import WATCHED
from tests.gateway.starting import starting
from tests.waiting import until

PROGRAM = str(Path(__file__).with_name("plain_server.py"))
ABLE = {"extensions": {"io.modelcontextprotocol/ui": {}}}
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"


class Kept:
    """Takes messages, and keeps their methods."""

    def __init__(self):
        self.methods = []

    def send(self, message):
        self.methods.append(json.loads(message)["method"])
        return True


@pytest.mark.parametrize("server", ["old", "new"])
async def test_a_resource_of_a_server_that_starts_is_followed(tmp_path, server):
    program = StdioServer(command=sys.executable, args=(PROGRAM, server))
    settings = Settings(state_dir=tmp_path / "state", servers={"plain": program})
    async with (
        starting(settings) as opened,
        plain_client.on_http("new", opened.url, ABLE) as client,
        anyio.create_task_group() as tasks,
    ):
        client.listen(tasks, resourceSubscriptions=[WATCHED], toolsListChanged=True)
        await client.hears(ACKNOWLEDGED)
        await until(lambda: opened.gateway.subscriptions._followers)
        await client.text("plain_touch")
        updated = await client.hears(UPDATED)
        tasks.cancel_scope.cancel()

    assert client.heard[0]["method"] == ACKNOWLEDGED
    assert updated["params"]["uri"] == WATCHED


def test_what_changes_before_the_acknowledgement_follows_it():
    kept = Kept()
    listener = Listener(kept, EVERYBODY, "", frozenset({"tools", "prompts"}), {"id": 1})

    for kind in ("tools", "tools", "prompts"):
        listener.lists_changed(frozenset({kind}))
    assert kept.methods == []
    listener.acknowledge({})
    listener.lists_changed(frozenset({"tools"}))

    assert kept.methods == [
        ACKNOWLEDGED,
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/tools/list_changed",
    ]


async def test_a_stream_with_too_many_early_changes_ends():
    listener = Listener(Kept(), EVERYBODY, "", frozenset(), {"id": 1})

    for number in range(MOST_EARLY):
        listener.tell(UPDATED, uri=str(number))
    assert not listener.ended.is_set()
    listener.tell(UPDATED, uri="more")

    assert listener.ended.is_set()
