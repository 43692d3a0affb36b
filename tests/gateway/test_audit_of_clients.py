"""The audit log says for which client, and by whose token, a call was made."""

import sys

import msgspec
import pytest

from multitap.config import Settings, StdioServer
from multitap.config.policy_rules import PolicyRule
from multitap.store.audit_file import AuditFile
from tests.gateway import cells
from tests.gateway.talking import MODES, Talker, gate

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
