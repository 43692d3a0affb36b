"""Scripts that wait for a person: any replica goes on, once."""

import json

import anyio
import pytest

from tests.cluster.redis_server import needs_redis
from tests.cluster.staging import replicas
from tests.cluster.test_killed_replica import Gateway
from tests.gateway.hostile.raw import dial, stateless
from tests.gateway.test_scripts import ASK, Shop, configured

pytestmark = [needs_redis]

CODE = """
done = [shop_get_order(id=1)["total"]]
for number in [1, 2, 3]:
    done.append(shop_cancel_order(id=number)["cancelled"])
print("x" * 10)
done
"""
LARGE = f"text = 'x' * 100000\n{CODE}"
YES = {"approval": {"action": "accept", "content": {"decision": "once"}}}


async def ask(port, code, **params):
    """The response to a script, or to its continuation."""
    async with dial(port) as line:
        able = {"elicitation": {}}
        arguments = {"code": code}
        request = stateless(
            1, "tools/call", able=able, name="run_code", arguments=arguments, **params
        )
        return json.loads((await line.asks(request)).body)


@pytest.fixture
def shop():
    return Shop()


@pytest.mark.parametrize("code", [CODE, LARGE], ids=["small", "large"])
async def test_another_replica_goes_on_and_nothing_runs_twice(redis_server, tmp_path, shop, code):
    two = [configured(tmp_path / str(number), shop, policy=ASK) for number in range(2)]
    async with replicas(redis_server, *two) as opened:
        paused = (await ask(opened.port(0), code))["result"]
        state = paused["requestState"]
        before = [*shop.cancelled]
        port = opened.port(1)
        await opened.end(0)
        changed = await ask(port, f"{code}\n1", requestState=state, inputResponses=YES)
        middle = len(state) // 2
        letter = "A" if state[middle] != "A" else "B"
        forged = f"{state[:middle]}{letter}{state[middle + 1 :]}"
        tampered = await ask(port, code, requestState=forged, inputResponses=YES)
        done = await ask(port, code, requestState=state, inputResponses=YES)
        again = await ask(port, code, requestState=state, inputResponses=YES)

    assert paused["resultType"] == "input_required"
    assert "3 calls" in paused["inputRequests"]["approval"]["params"]["message"]
    assert len(state) < 100_000
    assert before == []
    assert "not one of ours" in tampered["error"]["message"]
    assert "another script" in changed["error"]["message"]
    assert done["result"]["content"][0]["text"] == "xxxxxxxxxx\n[10,true,true,true]"
    assert "was continued before" in again["error"]["message"]
    assert shop.cancelled == [1, 2, 3]
    assert shop.read == [1]


SERVER = '''
import sys
from mcp.server import MCPServer
server = MCPServer("shop")

@server.tool()
def cancel_order(id: int) -> dict[str, bool]:
    """Cancel an order."""
    with open(sys.argv[1], "a") as file:
        file.write(f"{id}\\n")
    return {"cancelled": True}

server.run()
'''


async def test_a_killed_gateway_loses_no_script_and_repeats_no_call(redis_server, tmp_path):
    redis_server.ask("FLUSHALL")
    (tmp_path / "shop.py").write_text(SERVER)
    log = tmp_path / "cancelled"
    config = f"""
auto_reload = false
policy = [{{ decision = "ask", tools = ["*cancel*"] }}]
[serve]
tools = "code"
[servers.shop]
command = "{Gateway.python}"
args = ["{tmp_path / "shop.py"}", "{log}"]
"""
    # another call between them: the person is asked about the loop first, then about the last
    code = (
        "for n in (1, 2):\n    shop_cancel_order(id=n)\nprint('y')\n"
        "search_tools('orders')\nreturn shop_cancel_order(id=5)"
    )
    gateways = [Gateway(tmp_path, number, redis_server.url, config) for number in range(2)]
    try:
        for gateway in gateways:
            await anyio.to_thread.run_sync(gateway.wait)
        first, second = gateways
        paused = (await ask(first.port, code))["result"]
        state = paused["requestState"]
        paused = (await ask(first.port, code, requestState=state, inputResponses=YES))["result"]
        after_two = log.read_text()
        await anyio.to_thread.run_sync(first.kill)
        state = paused["requestState"]
        done = await ask(second.port, code, requestState=state, inputResponses=YES)
        again = await ask(second.port, code, requestState=state, inputResponses=YES)
    finally:
        for gateway in gateways:
            gateway.close()

    assert after_two == "1\n2\n"
    assert done["result"]["content"][0]["text"] == 'y\n{"cancelled":true}'
    assert "error" in again
    assert log.read_text() == "1\n2\n5\n"
