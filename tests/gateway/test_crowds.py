"""Many clients at once of one server that asks: every question and every log reaches its own."""

import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio
import mcp_types as types
import pytest

from multitap import Settings
from multitap.config import HttpServer, StdioServer
from multitap.gateway.fronts.tokens import Token
from tests.gateway import cells
from tests.gateway.talking import MODES, Talker, gate
from tests.waiting import PATIENCE
from tests.wire.sdk_web import served

pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")

TOKENS = tuple(Token(f"secret-{number}".encode(), f"client {number}") for number in range(8))


@dataclass(frozen=True)
class Crowd:
    """Clients of one server."""

    eras: str
    server: str
    wire: str
    tokens: bool
    count: int

    def __str__(self):
        named = "with tokens" if self.tokens else "without tokens"
        return f"{self.count} {self.eras} {named}-{self.server} server on {self.wire}"


def crowds():
    fast = {
        Crowd("old", "old", "stdio", tokens=False, count=4),
        Crowd("both", "old", "stdio", tokens=False, count=8),
        Crowd("both", "old", "http", tokens=True, count=2),
    }
    rest = {
        Crowd(eras, server, wire, tokens=tokens, count=count)
        for eras in ("old", "new", "both")
        for server in MODES
        for wire in ("stdio", "http")
        for tokens in (False, True)
        for count in (2, 8)
    }
    for crowd in sorted(fast, key=str):
        yield pytest.param(crowd, id=str(crowd))
    for crowd in sorted(rest - fast, key=str):
        yield pytest.param(crowd, id=str(crowd), marks=(pytest.mark.slow, pytest.mark.wide))


class Person:
    """One client, and what it has to hear."""

    def __init__(self, opened, crowd, number):
        era = ("old", "new")[number % 2] if crowd.eras == "both" else crowd.eras
        self.name = f"client-{number}"
        self.server = crowd.server
        self.talker = Talker(
            era,
            opened.url,
            token=TOKENS[number].secret.decode() if crowd.tokens else None,
            name=self.name,
            model=self.name,
            root=types.Root(uri=f"file:///home/{self.name}"),
        )
        self.meta = {types.LOG_LEVEL_META_KEY: "info"} if era == "new" else None
        self.answers = []

    async def call(self, tool, arguments=None):
        called = await self.talker.client.call_tool(
            f"{self.server}_{tool}", arguments or {}, meta=self.meta
        )
        self.answers.append(called.content[0].text)

    async def converse(self, rounds):
        for _ in range(rounds):
            await self.call("ask")
            await self.call("sample")
            await self.call("roots")
            await self.call("log", {"text": self.name})

    def expected(self, rounds):
        answers = []
        for number in range(rounds):
            answers += [
                f"accept {{'name': '{self.name} {3 * number + 1}'}}",
                f"{self.name}: said",
                f"['file:///home/{self.name}']",
                "logged",
            ]
        logs = [(level, "cells", f"{self.name} at {level}") for level in ("info", "error")]
        return answers, logs * rounds


async def converse(opened, crowd, rounds):
    """Have all clients ask for everything at once."""
    async with AsyncExitStack() as stack:
        people = [Person(opened, crowd, number) for number in range(crowd.count)]
        for person in people:
            await stack.enter_async_context(person.talker)
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                for person in people:
                    tasks.start_soon(person.converse, rounds)
        for person in people:
            answers, logs = person.expected(rounds)
            assert person.answers == answers
            # one that asks in its results, not in the middle of a call, is a reason for turns to
            # nobody: what it logs on its pipe for several clients at once reaches none of them
            if (crowd.server, crowd.wire) == ("new", "stdio"):
                assert set(person.talker.logs) <= set(logs)
            else:
                assert person.talker.logs == logs


def on_pipes(era):
    return StdioServer(command=sys.executable, args=(cells.__file__, era))


@pytest.mark.parametrize("crowd", [*crowds()])
async def test_every_question_and_every_log_message_reaches_its_own_client(tmp_path, crowd):
    """Nobody knows the server: its very first question has to be right as well."""
    async with AsyncExitStack() as stack:
        server = on_pipes(crowd.server)
        if crowd.wire == "http":
            app = cells.build(crowd.server).streamable_http_app()
            server = HttpServer(url=f"{stack.enter_context(served(app))}/mcp")
        settings = Settings(state_dir=tmp_path / "state", servers={crowd.server: server})
        tokens = TOKENS if crowd.tokens else ()
        opened = await stack.enter_async_context(gate(settings, tokens=tokens))
        await converse(opened, crowd, 36 // crowd.count // 3)
