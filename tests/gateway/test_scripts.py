"""Code mode: scripts whose calls go the way of all calls, and wait for people."""

import json

import anyio
import mcp_types as types
import msgspec
import pytest
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError

from multitap import Settings
from multitap.config import LocalServer, Profile
from multitap.config.models import Serve
from multitap.config.policy_rules import PolicyRule
from multitap.store.audit_log import AuditFile
from tests.gateway.talking import Talker, gate
from tests.waiting import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

LOOP = """
done = []
for number in [1, 2, 3]:
    done.append(shop_cancel_order(id=number)["cancelled"])
done
"""


@pytest.fixture(params=["old", "new"])
def era(request):
    return request.param


class Shop:
    """A server that counts what it is asked to do."""

    def __init__(self):
        self.cancelled = []
        self.read = []
        self.server = MCPServer("shop")
        for function in (
            self.list_orders,
            self.get_order,
            self.cancel_order,
            self.wait,
            self.secret,
        ):
            self.server.add_tool(function)

    def list_orders(self, status: str = "open") -> dict[str, list[int]]:
        """List orders."""
        return {"orders": [1, 2, 3]}

    def get_order(self, id: int) -> dict[str, int]:  # noqa: A002 - as tools name it
        """Get an order."""
        if id > 3:
            raise ToolError(f"no order {id}")
        self.read.append(id)
        return {"id": id, "total": 10 * id}

    def cancel_order(self, id: int) -> dict[str, bool]:  # noqa: A002 - as tools name it
        """Cancel an order."""
        self.cancelled.append(id)
        return {"cancelled": True}

    async def wait(self) -> str:
        """Take a while."""
        await anyio.sleep(0.3)
        return "done"

    def secret(self) -> str:
        """Hidden from code."""
        return "hidden"


@pytest.fixture
def shop():
    return Shop()


def configured(folder, shop, *, serve=Serve(tools="code"), policy=(), **more):
    """Settings with code mode and one server."""
    return Settings(
        servers={"shop": LocalServer(server=shop.server)},
        serve=serve,
        policy=policy,
        state_dir=folder,
        profiles={"code": Profile(tools="code", deny=("*secret",))},
        **more,
    )


@pytest.fixture
def settings(tmp_path, shop):
    def make(**more):
        return configured(tmp_path, shop, **more)

    return make


ASK = (PolicyRule(tools=("*cancel*",), decision="ask"),)


class Decider(Talker):
    """A client whose user decides about calls."""

    def __init__(self, *args, decision="once"):
        super().__init__(*args)
        self.decision = decision

    async def _elicit(self, _, params):
        self.asked.append(params)
        return types.ElicitResult(action="accept", content={"decision": self.decision})


def words(result):
    return result.content[0].text


async def run(talker, code):
    return await talker.client.call_tool("run_code", {"code": code})


async def test_clients_list_three_tools_and_a_script_calls_the_others(settings, shop, era):
    async with gate(settings()) as opened, Talker(era, opened.url) as talker:
        listed = [tool.name for tool in (await talker.client.list_tools()).tools]
        total = await run(
            talker, "sum(shop_get_order(id=n)['total'] for n in shop_list_orders()['orders'])"
        )
        both = await run(
            talker,
            "import asyncio\n"
            "r = await asyncio.gather(shop_get_order(id=1), shop_get_order({'id': 2}))\n"
            "print(r[0]['total'])\nreturn r[1]",
        )
        found = await run(talker, "search_tools('look up an order')")

        assert listed == ["search_tools", "describe_tool", "run_code"]
        assert words(total) == "60"
        assert words(both) == '10\n{"id":2,"total":20}'
        assert "shop_get_order(id: integer)" in words(found)
        assert opened.hub.metrics.tools("shop")["get_order"].calls == 5


async def test_code_mode_is_off_unless_it_is_configured(settings, era):
    for serve in (Serve(), Serve(tools="search")):
        async with gate(settings(serve=serve)) as opened, Talker(era, opened.url) as talker:
            with pytest.raises(MCPError):
                await run(talker, "1")


async def test_an_error_names_the_line_the_tool_and_what_was_done(settings, shop, era):
    async with gate(settings()) as opened, Talker(era, opened.url) as talker:
        result = await run(talker, "shop_cancel_order(id=1)\nprint('x')\nshop_get_order(id=9)")
        missing = await run(talker, "shop_get_ordr(id=1)")
        hidden = await run(talker, "import os\nos.environ")

        assert result.is_error
        assert words(result).startswith(
            "x\nthe script failed in line 3: RuntimeError: shop_get_order: "
        )
        assert "no order 9" in words(result)
        assert (
            "calls made before: shop_cancel_order in line 1, shop_get_order in line 3 (failed)"
            in words(result)
        )
        assert "NameError: name 'shop_get_ordr' is not defined" in words(missing)
        assert "no call was made" in words(missing)
        assert hidden.is_error


async def test_a_script_sees_what_its_client_sees(settings, era):
    async with (
        gate(settings()) as opened,
        Talker(era, f"{opened.url}?profile=code") as talker,
    ):
        direct = await run(talker, "shop_secret()")
        named = await run(talker, "call_tool('shop_secret', {})")
        nested = await run(talker, "call_tool('run_code', {'code': '1'})")

        assert "not defined" in words(direct)
        assert "hidden from this client" in words(named)
        assert nested.is_error


async def test_every_call_is_recorded_with_its_script(settings, era):
    async with gate(settings()) as opened, Talker(era, opened.url) as talker:
        await run(talker, "shop_get_order(id=1)\nshop_get_order(id=2)")
        records = opened.hub.calls.latest(2)

        assert [record.tool for record in records] == ["get_order", "get_order"]
        assert len({record.session for record in records}) == 1
        assert records[0].session.startswith("script ")


async def test_a_loop_of_writes_asks_once_with_the_list(settings, shop, era):
    async with gate(settings(policy=ASK)) as opened, Decider(era, opened.url) as talker:
        result = await run(talker, LOOP)
        (question,) = talker.asked

        assert json.loads(words(result)) == [True, True, True]
        assert shop.cancelled == [1, 2, 3]
        assert "may a script make 3 calls?" in question.message
        assert '{"id":1}\n  {"id":2}\n  {"id":3}' in question.message


async def test_what_a_waiting_script_has_done_is_recorded_before_a_person_is_asked(
    settings, tmp_path, era
):
    """The gateway may be killed while the person thinks."""
    written = []

    class Reader(Decider):
        async def _elicit(self, *args):
            entries = [msgspec.json.decode(entry.body) for entry in AuditFile(tmp_path).entries()]
            written.extend(entry for entry in entries if entry["kind"] == "script")
            return await super()._elicit(*args)

    async with gate(settings(policy=ASK)) as opened, Reader(era, opened.url) as talker:
        await run(talker, "shop_get_order(id=1)\nshop_cancel_order(id=1)")

    (entry,) = written
    assert entry["outcome"] == "waiting"
    assert entry["detail"] == "1 call: shop_get_order in line 1"


async def test_a_refusal_is_an_error_in_the_script(settings, shop, era):
    async with (
        gate(settings(policy=ASK)) as opened,
        Decider(era, opened.url, decision="no") as talker,
    ):
        result = await run(talker, LOOP)

        assert result.is_error
        assert "shop_cancel_order: a person refused this call" in words(result)
        assert shop.cancelled == []


@pytest.mark.parametrize(
    "code",
    ["import time\ntime.sleep(9)", "for n in range(9):\n    shop_wait()", "while True:\n    pass"],
    ids=["sleep", "calls", "work"],
)
async def test_one_clock_covers_work_calls_and_sleep(settings, shop, era, code):
    async with (
        gate(settings(serve=Serve(tools="code", timeout=1.0))) as opened,
        Talker(era, opened.url) as talker,
    ):
        with anyio.fail_after(PATIENCE):
            result = await run(talker, code)
            after = await run(talker, "shop_list_orders()['orders']")

        assert result.is_error
        assert words(after) == "[1,2,3]"


async def test_a_long_result_is_cut_and_read_on_in_a_script(settings, era):
    serve = Serve(tools="code", token_budget=200)
    async with gate(settings(serve=serve)) as opened, Talker(era, opened.url) as talker:
        result = await run(talker, "shop_list_orders()\n[{'n': n} for n in range(500)]")
        note = json.loads(words(result))["_cut"]
        more = f"read_result(result='{note['result']}', select='[499].n')"
        rest = await run(talker, more)

        assert note["of"] == 500
        assert words(rest) == "499"
