"""Threat: what is withheld, filtered, denied or hidden by a profile is used all the same."""

import json
import sys
from pathlib import Path

import mcp_types as types
import pytest
from mcp import MCPError

from multitap import Settings, StdioServer, open_hub
from multitap.config import Profile
from multitap.config.models import Serve
from multitap.errors import MultitapError
from multitap.store.audit_log import AuditFile
from tests.gateway.talking import MODES, Talker, gate

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")
PROGRAM = Path(__file__).parent / "offers_server.py"
HONEST = {
    "tools": [{"name": "do", "description": "Does.", "inputSchema": {"type": "object"}}],
    "prompts": [{"name": "ask", "description": "Asks.", "arguments": [{"name": "x"}]}],
    "resources": [{"uri": "note://one", "name": "one", "description": "A note."}],
    "resourceTemplates": [{"uriTemplate": "page://{id}", "name": "p", "description": "A page."}],
}
CHANGED = {
    kind: [{**one, "description": one["description"] + " Changed."} for one in offers]
    for kind, offers in HONEST.items()
}
SPELLINGS = (
    "note://one",
    "NOTE://one",
    "note://%6fne",
    "note://one#x",
    "note:///one",
    "note://x/../one",
)
PAGES = ("page://1", "page://%31", "page://{id}")
TOOLS = ("s_do", "do", "S_do", "s_d\u006f", "s_do ")


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "offers.json", tmp_path / "heard.jsonl", tmp_path / "hub"


def server(places, offers, **more):
    file, heard, _ = places
    file.write_text(json.dumps(offers))
    return StdioServer(command=sys.executable, args=(str(PROGRAM), str(file), str(heard)), **more)


def heard(places):
    file = places[1]
    return [json.loads(line)[0] for line in file.read_text().splitlines()] if file.exists() else []


def refusals(places):
    """What the audit log has about calls of what the caller may not have."""
    entries = [json.loads(one.body) for one in AuditFile(places[2]).entries()]
    return [one for one in entries if one.get("decision") == "deny" and "subject" in one]


async def withheld(places):
    """Settings with a server of which everything changed since it was pinned."""
    state = places[2]
    before = Settings(servers={"s": server(places, HONEST, provenance="registry")}, state_dir=state)
    async with open_hub(before) as hub:
        await hub.settled()
        assert len(hub.catalog.tools) == len(hub.catalog.resources) == 1
    return Settings(servers={"s": server(places, CHANGED, provenance="registry")}, state_dir=state)


async def refused(asking):
    try:
        answer = await asking
    except (MultitapError, MCPError):
        return True
    return bool(getattr(answer, "is_error", False))


async def test_the_library_uses_nothing_that_is_withheld(places):
    async with open_hub(await withheld(places)) as hub:
        await hub.settled()
        asked = [hub.call(name, {}) for name in TOOLS]
        for uri in (*SPELLINGS, *PAGES):
            asked += [hub.read(uri), hub.read(uri, server="s"), hub.subscribe(uri)]
            asked += [hub.subscribe(uri, server="s")]
        asked += [hub.prompt("s_ask", {}), hub.prompt("ask", {})]
        asked += [hub.complete(name, "x", "") for name in ("s_ask", "ask", "page://{id}")]
        outcomes = [await refused(one) for one in asked]

        assert heard(places) == []
        assert all(outcomes)
    assert {one["subject"] for one in refusals(places)} == {"s_do", "do"}


def everything(client, address=lambda uri: uri):
    """Every way in which a client may ask for what it does not see."""
    for name in TOOLS:
        yield client.call_tool(name, {})
        yield client.call_tool("call_tool", {"name": name, "arguments": {}})
        yield client.call_tool("env_execute_tool", {"name": name, "arguments": {}})
    for uri in map(address, (*SPELLINGS, *PAGES)):
        yield client.read_resource(uri)
        yield client.complete(types.ResourceTemplateReference(uri=uri), {"name": "id", "value": ""})
    for name in ("s_ask", "ask"):
        yield client.get_prompt(name, {})
        yield client.complete(types.PromptReference(name=name), {"name": "x", "value": ""})


async def _use(opened, era, query=""):
    async with Talker(era, opened.url + query) as talker:
        for asking in everything(talker.client):
            await refused(asking)
        if era == "old":
            for uri in (*SPELLINGS, *PAGES):
                await refused(talker.client.session.subscribe_resource(uri))
        said = ""
        for name, given in (("describe_tool", {"name": "s_do"}), ("search_tools", {"query": "do"})):
            try:
                said += (await talker.client.call_tool(name, given)).content[0].text
            except MCPError as exc:
                said += str(exc)
        return said


@pytest.mark.parametrize("listing", ["all", "search"])
@pytest.mark.parametrize("era", MODES)
async def test_no_client_uses_what_is_withheld(places, era, listing):
    settings = await withheld(places)
    settings = settings.replace(serve=Serve(tools=listing))
    async with gate(settings) as opened:
        said = await _use(opened, era)

        assert heard(places) == []
        assert "Does." not in said
    assert {"s_do", "do"} <= {one["subject"] for one in refusals(places)}
    assert {one["client"] for one in refusals(places)} != {""}


@pytest.mark.parametrize("listing", ["all", "search"])
@pytest.mark.parametrize("era", MODES)
async def test_no_client_uses_what_its_profile_hides(places, era, listing):
    settings = Settings(
        servers={"s": server(places, HONEST)},
        profiles={"p": Profile(servers=("other",))},
        serve=Serve(tools=listing),
        state_dir=places[2],
    )
    async with gate(settings) as opened:
        said = await _use(opened, era, "?profile=p")

        assert heard(places) == []
        assert "Does." not in said


@pytest.mark.parametrize(
    "more",
    [
        {"filter": {"deny": ("do",)}},
        {"policy": [{"decision": "deny", "tools": ["do"]}]},
        {"policy": [{"decision": "ask", "tools": ["do"]}]},
    ],
    ids=["filtered", "denied", "asked about, with nobody to ask"],
)
@pytest.mark.parametrize("era", MODES)
async def test_no_client_calls_what_is_not_for_it(places, era, more):
    settings = Settings(
        servers={"s": server(places, HONEST).replace(**more)},
        serve=Serve(tools="search"),
        state_dir=places[2],
    )
    async with gate(settings) as opened, Talker(era, opened.url, able=False) as talker:
        for asking in everything(talker.client):
            await refused(asking)

        assert "tools/call" not in heard(places)
        assert "resources/read" in heard(places)
