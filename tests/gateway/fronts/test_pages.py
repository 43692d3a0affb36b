"""What monitoring sees of a gateway."""

import json

from tests.gateway.hostile.raw import dial, http
from tests.gateway.talking import gate, zoo
from tests.waiting import until_told


async def test_health_says_that_a_server_keeps_failing(settings):
    servers = {"good": zoo(), "bad": zoo("crash_loop")}
    async with gate(settings(**servers)) as opened, dial(port(opened)) as line:

        async def is_degraded():
            told = json.loads((await line.asks(http("GET", "/health"))).body)
            return told if told["status"] == "degraded" else None

        told = await until_told(is_degraded)

    assert told["servers"] == 2
    (reason,) = told["degraded"]
    assert reason.startswith("the server bad keeps failing")


async def test_health_is_ok_while_servers_work_or_are_disabled(settings):
    servers = {"good": zoo(), "off": zoo("exit_at_start", enabled=False)}
    async with gate(settings(**servers)) as opened, dial(port(opened)) as line:
        told = json.loads((await line.asks(http("GET", "/health"))).body)

    assert told == {"status": "ok", "servers": 2, "connected": 1}


def port(opened):
    return int(opened.url.split(":")[2].partition("/")[0])
