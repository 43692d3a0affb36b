"""What monitoring sees of a gateway."""

import json
import shutil
import subprocess
from functools import partial
from time import perf_counter
from types import SimpleNamespace

import pytest

from multitap.config.models import Quota, Serve
from multitap.gateway.fronts.tokens import Token
from multitap.gateway.metrics import _of_tools
from multitap.results import ToolResult
from tests.gateway.hostile.raw import OLD, dial, http, in_session, message, shake_hands, stateless
from tests.gateway.talking import gate, zoo
from tests.telemetry.exposition import parsed, value
from tests.waiting import until_told

UP = "multitap_server_up"


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


async def metrics(line, **headers):
    text = (await line.asks(http("GET", "/metrics", **headers))).body.decode()
    return parsed(text, is_open="accept" in headers)


async def test_metrics_say_what_servers_and_clients_do(settings):
    servers = {"good": zoo(), "bad": zoo("exit_at_start"), "off": zoo(enabled=False)}
    async with gate(settings(**servers)) as opened, dial(port(opened)) as line:
        assert (await line.asks(stateless(1, "tools/list"))).status == 200
        await line.asks(stateless(2, "tools/call", name="good_echo", arguments={"text": "hi"}))
        async with dial(port(opened)) as other:
            await other.asks(http("GET", "/metrics", host="elsewhere.example"))
        samples = await metrics(line)

    call = {"mcp_method_name": "tools/call", "server": "good"}
    served = "mcp_server_operation_duration_seconds_count"
    assert value(samples, served, **call, gen_ai_tool_name="good_echo") == 1
    assert value(samples, served, mcp_method_name="tools/list") == 1
    asked = "mcp_client_operation_duration_seconds_count"
    assert value(samples, asked, **call, gen_ai_tool_name="echo") == 1
    assert value(samples, "multitap_gateway_overhead_seconds_count", server="good") == 1
    up = {dict(labels)["server"]: up for (name, labels), up in samples.items() if name == UP}
    assert up == {"good": 1, "bad": 0}
    assert value(samples, "multitap_server_queue_length", server="good") == 0
    assert value(samples, "multitap_server_tools", server="good") > 0
    assert value(samples, "multitap_list_tokens", server="good") > 10
    assert value(samples, "multitap_approvals_waiting") == 0
    assert value(samples, "process_resident_memory_bytes") > 1e6
    assert value(samples, "multitap_rejected_requests_total", reason="host") == 1


OVERHEAD = "multitap_gateway_overhead_seconds"
REJECTED = "multitap_rejected_calls_total"


async def test_what_the_gateway_adds_to_a_call_is_measured_from_byte_to_byte(settings):
    servers = {"own": zoo(session="per-client"), "good": zoo()}
    async with gate(settings(**servers)) as opened, dial(port(opened)) as line:
        session = await shake_hands(line)
        for number, name in enumerate(("good_echo", "good_echo", "own_echo"), 1):
            call = message(number, "tools/call", name=name, arguments={"text": "hi"})
            assert (await line.asks(in_session(session, call))).text == "hi"
        # as if its bytes had been read a minute before
        late = SimpleNamespace(result=ToolResult(b"{}", server="good", tool="echo", waited=1.0))
        opened.gateway.on_answered(late, perf_counter() - 60)
        samples = await metrics(line)

    assert value(samples, f"{OVERHEAD}_count", server="good") == 3
    assert value(samples, f"{OVERHEAD}_count", server="own") == 1
    assert value(samples, f"{OVERHEAD}_sum", server="good") >= 59


async def test_calls_that_reach_no_tool_are_counted_by_reason(settings):
    serve = Serve(quota=Quota(calls_per_hour=2))
    async with gate(settings(good=zoo(), serve=serve)) as opened, dial(port(opened)) as line:
        for number in range(3):
            await line.asks(stateless(number, "tools/call", name="nothing", arguments={}))
        samples = await metrics(line)

    assert value(samples, REJECTED, reason="unknown") == 2
    assert value(samples, REJECTED, reason="quota") == 1


async def test_a_session_that_ended_is_measured(settings):
    async with gate(settings(good=zoo())) as opened, dial(port(opened)) as line:
        session = await shake_hands(line)
        before = await metrics(line)
        assert (await line.asks(http("DELETE", mcp_session_id=session))).status == 200
        after = await metrics(line)

    labels = {"mcp_protocol_version": OLD, "network_transport": "tcp"}
    assert value(before, "multitap_sessions") == 1
    assert value(after, "multitap_sessions") == 0
    assert value(after, "mcp_server_session_duration_seconds_count", **labels) == 1


async def test_a_server_that_was_restarted_is_measured(settings):
    async with gate(settings(good=zoo())) as opened, dial(port(opened)) as line:
        opened.hub.restart("good")

        async def is_restarted():
            samples = await metrics(line)
            is_up = value(samples, UP, server="good")
            return samples if is_up and restarts(samples) else None

        restarts = partial(value, name="multitap_server_restarts_total", server="good")
        samples = await until_told(is_restarted)

    assert restarts(samples) == 1
    assert value(samples, "mcp_client_session_duration_seconds_count", server="good") == 1


async def test_open_metrics_is_written_for_those_that_ask_for_it(settings):
    async with gate(settings(good=zoo())) as opened, dial(port(opened)) as line:
        accept = "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"
        samples = await metrics(line, accept=accept)

    assert value(samples, UP, server="good") == 1


async def test_a_client_cannot_make_labels_of_its_own(settings):
    async with gate(settings(good=zoo())) as opened, dial(port(opened)) as line:
        assert (await line.asks(stateless(1, "evil/method"))).status == 404
        samples = await metrics(line)

    methods = {dict(labels).get("mcp_method_name") for _, labels in samples}
    assert "_OTHER" in methods
    assert "evil/method" not in methods


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Prometheus' promtool")
async def test_promtool_accepts_the_metrics_of_a_gateway(settings):
    async with gate(settings(good=zoo())) as opened, dial(port(opened)) as line:
        await line.asks(stateless(2, "tools/call", name="good_echo", arguments={"text": "hi"}))
        text = (await line.asks(http("GET", "/metrics"))).body
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def port(opened):
    return int(opened.url.split(":")[2].partition("/")[0])


async def test_strangers_learn_only_whether_it_is_alive_and_able(settings):
    token = Token(b"a-secret-of-some-length", "ann")
    servers = {"good": zoo(), "bad": zoo("crash_loop")}
    async with gate(settings(**servers), tokens=(token,)) as opened, dial(port(opened)) as line:

        async def is_degraded():
            told = (await line.asks(http("GET", "/health"))).body
            return told if b"degraded" in told else None

        assert await until_told(is_degraded) == b'{"status":"degraded"}'
        able = await line.asks(http("GET", "/ready"))
        assert (able.status, able.body) == (200, b'{"ready":true}')
        head = await line.asks(http("HEAD", "/ready"))
        assert (head.status, head.body) == (200, b"")
        opened.gateway.is_leaving = True
        assert (await line.asks(http("GET", "/ready"))).status == 503
        assert (await line.asks(http("GET", "/health"))).status == 200
        assert (await line.asks(http("POST", "/health"))).status == 401


def test_shaped_results_are_shown_by_tool_and_only_to_those_who_may_see_it():
    samples = {
        "multitap_shaped_results_total": [(("s", "mine"), 1), (("s", "other"), 2), (("t", "x"), 3)],
        "multitap_server_up": [(("s",), 1), (("t",), 1)],
        "multitap_sessions": [((), 5)],
    }

    shown = _of_tools(samples, {("s", "mine")})

    assert {name: pairs for name, pairs in shown.items() if pairs} == {
        "multitap_shaped_results_total": [(("s", "mine"), 1)],
        "multitap_server_up": [(("s",), 1)],
    }
