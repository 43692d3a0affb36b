"""Links, icons and references in what a server says, which nobody may follow for it."""

import pytest

from multitap import MultitapError, Settings, open_hub
from tests.attacks.canary import canary
from tests.gateway.talking import Talker, gate, zoo


async def test_nothing_that_a_server_links_to_is_fetched(tmp_path):
    async with canary() as bird:
        servers = {
            "zoo": zoo("resource_link", "--url", bird.url),
            "ref": zoo("ref_remote", "--url", bird.url),
        }
        async with open_hub(Settings(servers=servers, state_dir=tmp_path)) as hub:
            await hub.settled()
            result = await hub.call("zoo_fault")
            assert bird.url.encode() in bytes(result.raw)
            assert result.text
            assert hub.tools.for_openai()
            await hub.call("ref_echo", {"text": "hi"})
            for uri in (bird.url, "file:///etc/passwd", "javascript:alert(1)"):
                with pytest.raises(MultitapError):
                    await hub.read(uri)

    assert bird.visits == []


@pytest.mark.parametrize("era", ["old", "new"])
async def test_a_gateway_passes_links_on_and_follows_none(tmp_path, era):
    async with canary() as bird:
        settings = Settings(
            servers={"zoo": zoo("resource_link", "--url", bird.url)}, state_dir=tmp_path
        )
        async with gate(settings) as opened, Talker(era, opened.url) as talker:
            result = await talker.client.call_tool("zoo_fault", {})
            tools = (await talker.client.list_tools()).tools

            assert bird.url in str(result.content)
            assert bird.url in str(tools)

    assert bird.visits == []
