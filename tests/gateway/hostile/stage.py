"""A gateway with its servers, healthy clients on it, and a look at what remains of the others."""

import asyncio
import functools
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import anyio

from multitap import Settings, StdioServer, open_hub
from multitap.gateway.fronts.access import Access
from multitap.gateway.fronts.http import HttpFront, serve_http
from multitap.gateway.fronts.sessions import SessionLimits
from multitap.gateway.fronts.tokens import Token
from multitap.gateway.gateway import Gateway, open_gateway
from multitap.http.server.connections import HttpLimits
from multitap.http.server.server import bind
from multitap.wire.request import make_request
from tests.gateway.hostile.raw import (
    PATIENCE,
    call,
    dial,
    in_session,
    shake_hands,
    stateless,
)
from tests.waiting import until, until_told

SERVERS = ("counts", "asks")
"""Twice the same: a question belongs to a call for certain where nobody else is served."""
UPSTREAM = Path(__file__).with_name("upstream.py")
BRIEF = HttpLimits(
    connections=90, body=1024 * 1024, request_timeout=0.4, keep_alive=20.0, write_timeout=0.4,
    linger=1.0, drain=1.0,
)  # fmt: skip
"""The same limits as ever, for those who have little time and little memory.

Only a connection that is used is kept for long: those of healthy clients take turns.
"""
FEW_SESSIONS = SessionLimits(most=60)
_LISTENS = "0A"
CHECKED = {"check_arguments": "refuse"}
"""They are no match for the arguments that some clients send."""
WAIT = 0.5
"""Seconds for which a call waits for its client to come back."""
TOKENS = (Token(b"a-token-of-some-length", "ann"), Token(b"another-one-of-such", "bob"))
BEARER, OTHER_BEARER = (f"Bearer {token.secret.decode()}" for token in TOKENS)


class Stage:
    """The gateway under attack."""

    def __init__(self, gateway: Gateway, front: HttpFront, port: int) -> None:
        self.gateway = gateway
        self.front = front
        self.port = port
        self.usual = 0
        """Connections of healthy clients."""
        self.usual_memory = 0

    def crowd(self):
        """How many connections there are, as the system counts them."""
        mark = f":{self.port:04X} "
        lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
        ours = [line.split() for line in lines if mark in line[:24]]
        return sum(fields[3] != _LISTENS and fields[9] != "0" for fields in ours)

    @staticmethod
    def memory():
        """Bytes this process holds."""
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def dial(self, **more):
        return dial(self.port, **more)

    async def turns_away(self, data):
        """The status of a refusal, after which the connection ends."""
        async with self.dial() as line:
            response = await line.asks(data)
            assert response.headers["connection"] == "close"
            assert await line.closed() == b""
            return response.status

    async def stats(self):
        """What reached the servers, asked as nobody's client: one more would wait for its turn."""
        told = []
        for server in SERVERS:
            link = self.gateway.hub.links[server]
            result = await link.request(
                make_request("tools/call", {"name": "stats", "arguments": {}}, 60.0)
            )
            told.append(json.loads(json.loads(bytes(result))["content"][0]["text"]))
        return {kind: told[0][kind] + told[1][kind] for kind in told[0]}

    async def until(self, holds):
        """Wait for a state of the gateway, which sends no event for it."""
        await until(holds)

    async def until_upstream(self, **wanted):
        """Wait for what the server counts."""

        async def as_wanted():
            told = await self.stats()
            return told if wanted.items() <= told.items() else None

        return await until_told(as_wanted)

    def remains(self):
        """Whatever clients can leave behind, counted."""
        subscriptions, sessions = self.gateway.subscriptions, self.front.sessions
        return {
            "sessions": len(sessions),
            "under way": sum(len(one.client.scopes) for one in sessions),
            "asked": sum(len(one.client._asked) for one in sessions),
            "peers": len(subscriptions.clients),
            "streams": len(subscriptions._streams),
            "followed": len(subscriptions._followers),
            "errands": len(self.gateway.parked_calls),
            "tasks": len(asyncio.all_tasks()),
            "descriptors": len([*Path("/proc/self/fd").iterdir()]),
        }


class Healthy:
    """Clients of both eras that go on calling, and count the answers that are right."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.answered = 0
        self._stirred = anyio.Event()

    async def run(self, *, task_status):
        async with self._stage.dial() as old, self._stage.dial() as new:
            session = await shake_hands(old)
            task_status.started()
            for number in count(1):
                said = in_session(session, call(number, "echo", said=number))
                assert (await old.asks(said)).text == str(number)
                asked = stateless(
                    number, "tools/call", name="counts_echo", arguments={"said": number}
                )
                assert (await new.asks(asked)).text == str(number)
                self.answered = number
                self._stirred.set()
                self._stirred = anyio.Event()
                await anyio.sleep(0.005)  # its pace

    async def goes_on(self, times=3):
        """Wait for so many more right answers."""
        wanted = self.answered + times
        with anyio.fail_after(PATIENCE):
            while self.answered < wanted:
                await self._stirred.wait()


@asynccontextmanager
async def open_stage(
    state_dir: Path,
    *,
    sessions=FEW_SESSIONS,
    tokens=(),
    allowed=None,
    profile=None,
    patience=WAIT,
    resources=None,
    **more,
) -> AsyncIterator[Stage]:
    """A gateway for hostile clients.

    `allowed` says who may use it, if not those with tokens; `resources` makes the resource server
    of a gateway that has identity providers.
    """
    program = {"command": sys.executable, "args": ("-I", "-S", str(UPSTREAM))}
    servers = {
        "counts": StdioServer(**{**program, "args": (*program["args"], "notes")}, **CHECKED),
        "asks": StdioServer(**program, **CHECKED),
    }
    settings = Settings(servers=servers, state_dir=state_dir, **more)
    opens = functools.partial(open_hub, settings)
    async with open_gateway(
        lambda handlers: opens(handlers=handlers), patience=patience
    ) as gateway:
        await gateway.hub.settled()
        listener = bind("127.0.0.1", 0)
        front = HttpFront(
            gateway,
            Access("127.0.0.1", tokens) if allowed is None else allowed.access,
            sources=None if allowed is None else allowed.sources,
            profile=profile,
            limits=sessions,
            resource_server=None if resources is None else resources(gateway),
        )
        port = listener.getsockname()[1]
        async with serve_http(front, listener, BRIEF):
            yield Stage(gateway, front, port)


@asynccontextmanager
async def beside_healthy_clients(stage: Stage) -> AsyncIterator[Healthy]:
    """Within the block, others are served; after it, nothing of a hostile client remains."""
    healthy = Healthy(stage)
    async with anyio.create_task_group() as tasks:
        await tasks.start(healthy.run)
        await healthy.goes_on()
        known = {*stage.front.sessions}
        before = stage.remains()
        stage.usual, stage.usual_memory = stage.crowd(), stage.memory()
        yield healthy
        await healthy.goes_on()
        await _end_sessions(stage, known)
        await _nothing_more(stage, before)
        told = await stage.stats()
        assert not told["open"], "the server still works for somebody"
        assert not told["strange"], f"the server was told {told['strange']}"
        await healthy.goes_on()
        tasks.cancel_scope.cancel()
    await _end_sessions(stage, set())


async def _end_sessions(stage, spared):
    """End unused sessions, as the reaper does after a while."""
    for session in stage.front.sessions:
        if session not in spared:
            await stage.until(lambda session=session: not session.busy)
            await stage.front.sessions.close(session)


async def _nothing_more(stage, before):
    with anyio.move_on_after(PATIENCE):
        while _more(stage.remains(), before):
            await anyio.sleep(0.02)
    left = _more(stage.remains(), before)
    assert not left, f"left behind: {left}"


def _more(after, before):
    """What there is more of than before; healthy clients have a call under way now and then."""
    spared = {"under way": 1, "tasks": 2}
    return {
        kind: f"{number} instead of {before[kind]}"
        for kind, number in after.items()
        if number > before[kind] + spared.get(kind, 0)
    }
