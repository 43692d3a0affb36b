"""Nothing is used after it was taken away, however calls and changes follow each other."""

import json
import os
import random
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import anyio
import pytest

from multitap import Settings, StdioServer
from multitap.config import Profile, ToolFilter
from multitap.gateway.fronts.tokens import Token
from tests.fuzz import changing
from tests.gateway.hostile.raw import (
    dial,
    hello,
    http,
    in_session,
    message,
    stateless,
)
from tests.gateway.talking import gate
from tests.waiting import PATIENCE, until_told

EXAMPLES = int(os.environ.get("MULTITAP_EXAMPLES", "60"))
SEEDS = range(EXAMPLES // 20)
STEPS = 25
AT_ONCE = 4
"""Calls after a change, and as many that go on during the next one."""
SERVERS = ("a", "b")
CONNECTIONS = 3
TOKENS = (Token(b"a-token-of-some-length", "ann"), Token(b"another-one-of-such", "bob", "some"))
SECRETS = {"ann": TOKENS[0].secret, "bob": TOKENS[1].secret, "eve": b"a-token-of-nobody-here"}
"""Ann sees everything, Bob what his profile shows; Eve has no business here."""
UNKNOWN = -32602
CHANGES = ("remove", "add", "add", "renew", "grow", "grow", "deny", "profile", "profile", "leave")


@dataclass(frozen=True)
class Shape:
    """What a server is."""

    generation: int
    version: int = 0
    denied: bool = False
    """Whether a filter hides its tool `who`."""

    @property
    def age(self):
        return f"{self.generation}.{self.version}"

    @property
    def aged(self):
        return f"aged_{self.generation}_{self.version}"


class History:
    """All that something was, the newest last."""

    def __init__(self, first):
        self.states = [first]
        self.known = 0
        """Which state the gateway is known to have taken over."""

    @property
    def now(self):
        return self.states[-1]

    def turn(self, state):
        self.states.append(state)

    def acknowledge(self):
        self.known = len(self.states) - 1

    def since(self, known):
        """What it may have been from then on."""
        return self.states[known:]


@dataclass(frozen=True)
class Session:
    id: str
    owner: str
    is_open: History


@dataclass
class Attempt:
    """A call, what may be known when it begins, and what came of it."""

    number: int
    who: str
    server: str
    tool: str
    age: str | None
    session: "Session | None"
    """None: it is made without one."""
    begun: dict[str, tuple["History", int]]
    answer: dict[str, Any] = field(default_factory=dict)
    possible: dict[str, list[Any]] = field(default_factory=dict)
    """What all there is may have been between its begin and its end."""


class Connection:
    """Kept alive, and used by everybody."""

    def __init__(self, port, stack):
        self._port = port
        self._stack = stack
        self._lock = anyio.Lock()
        self._line = None

    async def asks(self, data):
        async with self._lock:
            if self._line is None:
                self._line = await self._stack.enter_async_context(dial(self._port))
            response = await self._line.asks(data)
            if response.headers.get("connection") == "close":
                self._line = None
            return response


class World:
    """A gateway, and what is known of it."""

    def __init__(self, opened, log, chance, stack):
        self.hub = opened.hub
        self._log = log
        self.chance = chance
        port = int(opened.url.partition("://")[2].partition("/")[0].rpartition(":")[2])
        self._connections = [Connection(port, stack) for _ in range(CONNECTIONS)]
        self.servers = {name: History(Shape(1)) for name in SERVERS}
        self.profile = History(frozenset(SERVERS))
        self.sessions = {"ann": [], "bob": []}
        self.attempts = []
        self._generations = count(2)
        self._numbers = count(1)

    def settings(self):
        return settings(
            self._log,
            {name: history.now for name, history in self.servers.items()},
            self.profile.now,
            self.hub.settings.state_dir,
        )

    async def _asks(self, data):
        with anyio.fail_after(PATIENCE):
            return await self.chance.choice(self._connections).asks(data)

    async def open_session(self, who):
        response = await self._asks(http(body=hello(), **bearer(who)))
        session = Session(response.headers["mcp-session-id"], who, History(True))
        self.sessions[who].append(session)

    def attempt(self):
        """A call that somebody might make now: mostly of what there is, often of what there was."""
        chance = self.chance
        who = chance.choice(("ann", "ann", "bob", "bob", "eve"))
        server = chance.choice(SERVERS)
        shapes = [one for one in self.servers[server].states if one is not None]
        shape = shapes[-1] if chance.random() < 0.6 else chance.choice(shapes)
        tool = chance.choice(("who", "checked", shape.aged))
        session = None if chance.random() < 0.5 else self._session(who)
        aspects = {**self.servers, "profile": self.profile}
        if session is not None:
            aspects["session"] = session.is_open
        begun = {key: (history, history.known) for key, history in aspects.items()}
        age = shape.age if tool == "checked" else None
        made = Attempt(next(self._numbers), who, server, tool, age, session, begun)
        self.attempts.append(made)
        return made

    def _session(self, who):
        """Mostly one's own that is open, sometimes one that is not, or somebody else's."""
        owner = who if who != "eve" and self.chance.random() < 0.8 else "ann"
        theirs = self.sessions[owner]
        return theirs[-1] if self.chance.random() < 0.7 else self.chance.choice(theirs)

    async def call(self, made):
        arguments = {"n": made.number} | ({"age": made.age} if made.age else {})
        params = {"name": f"{made.server}_{made.tool}", "arguments": arguments}
        if made.session is None:
            asked = stateless(made.number, "tools/call", headers=bearer(made.who), **params)
        else:
            said = message(made.number, "tools/call", **params)
            asked = in_session(made.session.id, said, **bearer(made.who))
        response = await self._asks(asked)
        made.possible = {key: history.since(known) for key, (history, known) in made.begun.items()}
        made.answer = answer_of(response)

    async def change(self, kind):
        name = self.chance.choice(SERVERS)
        history = self.servers[name]
        shape = history.now
        if kind == "profile":
            shown = [one for one in SERVERS if self.chance.random() < 0.5]
            self.profile.turn(frozenset(shown))
            self.hub.apply(self.settings())
            self.profile.acknowledge()
        elif kind == "leave":
            await self._leave(self.chance.choice(("ann", "bob")))
        elif (kind == "add") is not (shape is None):
            return  # there is nothing to change
        elif kind == "remove":
            history.turn(None)
            self.hub.apply(self.settings())
            history.acknowledge()
        elif kind == "grow":
            await self._grow(name, history)
        else:
            denied = not shape.denied if kind == "deny" else bool(shape and shape.denied)
            history.turn(Shape(next(self._generations), denied=denied))
            self.hub.apply(self.settings())
            with anyio.fail_after(PATIENCE):
                await self.hub.settled()
            history.acknowledge()

    async def _leave(self, who):
        session = self.sessions[who][-1]
        session.is_open.turn(False)
        response = await self._asks(http("DELETE", mcp_session_id=session.id, **bearer(who)))
        assert response.status == 200
        session.is_open.acknowledge()
        await self.open_session(who)

    async def _grow(self, name, history):
        """Have a server change its tools; it is known once the list shows it."""
        grown = Shape(history.now.generation, history.now.version + 1, history.now.denied)
        history.turn(grown)
        asked = {"name": f"{name}_grow", "arguments": {"n": 0}}
        told = await self._asks(stateless(0, "tools/call", headers=bearer("ann"), **asked))
        assert told.text == grown.age

        async def is_listed():
            return f"{name}_{grown.aged}" in await self.listed()

        await until_told(is_listed)
        history.acknowledge()

    async def listed(self):
        told = await self._asks(stateless(0, "tools/list", headers=bearer("ann")))
        return {tool["name"]: tool for tool in told.message["result"]["tools"]}

    async def check_lists(self):
        """Nothing older than what is known is listed, for anybody."""
        listed = await self.listed()
        for name, history in self.servers.items():
            shape = history.states[history.known]
            aged = {tool for tool in listed if tool.startswith(f"{name}_aged_")}
            assert aged == (set() if shape is None else {f"{name}_{shape.aged}"})
            if shape is not None:
                schema = listed[f"{name}_checked"]["inputSchema"]
                assert schema["properties"]["age"] == {"const": shape.age}
                assert (f"{name}_who" in listed) is not shape.denied

    def notes(self):
        """What reached the servers, by the number of the call."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return {note["n"]: note for note in map(json.loads, lines) if note["n"]}


def settings(log, shapes, shown, state):
    servers = {
        name: StdioServer(
            command=sys.executable,
            args=("-I", "-S", changing.__file__, name, str(shape.generation), str(log)),
            filter=ToolFilter(deny=("who",) if shape.denied else ()),
            check_arguments="refuse",
        )
        for name, shape in shapes.items()
        if shape is not None
    }
    profiles = {"some": Profile(servers=tuple(sorted(shown)))}
    return Settings(servers=servers, profiles=profiles, state_dir=state)


def bearer(who):
    return {"authorization": f"Bearer {SECRETS[who].decode()}"}


def answer_of(response):
    if response.status in {401, 404}:
        return {"status": response.status}
    told = response.message
    if "error" in told:
        return {"error": told["error"]["code"]}
    text = told["result"]["content"][0]["text"]
    return {"failed": text} if told["result"].get("isError") else {"text": text}


def may_reach(made, note):
    """Whether anything that was true since the call began lets it reach the server as it did."""
    shapes = made.possible[made.server]
    return (
        made.who != "eve"
        and (made.session is None or made.session.owner == made.who)
        and any(made.possible.get("session", [True]))
        and (made.who == "ann" or any(made.server in shown for shown in made.possible["profile"]))
        and note["by"] in {shape.age for shape in shapes if shape}
        and (made.tool != "who" or any(shape and not shape.denied for shape in shapes))
        and (made.age is None or made.age in {shape.age for shape in shapes if shape})
        and (
            not made.tool.startswith("aged_")
            or made.tool in {shape.aged for shape in shapes if shape}
        )
    )


def expected(made):
    """The answer where nothing changed meanwhile; None where something did."""
    if any(len(states) > 1 for states in made.possible.values()):
        return None
    shape, shown = made.possible[made.server][0], made.possible["profile"][0]
    if made.who == "eve":
        return {"status": 401}
    if made.session and (made.session.owner != made.who or not made.possible["session"][0]):
        return {"status": 404}
    hidden = made.who == "bob" and made.server not in shown
    if shape is None or hidden or (made.tool == "who" and shape.denied):
        return {"error": UNKNOWN}
    if made.tool.startswith("aged_") and made.tool != shape.aged:
        return {"error": UNKNOWN}
    if made.age not in {None, shape.age}:
        return {"failed": f'/age: "{shape.age}" was expected'}
    return {"text": f"{made.server} {shape.age}"}


@asynccontextmanager
async def open_world(path, chance):
    log = path / "log"
    first = settings(log, dict.fromkeys(SERVERS, Shape(1)), SERVERS, path / "state")
    async with gate(first, tokens=TOKENS) as opened, AsyncExitStack() as stack:
        world = World(opened, log, chance, stack)
        for who in ("ann", "bob"):
            await world.open_session(who)
        yield world


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_used_that_was_taken_away(seed, tmp_path):
    chance = random.Random(seed)
    async with open_world(tmp_path, chance) as world:
        async with anyio.create_task_group() as tasks:
            for _ in range(STEPS):
                if chance.random() < 0.5:
                    await world.change(chance.choice(CHANGES))
                    await world.check_lists()
                    for _ in range(AT_ONCE):
                        await world.call(world.attempt())
                for _ in range(AT_ONCE):
                    tasks.start_soon(world.call, world.attempt())
        notes = world.notes()

    for made in world.attempts:
        note = notes.get(made.number)
        assert note is None or may_reach(made, note), (made, note)
        wanted = expected(made)
        assert wanted is None or made.answer == wanted, (made, wanted)
        assert note is not None or "text" not in made.answer, made
