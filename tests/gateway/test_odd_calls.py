"""A plain call and an odd one mean the same, whichever way they are made and wherever they go."""

import re
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import anyio
import pytest

from multitap.wire import jsonrpc
from tests.gateway import odd_server
from tests.gateway.all_fronts import BEARER, CANCELLED, FRONTS, MODEL, NAME, Front, dial, stateless
from tests.module_life import anyio_backend, nothing_left  # noqa: F401 - fixtures
from tests.waiting import PATIENCE, until
from tests.wire.hosts import is_running
from tests.zoo.ledger import Ledger
from tests.zoo.modes import command

COMMAND = [sys.executable, "-I", "-S", odd_server.__file__]
MEGABYTE = 2**20
LIMITS = {"message": 2 * MEGABYTE, "in_flight": 8, "queue": 24}
MANY, TOO_MANY = 20, 40
"""Concurrent calls that every server accepts, and that none accepts."""
MOST_STARTS = 20
USUAL = {
    "limits": LIMITS,
    "timeouts": {"slumber": 0.3},
    "check_arguments": "refuse",
    "log_level": "info",
}
HELLOS = {"initialize", "subscriptions/listen"}
TIMEOUT, UNAVAILABLE, OVERLOADED, BAD_ANSWER, BAD_PARAMS = -32001, -32000, -32003, -32004, -32602


@dataclass(frozen=True)
class Upstream:
    """A kind of server."""

    wire: str
    era: str

    @property
    def name(self):
        return f"{self.wire}_{self.era}"

    @property
    def rounds(self):
        """How often a tool is called that asks one question."""
        return 2 if self.era == "stateless" else 1


UPSTREAMS = [Upstream(*one) for one in product(("pipe", "web"), ("handshake", "stateless"))]


@dataclass(frozen=True)
class Outcome:
    """What a client got, what it was told meanwhile, and what the server saw of it."""

    answer: Any
    seen: tuple[str, ...] = ()
    cancelled: int = 0
    progress: tuple[Any, ...] = ()
    logs: tuple[Any, ...] = ()
    asked: tuple[str, ...] = ()


@dataclass
class Stand:
    """One front before one server."""

    front: Front
    upstream: Upstream
    ledger: Ledger

    def named(self, tool):
        return f"{self.upstream.name}_{tool}"

    async def call(self, tool, arguments=None, **more):
        return await self.front.call(self.named(tool), arguments, **more)

    async def until(self, holds):
        await until(holds)

    def begun(self, tool):
        """Waits until the server has seen one more call of it."""
        before = self.ledger.calls.count(tool)

        async def wait():
            await self.until(lambda: self.ledger.calls.count(tool) > before)

        return wait

    def is_released(self):
        """Whether the server has no call in progress."""
        return "tools/call" in self.ledger.given_up or not is_running(self.ledger.pids[-1])

    def begin(self):
        """What happens from now on is the outcome."""
        self.front.forget()
        self._calls, self._cancelled = len(self.ledger.calls), len(self.ledger.given_up)

    async def outcome(self, run):
        self.begin()
        answer = await run(self)
        return Outcome(
            self._alike(answer),
            tuple(self.ledger.calls[self._calls :]),
            len(self.ledger.given_up) - self._cancelled,
            tuple(self.front.progress),
            tuple(self.front.logs),
            tuple(self.front.asked),
        )

    def _alike(self, answer):
        """Without the names of this server and its address."""
        if isinstance(answer, list):
            return [self._alike(one) for one in answer]
        if isinstance(answer, dict):
            return {key: self._alike(value) for key, value in answer.items()}
        if not isinstance(answer, str):
            return answer
        return re.sub(r"http://[\d.:]+/mcp", "URL", answer.replace(self.upstream.name, "SERVER"))


@dataclass(frozen=True)
class Case:
    run: Callable[[Stand], Awaitable[Any]]
    expected: Callable[[Upstream], Outcome]
    in_host: Any = None
    """The answer where that is no gateway's client, if it differs."""

    def outcome(self, stand):
        wanted = self.expected(stand.upstream)
        if stand.front.is_host and self.in_host is not None:
            wanted = replace(wanted, answer=self.in_host)
        return wanted if stand.front.can_log else replace(wanted, logs=())


CASES: dict[str, Case] = {}
CRASHES: dict[str, Case] = {}
"""Those in which the server ends: it is back at once the first time only."""


def case(answer, *seen, known=CASES, in_host=None, **more):
    """Add one that has the same outcome everywhere."""
    return each(lambda _: Outcome(answer, seen, **more), known=known, in_host=in_host)


def each(expected, *, known=CASES, **more):
    """Add one whose outcome depends on the server."""

    def add(run):
        known[run.__name__] = Case(run, expected, **more)
        return run

    return add


def error(code, words, **more):
    return {"error": code, "words": words, **more}


@case({"text": "words"}, "echo")
async def plain(stand):
    return await stand.call("echo", {"text": "words"})


@case(CANCELLED, "sleep", cancelled=1)
async def cancel(stand):
    before = len(stand.ledger.given_up)
    begun = stand.begun("sleep")
    outcome = await stand.front.give_up(stand.named("sleep"), {"seconds": 30}, begun)
    await stand.until(lambda: len(stand.ledger.given_up) > before)
    return outcome


@case(
    error(
        TIMEOUT,
        "SERVER: no answer to 'tools/call' within 0.3 s; raise `timeout` if it needs that long",
    ),
    "slumber",
    cancelled=1,
)
async def time_out(stand):
    before = len(stand.ledger.given_up)
    outcome = await stand.call("slumber")
    await stand.until(lambda: len(stand.ledger.given_up) > before)
    return outcome


@case(
    {"text": "3 steps"}, "progress", progress=tuple((step, 3, f"step {step}") for step in (1, 2, 3))
)
async def progress(stand):
    return await stand.call("progress", {"steps": 3, "interval": 0}, progress=True)


@case({"text": f"{MEGABYTE // 2} 19ca469514a1009c"}, "weigh")
async def large_arguments(stand):
    return await stand.call("weigh", {"text": "ä" * (MEGABYTE // 2)})


@case([{"text": f"word {number}"} for number in range(MANY)], *["echo"] * MANY)
async def pipelining(stand):
    return await stand.front.call_many(
        stand.named("echo"), [{"text": f"word {number}"} for number in range(MANY)]
    )


@case(
    error(odd_server.REFUSED, "not today", data={"why": ["asked", "for"]}),
    "refuse",
    in_host={"failed": "SERVER: not today"},
)
async def protocol_error(stand):
    return await stand.call("refuse")


@case({"failed": "it failed"}, "fail")
async def tool_error(stand):
    return await stand.call("fail", {"message": "it failed"})


@case(
    error(
        BAD_ANSWER,
        'SERVER: the answer should contain a result object; its result is ["no","object"]',
    ),
    "garble",
)
async def malformed(stand):
    return await stand.call("garble")


@case({"text": "the rest"}, "crumble")
async def malformed_block(stand):
    return await stand.call("crumble")


@each(
    lambda upstream: Outcome(
        error(
            BAD_ANSWER,
            "SERVER: the answer has over 2,097,152 bytes, the limit `limits.message`"
            if upstream.wire == "pipe"
            else "SERVER: the answer has more than the 2,097,152 bytes of `limits.message`",
        ),
        ("big",),
    )
)
async def oversized(stand):
    return await stand.call("big", {"bytes": 3 * MEGABYTE})


@each(
    lambda upstream: Outcome(
        {"text": f'{{"action": "accept", "content": {{"name": "{NAME}"}}}}'},
        ("ask",) * upstream.rounds,
        asked=("elicitation/create",),
    )
)
async def form(stand):
    return await stand.call("ask", able=True)


@each(
    lambda upstream: Outcome(
        {
            "text": '{"role": "assistant", "content": {"type": "text", "text": "hello"}, '
            f'"model": "{MODEL}"}}'
        },
        ("sample",) * upstream.rounds,
        asked=("sampling/createMessage",),
    )
)
async def sampling(stand):
    return await stand.call("sample", able=True)


@case({"text": "logged"}, "log", logs=(("warning", "zoo", "careful"),))
async def log(stand):
    return await stand.call("log", {"level": "warning", "text": "careful"}, log=True)


@case(
    error(
        BAD_PARAMS,
        "no tool named 'SERVER_nonse'; did you mean 'SERVER_nonce'? `multitap tools` lists all "
        "tools",
    )
)
async def unknown(stand):
    return await stand.call("nonse")


@case({"failed": '/text is not of type "string"'})
async def bad_arguments(stand):
    return await stand.call("echo", {"text": 1})


@case({"text": "words"}, "echo")
async def queue_full(stand):
    """Shares of the queue differ between fronts, and so do the messages."""
    await stand.call("sleep", {"seconds": 0})  # or clients would have to try it in turn
    calls, cancelled = len(stand.ledger.calls), len(stand.ledger.given_up)

    def working():
        return stand.ledger.calls[calls:].count("sleep")

    async def enough(outcomes):
        most = LIMITS["in_flight"] + LIMITS["queue"]
        await stand.until(lambda: len(outcomes) >= TOO_MANY - most and working())
        assert working() <= LIMITS["in_flight"]

    outcomes = await stand.front.crowd(stand.named("sleep"), {"seconds": 30}, TOO_MANY, enough)
    assert {one["error"] for one in outcomes} == {OVERLOADED}
    await stand.until(lambda: len(stand.ledger.given_up) - cancelled >= working())
    stand.begin()
    return await plain(stand)


@each(lambda upstream: Outcome({"text": "alive"}, ("die_hinted", "die_hinted")), known=CRASHES)
async def died_and_may_be_repeated(stand):
    return await stand.call("die_hinted", {"key": "hinted"})


@each(
    lambda upstream: Outcome(
        error(
            UNAVAILABLE,
            "SERVER: the connection was lost during 'tools/call': it exited with code 7; "
            "`multitap logs SERVER` shows everything it wrote"
            if upstream.wire == "pipe"
            else "SERVER: URL closed the connection without an answer",
        ),
        ("die",),
    ),
    known=CRASHES,
)
async def died(stand):
    return await stand.call("die", {"key": "destructive"})


@case(
    [
        {"text": "bye"},
        error(
            UNAVAILABLE,
            "SERVER: the connection was lost during 'tools/call': it exited with code 0; "
            "`multitap logs SERVER` shows everything it wrote",
        ),
    ],
    "last_words",
    known=CRASHES,
)
async def died_unread(stand):
    return [await stand.call("last_words"), await stand.call("count")]


@case([{"text": "bye"}, {"text": "1"}], "leave", "count", known=CRASHES)
async def restarted(stand):
    def hellos():
        return sum(method in HELLOS for method in stand.ledger.methods)

    before = hellos()
    first = await stand.call("leave")
    await stand.until(lambda: hellos() > before)  # a line that is closed may still be tried
    return [first, await stand.call("count")]


@asynccontextmanager
async def kept_up(era, env):
    """The address of a server whose successor takes over its socket when it ends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()

        async def keep():
            for _ in range(MOST_STARTS):
                async with await anyio.open_process(
                    [*COMMAND, era, str(number)],
                    env=env,
                    pass_fds=[number],
                    stdin=subprocess.DEVNULL,
                    stdout=None,
                    stderr=None,
                ) as process:
                    await process.wait()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def open_servers(home):
    """The configuration of one server of each kind, and their ledgers."""
    ledgers, servers = {}, {}
    async with AsyncExitStack() as stack:
        for upstream in UPSTREAMS:
            folder = home / upstream.name
            folder.mkdir()
            ledger = ledgers[upstream.name] = Ledger(folder)
            if upstream.wire == "pipe":
                args = [*COMMAND[1:], upstream.era]
                target = {"command": COMMAND[0], "args": args, "env": ledger.env}
            else:
                url = await stack.enter_async_context(kept_up(upstream.era, ledger.env))
                target = {"url": url, "transport": "streamable-http"}
            servers[upstream.name] = {**target, **USUAL, "era": upstream.era}
        yield servers, ledgers


@asynccontextmanager
async def open_stands(front, servers, ledgers, home):
    """One front before all of them."""
    opened = FRONTS[front]()
    async with opened.opened(servers, home / "state"):
        yield {one.name: Stand(opened, one, ledgers[one.name]) for one in UPSTREAMS}


def fronts(rest):
    """All of them; some only with `make wide`."""
    for front in FRONTS:
        marks = (pytest.mark.slow, pytest.mark.wide) if front in rest else ()
        yield pytest.param(front, marks=marks)


@pytest.fixture(scope="module", params=[*fronts({"sync"})])
async def stands(request, tmp_path_factory):
    home = tmp_path_factory.mktemp("stands")
    async with open_servers(home) as known, open_stands(request.param, *known, home) as opened:
        yield opened


def params(cases, is_daily):
    """Every case with every server: some of them each day, the others with `make wide`."""
    for (place, name), (kind, upstream) in product(enumerate(cases), enumerate(UPSTREAMS)):
        marks = () if is_daily(place, kind) else (pytest.mark.slow, pytest.mark.wide)
        yield pytest.param(name, upstream, id=f"{name}-{upstream.name}", marks=marks)


SOME = [*params(CASES, lambda place, kind: place % 2 == (kind in {1, 2}))]
"""Each case with one server on pipes and one of the other era at an address."""


@pytest.mark.parametrize(("name", "upstream"), SOME)
async def test_a_call_ends_the_same_way_everywhere(stands, name, upstream):
    stand, wanted = stands[upstream.name], CASES[name]

    assert await stand.outcome(wanted.run) == wanted.outcome(stand)


LOST = {"pipe_handshake": "died_and_may_be_repeated", "pipe_stateless": "died_unread"}
LOST |= {"web_handshake": "restarted", "web_stateless": "died"}


APART = {
    ("died_unread", "web_handshake"),  # whether it was read is nowhere to be seen
    ("died_unread", "web_stateless"),
    ("died_and_may_be_repeated", "web_handshake"),
    ("died_and_may_be_repeated", "web_stateless"),  # the repetition may take another dead line
}


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda one: one.name)
async def test_a_call_whose_server_ends_does_so_too(stands, upstream):
    stand, wanted = stands[upstream.name], CRASHES[LOST[upstream.name]]

    assert await stand.outcome(wanted.run) == wanted.outcome(stand)


@pytest.mark.slow
@pytest.mark.wide
@pytest.mark.parametrize("name", CRASHES)
@pytest.mark.parametrize("front", FRONTS)
async def test_so_does_one_of_any_other_server(front, name, tmp_path):
    wanted, outcomes, expected = CRASHES[name], {}, {}
    async with open_servers(tmp_path) as known, open_stands(front, *known, tmp_path) as stands:
        for stand in stands.values():
            if (name, stand.upstream.name) in APART:
                continue
            outcomes[stand.upstream.name] = await stand.outcome(wanted.run)
            expected[stand.upstream.name] = wanted.outcome(stand)

    assert outcomes == expected


@pytest.mark.slow
@pytest.mark.wide
@pytest.mark.parametrize("front", FRONTS)
async def test_a_repeated_call_opens_another_session(front, tmp_path):
    wanted = CRASHES["died_and_may_be_repeated"]
    async with open_servers(tmp_path) as known, open_stands(front, *known, tmp_path) as stands:
        stand = stands["web_handshake"]
        outcome = await stand.outcome(wanted.run)

    assert outcome == wanted.outcome(stand)


@pytest.mark.parametrize("front", [*fronts({"sync", "stdio-handshake"})])
async def test_what_is_under_way_ends_at_the_server_when_its_caller_leaves(front, tmp_path):
    async def calls(stand):
        await stand.front.call_for_a_while(stand.named("sleep"), {"seconds": 30})

    async with open_servers(tmp_path) as known, anyio.create_task_group() as tasks:
        async with open_stands(front, *known, tmp_path) as stands:
            for stand in stands.values():
                tasks.start_soon(calls, stand)
            for stand in stands.values():
                await stand.until(lambda stand=stand: stand.ledger.calls)
            if front.startswith("http"):  # the gateway stays, the connections go
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    for stand in stands.values():
                        await stand.until(lambda stand=stand: stand.ledger.given_up)
        with anyio.CancelScope(shield=True):
            for stand in stands.values():
                await stand.until(stand.is_released)
        tasks.cancel_scope.cancel()


TURNS = 24
"""Turns of the loop, by which each call is at its server, and its answer not far."""


@pytest.mark.parametrize("upstream", UPSTREAMS, ids=lambda one: one.name)
async def test_a_call_that_is_given_up_at_any_point_of_its_way_does_not_run(stands, upstream):
    stand = stands[upstream.name]
    calls, cancelled = stand.ledger.calls.count("sleep"), len(stand.ledger.given_up)

    for turns in range(TURNS):

        async def begun(turns=turns):
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()

        with anyio.fail_after(PATIENCE):
            await stand.front.give_up(stand.named("sleep"), {"seconds": 600}, begun)
    await stand.call("echo", {"text": "after them"})

    await stand.until(
        lambda: stand.ledger.calls.count("sleep") - calls == len(stand.ledger.given_up) - cancelled
    )
    assert (await stand.call("echo", {"text": "fine"})) == {"text": "fine"}


async def test_a_call_under_way_is_told_that_the_hub_was_left(tmp_path):
    outcomes = []

    async def calls(stand):
        outcomes.append(await stand.call("sleep", {"seconds": 30}))

    async with open_servers(tmp_path) as known, anyio.create_task_group() as tasks:
        async with open_stands("library", *known, tmp_path) as stands:
            stand = stands["pipe_handshake"]
            tasks.start_soon(calls, stand)
            await stand.until(lambda: stand.ledger.calls)
        with anyio.move_on_after(1):
            while not outcomes:
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()

    if not outcomes:
        raise TimeoutError
    assert outcomes == [error(UNAVAILABLE, "the hub was closed during the call")]


async def test_a_result_without_its_kind_gets_one_before_a_stateless_client_sees_it(tmp_path):
    program, *args = command("no_result_type")
    front = FRONTS["http-stateless"]()
    requests = {
        "tools/call": {"name": "zoo_echo", "arguments": {"text": "x"}},
        "prompts/get": {"name": "zoo_greet", "arguments": {"name": "Ada"}},
        "resources/read": {"uri": "zoo://text"},
    }
    async with front.opened({"zoo": {"command": program, "args": args}}, tmp_path):
        for number, (method, params) in enumerate(requests.items()):
            answer = await front.ask(number, method, params, able=False)

            assert answer["result"]["resultType"] == "complete", answer


@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_a_request_of_any_kind_waits_for_a_server_that_starts(tmp_path, era):
    program, *args = command("slow_init")
    front = FRONTS[f"http-{era}"]()
    argument = {"name": "name", "value": "A"}
    async with front.opened({"zoo": {"command": program, "args": args}}, tmp_path):
        by_prompt = {"ref": {"type": "ref/prompt", "name": "zoo_greet"}, "argument": argument}
        answer = await front.ask(1, "completion/complete", by_prompt, able=False)
        if era == "handshake":
            followed = await front.ask(2, "resources/subscribe", {"uri": "zoo://text"}, able=False)
            assert "result" in followed, followed

    assert "result" in answer, answer


@pytest.mark.parametrize("front", ["library", "http-handshake", "http-stateless"])
async def test_a_server_may_answer_at_once_where_it_announced_a_task(front, tmp_path):
    opened = FRONTS[front]()
    server = {"command": COMMAND[0], "args": [*COMMAND[1:], "handshake"], "era": "handshake"}
    async with opened.opened({"odd": server}, tmp_path):
        outcome = await opened.call("odd_long_job")

    assert "done" in str(outcome)


async def test_a_server_learns_that_its_client_declares_tasks(tmp_path):
    front = FRONTS["http-stateless"]()
    server = {"command": COMMAND[0], "args": [*COMMAND[1:], "stateless"], "era": "stateless"}
    able = {"elicitation": {}, "extensions": {jsonrpc.TASKS: {}, "com.example/other": {"a": 1}}}
    async with front.opened({"odd": server}, tmp_path), dial(front.port) as line:
        params = {"name": "odd_declared", "arguments": {}}
        await line.send(stateless(1, "tools/call", able=able, headers=BEARER, **params))
        answer = await front._answer(line, 1)

    declared = answer["result"]["structuredContent"]["result"]
    assert declared == able
