"""An environment: a function of ours, a server's tools, and an agent that may use some of them."""

import sys

import anyio

from multitap import Agent, BaseEnvironment, Settings


class Office(BaseEnvironment):
    def __init__(self) -> None:
        super().__init__()
        self.register_tool(greet)

    def base_settings(self) -> Settings:
        return Settings(agents={"clerk": Agent(allow=("greet", "sums_add"))})

    def mcp_client_config(self) -> dict[str, dict[str, object]]:
        command = [sys.executable, "-m", "multitap.demo.servers.calculator"]
        return {"sums": {"type": "local", "command": command}}


def greet(name: str) -> str:
    """Say hello.

    Args:
        name: To whom.
    """
    return f"Hello, {name}!"


async def main() -> None:
    async with Office() as office:
        for tool in office.get_tools():
            print(tool.name, "-", tool.description)
        clerk = office.tools_for("clerk")
        print((await clerk.execute("greet", {"name": "Ada"})).text)
        print((await clerk.execute("sums_add", {"a": 2, "b": 40})).text)
        print((await clerk.execute("sums_divide", {"a": 2, "b": 40})).text)


anyio.run(main)
