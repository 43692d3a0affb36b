"""The frames and files of ours that one plain call takes, by function.

The tool has an `outputSchema`, as every tool of the SDK's servers has.
"""

import argparse
import os
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

import multitap
from bench.gateway.running import clients, upstream
from bench.report import Report
from multitap import HttpServer, Settings, StdioServer, open_hub
from multitap.gateway.fronts.access import Access
from multitap.gateway.fronts.http import HttpFront, serve_http
from multitap.gateway.gateway import open_gateway
from multitap.http.server.server import bind

HOST = "127.0.0.1"
OURS = str(Path(multitap.__file__).parent) + os.sep
WAYS = ("stdio", "http")
ERAS = ("handshake", "stateless")
WARM_UP, CALLS = 200, 25


@dataclass(slots=True)
class Trace:
    """What ran while it was on; a coroutine that goes on counts as often as it does."""

    frames: "Counter[tuple[str, str]]" = field(default_factory=Counter)
    """How often each function was entered, by file and name."""
    builtins: int = 0
    """Calls of C functions out of ours."""

    @property
    def count(self) -> int:
        return self.frames.total()

    @property
    def files(self) -> list[str]:
        return sorted({file for file, _ in self.frames})

    def note(self, frame, event, _):
        # not the code's own file: what `dataclass` writes has none
        file = frame.f_globals.get("__file__") or ""
        if not file.startswith(OURS):
            return
        if event == "call":
            self.frames[file.removeprefix(OURS), frame.f_code.co_qualname] += 1
        elif event == "c_call":
            self.builtins += 1


@contextmanager
def tracing():
    trace = Trace()
    sys.setprofile(trace.note)
    try:
        yield trace
    finally:
        sys.setprofile(None)


def usual(traces):
    """The most frequent: now and then a call runs into a timer, or into the call log's batch."""
    counts = Counter(trace.count for trace in traces)
    wanted = min(counts, key=lambda count: (-counts[count], count))
    return next(trace for trace in traces if trace.count == wanted)


@asynccontextmanager
async def configured(way, era):
    """A server in another process, as settings for a hub in this one."""
    with TemporaryDirectory() as state:
        async with upstream(way, era, tools=3) as server:
            if way == "stdio":
                config = StdioServer(command=server[0], args=tuple(server[1:]))
            else:
                config = HttpServer(url=server)
            yield Settings(servers={"bench": config}, state_dir=Path(state))


async def gateway_call(way, client, server) -> Trace:
    """Through a gateway in this process; its client is another one, as its server is.

    From the order to the client until its report: what the gateway leaves for after the answer
    is the call's, too.
    """
    async with AsyncExitStack() as stack:
        asking = await stack.enter_async_context(clients())
        settings = await stack.enter_async_context(configured(way, server))
        gateway = await stack.enter_async_context(
            open_gateway(lambda handlers: open_hub(settings, handlers=handlers, recall=True))
        )
        listener = stack.enter_context(bind(HOST, 0))
        port = listener.getsockname()[1]
        front = HttpFront(gateway, Access(HOST, (), ()))
        await stack.enter_async_context(serve_http(front, listener))
        await gateway.hub.settled()
        await asking.order("open", name="one", port=port, dialect=client, path="/mcp", clients=1)
        calls = partial(asking.order, "calls", name="one", tool="bench_typed", parallel=1)
        await calls(calls=WARM_UP)
        traces = [await _traced(partial(calls, calls=1)) for _ in range(CALLS)]
        await asking.order("close", name="one")
    return usual(traces)


async def library_call(way, server) -> Trace:
    """Of `hub.call`, from the call to its result."""
    async with configured(way, server) as settings, open_hub(settings) as hub:
        await hub.settled()
        for number in range(WARM_UP):
            await hub.call("bench_typed", {"text": f"ping {number}"})
        return usual(
            [await _traced(partial(hub.call, "bench_typed", {"text": "x"})) for _ in range(CALLS)]
        )


async def _traced(call) -> Trace:
    with tracing() as trace:
        await call()
    return trace


async def traces() -> dict[str, Trace]:
    """One for each way a call can take, by what it is."""
    found = {}
    for way in WAYS:
        for client in ERAS:
            for server in ERAS:
                name = f"gateway, {client} client → {server} {way}"
                found[name] = await gateway_call(way, client, server)
        for server in ERAS:
            found[f"`hub.call` → {server} {way}"] = await library_call(way, server)
    return found


async def run(*, quick: bool) -> Report:  # noqa: ARG001 - it is quick
    found = await _on_the_gateways_loop()
    rows = [
        (name, str(trace.count), str(len(trace.files)), str(trace.builtins))
        for name, trace in found.items()
    ]
    columns = ("one plain call", "own frames", "own files", "builtins called")
    return Report("The length of a call", columns, rows, [])


async def _on_the_gateways_loop():
    """The other benchmarks run on asyncio's own; this takes a thread, and the loop of `serve`."""
    return await anyio.to_thread.run_sync(
        partial(anyio.run, traces, backend_options={"use_uvloop": True})
    )


def show(name, trace):
    print(f"{name}: {trace.count} frames, {len(trace.files)} files, {trace.builtins} builtins")
    for file in trace.files:
        functions = {entry[1]: times for entry, times in trace.frames.items() if entry[0] == file}
        print(f"  {sum(functions.values()):3} {file}")
        for function, times in sorted(functions.items(), key=lambda one: (-one[1], one[0])):
            print(f"      {times:3} {function}")
    print()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.trace", description=__doc__)
    parser.add_argument("--short", action="store_true", help="totals only")
    short = parser.parse_args().short
    found = anyio.run(traces, backend_options={"use_uvloop": True})
    if not short:
        for name, trace in found.items():
            show(name, trace)
    for name, trace in found.items():
        print(f"{trace.count:4} frames {len(trace.files):3} files  {name}")


if __name__ == "__main__":
    main()
