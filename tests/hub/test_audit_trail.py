"""What a hub writes into the audit log, and what it does when it cannot."""

import anyio
import msgspec
import pytest
from mcp.server import MCPServer

from multitap import CallContext, LocalServer, Settings, ToolFilter, open_hub
from multitap.config.policy_rules import PolicyRule
from multitap.errors import BadArguments, Denied, MultitapError, NotAllowed
from multitap.store.audit_log import FILE_NAME, AuditFile
from multitap.trust import audit
from tests.store.full_disk import full_disk
from tests.waiting import until


def notes():
    server = MCPServer("notes")

    @server.tool()
    def add(text: str, password: str = "") -> str:
        return text

    @server.tool()
    async def hang() -> str:
        await anyio.sleep_forever()
        return "never"

    return server


def settings(tmp_path, **fields):
    return Settings(servers={"notes": LocalServer(server=notes())}, state_dir=tmp_path, **fields)


def told(tmp_path):
    return [msgspec.json.decode(entry.body) for entry in AuditFile(tmp_path).entries()][::-1]


async def test_calls_are_written_with_who_what_and_how_they_ended(tmp_path):
    async with open_hub(settings(tmp_path)) as hub:
        await hub.settled()
        await hub.call("notes_add", {"text": "x"}, context=CallContext(agent_id="writer"))

    (entry,) = told(tmp_path)
    assert entry["kind"] == "call"
    assert (entry["server"], entry["tool"], entry["agent"]) == ("notes", "add", "writer")
    assert entry["outcome"] == "ok"
    assert entry["principal"] == audit.system_user()
    assert "arguments" not in entry


async def test_the_decision_and_its_rule_are_written(tmp_path):
    rules = (PolicyRule(decision="deny", arguments={"text": {"matches": "^no"}}),)
    async with open_hub(settings(tmp_path, policy=rules)) as hub:
        await hub.settled()
        await hub.call("notes_add", {"text": "yes"})
        with pytest.raises(Denied):
            await hub.call("notes_add", {"text": "no"})

    allowed, denied = told(tmp_path)
    assert allowed["decision"] == "allow"
    assert (denied["decision"], denied["outcome"]) == ("deny", "refused")


async def test_arguments_are_written_on_request_and_without_secrets(tmp_path):
    async with open_hub(settings(tmp_path, audit={"arguments": True})) as hub:
        await hub.settled()
        await hub.call("notes_add", {"text": "x", "password": "hunter2hunter2"})

    assert told(tmp_path)[0]["arguments"] == {"text": "x", "password": "***"}


async def test_nothing_is_written_where_it_is_off(tmp_path):
    async with open_hub(settings(tmp_path, audit={"enabled": False})) as hub:
        await hub.settled()
        await hub.call("notes_add", {"text": "x"})

    assert not (tmp_path / FILE_NAME).exists()


async def test_a_log_that_cannot_be_written_is_reported_and_calls_go_on(tmp_path):
    (tmp_path / FILE_NAME).mkdir()
    async with open_hub(settings(tmp_path)) as hub:
        await hub.settled()
        await hub.call("notes_add", {"text": "x"})
        await until(lambda: hub.store.is_audit_delayed)

        assert (await hub.call("notes_add", {"text": "y"})).success
        assert any("audit log" in warning for warning in hub.store.warnings)


async def test_calls_are_refused_where_the_log_is_required(tmp_path):
    (tmp_path / FILE_NAME).mkdir()
    async with open_hub(settings(tmp_path, audit={"required": True})) as hub:
        await hub.settled()
        with pytest.raises(MultitapError, match="its result is withheld"):
            await hub.call("notes_add", {"text": "x"})

        with pytest.raises(Denied, match="audit log"):
            await hub.call("notes_add", {"text": "y"})
        (tmp_path / FILE_NAME).rmdir()
        await until(lambda: not hub.store.is_audit_delayed)
        assert (await hub.call("notes_add", {"text": "z"})).success

    assert [entry["outcome"] for entry in told(tmp_path)] == ["ok", "refused", "ok"]


async def test_a_required_entry_is_written_before_the_answer(tmp_path):
    async with open_hub(settings(tmp_path, audit={"required": True})) as hub:
        await hub.settled()
        for count in range(1, 4):
            await hub.call("notes_add", {"text": "x"})
            assert len(told(tmp_path)) == count
        with pytest.raises(BadArguments):
            await hub.call("notes_add", {})

        assert len(told(tmp_path)) == 4


async def test_a_required_entry_of_a_hidden_tool_is_written_before_the_refusal(tmp_path):
    filters = {"writer": ToolFilter(deny=("notes_add",))}
    hidden = LocalServer(server=notes(), filter=ToolFilter(deny=("add",)))
    hiding = settings(tmp_path, audit={"required": True}, agents=filters)
    async with open_hub(hiding.with_servers({**hiding.servers, "hidden": hidden})) as hub:
        await hub.settled()
        with pytest.raises(NotAllowed):
            await hub.call("hidden_add", {"text": "x"})
        assert len(told(tmp_path)) == 1
        with pytest.raises(NotAllowed):
            await hub.call("notes_add", {}, context=CallContext(agent_id="writer"))

        assert [entry["outcome"] for entry in told(tmp_path)] == ["refused", "refused"]


async def test_what_became_of_a_call_without_a_result_is_withheld_as_well(tmp_path):
    (tmp_path / FILE_NAME).mkdir()
    async with open_hub(settings(tmp_path, audit={"required": True})) as hub:
        await hub.settled()
        with pytest.raises(MultitapError, match="its result is withheld"):
            await hub.call("notes_hang", {}, timeout=0.05)


async def test_calls_go_on_when_a_full_disk_has_room_again(tmp_path):
    async with open_hub(settings(tmp_path, audit={"required": True})) as hub:
        await hub.settled()
        with full_disk(), pytest.raises(MultitapError, match="its result is withheld"):
            await hub.call("notes_add", {"text": "x"})
        await until(lambda: not hub.store.is_audit_delayed)

        assert (await hub.call("notes_add", {"text": "y"})).success
    assert len(told(tmp_path)) == 2


def test_other_events_are_written_at_once(tmp_path):
    audit.record("secret.set", subject="github", state_dir=tmp_path)

    (entry,) = told(tmp_path)
    assert (entry["kind"], entry["subject"]) == ("secret.set", "github")


def test_an_event_that_cannot_be_written_says_why(tmp_path, caplog):
    (tmp_path / FILE_NAME).mkdir()

    audit.record("secret.set", state_dir=tmp_path)

    assert "cannot be written" in caplog.text
