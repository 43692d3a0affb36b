"""Threat: a server asks people or models without its name, for secrets, or without end."""

import mcp_types as types
import pytest
from mcp import MCPError

from multitap.config import Settings
from multitap.config.models import Sampling
from tests.gateway.talking import MODES, Talker, gate, served_cells, zoo

CELLS = [(client, server) for client in MODES for server in MODES]


@pytest.fixture(scope="module")
def servers():
    with served_cells() as found:
        yield found


async def words_of(talker, tool):
    """What a call says, whether it fails or not."""
    try:
        return (await talker.client.call_tool(tool, {})).content[0].text
    except MCPError as exc:
        return str(exc)


@pytest.mark.parametrize(("era", "server"), CELLS)
async def test_every_question_names_its_server_in_every_pair_of_eras(
    tmp_path, servers, era, server
):
    async with (
        gate(Settings(servers=servers, state_dir=tmp_path)) as opened,
        Talker(era, opened.url) as talker,
    ):
        await talker.client.call_tool(f"{server}_ask", {})
        await talker.client.call_tool(f"{server}_ask_url", {})
        await talker.client.call_tool(f"{server}_sample", {})

    form, page, sampling = talker.asked
    assert form.message.startswith(f"{server} asks: ")
    assert page.message.startswith(f"{server} asks: ")
    assert f"'{server}' asks" in sampling.system_prompt


@pytest.mark.parametrize("mode", ["mrtr_phish", "elicit_phish"])
@pytest.mark.parametrize("era", MODES)
async def test_a_form_that_asks_for_a_password_is_refused(tmp_path, mode, era):
    servers = {"phish": zoo(mode, provenance="registry")}
    async with (
        gate(Settings(servers=servers, state_dir=tmp_path)) as opened,
        Talker(era, opened.url) as talker,
    ):
        words = await words_of(talker, "phish_fault")

    assert not [one for one in talker.asked if one.mode == "form"]
    assert "a password" in words


@pytest.mark.parametrize("mode", ["mrtr_phish", "elicit_phish"])
@pytest.mark.parametrize("era", MODES)
async def test_such_a_form_of_ones_own_server_is_flagged(tmp_path, mode, era):
    async with (
        gate(Settings(servers={"own": zoo(mode)}, state_dir=tmp_path)) as opened,
        Talker(era, opened.url) as talker,
    ):
        await talker.client.call_tool("own_fault", {})

    (form,) = [one for one in talker.asked if one.mode == "form"]
    assert form.message.startswith("Warning by Multitap: this form asks for a password")
    assert "own asks: " in form.message


@pytest.mark.parametrize(("era", "server"), CELLS)
async def test_a_server_cannot_drain_a_model(tmp_path, servers, era, server):
    greedy = servers[server].replace(sampling=Sampling(rate=5))
    settings = Settings(servers={server: greedy}, state_dir=tmp_path)
    async with gate(settings) as opened, Talker(era, opened.url) as talker:
        said = [await words_of(talker, f"{server}_sample") for _ in range(12)]

    asked = [one for one in talker.asked if isinstance(one, types.CreateMessageRequestParams)]
    assert len(asked) == 5
    assert len([words for words in said if "5 times a minute" in words]) == 7
