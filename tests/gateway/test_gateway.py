"""All servers as one: lists, notifications, and errors for clients."""

import json
import os
from contextlib import asynccontextmanager
from functools import partial

import anyio
import mcp_types as types
import pytest
from mcp import MCPError
from mcp.server import MCPServer
from mcp.server.mcpserver.prompts import base
from mcp.server.subscriptions import ResourceUpdated, ToolsListChanged
from msgspec import Raw

from multitap import open_hub
from multitap.config import HttpServer, Limits, LocalServer, Profile, ToolFilter
from multitap.errors import Overloaded
from multitap.gateway import subscriptions
from multitap.gateway.client import Client, able, fit, stateless_request
from multitap.gateway.fronts.tokens import Token
from multitap.gateway.parked_calls import MOST_EACH, TTL, ParkedCalls
from multitap.gateway.private_links import PrivateLinks
from multitap.http.server.request import EventWriter
from multitap.principal import token_principal
from multitap.tasks import Tasks
from multitap.upstream import notifications
from multitap.upstream.questions import CallContext
from multitap.wire.jsonrpc import EMPTY, RequestParams
from tests.gateway import cells
from tests.gateway.talking import (
    PATIENCE,
    Talker,
    gate,
    zoo,
)
from tests.processes import descendants
from tests.waiting import until
from tests.wire.sdk_web import served, toolbox
from tests.zoo.ledger import Ledger
from tests.zoo.offers import PID

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

URL, TOOLS = {"mode": "url"}, {"tools": [{}]}
ADA, BOB = (Token(f"{name}-0123456789abcdef".encode(), name) for name in ("ada", "bob"))


@pytest.fixture(params=["old", "new"])
def era(request):
    return request.param


def adder(name="add"):
    server = MCPServer("adder")

    @server.tool(name)
    def add(a: int, b: int | None = None) -> int:
        return a + (b or 0)

    return server


async def names(talker):
    return {tool.name for tool in (await talker.client.list_tools()).tools}


async def refused(talker, name, arguments=None, **more):
    with pytest.raises(MCPError) as caught, anyio.fail_after(PATIENCE):
        await talker.client.call_tool(name, arguments or {}, **more)
    return caught.value.error


async def test_a_client_sees_what_its_profile_shows(settings, era):
    shown = Profile(servers=("a*",), deny=("*_crash",))
    servers = {"a": zoo(), "b": zoo()}
    async with (
        gate(settings(**servers, profiles={"some": shown})) as opened,
        Talker(era, f"{opened.url}?profile=some") as some,
        Talker(era, opened.url) as everything,
    ):
        seen, all_of_it = await names(some), await names(everything)
        hidden = await refused(some, "a_crash")
        foreign = await refused(some, "b_echo", {"text": "x"})
        prompts = {one.name for one in (await some.client.list_prompts()).prompts}

    assert "a_crash" in all_of_it - seen
    assert {name for name in seen if name.startswith("b_")} == set()
    assert prompts == {"a_greet", "a_plain"}
    assert hidden.data["reason"] == foreign.data["reason"] == "hidden"


async def _two_zoos(settings):
    """Settings of two servers with the same addresses, where `a` had them first."""
    async with open_hub(settings(a=zoo())) as hub:
        await hub.settled()
    return settings(a=zoo(), b=zoo())


async def test_resources_with_the_same_address_are_all_there(settings, era):
    wanted = await _two_zoos(settings)
    async with gate(wanted) as opened, Talker(era, opened.url) as talker:
        listed = [str(one.uri) for one in (await talker.client.list_resources()).resources]
        templates = (await talker.client.list_resource_templates()).resource_templates
        read = await talker.client.read_resource("zoo://b/~/text")
        made = await talker.client.read_resource("zoo://b/~/item/7")

    assert sorted(listed) == ["zoo://b/~/blob", "zoo://b/~/text", "zoo://blob", "zoo://text"]
    assert {one.uri_template for one in templates} == {"zoo://item/{id}", "zoo://b/~/item/{id}"}
    assert (read.contents[0].text, str(read.contents[0].uri)) == ("the text", "zoo://b/~/text")
    assert (made.contents[0].text, str(made.contents[0].uri)) == ("7", "zoo://b/~/item/7")


async def test_a_client_hears_of_a_resource_by_the_address_it_knows(settings):
    wanted = await _two_zoos(settings)
    async with gate(wanted) as opened, Talker("new", opened.url) as talker:
        uri = "zoo://b/~/text"
        async with talker.client.listen(resource_subscriptions=[uri]) as stream:
            await talker.client.call_tool("b_touch", {"uri": "zoo://text"})
            with anyio.fail_after(PATIENCE):
                assert await anext(aiter(stream)) == ResourceUpdated(uri=uri)


async def test_an_old_client_follows_a_resource_by_the_address_it_knows(settings, tmp_path):
    ledgers = {name: Ledger(tmp_path / name) for name in ("a", "b")}
    for ledger in ledgers.values():
        ledger.folder.mkdir()
    await _two_zoos(settings)
    wanted = settings(**{name: zoo(env=ledger.env) for name, ledger in ledgers.items()})
    async with gate(wanted) as opened, Talker("old", opened.url) as talker:
        uri = "zoo://b/~/text"
        await talker.client.subscribe_resource(uri)
        await talker.client.call_tool("a_touch", {"uri": "zoo://text"})
        await talker.client.call_tool("b_touch", {"uri": "zoo://text"})
        heard = await talker.heard("notifications/resources/updated")
        await talker.client.unsubscribe_resource(uri)
        await talker.client.call_tool("b_touch", {"uri": "zoo://text"})
        told = talker.hearsay("notifications/resources/updated")

    assert str(heard.params.uri) == uri
    assert len(told) == 1
    assert "resources/subscribe" not in ledgers["a"].methods
    assert ledgers["b"].methods.count("resources/unsubscribe") == 1


@pytest.mark.parametrize("session", ["shared", "per-client"])
async def test_all_that_a_client_asks_of_a_server_is_done_in_one_session(settings, era, session):
    wanted = settings(zoo=zoo(session=session))
    async with gate(wanted) as opened, Talker(era, opened.url) as talker:
        called = await talker.client.call_tool("zoo_pid", {})
        read = await talker.client.read_resource(f"zoo://item/{PID}")

    assert read.contents[0].text == called.content[0].text


@pytest.mark.parametrize("session", ["shared", "per-client"])
async def test_a_client_follows_resources_in_the_session_that_works_for_it(settings, era, session):
    wanted = settings(zoo=zoo(session=session))
    async with gate(wanted) as opened, Talker(era, opened.url) as talker:
        touch = partial(talker.client.call_tool, "zoo_touch", {"uri": "zoo://text"})
        if era == "old":
            await talker.client.subscribe_resource("zoo://text")
            await touch()
            heard = (await talker.heard("notifications/resources/updated")).params
        else:
            async with talker.client.listen(resource_subscriptions=["zoo://text"]) as stream:
                await touch()
                with anyio.fail_after(PATIENCE):
                    heard = await anext(aiter(stream))

    assert str(heard.uri) == "zoo://text"


def app(name):
    """A server with an MCP app, whose page has the same address at every such server."""
    page = "ui://widget/main.html"
    server = MCPServer(name)
    meta = {"ui": {"resourceUri": page}, "ui/resourceUri": page}

    @server.tool(meta=meta)
    def show() -> types.CallToolResult:
        link = types.ResourceLink(name="page", uri=page)
        embedded = types.TextResourceContents(uri=page, text="as it is")
        content = [link, types.EmbeddedResource(resource=embedded), types.TextContent(text=page)]
        return types.CallToolResult(content=content, _meta=meta)

    @server.tool()
    def refresh() -> str:
        return name

    @server.resource(page)
    def main() -> str:
        return f"the page of {name}"

    @server.resource("ui://widget/{part}.js")
    def part(part: str) -> str:
        return f"{part} of {name}"

    @server.completion()
    async def complete(ref, argument, context):
        return types.Completion(values=[f"{name} {ref.uri} {argument.value}"])

    @server.prompt()
    def ask() -> list[base.UserMessage]:
        embedded = types.TextResourceContents(uri=page, text="as it is")
        return [base.UserMessage(types.EmbeddedResource(resource=embedded))]

    return LocalServer(server=server)


async def test_everything_that_refers_to_a_renamed_page_is_rewritten(settings, era):
    servers = {"alpha": app("alpha"), "beta": app("beta")}
    async with gate(settings(**servers)) as opened, Talker(era, opened.url) as talker:
        tools = {one.name: one for one in (await talker.client.list_tools()).tools}
        pages = {}
        for name in servers:
            meta = tools[f"{name}_show"].meta
            page = pages[name] = meta["ui"]["resourceUri"]
            read = await talker.client.read_resource(page)
            made = await talker.client.read_resource(page.replace("main.html", "x.js"))
            called = await talker.client.call_tool(f"{name}_show", {})
            prompt = await talker.client.get_prompt(f"{name}_ask")
            link, embedded, text = called.content

            assert meta["ui/resourceUri"] == page
            assert (read.contents[0].text, str(read.contents[0].uri)) == (
                f"the page of {name}",
                page,
            )
            assert made.contents[0].text == f"x of {name}"
            assert str(link.uri) == str(embedded.resource.uri) == page
            assert called.meta["ui"]["resourceUri"] == called.meta["ui/resourceUri"] == page
            assert text.text == "ui://widget/main.html"
            assert str(prompt.messages[0].content.resource.uri) == page

    assert "ui://widget/main.html" in pages.values()
    assert {"ui://alpha/~/widget/main.html", "ui://beta/~/widget/main.html"} & {*pages.values()}


async def test_an_argument_of_a_renamed_template_is_completed_by_its_own_server(settings, era):
    servers = {"alpha": app("alpha"), "beta": app("beta")}
    async with gate(settings(**servers)) as opened, Talker(era, opened.url) as talker:
        listed = (await talker.client.list_resource_templates()).resource_templates
        completed = {}
        for one in listed:
            ref = types.ResourceTemplateReference(uri=one.uri_template)
            result = await talker.client.complete(ref, {"name": "part", "value": "x"})
            completed[one.uri_template] = result.completion.values[0]

    own = "ui://widget/{part}.js"
    (renamed,) = completed.keys() - {own}
    other = renamed.split("/")[2]
    (first,) = servers.keys() - {other}
    assert renamed == f"ui://{other}/~/widget/{{part}}.js"
    assert completed == {own: f"{first} {own} x", renamed: f"{other} {own} x"}


async def test_an_app_calls_its_own_servers_tool_by_its_bare_name(settings):
    servers = {"alpha": app("alpha"), "beta": app("beta")}
    async with gate(settings(**servers)) as opened, Talker("old", opened.url) as talker:
        before = await refused(talker, "refresh")
        tools = {one.name: one for one in (await talker.client.list_tools()).tools}
        await talker.client.read_resource(tools["beta_show"].meta["ui"]["resourceUri"])
        after = await talker.client.call_tool("refresh", {})
        await talker.client.read_resource(tools["alpha_show"].meta["ui"]["resourceUri"])
        both = await talker.client.call_tool("refresh", {})

    assert before.data["reason"] == "unknown"
    assert "alpha_refresh, beta_refresh" in before.data["hint"]
    assert after.content[0].text == "beta"
    assert both.content[0].text == "alpha"


async def test_nobody_answers_for_a_server_that_is_down(settings, era):
    await _two_zoos(settings)
    gone = zoo("exit_at_start")
    async with gate(settings(a=gone, b=zoo())) as opened, Talker(era, opened.url) as talker:
        listed = {str(one.uri) for one in (await talker.client.list_resources()).resources}
        with pytest.raises(MCPError) as caught:
            await talker.client.read_resource("zoo://text")

    assert listed == {"zoo://b/~/blob", "zoo://b/~/text"}
    assert caught.value.error.data["server"] == "a"


async def test_instructions_are_joined(settings):
    servers = {name: LocalServer(server=cells.build("new", name)) for name in ("one", "two")}
    async with gate(settings(**servers)) as opened, Talker("old", opened.url) as talker:
        assert talker.client.instructions == "# one\nabout one\n\n# two\nabout two"


async def test_a_log_message_of_a_server_in_this_process_reaches_who_called(settings, era):
    servers = {"one": LocalServer(server=cells.build("new", "one"))}
    async with (
        gate(settings(**servers)) as opened,
        Talker(era, opened.url) as talker,
        Talker("old", opened.url) as other,
    ):
        meta = {types.LOG_LEVEL_META_KEY: "error"} if era == "new" else None
        if era == "old":
            await talker.client.set_logging_level("error")
        await talker.client.call_tool("one_log", {}, meta=meta)

    assert talker.logs == [("error", "cells", "said at error")]
    assert other.logs == []


async def test_an_old_client_that_never_said_what_it_wants_to_see_sees_what_is_usual(settings):
    one = LocalServer(server=cells.build("new", "one"))
    async with gate(settings(one=one)) as opened, Talker("old", opened.url) as talker:
        await talker.client.call_tool("one_log", {})

    assert [level for level, *_ in talker.logs] == ["info", "error"]


async def test_a_server_that_never_takes_a_log_level_holds_up_nobody(settings, monkeypatch):
    monkeypatch.setattr(notifications, "SUBSCRIBE_TIMEOUT", 4 * PATIENCE)

    async def never(*_):
        await anyio.sleep_forever()

    stubborn = cells.build("old", "stubborn")
    stubborn.add_request_handler("logging/setLevel", types.SetLevelRequestParams, never)
    servers = {"stubborn": LocalServer(server=stubborn), "one": zoo("good_legacy")}
    async with gate(settings(**servers)) as opened, Talker("old", opened.url) as talker:
        with anyio.fail_after(PATIENCE):
            await talker.client.set_logging_level("error")
        opened.hub.apply(settings(stubborn=servers["stubborn"]))
        await talker.heard("notifications/tools/list_changed")


async def test_many_changes_at_once_are_reported_once(settings, era):
    one = LocalServer(server=cells.build("new", "one"))
    async with gate(settings(one=one)) as opened, Talker(era, opened.url) as talker:

        async def change():
            async with anyio.create_task_group() as tasks:
                for number in range(5):
                    arguments = {"tool": f"more_{number}"}
                    tasks.start_soon(talker.client.call_tool, "one_touch", arguments)
            await until(lambda: "one_more_4" in opened.hub.catalog.tools)

        if era == "old":
            await change()
            await talker.heard("notifications/tools/list_changed")
        else:
            async with talker.client.listen(tools_list_changed=True) as stream:
                await change()
                with anyio.fail_after(PATIENCE):
                    assert await anext(aiter(stream)) == ToolsListChanged()
        assert "one_more_4" in await names(talker)

    assert len(talker.hearsay("notifications/tools/list_changed")) == 1


async def test_a_change_that_a_client_saw_is_reported_when_it_is_undone(settings, monkeypatch):
    monkeypatch.setattr(subscriptions, "DEBOUNCE", 1.0)
    one, two = (LocalServer(server=cells.build("new", name)) for name in ("one", "two"))
    async with gate(settings(one=one)) as opened, Talker("old", opened.url) as talker:
        opened.hub.apply(settings(one=one, two=two))
        await until(lambda: "two_touch" in opened.hub.catalog.tools)
        assert "two_touch" in await names(talker)
        opened.hub.apply(settings(one=one))
        await talker.heard("notifications/tools/list_changed")
        assert "two_touch" not in await names(talker)


async def test_each_failure_has_a_code_and_a_reason_of_its_own(settings, era):
    servers = {
        "ok": zoo(
            check_arguments="refuse", timeouts={"sleep": 0.2}, filter=ToolFilter(deny=("crash",))
        ),
        "busy": zoo("good_legacy", limits=Limits(in_flight=1, queue=0)),
        "dead": zoo("exit_at_start"),
        "dying": zoo("good", retry="never"),
    }
    async with gate(settings(**servers)) as opened, Talker(era, opened.url) as talker:
        call = talker.client.call_tool
        found = {
            "unknown": await refused(talker, "ok_nothing"),
            "hidden": await refused(talker, "ok_crash"),
            "timeout": await refused(talker, "ok_sleep", {"seconds": 5}),
            "unavailable": await refused(talker, "dying_crash"),
        }
        bad = await call("ok_echo", {"text": 7})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, "busy_sleep", {"seconds": 5})
            await until(lambda: opened.hub.snapshot().server("busy").in_flight)
            found["overloaded"] = await refused(talker, "busy_echo", {"text": "x"})
            tasks.cancel_scope.cancel()
        await until(lambda: not opened.hub.snapshot().server("busy").in_flight)
        await (
            talker.client.list_tools()
        )  # what the cancelled call is told must arrive before it leaves

    assert {kind: error.data["reason"] for kind, error in found.items()} == {
        kind: kind for kind in found
    }
    assert {kind: error.code for kind, error in found.items()} == {
        "unknown": -32602,
        "hidden": -32602,
        "timeout": -32001,
        "unavailable": -32000,
        "overloaded": -32003,
    }
    assert "exit" in found["unavailable"].message
    assert found["unavailable"].data["server"] == "dying"
    assert "limits.queue" in found["overloaded"].data["hint"]
    assert bad.is_error
    assert "text" in bad.content[0].text


@pytest.mark.parametrize(("retry", "times"), [("hinted", 2), ("never", 1)])
async def test_a_lost_call_is_repeated_once_where_that_does_no_harm(
    settings, era, tmp_path, retry, times
):
    ledger = Ledger(tmp_path)
    spoken = "handshake" if era == "old" else "stateless"
    server = zoo("exit_mid_call", "--once", env=ledger.env, retry=retry, era=spoken)
    async with gate(settings(zoo=server)) as opened, Talker(era, opened.url) as talker:
        if retry == "hinted":
            assert not (await talker.client.call_tool("zoo_fault_hinted", {})).is_error
        else:
            error = await refused(talker, "zoo_fault_hinted", {})
            assert error.data["reason"] == "unavailable"
            assert "exited with code" in error.message

    assert ledger.calls.count("fault_hinted") == times


async def test_a_tool_of_a_server_that_is_down_says_why_and_what_to_do(settings, era, tmp_path):
    missing = zoo().replace(command=str(tmp_path / "nowhere"))
    servers = settings(gone=missing, ok=zoo())
    async with gate(servers) as opened, Talker(era, opened.url) as talker:
        error = await refused(talker, "gone_echo", {"text": "x"})

    assert error.code == -32000
    assert error.data["reason"] == "unavailable"
    assert error.data["server"] == "gone"
    assert "nowhere" in error.message
    assert error.data["hint"] in error.message


async def test_a_tool_of_a_server_that_is_still_starting_is_not_said_to_be_unknown(settings, era):
    async with gate(settings(ok=zoo())) as opened, Talker(era, opened.url) as talker:
        deaf = zoo(timeout=0.3).replace(command="sleep", args=("60",))
        opened.hub.apply(settings(ok=zoo(), slow=deaf))
        error = await refused(talker, "slow_echo", {"text": "x"})

    assert error.data["reason"] == "unavailable"
    assert "still starting" in error.message
    assert "0.3 s" in error.message


@pytest.mark.slow
async def test_a_call_waits_for_a_server_that_is_still_starting(settings, era):
    servers = {"ok": zoo(), "slow": zoo("slow_init", timeouts={"sleep": 4})}
    async with gate(settings(ok=zoo())) as opened, Talker(era, opened.url) as talker:
        opened.hub.apply(settings(**servers))
        late = await refused(talker, "slow_sleep", {"seconds": 60})
        with anyio.fail_after(PATIENCE):
            opened.hub.apply(settings(ok=zoo(), other=zoo("slow_init")))
            result = await talker.client.call_tool("other_echo", {"text": "x"})

    assert result.content[0].text == "x"
    assert late.data["reason"] == "timeout"
    assert "within 4 s" in late.message


async def test_the_verdict_of_the_server_on_arguments_counts(settings, era):
    lenient = LocalServer(server=adder())
    servers = settings(ok=lenient, strict=lenient.replace(check_arguments="refuse"))
    async with gate(servers) as opened, Talker(era, opened.url) as talker:
        with anyio.fail_after(PATIENCE):
            taken = await talker.client.call_tool("ok_add", {"a": "2", "b": None, "c": 1})
            refused_one = await talker.client.call_tool("strict_add", {"a": "2", "b": None})

    assert (taken.is_error, taken.content[0].text) == (False, "2")
    assert refused_one.is_error


async def test_arguments_that_are_passed_on_with_a_warning_are_reported_once(settings, era):
    servers = settings(ok=LocalServer(server=adder(), check_arguments="warn"))
    async with gate(servers) as opened, Talker(era, opened.url) as talker:
        with anyio.fail_after(PATIENCE):
            results = [await talker.client.call_tool("ok_add", {"a": "2"}) for _ in range(2)]
        warnings = opened.hub.snapshot().server("ok").warnings

    assert [result.content[0].text for result in results] == ["2", "2"]
    assert len(warnings) == 1
    assert "'add'" in warnings[0]


async def test_progress_gives_a_call_time_though_its_client_did_not_ask_for_it(settings, era):
    servers = settings(ok=zoo(timeout=1.5))
    async with gate(servers) as opened, Talker(era, opened.url) as talker:
        with anyio.fail_after(PATIENCE):
            result = await talker.client.call_tool("ok_progress", {"steps": 4, "interval": 0.5})

    assert result.content[0].text == "4 steps"


async def test_the_gateway_waits_longer_than_the_library_unless_told_otherwise(settings):
    servers = settings(ok=zoo(), told=zoo(timeout=30))
    async with gate(servers) as opened:
        limits = {
            name: opened.hub.gateway_defaults.deadline(
                link.config, context=CallContext(), since=0.0
            ).timeout
            for name, link in opened.hub.links.items()
        }

    assert limits == {"ok": 300, "told": 30}


async def test_a_bare_name_works_where_only_one_tool_has_it(settings, era):
    servers = settings(ok=zoo(), one=LocalServer(server=adder("sum_up")), two=zoo())
    async with gate(servers) as opened, Talker(era, opened.url) as talker:
        await names(talker)
        with anyio.fail_after(PATIENCE):
            result = await talker.client.call_tool("sum_up", {"a": 2})
        ambiguous = await refused(talker, "echo", {"text": "x"})

    assert result.content[0].text == "2"
    assert ambiguous.data["reason"] == "unknown"


async def test_a_cancelled_request_of_an_old_client_is_answered_as_such(settings):
    async with gate(settings(ok=zoo("good_legacy"))) as opened, Talker("old", opened.url) as talker:
        session = talker.client.session
        async with anyio.create_task_group() as tasks:
            errors = []

            async def call():
                errors.append(await refused(talker, "ok_sleep", {"seconds": 9}))

            tasks.start_soon(call)
            await until(lambda: opened.hub.snapshot().server("ok").in_flight)
            (client,) = opened.gateway.subscriptions.clients
            (request_id,) = client.scopes
            cancelled = types.CancelledNotificationParams(request_id=int(request_id))
            await session.send_notification(types.CancelledNotification(params=cancelled))

    assert errors[0].code == -32800
    assert errors[0].data == {"reason": "cancelled"}


async def test_a_client_keeps_its_session_while_the_configuration_changes(settings, era):
    async with gate(settings(a=zoo(), b=zoo())) as opened, Talker(era, opened.url) as talker:
        before = await talker.client.call_tool("b_pid", {})
        opened.hub.apply(settings(b=zoo(), c=zoo()))
        await until(lambda: "c_echo" in opened.hub.catalog.tools)
        if era == "old":
            await talker.heard("notifications/tools/list_changed")
        seen = {name.partition("_")[0] for name in await names(talker)}
        after = await talker.client.call_tool("b_pid", {})

    assert seen == {"b", "c"}
    assert before.structured_content == after.structured_content


async def test_each_client_has_a_session_of_its_own_where_a_server_wants_that(settings, tmp_path):
    ledger = Ledger(tmp_path)
    server = zoo("good", session="per-client", env=ledger.env)
    async with gate(settings(own=server)) as opened:
        async with Talker("old", opened.url) as one:
            async with Talker("old", opened.url) as other:
                first = (await one.client.call_tool("own_pid", {})).structured_content
                again = (await one.client.call_tool("own_pid", {})).structured_content
                second = (await other.client.call_tool("own_pid", {})).structured_content
                assert len(opened.gateway.private) == 2
            await until(lambda: len(opened.gateway.private) == 1)
            ended = int(second["result"])
            await until(lambda: ended not in descendants(os.getpid()))
            assert (await one.client.call_tool("own_pid", {})).structured_content == first
        await until(lambda: not len(opened.gateway.private))

    assert first == again != second
    assert len(ledger.pids) == 3


async def test_sessions_of_single_clients_are_bounded(settings):
    async with gate(settings(own=zoo(session="per-client"))) as opened:
        private = PrivateLinks(opened.hub, opened.gateway.tasks, most=1)
        one, other = Client(EventWriter()), Client(EventWriter())
        for client in (one, other):
            client.introduce("2025-11-25", EMPTY, {})
        shared = opened.hub.links["own"]
        link = await private.link(one, shared)

        assert await private.link(one, shared) is link
        with pytest.raises(Overloaded, match="all 1 sessions of single clients"):
            await private.link(other, shared)


@asynccontextmanager
async def asking_gate(settings, *, tokens=(), patience=TTL, **more):
    """A gateway before a server of the handshake era that asks in the middle of calls."""
    with served(cells.build("old").streamable_http_app()) as url:
        server = HttpServer(url=f"{url}/mcp")
        async with gate(settings(old=server, **more), tokens=tokens, patience=patience) as opened:
            yield opened


async def parked(talker, tool="old_ask"):
    """What a client is asked for while its call waits."""
    with anyio.fail_after(PATIENCE):
        result = await talker.client.session.call_tool(tool, {}, allow_input_required=True)
    assert isinstance(result, types.InputRequiredResult)
    return result


async def go_on(talker, state, tool="old_ask", arguments=None):
    answers = {"elicitation-1": types.ElicitResult(action="accept", content={"name": "Ada"})}
    with anyio.fail_after(PATIENCE):
        return await talker.client.session.call_tool(
            tool,
            arguments or {},
            input_responses=answers,
            request_state=state,
            allow_input_required=True,
        )


async def test_a_call_waits_while_a_client_without_session_is_asked(settings):
    async with asking_gate(settings) as opened, Talker("new", opened.url) as talker:
        asked = await parked(talker)
        waiting = len(opened.gateway.parked_calls)
        result = await go_on(talker, asked.request_state)
        await until(lambda: not len(opened.gateway.parked_calls))

    assert waiting == 1
    (question,) = asked.input_requests.values()
    assert question.params.message == "old asks: who are you?"
    assert question.params.requested_schema == cells.ASK.params.requested_schema
    assert result.content[0].text == "accept {'name': 'Ada'}"


async def test_a_client_that_leaves_a_question_out_is_asked_again(settings):
    async with asking_gate(settings) as opened, Talker("new", opened.url) as talker:
        asked = await parked(talker)
        again = await talker.client.session.call_tool(
            "old_ask", {}, request_state=asked.request_state, allow_input_required=True
        )
        with pytest.raises(MCPError) as used:
            await go_on(talker, asked.request_state)
        result = await go_on(talker, again.request_state)

    assert used.value.error.data == {"reason": "expired"}
    assert again.input_requests == asked.input_requests
    assert result.content[0].text == "accept {'name': 'Ada'}"


async def test_a_waiting_call_belongs_to_its_client_and_to_its_request(settings):
    async with (
        asking_gate(settings, tokens=(ADA, BOB)) as opened,
        Talker("new", opened.url, token=ADA.secret.decode()) as ada,
        Talker("new", opened.url, token=BOB.secret.decode()) as bob,
    ):
        state = (await parked(ada)).request_state
        middle = len(state) // 2
        forged = state[:middle] + ("A" if state[middle] != "A" else "B") + state[middle + 1 :]
        wrong = {
            "forged": (ada, forged, "old_ask"),
            "another principal": (bob, state, "old_ask"),
            "another tool": (ada, state, "old_ask_twice"),
        }
        errors = {}
        for kind, (talker, given, tool) in wrong.items():
            with pytest.raises(MCPError) as caught:
                await go_on(talker, given, tool)
            errors[kind] = caught.value.error
        result = await go_on(ada, state)
        with pytest.raises(MCPError) as replayed:
            await go_on(ada, state)

    assert {error.code for error in errors.values()} == {-32602}
    assert {error.data["reason"] for error in errors.values()} == {"invalid_request_state"}
    assert result.content[0].text == "accept {'name': 'Ada'}"
    assert replayed.value.error.data == {"reason": "expired"}


async def test_a_waiting_call_is_bound_to_its_arguments(settings):
    async with asking_gate(settings) as opened, Talker("new", opened.url) as talker:
        state = (await parked(talker)).request_state
        with pytest.raises(MCPError) as caught:
            await go_on(talker, state, arguments={"other": True})

    assert caught.value.error.data == {"reason": "invalid_request_state"}


async def test_a_waiting_call_ends_when_its_client_does_not_come_back(settings):
    async with (
        asking_gate(settings, patience=0.1) as opened,
        Talker("new", opened.url) as talker,
    ):
        state = (await parked(talker)).request_state
        await until(lambda: not len(opened.gateway.parked_calls))
        await until(lambda: not opened.hub.snapshot().server("old").in_flight)
        with pytest.raises(MCPError) as caught:
            await go_on(talker, state)

    assert caught.value.error.data == {"reason": "expired"}


async def test_of_too_many_waiting_calls_the_oldest_is_given_up(settings):
    async with asking_gate(settings) as opened, Talker("new", opened.url) as talker:
        first = (await parked(talker)).request_state
        async with anyio.create_task_group() as tasks:
            for _ in range(MOST_EACH - 1):
                tasks.start_soon(parked, talker)
        last = (await parked(talker)).request_state
        await until(lambda: len(opened.gateway.parked_calls) == MOST_EACH)
        with pytest.raises(MCPError) as caught:
            await go_on(talker, first)
        result = await go_on(talker, last)

    assert caught.value.error.data == {"reason": "expired"}
    assert result.content[0].text == "accept {'name': 'Ada'}"


async def test_a_question_that_a_client_cannot_answer_is_refused(settings, era):
    async with asking_gate(settings) as opened, Talker(era, opened.url, able=False) as talker:
        error = await refused(talker, "old_ask")
        roots = await talker.client.call_tool("old_roots", {})

    assert error.code == types.METHOD_NOT_FOUND
    assert "elicitation" in error.message
    assert roots.content[0].text == "[]"


async def test_a_client_does_not_wait_for_the_calls_of_another_one(settings):
    """A server that asks works for one client at a time, in as many sessions as that takes."""
    server = zoo("good_legacy")
    async with (
        gate(settings(zoo=server)) as opened,
        Talker("old", opened.url) as one,
        Talker("old", opened.url, name="Grace") as other,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(one.client.call_tool, "zoo_sleep", {"seconds": 30})
        await until(lambda: opened.hub.snapshot().server("zoo").in_flight)
        answer = await one.client.call_tool("zoo_ask", {})
        others = await other.client.call_tool("zoo_ask", {})
        sessions = len(opened.gateway.private)
        again = await other.client.call_tool("zoo_ask", {})
        tasks.cancel_scope.cancel()
        await until(lambda: not opened.hub.snapshot().server("zoo").in_flight)

    assert "Ada 1" in answer.content[0].text
    assert "Grace 1" in others.content[0].text
    assert "Grace 2" in again.content[0].text
    assert sessions == 1


async def test_a_question_with_the_wrong_call_of_a_client_goes_with_the_right_one_in_the_end():
    client = Client(EventWriter(), principal=token_principal("ada"))
    meta = {types.CLIENT_CAPABILITIES_META_KEY: Raw(b'{"elicitation":{}}')}
    guests, ends, answers = {}, {}, []

    def request(**more):
        return stateless_request(client, Raw(b"1"), client.outlet, RequestParams(meta=meta, **more))

    async def begin(name):
        async def work(context):
            guests[name], ends[name] = context.client, anyio.Event()
            await ends[name].wait()
            return f'"{name} is done"'.encode()

        return await parked_calls.begin(request(), name, work)

    async def ask():
        answers.append(bytes(await guests["wrong"].ask("elicitation/create", {})))

    async with Tasks() as runs, anyio.create_task_group() as tasks:
        parked_calls = ParkedCalls(runs)
        rounds = {}

        async def keep(name):
            rounds[name] = json.loads(await begin(name))

        for name in ("right", "wrong"):
            tasks.start_soon(keep, name)
        await until(lambda: len(ends) == 2)
        tasks.start_soon(ask)
        await until(lambda: "wrong" in rounds)
        ends["wrong"].set()
        await until(lambda: "right" in rounds)
        responses = Raw(b'{"elicitation-1":{"action":"accept"}}')
        state = rounds["right"]["requestState"]
        ends["right"].set()
        done = await parked_calls.resume(
            request(input_responses=responses, request_state=state), "right"
        )
        await until(lambda: answers)
        tasks.cancel_scope.cancel()

    assert done == b'"right is done"'
    assert answers == [b'{"action":"accept"}']


async def test_a_new_client_is_asked_while_other_calls_of_it_are_under_way(settings):
    async with (
        gate(settings(zoo=zoo("good_legacy")), tokens=(ADA, BOB)) as opened,
        Talker("new", opened.url, token=ADA.secret.decode()) as ada,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(ada.client.call_tool, "zoo_sleep", {"seconds": 30})
        await until(lambda: opened.hub.snapshot().server("zoo").in_flight)
        answer = await ada.client.call_tool("zoo_ask", {})
        tasks.cancel_scope.cancel()

    assert "Ada 1" in answer.content[0].text


async def test_clients_with_sessions_of_their_own_are_not_mixed_up(settings):
    server = zoo("good_legacy", session="per-client")
    async with (
        gate(settings(zoo=server)) as opened,
        Talker("old", opened.url) as one,
        Talker("old", opened.url) as other,
        anyio.create_task_group() as tasks,
    ):
        for talker in (one, other):
            tasks.start_soon(talker.client.call_tool, "zoo_sleep", {"seconds": 0.5})
        for talker in (one, other):
            answer = await talker.client.call_tool("zoo_ask", {})
            assert "Ada 1" in answer.content[0].text


@pytest.mark.parametrize(
    ("capabilities", "method", "params", "fits"),
    [
        pytest.param("{}", "roots/list", {}, False, id="nothing"),
        pytest.param('{"roots":{}}', "roots/list", {}, True, id="roots"),
        pytest.param('{"elicitation":{}}', "elicitation/create", {}, True, id="forms unsaid"),
        pytest.param('{"elicitation":{}}', "elicitation/create", URL, False, id="no addresses"),
        pytest.param('{"elicitation":{"url":{}}}', "elicitation/create", URL, True, id="addresses"),
        pytest.param(
            '{"elicitation":{"url":{}}}', "elicitation/create", {}, False, id="addresses only"
        ),
        pytest.param('{"sampling":{}}', "sampling/createMessage", {}, True, id="a model"),
        pytest.param('{"sampling":{}}', "sampling/createMessage", TOOLS, False, id="no tools"),
        pytest.param(
            '{"sampling":{"tools":{}}}', "sampling/createMessage", TOOLS, True, id="tools"
        ),
        pytest.param("[]", "roots/list", {}, False, id="no capabilities at all"),
    ],
)
def test_a_client_is_asked_only_what_it_can_answer(capabilities, method, params, fits):
    assert able(Raw(capabilities.encode()), method, params) is fits


def test_a_client_without_context_is_not_asked_for_any():
    wish = {"includeContext": "thisServer", "maxTokens": 1}

    assert fit(Raw(b'{"sampling":{}}'), "sampling/createMessage", wish) == {"maxTokens": 1}
    assert fit(Raw(b'{"sampling":{"context":{}}}'), "sampling/createMessage", wish) == wish


async def test_a_server_of_both_eras_can_ask_an_old_client_in_the_middle_of_a_call(settings):
    with served(toolbox().streamable_http_app()) as url:
        box = HttpServer(url=f"{url}/mcp")
        async with gate(settings(box=box)) as opened, Talker("old", opened.url) as talker:
            answer = await talker.client.call_tool("box_ask", {})

    assert answer.content[0].text == "Ada 1"


async def test_a_sleeping_server_of_both_eras_can_ask_an_old_client_too(settings):
    with served(toolbox().streamable_http_app()) as url:
        box = HttpServer(url=f"{url}/mcp", start="lazy")
        for _ in range(2):  # the second time it sleeps until it is called
            async with gate(settings(box=box)) as opened, Talker("old", opened.url) as talker:
                answer = await talker.client.call_tool("box_ask", {})

    assert answer.content[0].text == "Ada 1"


async def test_servers_ask_for_roots_again_when_they_change(settings, tmp_path):
    ledger = Ledger(tmp_path)
    server = zoo("good_legacy", env=ledger.env)
    async with gate(settings(zoo=server)) as opened, Talker("old", opened.url) as talker:
        await talker.client.send_roots_list_changed()
        await until(lambda: "notifications/roots/list_changed" in ledger.methods)


async def test_a_client_that_vanishes_leaves_nothing(settings, era):
    own = zoo(session="per-client")
    async with asking_gate(settings, own=own) as opened:
        gateway = opened.gateway
        async with Talker(era, opened.url) as talker:
            await talker.client.call_tool("own_pid", {})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(talker.client.call_tool, "old_sleep", {})
                if era == "old":
                    await talker.client.subscribe_resource("old://watched")
                await until(lambda: opened.hub.snapshot().server("old").in_flight)
                tasks.cancel_scope.cancel()
            await until(lambda: not opened.hub.snapshot().server("old").in_flight)
            await talker.client.list_tools()  # the SDK stumbles over answers that come later

        await until(lambda: not gateway.subscriptions.clients)
        await until(lambda: not len(opened.front.sessions))
        await until(lambda: era == "new" or not len(gateway.private))

        assert not len(gateway.parked_calls)


async def test_a_client_that_just_listed_hears_of_no_change(settings):
    one, two = zoo("good"), zoo("slow_init")
    async with gate(settings(one=one, two=two)) as opened, Talker("old", opened.url) as talker:
        await names(talker)
        opened.hub.apply(settings(one=one))
        await talker.heard("notifications/tools/list_changed")

    assert len(talker.hearsay("notifications/tools/list_changed")) == 1
