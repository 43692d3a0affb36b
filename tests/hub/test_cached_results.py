"""Results that are given again: for whom, for how long, and which are not."""

import pytest
from mcp.server import MCPServer
from mcp_types import ToolAnnotations
from msgspec import Raw

from multitap import Settings, open_hub
from multitap.config import LocalServer
from multitap.hub.cached_results import LARGEST, MOST, CachedResults
from multitap.upstream.questions import CallContext

SAFE = ToolAnnotations(read_only_hint=True, idempotent_hint=True)
OK = Raw(b'{"content":[]}')


class Counter:
    def __init__(self):
        self.calls = 0
        self.server = MCPServer("counter")
        self.server.add_tool(self.read, annotations=SAFE)
        self.server.add_tool(self.fail, annotations=SAFE)
        self.server.add_tool(self.read, name="other", annotations=SAFE)
        self.server.add_tool(
            self.read, name="unsure", annotations=ToolAnnotations(read_only_hint=True)
        )

    def read(self, page: int = 1, more: str = "") -> int:
        """Count."""
        self.calls += 1
        return self.calls

    def fail(self) -> int:
        """Fail."""
        self.calls += 1
        raise RuntimeError("no")


@pytest.fixture
def counter():
    return Counter()


@pytest.fixture
def settings(tmp_path, counter):
    cache = {"read": 60.0, "fail": 60.0, "unsure": 60.0}
    servers = {"c": LocalServer(server=counter.server, cache=cache)}
    return Settings(servers=servers, state_dir=tmp_path)


async def test_the_same_call_of_the_same_caller_is_made_once(settings, counter):
    async with open_hub(settings) as hub:
        await hub.settled()
        first = await hub.call("c_read", {"page": 1, "more": "x"})
        again = await hub.call("c_read", {"more": "x", "page": 1})
        second = await hub.call("c_read", {"page": 2})
        others = [
            await hub.call("c_read", {"page": 2}, context=CallContext(agent_id="ann"))
            for _ in range(2)
        ]

        assert (first.text, again.text, second.text) == ("1", "1", "2")
        assert [other.text for other in others] == ["3", "3"]
        # each is counted and recorded all the same
        assert hub.metrics.tools("c")["read"].calls == 5
        hub.apply(settings.replace(health_interval=31.0))
        assert (await hub.call("c_read", {"page": 2})).text == "4"


@pytest.mark.parametrize("tool", ["fail", "other", "unsure"])
async def test_what_fails_is_not_named_or_may_change_something_is_called_again(
    settings, counter, tool
):
    async with open_hub(settings) as hub:
        await hub.settled()
        for _ in range(2):
            await hub.call(f"c_{tool}", {})

        assert counter.calls == 2


def test_results_age_and_are_bounded():
    now = 0.0
    cached = CachedResults(clock=lambda: now)
    cached.keep(b"a", 10, OK)
    cached.keep(b"question", 10, Raw(b'{"resultType":"input_required"}'))
    cached.keep(b"large", 10, Raw(b'{"content":"%b"}' % (b"x" * LARGEST)))

    assert cached.find(b"a") == OK
    assert cached.find(b"question") is None
    assert cached.find(b"large") is None
    now = 11.0
    assert cached.find(b"a") is None
    for number in range(MOST + 1):
        cached.keep(b"%d" % number, 10, OK)
    assert cached.find(b"0") is None
    assert cached.find(b"1") == OK
