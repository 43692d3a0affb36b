"""ExcelManus's engine: the servers of `mcp.json`, called with and without `await`."""

import anyio

from multitap import AgentEngine


async def main() -> None:
    engine = AgentEngine(workspace_root=".")
    await engine.initialize_mcp()
    print(engine.mcp.connected_servers)
    print(engine.registry.call_tool("mcp_calculator_add", {"a": 2, "b": 40}))  # in a running loop
    print(await engine.mcp.clients["calculator"].call_tool("add", {"a": 2, "b": 41}))
    await engine.shutdown_mcp()


anyio.run(main)
