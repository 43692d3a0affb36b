"""What lists and results cost, as commands and screens are told."""

import json

from mcp.server import MCPServer

from multitap import Settings
from multitap.config import LocalServer, Profile
from multitap.control.service import ControlService
from multitap.screens.view import server_rows
from tests.gateway.talking import Talker, gate


def rows() -> dict[str, list[dict[str, str]]]:
    """List rows."""
    return {"rows": [{"text": "x" * 100} for _ in range(100)]}


async def test_lists_and_results_are_counted_before_and_after(tmp_path):
    server = MCPServer("data")
    server.add_tool(rows)
    settings = Settings(
        servers={"data": LocalServer(server=server)},
        profiles={
            "small": Profile(token_budget=300),
            "search": Profile(tools="search"),
            "code": Profile(tools="code"),
        },
        state_dir=tmp_path,
    )
    async with gate(settings) as opened, Talker("new", f"{opened.url}?profile=small") as talker:
        result = await talker.client.call_tool("data_rows", {})
        control = ControlService(opened.gateway)
        figures = await control.figures()
        shaped = figures.servers["data"].shaped
        (row,) = server_rows(await control.state(), figures, {})

    assert "_cut" in json.loads(result.content[0].text)
    assert shaped.results == 1
    assert shaped.after < 350
    assert shaped.before > 2000
    assert f"shaped to {shaped.after} (estimated)" in row.shaped
    lists = {cost.profile: cost for cost in figures.lists}
    modes = {"": "all", "small": "all", "search": "search", "code": "code"}
    assert {name: cost.mode for name, cost in lists.items()} == modes
    assert all(cost.tools == 1 for cost in lists.values())
    assert lists[""].tokens == lists[""].all_tokens
    assert lists["search"].tokens > 200  # one tool costs less than the search
