"""Asks real servers for their tools, and keeps the definitions as the corpus."""

import argparse
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import msgspec

from multitap import Settings, StdioServer, open_hub

HERE = Path(__file__).parent
SERVERS = HERE / "servers.toml"
TOOLS = HERE / "tools.json"
AT_A_TIME = 2
PATIENCE = 60.0
FIRST_TIME = 240.0
"""A package that is not there yet has to be fetched."""
KEPT = ("description", "inputSchema")


def main():
    parser = argparse.ArgumentParser(prog="python -m bench.search.collect", description=__doc__)
    parser.add_argument("only", nargs="*", help="these servers; all if none is named")
    wanted = parser.parse_args().only
    servers = tomllib.loads(SERVERS.read_text())
    before = msgspec.json.decode(TOOLS.read_bytes()) if TOOLS.exists() else []
    found = anyio.run(collect, {name: servers[name] for name in wanted or servers})
    kept = [tool for tool in before if tool["server"] in servers.keys() - found.keys()]
    tools = sorted(
        kept + [tool for one in found.values() for tool in one],
        key=lambda tool: (tool["server"], tool["name"]),
    )
    lines = b",\n".join(map(msgspec.json.encode, tools))  # one a line: a diff shows what changed
    TOOLS.write_bytes(b"[\n" + lines + b"\n]\n")
    print(f"{len(tools)} tools of {len({tool['server'] for tool in tools})} servers")


async def collect(servers):
    """The definitions by server; servers that do not come up are named and left out."""
    found = {}
    turn = anyio.CapacityLimiter(AT_A_TIME)

    async def one(name, recipe):
        async with turn:
            with TemporaryDirectory() as here:
                await fetch(recipe, Path(here))
                tools, problem = await definitions(name, recipe, Path(here))
        print(f"{name}: {problem or len(tools)}", file=sys.stderr, flush=True)
        if tools:
            found[name] = tools

    async with anyio.create_task_group() as group:
        for name, recipe in servers.items():
            group.start_soon(one, name, recipe)
    return found


async def fetch(recipe, here):
    """Have the package on this machine, so that starting it is all that is waited for."""
    if "npx" in recipe:
        command = ["npx", "-y", "-p", recipe["npx"], "-c", "true"]
    else:
        command = [*uvx(recipe), "python", "-c", ""]
    with anyio.move_on_after(FIRST_TIME):
        await anyio.run_process(command, check=False, cwd=here)


async def definitions(name, recipe, here):
    for path, text in recipe.get("files", {}).items():
        (here / path).write_text(text)
    config = server(recipe, here)
    settings = Settings(servers={name: config}, state_dir=here / "state")
    async with open_hub(settings) as hub:
        with anyio.move_on_after(PATIENCE):
            await hub.settled()
        state = hub.snapshot().server(name)
        tools = [entry(name, recipe, tool) for tool in hub.catalog.tools.values()]
        return tools, None if tools else f"{state.state}: {state.failure}"


def entry(name, recipe, tool):
    said = {key: tool.definition[key] for key in KEPT if key in tool.definition}
    titled = {"title": tool.title} if tool.title else {}
    package = recipe.get("npx") or recipe["uvx"]
    return {"server": name, "package": package, "name": tool.raw_name, **titled, **said}


def server(recipe, here):
    def filled(text):
        return text.replace("{here}", str(here))

    command, *args = (*start(recipe), *map(filled, recipe.get("args", ())))
    env = {key: filled(value) for key, value in recipe.get("env", {}).items()}
    return StdioServer(
        command=command, args=tuple(args), env=env, cwd=here, connect_timeout=PATIENCE
    )


def start(recipe):
    if "npx" in recipe:
        return ["npx", "-y", recipe["npx"]]
    if "module" in recipe:
        return [*uvx(recipe), "python", "-m", recipe["module"]]
    return [*uvx(recipe), recipe.get("program") or recipe["uvx"].partition("==")[0]]


def uvx(recipe):
    extra = (part for one in recipe.get("with", ()) for part in ("--with", one))
    return ["uvx", *extra, "--from", recipe["uvx"]]


if __name__ == "__main__":
    main()
