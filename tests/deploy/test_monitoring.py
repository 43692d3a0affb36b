"""The board and the rules of `deploy/`, in a real Prometheus that scrapes a real gateway."""

import json
import re
import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest
from mcp.server.mcpserver import MCPServer

from multitap.config import LocalServer, Settings
from multitap.gateway.metrics import FAMILIES
from tests.gateway.hostile.raw import dial, stateless
from tests.gateway.talking import gate, zoo
from tests.waiting import PATIENCE, until_told

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yaml"
BOARD = json.loads((DEPLOY / "grafana" / "board.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
MANY = 500

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs Debian's package prometheus"
)


def test_the_board_and_the_rules_use_only_what_is_measured():
    measured = {family.name: family for family in FAMILIES}
    texts = [*QUERIES, RULES.read_text()]
    names = {name for text in texts for name in re.findall(r"\b(?:mcp|multitap|process)_\w+", text)}

    names -= {name for family in FAMILIES for name in family.labels}
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in names} <= measured.keys()


@needs_prometheus
def test_promtool_accepts_the_rules_and_the_configuration():
    for kind, path in (("rules", RULES), ("config", DEPLOY / "prometheus" / "prometheus.yml")):
        subprocess.run(["promtool", "check", kind, path], check=True, capture_output=True)


REFRESHES = "multitap_login_refreshes_total"
FAILING = "mcp_server_operation_duration_seconds_count"
SERIES = f"""
rule_files: [{RULES}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'multitap_server_up{{server="a"}}', values: '1 1 0x20'}}
      - {{series: 'multitap_server_up{{server="b"}}', values: '1x20'}}
      - {{series: 'multitap_server_queue_length{{server="a"}}', values: '0 1x20'}}
      - {{series: '{REFRESHES}{{server="a",outcome="failed"}}', values: '0 0 1x20'}}
      - {{series: '{FAILING}{{server="a"}}', values: '0+90x30'}}
      - {{series: '{FAILING}{{server="a",error_type="timeout"}}', values: '0+5x30'}}
      - {{series: '{FAILING}{{server="a",error_type="-32603"}}', values: '0+5x30'}}
      - {{series: '{FAILING}{{server="b"}}', values: '0+99x30'}}
      - {{series: '{FAILING}{{server="b",error_type="timeout"}}', values: '0+1x30'}}
      - {{series: '{FAILING}{{server="b",error_type="rejected"}}', values: '0+9x30'}}
    alert_rule_test:
"""


@needs_prometheus
@pytest.mark.parametrize(
    ("alert", "at", "servers"),
    [
        ("MultitapServerDown", "3m", []),
        ("MultitapServerDown", "5m", ["a"]),
        ("MultitapQueue", "5m", []),
        ("MultitapQueue", "7m", ["a"]),
        ("MultitapLoginRefreshFails", "4m", ["a"]),
        ("MultitapErrors", "5m", []),
        ("MultitapErrors", "20m", ["a"]),
    ],
)
def test_an_alert_is_raised_when_it_should_be(tmp_path, alert, at, servers):
    test = tmp_path / "test.yaml"
    texts = {
        "MultitapServerDown": (
            "The MCP server {} is down",
            "`multitap doctor {}` says why.",
        ),
        "MultitapQueue": (
            "Calls have waited for {} for five minutes",
            "It is too slow for its clients, or `limits.in_flight` is too low.",
        ),
        "MultitapLoginRefreshFails": (
            "The login at {} cannot be renewed",
            "`multitap login {}` logs in again.",
        ),
        "MultitapErrors": (
            "10% of the calls to {} fail",
            "`multitap calls server:{} status:error` lists them.",
        ),
    }
    labels = {"MultitapLoginRefreshFails": {"outcome": "failed"}}.get(alert, {})
    expected = [
        {
            "exp_labels": {"server": server, "severity": "warning", **labels},
            "exp_annotations": dict(
                zip(
                    ("summary", "description"),
                    (text.format(server) for text in texts[alert]),
                    strict=True,
                )
            ),
        }
        for server in servers
    ]
    case = {"eval_time": at, "alertname": alert, "exp_alerts": expected}
    test.write_text(SERIES + f"      - {json.dumps(case)}\n")

    ran = subprocess.run(
        ["promtool", "test", "rules", test], capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stderr + ran.stdout


@contextmanager
def prometheus(folder, target):
    """A running Prometheus with our rules; yields its address."""
    rules = RULES.read_text().replace("[5m]", "[10s]")
    (folder / "rules.yaml").write_text(rules)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "multitap", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [f"--web.listen-address={address}", f"--storage.tsdb.path={folder}/data"]
    with subprocess.Popen(
        ["prometheus", f"--config.file={folder}/prometheus.yml", *options],
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield address
        finally:
            process.kill()


async def query(client, address, expression):
    """The series that Prometheus finds; none while it starts."""
    try:
        async with client.get(
            f"http://{address}/api/v1/query", params={"query": expression}
        ) as response:
            found = await response.text()
            assert response.status in {200, 503}, found
            return json.loads(found)["data"]["result"] if response.status == 200 else []
    except aiohttp.ClientConnectionError:
        return []


def many_tools():
    server = MCPServer("many")
    for number in range(MANY):
        server.add_tool(lambda: "done", name=f"tool_{number}", description="Does something.")
    return server


@needs_prometheus
@pytest.mark.slow
async def test_no_panel_of_the_board_is_empty(tmp_path):
    servers = {"good": zoo(), "many": LocalServer(server=many_tools())}
    settings = Settings(servers=servers, state_dir=tmp_path / "state")
    async with gate(settings) as opened:
        port = int(opened.url.split(":")[2].partition("/")[0])
        queries = [
            text.replace("$__rate_interval", "10s").replace("$server", ".*").replace("$tool", ".*")
            for text in QUERIES
        ]
        with prometheus(tmp_path, f"127.0.0.1:{port}") as address:
            async with aiohttp.ClientSession() as client, anyio.create_task_group() as tasks:
                tasks.start_soon(call_everything, port)
                for text in queries:

                    async def is_shown(text=text):
                        return [
                            series
                            for series in await query(client, address, text)
                            if series["value"][1] != "NaN"
                        ]

                    with anyio.fail_after(PATIENCE):
                        assert await until_told(is_shown), text
                down = await query(client, address, "scrape_samples_scraped")
                assert int(down[0]["value"][1]) > 30 * MANY
                tasks.cancel_scope.cancel()


async def call_everything(port):
    async with dial(port) as line:
        while True:
            for number in range(MANY):
                await line.asks(stateless(number, "tools/call", name=f"many_tool_{number}"))
            await line.asks(stateless(1, "tools/call", name="good_echo", arguments={"text": "a"}))
            await line.asks(stateless(2, "tools/list"))
