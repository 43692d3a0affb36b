from pathlib import Path

import msgspec
import pytest

from multitap.tools import ToolDef, ToolRegistry
from tests.tools.providers.test_schemas import PROVIDERS

CORPUS = Path(__file__).parents[3] / "bench" / "search" / "tools.json"


@pytest.fixture(scope="module")
def definitions():
    return msgspec.json.decode(CORPUS.read_bytes())


@pytest.fixture(scope="module")
def registries(definitions):
    """All tools of each server, as one registry."""
    found: dict[str, ToolRegistry] = {}
    for one in definitions:
        registry = found.setdefault(one["server"], ToolRegistry())
        tool = ToolDef(
            f"{one['server']}_{one['name']}", one["description"] or "", one["inputSchema"], print
        )
        registry.register(tool)
    return found


def test_there_are_enough_real_servers_to_tell(registries):
    assert len(registries) >= 10


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_real_tool_comes_out_acceptable(registries, provider):
    convert, objections = PROVIDERS[provider]
    for server, registry in registries.items():
        before = [msgspec.json.encode(tool.parameters) for tool in registry]
        offer = convert(registry)

        assert [msgspec.json.encode(tool.parameters) for tool in registry] == before
        assert not [*objections(offer.tools)], server
        assert not [one for one in offer.skipped if "takes 128 tools" not in one.why], server
        assert offer.tokens <= 5_100 * len(offer.names)


def test_most_real_tools_can_be_strict(registries):
    tools = [
        tool for one in registries.values() for tool in one.for_openai(strict=True).tools
    ]  # fmt: skip
    strict = [tool for tool in tools if tool["function"].get("strict")]

    assert len(strict) > 0.9 * len(tools)
