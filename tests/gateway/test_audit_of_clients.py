"""The audit log says for which client, and by whose token, a call was made."""

import json
import os
import signal
import sys
from contextlib import suppress

import anyio
import msgspec
import pytest

from multitap.config import Settings, StdioServer
from multitap.config.policy_rules import PolicyRule
from multitap.store.audit_log import AuditFile
from tests.cluster.crowd import Crowd, NonceLedger
from tests.cluster.gateways import GatewayProcess, running_beside
from tests.gateway import cells
from tests.gateway.talking import MODES, Talker, gate
from tests.processes import descendants
from tests.waiting import PATIENCE

RULE = PolicyRule(decision="deny", tools=["fail"], arguments={"x": {"given": True}})


@pytest.mark.parametrize("era", MODES)
async def test_entries_name_the_client_and_the_decision(tmp_path, era):
    server = StdioServer(command=sys.executable, args=(cells.__file__, "old"))
    settings = Settings(servers={"old": server}, policy=(RULE,), state_dir=tmp_path)
    async with gate(settings) as opened, Talker(era, opened.url) as talker:
        await talker.client.call_tool("old_add", {"a": 1, "b": 2})
        refused = await talker.client.call_tool("old_fail", {"x": 1})

    assert refused.is_error
    denied, allowed = (msgspec.json.decode(one.body) for one in AuditFile(tmp_path).entries())
    assert allowed["client"].startswith("mcp")
    assert (allowed["tool"], allowed["outcome"]) == ("add", "ok")
    assert (denied["tool"], denied["outcome"], denied["decision"]) == ("fail", "refused", "deny")


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "workers"])
async def test_no_answered_call_is_missing_in_the_required_log_of_a_killed_gateway(
    tmp_path, options
):
    ledger = NonceLedger(tmp_path)
    entry = json.loads(ledger.config().read_text())["mcpServers"]["nonces"]
    config = tmp_path / "multitap.toml"
    config.write_text(
        "[audit]\nrequired = true\narguments = true\n[servers.nonces]\n"
        f"command = {entry['command']!r}\nargs = {entry['args']!r}\n"
    )
    gateway, crowd = GatewayProcess(tmp_path, config, *options), Crowd(pause=0.01)
    with anyio.fail_after(PATIENCE):
        async with (
            running_beside(gateway),
            crowd.at_work(gateway.url, stateless=8, handshake=8, is_lasting=False),
        ):
            for worker in descendants(gateway.process.pid):
                with suppress(ProcessLookupError):  # it has ended with its parent
                    os.kill(worker, signal.SIGKILL)
            gateway.kill()
    entries = AuditFile(gateway.state / "multitap").entries()
    nonces = {msgspec.json.decode(entry.body)["arguments"].get("nonce") for entry in entries}

    assert len(crowd.answered) >= 16
    assert crowd.answered <= nonces
