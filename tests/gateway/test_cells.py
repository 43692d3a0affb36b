"""Old and new clients of old and new servers: every feature in every pair."""

import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import mcp_types as types
import pytest
from mcp import MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.server.subscriptions import ResourceUpdated, ToolsListChanged

from multitap import Settings
from multitap.config import StdioServer
from tests.gateway import cells
from tests.gateway.talking import (
    CELLS,
    MODES,
    PATIENCE,
    Talker,
    gate,
    served_cells,
)
from tests.module_life import anyio_backend, nothing_left  # noqa: F401 - fixtures

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

OLD_SERVERS = [cell for cell in CELLS if cell[2] == "old"]


class Cell:
    """One client of one server."""

    def __init__(self, talker, server):
        self.talker = talker
        self.client = talker.client
        self.server = server

    def named(self, tool):
        return f"{self.server}_{tool}"

    async def call(self, tool, arguments=None, **more):
        with anyio.fail_after(PATIENCE):
            return await self.client.call_tool(self.named(tool), arguments or {}, **more)

    async def text(self, tool, arguments=None, **more):
        result = await self.call(tool, arguments, **more)
        assert not result.is_error, result
        return result.content[0].text


@pytest.fixture(scope="module")
async def talkers(tmp_path_factory):
    """Clients by transport and era: those on sockets use servers on pipes, and the other way."""
    home = tmp_path_factory.mktemp("cells")
    with served_cells() as web:
        async with AsyncExitStack() as stack:
            found = {("stdio", era): Talker(era, program(home / era, web)) for era in MODES}
            for talker in found.values():
                await stack.enter_async_context(talker)
            pipes = {
                era: StdioServer(command=sys.executable, args=(cells.__file__, era))
                for era in MODES
            }
            opened = await stack.enter_async_context(
                gate(Settings(state_dir=home / "http", servers=pipes))
            )
            for era in MODES:
                talker = found["http", era] = Talker(era, opened.url)
                await stack.enter_async_context(talker)
            yield found


def program(home, servers):
    """A gateway that is a program, before servers at addresses."""
    home.mkdir()
    lines = [f'state_dir = "{home / "state"}"']
    for name, server in servers.items():
        lines += [f"[servers.{name}]", f'url = "{server.url}"']
    config = home / "multitap.toml"
    config.write_text("\n".join(lines))
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "multitap", "serve", "--config", str(config)],
        cwd=Path.cwd(),
        env=dict(os.environ),
    )
    return stdio_client(parameters)


def named(cell):
    return f"{cell[0]}-{cell[1]} client-{cell[2]} server"


@pytest.fixture(params=CELLS, ids=named)
async def cell(request, talkers):
    transport, client, server = request.param
    talker = talkers[transport, client]
    talker.forget()
    return Cell(talker, server)


async def test_tools_are_listed_with_all_that_servers_say_about_them(cell):
    listed = {tool.name: tool for tool in (await cell.client.list_tools()).tools}

    assert listed[cell.named("add")] == cells.TOOLS[0].model_copy(
        update={"name": cell.named("add")}
    )


async def test_a_call_is_answered_with_all_that_the_tool_says(cell):
    result = await cell.call("add", {"a": 2, "b": 3})

    assert result.structured_content == {"sum": 5}
    assert result.content[0].annotations.priority == 1
    assert result.meta["cells.example/kept"] == cells.META["cells.example/kept"]


async def test_pictures_and_links_pass_unchanged(cell):
    picture, link = (await cell.call("picture")).content

    assert (picture.data, picture.mime_type) == ("AAAA", "image/png")
    assert str(link.uri) == f"{cell.server}://watched"


async def test_what_a_client_says_in_meta_reaches_the_tool(cell):
    assert await cell.text("echo_meta", meta={"cells.mine": 1}) == "['cells.mine']"


async def test_a_tool_that_fails_says_so(cell):
    result = await cell.call("fail")

    assert result.is_error
    assert result.content[0].text == "it failed"


async def test_a_protocol_error_keeps_its_code_words_and_data(cell):
    with pytest.raises(MCPError, match="a protocol error") as caught:
        await cell.call("wrong")

    assert caught.value.error.code == cells.WRONG
    assert caught.value.error.data == {"why": "asked for"}


async def test_resources_are_listed_and_read(cell):
    uri = f"{cell.server}://watched"
    listed = {str(one.uri): one for one in (await cell.client.list_resources()).resources}
    read = await cell.client.read_resource(uri)

    assert listed[uri].icons == [cells.ICON]
    assert listed[uri].meta == cells.META
    assert read.contents[0].text == f"it is {uri}"
    assert read.meta["cells.example/kept"] == cells.META["cells.example/kept"]


async def test_a_resource_that_is_not_there_is_said_to_be_missing(cell):
    with pytest.raises(MCPError) as caught:
        await cell.client.read_resource(f"{cell.server}://made/nothing")

    assert caught.value.error.data == {"uri": f"{cell.server}://made/nothing"}


async def test_templates_are_listed_and_read(cell):
    templates = (await cell.client.list_resource_templates()).resource_templates
    read = await cell.client.read_resource(f"{cell.server}://made/thing")

    assert f"{cell.server}://made/{{name}}" in {one.uri_template for one in templates}
    assert read.contents[0].text == f"it is {cell.server}://made/thing"


async def test_prompts_are_listed_and_filled_in(cell):
    listed = {prompt.name: prompt for prompt in (await cell.client.list_prompts()).prompts}
    got = await cell.client.get_prompt(cell.named("greet"), {"name": "Ada"})

    assert listed[cell.named("greet")].arguments[0].required
    assert listed[cell.named("greet")].meta == cells.META
    assert got.messages[0].content.text == "hello Ada"


async def test_arguments_of_prompts_and_templates_are_completed(cell):
    prompt = types.PromptReference(name=cell.named("greet"))
    template = types.ResourceTemplateReference(uri=f"{cell.server}://made/{{name}}")
    argument = {"name": "name", "value": "t"}
    for_prompt = await cell.client.complete(prompt, argument, context_arguments={"a": "three"})
    for_template = await cell.client.complete(template, argument)

    assert for_prompt.completion.values == ["tone", "ttwo", "tthree"]
    assert for_template.completion.values == ["tone", "ttwo"]


async def test_progress_reaches_the_client_that_calls(cell):
    told = []

    async def progressed(*report):
        told.append(report)

    assert await cell.text("count", progress_callback=progressed) == "counted"
    assert told == [(number, 3, f"at {number}") for number in (1, 2, 3)]


async def test_log_messages_reach_the_client_from_the_level_it_wants(cell):
    meta = None
    if cell.talker.era == "old":
        await cell.client.set_logging_level("info")
    else:
        meta = {types.LOG_LEVEL_META_KEY: "info"}

    await cell.text("log", meta=meta)

    told = [("info", "cells", "said at info"), ("error", "cells", "said at error")]
    assert cell.talker.logs == told


async def test_a_client_that_wants_to_know_everything_does(cell):
    meta = None
    if cell.talker.era == "old":
        await cell.client.set_logging_level("debug")
    else:
        meta = {types.LOG_LEVEL_META_KEY: "debug"}

    await cell.text("log", meta=meta)

    assert [level for level, *_ in cell.talker.logs] == ["debug", "info", "error"]


async def test_a_call_that_its_client_gives_up_ends_at_the_server(cell):
    async def asleep(*_):
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        await cell.call("sleep", progress_callback=asleep)

    assert await cell.text("was_cancelled") == "True"


async def test_a_form_is_filled_in_by_the_client(cell):
    assert await cell.text("ask") == "accept {'name': 'Ada 1'}"
    message = f"{cell.server} asks: {cells.ASK.params.message}"
    assert cell.talker.asked == [cells.ASK.params.model_copy(update={"message": message})]


async def test_a_second_question_follows_the_first(cell):
    assert await cell.text("ask_twice") == "{'name': 'Ada 1'} {'name': 'Ada 2'}"


async def test_two_questions_are_asked_at_the_same_time(cell):
    answer = await cell.text("ask_both")

    assert answer in {f"{{'name': 'Ada {place}'}} ['file:///home/me']" for place in (1, 2)}


async def test_a_person_is_sent_to_an_address(cell):
    assert await cell.text("ask_url") == "accept"

    (params,) = cell.talker.asked
    assert (params.mode, params.url) == ("url", cells.PLACE)
    assert (params.elicitation_id is not None) is (cell.talker.era == "old")


async def test_the_client_hears_that_the_person_has_been_there(cell):
    await cell.text("ask_url")

    if (cell.talker.era, cell.server) == ("old", "old"):  # nobody else can say or hear it
        told = await cell.talker.heard("notifications/elicitation/complete")
        assert told.params.elicitation_id == "id-1"


async def test_a_call_that_wants_a_person_elsewhere_first_can_be_done(cell):
    if cell.server == "new":
        assert await cell.text("must_sign_in") == "signed in"
        return
    cell.talker.sent_away = lambda: cell.text("signed_in")
    if cell.talker.era == "old":  # it sends the person there by itself, and calls again
        with pytest.raises(MCPError) as caught:
            await cell.call("must_sign_in")
        assert caught.value.error.code == types.URL_ELICITATION_REQUIRED
        assert caught.value.error.data["elicitations"][0]["elicitationId"] == "id-2"
        await cell.talker.sent_away()

    assert await cell.text("must_sign_in") == "signed in"


async def test_a_model_is_asked_at_the_client(cell):
    assert await cell.text("sample") == "m: said"


async def test_a_model_is_asked_with_tools(cell):
    assert await cell.text("sample_tools") == "add {'a': 1, 'b': 2}"


async def test_roots_are_those_of_the_client(cell):
    assert await cell.text("roots") == "['file:///home/me']"


async def test_a_resource_may_ask_before_it_is_read(cell):
    read = await cell.client.read_resource(f"{cell.server}://made/asked")

    assert read.contents[0].text == "{'name': 'Ada 1'}"


async def test_a_prompt_may_ask_before_it_is_there(cell):
    got = await cell.client.get_prompt(cell.named("asked"))

    assert got.messages[0].content.text == "{'name': 'Ada 1'}"


@pytest.mark.parametrize("cell", OLD_SERVERS, ids=named, indirect=True)
async def test_what_a_server_asks_beside_its_answer_is_for_whom_it_works(cell):
    assert await cell.text("roots", {"beside": True}) == "['file:///home/me']"


async def test_the_client_hears_of_a_resource_that_changes(cell):
    uri = f"{cell.server}://watched"
    if cell.talker.era == "new":
        async with cell.client.listen(resource_subscriptions=[uri]) as stream:
            await cell.text("touch")
            with anyio.fail_after(PATIENCE):
                assert await anext(aiter(stream)) == ResourceUpdated(uri=uri)
        return
    await cell.client.subscribe_resource(uri)
    await cell.text("touch")
    updated = await cell.talker.heard("notifications/resources/updated")
    await cell.client.unsubscribe_resource(uri)

    assert str(updated.params.uri) == uri


async def test_the_client_hears_of_new_tools_and_can_call_them(cell):
    name = f"{cell.talker.era}_{cell.server}_more"

    async def is_listed():
        return cell.named(name) in {tool.name for tool in (await cell.client.list_tools()).tools}

    # the first that is heard may be about what another cell has changed just before
    with anyio.fail_after(PATIENCE):
        if cell.talker.era == "old":
            await cell.text("touch", {"tool": name})
            while True:
                await cell.talker.heard("notifications/tools/list_changed")
                cell.talker.forget()
                if await is_listed():
                    return
        async with cell.client.listen(tools_list_changed=True) as stream:
            await cell.text("touch", {"tool": name})
            async for event in stream:
                assert event == ToolsListChanged()
                if await is_listed():
                    return


async def test_the_gateway_answers_pings(cell):
    if cell.talker.era == "old":
        await cell.client.send_ping()
    else:
        found = await cell.client.session.send_request(
            types.DiscoverRequest(), types.DiscoverResult
        )
        assert found.capabilities.tools.list_changed
