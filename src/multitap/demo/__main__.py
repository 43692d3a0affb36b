"""The demo, narrated: servers start, are called, get killed and come back."""

import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from multitap import Hub, open_hub
from multitap.demo import demo_settings
from multitap.errors import counted
from multitap.events import LinkState, ServerSnapshot, Snapshot


async def main() -> None:
    logging.getLogger("multitap").addHandler(
        logging.NullHandler()
    )  # the printed text says the same
    with TemporaryDirectory(prefix="multitap-demo-") as state:
        async with open_hub(demo_settings.settings(Path(state))) as hub:
            await show_start(hub)
            show_tools(hub)
            await show_calls(hub)
            await show_failures(hub)
            await show_recovery(hub)
    print("The hub is closed, and no process of it is left.")


async def show_start(hub: Hub) -> None:
    print(f"{len(hub.links)} servers start side by side; two of them are broken.\n")
    started = time.monotonic()
    await until(hub, lambda now: all(connected(now.server(name)) for name in demo_settings.GOOD))
    print(f"After {time.monotonic() - started:.1f} s the good ones are ready:\n")
    show_servers(hub.snapshot())


def show_servers(snapshot: Snapshot) -> None:
    for server in snapshot.servers:
        note = counted(server.tools, "tool") if connected(server) else server.failure or ""
        print(f"  {server.name:<12} {server.state:<13} {note}")


def show_tools(hub: Hub) -> None:
    print("\nOne catalog holds all their tools:\n")
    for tool in hub.tools:
        print(f"  {tool.name:<22} {tool.description}")


async def show_calls(hub: Hub) -> None:
    print("\nOne call reaches any of them; arguments are checked first, errors are readable:\n")
    for name, arguments in (
        ("calculator_add", {"a": 2, "b": 40}),
        ("calculator_divide", {"a": 1, "b": 0}),
        ("notebook_write", {"title": "demo", "text": "servers come and go"}),
        ("clock_now", {}),
    ):
        result = await hub.call(name, arguments)
        call = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        print(f"  {name}({call}) -> {result.text}")


async def show_failures(hub: Hub) -> None:
    print("\nMeanwhile the other two show what is wrong with them:\n")
    await until(hub, lambda now: all(now.server(name).failure for name in demo_settings.BAD))
    for name in demo_settings.BAD:
        failure = hub.snapshot().server(name).failure
        if failure is not None:
            print(f"  {name}: {failure}")
            print(f"  {'':{len(name)}}  last output: {failure.stderr.strip() or 'none'}")


async def show_recovery(hub: Hub) -> None:
    pid = hub.snapshot().server("calculator").pid
    if pid is None:
        return
    print(f"\nNow the calculator is killed (kill -9 {pid}):\n")
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    await until(hub, lambda now: not connected(now.server("calculator")))
    result = await hub.call("calculator_mean", {"numbers": [1, 2, 6]})
    print(f"  calculator_mean(numbers=[1, 2, 6]) -> {result.text}")
    pid = hub.snapshot().server("calculator").pid
    print(f"\nThat call waited {time.monotonic() - killed:.1f} s for its successor, process {pid}.")


async def until(hub: Hub, holds: Callable[[Snapshot], object]) -> None:
    """Wait until the snapshot meets a condition, checked after every change of the hub."""
    with hub.events.subscribe() as events, anyio.fail_after(60):
        if holds(hub.snapshot()):
            return
        async for _ in events:
            if holds(hub.snapshot()):
                return


def connected(server: ServerSnapshot) -> bool:
    return server.state is LinkState.CONNECTED


if __name__ == "__main__":
    anyio.run(main)
