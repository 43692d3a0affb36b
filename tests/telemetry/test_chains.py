"""Client, gateway and server in one trace: in both eras, over pipes and HTTP, at both ends."""

import json
import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from itertools import product
from pathlib import Path

import anyio
import pytest
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from opentelemetry import trace

from tests.gateway import cells
from tests.gateway.talking import MODES, PATIENCE, Talker, served_cells
from tests.telemetry.collector import collecting
from tests.waiting import until_told

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


@contextmanager
def configured(folder, web, collector):
    """The command of a gateway before all four servers, and its environment."""
    lines = [f"state_dir = {json.dumps(str(folder / 'state'))}", "[telemetry]", 'traces = "otlp"']
    for era in MODES:
        lines += [f"[servers.{era}http]", f"url = {json.dumps(web[era].url)}"]
        lines += [f"[servers.{era}stdio]", f"command = {json.dumps(sys.executable)}"]
        lines += [f"args = {json.dumps([cells.__file__, era])}", 'sandbox = "off"']
    config = folder / "multitap.toml"
    config.write_text("\n".join(lines))
    env = {
        **os.environ,
        "HOME": str(folder),
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_SERVICE_NAME": "our gateway",
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
    }
    yield [sys.executable, "-m", "multitap", "serve", "--config", str(config)], env


@contextmanager
def http_gateway(command, env):
    with subprocess.Popen(
        [*command, "--http", "127.0.0.1:0"], env=env, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            lines = (re.search(r"http://127.0.0.1:\d+/mcp", line) for line in process.stderr)
            yield next(match for match in lines if match)[0]
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


@asynccontextmanager
async def clients(command, env, url):
    """A client of each era on each transport."""
    program = StdioServerParameters(
        command=command[0], args=[*command[1:], "--alone"], cwd=Path.cwd(), env=env
    )
    async with (
        Talker("old", url) as old_http,
        Talker("new", url) as new_http,
        Talker("old", stdio_client(program)) as old_stdio,
        Talker("new", stdio_client(program)) as new_stdio,
    ):
        yield {
            ("http", "old"): old_http,
            ("http", "new"): new_http,
            ("stdio", "old"): old_stdio,
            ("stdio", "new"): new_stdio,
        }


def traced(number):
    """A span of a client, as its own SDK would have begun it."""
    context = trace.SpanContext(
        0xABC0 + number, 0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1)
    )
    return trace.use_span(trace.NonRecordingSpan(context))


async def test_every_pair_of_eras_and_transports_is_one_chain(tmp_path):
    cases = [*product(("http", "stdio"), MODES, MODES, ("http", "stdio"))]
    assert len(cases) == 16
    with (
        collecting() as collector,
        served_cells() as web,
        configured(tmp_path, web, collector) as (command, env),
        http_gateway(command, env) as url,
    ):
        async with clients(command, env, url) as found:
            received = []
            for number, (transport, era, server_era, wire) in enumerate(cases):
                with traced(number), anyio.fail_after(PATIENCE):
                    name = f"{server_era}{wire}_traceparent"
                    result = await found[transport, era].client.call_tool(name, {})
                received.append(result.content[0].text)

            async def is_complete():
                calls = [span for span in collector.spans if span["name"].startswith("tools/")]
                return calls if len(calls) >= 2 * len(cases) else None

            await until_told(is_complete)

    for number, (case, text) in enumerate(zip(cases, received, strict=True)):
        transport, era, server_era, wire = case
        # a client of the SDK lists tools before its first call
        spans = [
            span
            for span in collector.of(f"{0xABC0 + number:032x}")
            if span["name"].startswith("tools/call")
        ]
        (ours,) = [span for span in spans if span["kind"] == "server"]
        (theirs,) = [span for span in spans if span["kind"] == "client"]
        assert ours["parent"] == f"{0xDEF:016x}", case
        assert theirs["parent"] == ours["id"], case
        # the server's parent is our exchange with it, and no other span
        assert text.split("-")[1:3] == [theirs["trace"], theirs["id"]], case
        assert ours["name"] == f"tools/call {server_era}{wire}_traceparent"
        assert theirs["name"] == "tools/call traceparent"
        assert (
            ours["attributes"]["network.transport"] == {"http": "tcp", "stdio": "pipe"}[transport]
        )
        assert theirs["attributes"]["network.transport"] == {"http": "tcp", "stdio": "pipe"}[wire]
        assert ("server.port" in theirs["attributes"]) is (wire == "http")
        assert "mcp.session.id" not in ours["attributes"]
        assert "multitap.exchange" in ours["events"]
    assert collector.resource["service.name"] == "our gateway"
