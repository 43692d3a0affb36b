"""Whatever the gateway remembers to be fast is forgotten with what it was derived from.

Clients call without pause over connections that stay open, while tokens are revoked and created,
profiles and servers are replaced and tools come and go, in random order. Each outcome must be the
right one for a state that held between the beginning and the end of its call.
"""

import asyncio
import json
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import anyio
import pytest

from multitap import Settings, StdioServer
from multitap.config import Profile
from multitap.gateway.fronts import token_watch
from multitap.gateway.fronts.access import AccessRules, open_access
from multitap.gateway.fronts.http import HttpFront, serve_http
from multitap.gateway.gateway import open_gateway
from multitap.http.server.server import bind
from multitap.hub.hub import open_hub
from multitap.trust.tokens import AccessTokens
from multitap.wire.request import make_request
from tests.gateway.hostile.raw import (
    OLD,
    call,
    dial,
    hello,
    http,
    in_session,
    message,
    shake_hands,
    stateless,
)
from tests.gateway.hostile.stage import open_stage
from tests.waiting import PATIENCE, until

SERVER = Path(__file__).with_name("changing_server.py")
TOOLS, PEOPLE = ("a", "b"), ("ann", "bob")
CHANGES = 14
CALLS = 3
"""Answers that each client hears between two changes."""
SHUT_OUT, UNKNOWN, STALE = "shut out", "unknown", "stale"


@dataclass(frozen=True)
class State:
    """All that the outcome of a call follows from."""

    generation: int = 0
    offered: frozenset = frozenset(TOOLS)
    denied: frozenset = frozenset()
    admitted: frozenset = frozenset(PEOPLE)

    def outcome(self, person, tool):
        if person not in self.admitted:
            return SHUT_OUT
        if tool not in self.offered or tool in self.denied:
            return UNKNOWN
        return str(self.generation)


def outcomes(held, person, tool):
    """The possible outcomes of a call during these states."""
    right = {one.outcome(person, tool) for one in held}
    # until it has announced the change, a server is asked for what it no longer offers
    return right | {STALE} if len({one.offered for one in held}) > 1 else right


class World:
    """A gateway, the states that it has been in, and who calls what of it."""

    def __init__(self, folder, random):
        self._random = random
        self._folder = folder
        self._file = folder / "tools"
        self._store = AccessTokens()
        self.tokens = {person: self._create(person) for person in PEOPLE}
        self.states = [State()]
        self.settled = 0
        """The last state that is reached for certain."""
        self.hub = self.port = None
        self.answered = {}
        self.is_over = False
        self._write_tools()

    @property
    def state(self):
        return self.states[-1]

    def _create(self, person):
        return self._store.create(person, profile="some")[0]

    def _write_tools(self):
        self._file.write_text(" ".join(("announce", *sorted(self.state.offered))))

    def settings(self):
        args = ("-I", "-S", str(SERVER), str(self._file), str(self.state.generation))
        return Settings(
            servers={"it": StdioServer(command=sys.executable, args=args)},
            profiles={"some": Profile(deny=tuple(f"it_{tool}" for tool in self.state.denied))},
            state_dir=self._folder / "state",
        )

    @asynccontextmanager
    async def open(self):
        with open_access(AccessRules(host="127.0.0.1", require_token=True)) as allowed:
            async with open_gateway(
                lambda handlers: open_hub(self.settings(), handlers=handlers)
            ) as gateway:
                self.hub = gateway.hub
                await self.hub.settled()
                front = HttpFront(gateway, allowed.access, sources=allowed.sources)
                listener = bind("127.0.0.1", 0)
                self.port = listener.getsockname()[1]
                async with serve_http(front, listener):
                    yield

    async def change(self):
        """Go on to another state, and return when that is reached."""
        state, kind = self.state, self._random.choice(("server", "profile", "tools", "token"))
        if kind == "server":
            state = replace(state, generation=state.generation + 1)
        elif kind == "profile":
            state = replace(state, denied=state.denied ^ {self._random.choice(TOOLS)})
        elif kind == "tools":
            state = replace(state, offered=state.offered ^ {self._random.choice(TOOLS)})
        else:
            person = self._random.choice(PEOPLE)
            state = replace(state, admitted=state.admitted ^ {person})
        self.states.append(state)
        if kind == "tools":
            await self._announce()
        elif kind == "token":
            await self._admit(person)
        else:
            self.hub.apply(self.settings())
            with anyio.fail_after(PATIENCE):
                await self.hub.settled()
        self.settled = len(self.states) - 1

    async def _announce(self):
        self._write_tools()
        called = {"name": "announce", "arguments": {}}
        await self.hub.links["it"].request(make_request("tools/call", called, PATIENCE))
        wanted = {f"it_{tool}" for tool in ("announce", *self.state.offered)}
        await until(lambda: set(self.hub.catalog.tools) == wanted)

    async def _admit(self, person):
        is_admitted = person in self.state.admitted
        if is_admitted:
            self.tokens[person] = self._create(person)
        else:
            self._store.revoke(person)
        with anyio.fail_after(PATIENCE):
            while await self._lets_in(self.tokens[person]) is not is_admitted:
                await anyio.sleep(0.001)

    async def _lets_in(self, text):
        """Whether a token is accepted on a new connection."""
        async with dial(self.port) as line:
            try:
                answer = await line.asks(stateless(1, "tools/list", headers=bearer(text)))
            except (asyncio.IncompleteReadError, ConnectionError):  # it is revoked just now
                return False
            return answer.status == 200

    async def call(self, person, era):
        """Call until it is over, and check each outcome against what held meanwhile."""
        while not self.is_over:
            text = self.tokens[person]
            async with dial(self.port) as line:
                session = await open_session(line, text) if era == "handshake" else None
                while text == self.tokens[person] and not self.is_over:
                    since, tool = self.settled, self._random.choice(TOOLS)
                    heard = await outcome_of(line, text, session, tool)
                    held = self.states[since:]
                    assert heard in outcomes(held, person, tool), (tool, held)
                    self.answered[person, era] = self.answered.get((person, era), 0) + 1
                    if heard == SHUT_OUT:
                        break

    async def hear_everybody(self):
        """Wait until each client has a few more answers, all of them to new calls."""
        wanted = {one: calls + CALLS for one, calls in self.answered.items()}
        await until(lambda: all(self.answered[one] >= calls for one, calls in wanted.items()))


def bearer(text):
    return {"authorization": f"Bearer {text}"}


async def open_session(line, text):
    try:
        opened = await line.asks(http(body=hello(), **bearer(text)))
        return opened.headers.get("mcp-session-id", "none")
    except (asyncio.IncompleteReadError, ConnectionError):
        return "none"


async def outcome_of(line, text, session, tool):
    """What comes of a call: the server's words, or why there are none."""
    params = {"name": f"it_{tool}", "arguments": {}}
    if session is None:
        asked = stateless(7, "tools/call", headers=bearer(text), **params)
    else:
        said = message(7, "tools/call", **params)
        asked = in_session(session, said, mcp_protocol_version=OLD, **bearer(text))
    try:
        answer = await line.asks(asked)
    except (asyncio.IncompleteReadError, ConnectionError):
        return SHUT_OUT
    if answer.status in {401, 404} and "result" not in answer.body.decode():
        return SHUT_OUT if b"it_" not in answer.body else UNKNOWN
    return UNKNOWN if "error" in answer.message else answer.text


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.wide) for seed in range(3, 60))]
)
async def test_nothing_that_is_remembered_outlives_its_reason(tmp_path, monkeypatch, seed):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "kept"))
    monkeypatch.setattr(token_watch, "LOOK", 0.01)
    world = World(tmp_path, Random(seed))
    async with world.open(), anyio.create_task_group() as tasks:
        for person in PEOPLE:
            for era in ("handshake", "stateless"):
                world.answered[person, era] = 0
                tasks.start_soon(world.call, person, era)
        await world.hear_everybody()
        for _ in range(CHANGES):
            await world.change()
            await world.hear_everybody()
        world.is_over = True


async def test_the_body_of_a_remembered_client_is_checked_each_time(tmp_path):
    async with open_stage(tmp_path) as stage, stage.dial() as line:
        session = await shake_hands(line)
        version = {"mcp_protocol_version": OLD}
        for number, word in enumerate(("a", "a longer word", "ä", "\N{GRINNING FACE} ä"), 1):
            said = in_session(session, call(number, "echo", said=word), **version)
            assert json.loads((await line.asks(said)).text) == word
        said = json.dumps(call(9, "echo", said="?")).encode()
        for broken in (b"\xff", b"\xc3", b"\xed\xa0\x80"):
            refused = await line.asks(in_session(session, said.replace(b"?", broken), **version))
            assert refused.status == 400
            assert "utf-8" in refused.body.decode()
