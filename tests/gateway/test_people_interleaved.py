"""Three people at once, over all kinds of requests: nobody gets anything of another's."""

import json
import os
import random
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio
import pytest
from aiohttp import web
from yarl import URL

from multitap import HttpServer, Settings
from tests.gateway import personal_server
from tests.gateway.people import NAMES, Browser, person, program, team, token_of
from tests.gateway.task_clients import NewClient, OldClient, Refused, accept
from tests.oauth.provider import RESOURCE, Provider
from tests.waiting import PATIENCE, until
from tests.wire import http_zoo as zoo

REQUESTS = int(os.environ.get("MULTITAP_INTERLEAVED", "200"))
"""How many requests are made; 10,000 is the full size."""
PROGRAMS = ("pipes_old", "pipes_new")
WITH_KEYS = (*PROGRAMS, "web_old", "web_new")
WITH_LOGINS = ("login_old", "login_new")
"""Each has an authorization server of its own."""
SERVERS = (*WITH_KEYS, *WITH_LOGINS)
EXPIRING, LOGGING_IN = 0.2, 0.05
"""How often a token of a person expires, and how often a person logs in again."""

pytestmark = [pytest.mark.usefixtures("own_logins"), pytest.mark.timeout(1800)]


class Logins(Provider):
    """An authorization server that knows its people by a cookie, and the server that it protects.

    The scope of a token is the key of its person.
    """

    def __init__(self):
        super().__init__()
        self.issued = {}
        """The keys of all tokens, expired ones too."""
        self.foreign = []
        """What the server was sent that is not a token from here."""

    async def authorize(self, request, caller):
        name = request.headers["cookie"].partition("person=")[2].partition(";")[0]
        request.path += f"&scope=key-of-{name}"
        await super().authorize(request, caller)

    def give(self, client_id, scope, kind="Bearer"):
        answer = super().give(client_id, scope, kind)
        self.issued[answer["access_token"]] = scope
        return answer

    def expire(self, key):
        """Let the access tokens of a person expire, as far as the server is concerned."""
        expired = [token for token, scope in self.access.items() if scope == key]
        for token in expired:
            del self.access[token]

    def key_of(self, request):
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token and token not in self.issued:
            self.foreign.append(token)
        if token not in self.access:
            metadata = self.protects.replace("/mcp", RESOURCE)
            challenge = f'Bearer resource_metadata="{metadata}"'
            raise web.HTTPUnauthorized(headers={"WWW-Authenticate": challenge})
        return self.access[token]

    async def describe(self, _request):
        described = {"resource": self.protects, "authorization_servers": [self.origin]}
        return web.json_response(described)

    @property
    def refreshes(self):
        return [form for form in self.forms if form["grant_type"] == "refresh_token"]


@asynccontextmanager
async def served(app):
    """Serve on loopback; yields the URL."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def with_logins(era, label):
    """The personal server of everybody behind logins; yields its URL and these."""
    logins = Logins()
    app = personal_server.app(era, label, logins.key_of)
    app.add_routes([web.get(RESOURCE, logins.describe)])
    async with zoo.serve(logins) as provider, served(app) as url:
        logins.origin, logins.protects = provider.url.removesuffix("/mcp"), url
        yield url, logins


class Member:
    """One person with clients of both eras, and all that these were ever told."""

    def __init__(self, name, gateway):
        self.name = name
        self.key = f"key-of-{name}"
        url, token = gateway.url, token_of(name)
        self.old = OldClient(url, token=token)
        self.new = NewClient(url, token=token, declares=False)
        self.tasks = NewClient(url, token=token)
        self.told = []
        self.updates = Counter()
        self.made = {"old": [], "new": []}
        """The ids of their tasks, by era."""

    async def follow(self, started):
        """Listen for changes of all inboxes with a client of the stateless era."""
        uris = [f"{label}://inbox" for label in SERVERS]
        async with self.new.listens(resourceSubscriptions=uris) as messages:
            async for message in messages:
                self.told.append(message)
                if message["method"].endswith("acknowledged"):
                    started.set()
                elif message["method"].endswith("updated"):
                    self.updates[message["params"]["uri"].partition(":")[0]] += 1

    async def follow_old(self, started):
        """The same with the session of the handshake era."""
        for label in SERVERS:
            await self.old.ask("resources/subscribe", {"uri": f"{label}://inbox"})
        async with self.old._http.stream("GET", self.old.url, timeout=None) as response:
            started.set()
            async for line in response.aiter_lines():
                if line.startswith("data:") and line[5:].strip():
                    self.told.append(json.loads(line[5:]))

    async def call(self, client, tool, arguments):
        """The text of a result; questions in between have to be about their own key."""
        result = await client.call(tool, arguments)
        while result.get("resultType") == "input_required":
            for question in result["inputRequests"].values():
                assert f"who is {self.name}?" in question["params"]["message"]
            answers = {name: accept(asked) for name, asked in result["inputRequests"].items()}
            more = {"inputResponses": answers, "requestState": result["requestState"]}
            result = await client.call(tool, arguments, **more)
        return result["content"][0]["text"]

    async def ask(self, kind, era, server, note, others):
        """One request of a kind: all of its answer is the person's own."""
        client, key = {"old": self.old, "new": self.new}[era], self.key
        match kind:
            case "tool":
                told = await self.call(client, f"{server}_whoami", {"note": note})
                assert (told.split()[0], told.split()[2]) == (key, note)
            case "question":
                told = await self.call(client, f"{server}_ask", {})
                assert told == f"{key} Ada"
            case "prompt":
                prompt = await client.ask("prompts/get", {"name": f"{server}_greeting"})
                assert prompt["messages"][0]["content"]["text"] == f"Greet {key}"
            case "resource":
                read = await client.ask("resources/read", {"uri": f"{server}://inbox"})
                assert read["contents"][0]["text"] == f"mail of {key}"
            case "template":
                read = await client.ask("resources/read", {"uri": f"{server}://notes/{note}"})
                assert read["contents"][0]["text"] == f"notes of {key} on {note}"
            case "completion":
                ref = {"type": "ref/prompt", "name": f"{server}_greeting"}
                asked = {"ref": ref, "argument": {"name": "topic", "value": note}}
                completed = await client.ask("completion/complete", asked)
                assert completed["completion"]["values"] == [f"{key}-{note}"]
            case "list":
                names = {tool["name"] for tool in (await client.ask("tools/list", {}))["tools"]}
                own = {f"{label}_only_for_{self.name}" for label in SERVERS}
                assert {name for name in names if "only_for" in name} == own
            case "change":
                assert await self.call(client, f"{server}_touch", {}) == key
            case "cached":
                assert await self.call(client, f"{server}_key", {}) == key
            case "task":
                tasks = self.old if era == "old" else self.tasks
                task = await tasks.begin(f"{server}_whoami", {"note": note})
                result = await tasks.finish(task)
                assert result["content"][0]["text"].split()[0] == key
                self.made[era] = [*self.made[era][-5:], task]
            case "theft":
                thief = random.Random(note).choice(others)
                if self.made[era]:
                    stealing = thief.old if era == "old" else thief.tasks
                    with pytest.raises(Refused, match="no such task"):
                        await stealing.get(self.made[era][-1])


KINDS = (
    "tool", "question", "prompt", "resource", "template", "completion", "list", "change", "cached",
    "task", "theft",
)  # fmt: skip


async def log_in(gateway, name, label):
    """Connect the account of a person, again if they have connected it before."""
    link = gateway.gateway.connections.links.new(person(name), label)
    async with Browser(gateway, name) as browser:
        browser.session.cookie_jar.update_cookies({"person": name}, URL(browser.base))
        assert "connected" in await browser.connect(link)


async def start_servers(stack):
    """Servers of both eras, by label, and what those with logins have for these."""
    servers, logins = {}, {}
    for label in SERVERS:
        kind, _, era = label.partition("_")
        pinned = {"era": "handshake" if era == "old" else "stateless"}
        pinned["cache"] = {"key": 600}
        if kind == "pipes":
            servers[label] = program(era, label, **pinned)
            continue
        if kind == "web":
            app = personal_server.app(era, label)
            url = await stack.enter_async_context(served(app))
            pinned["headers"] = {"X-Key": "${auth:key}"}
        else:
            url, logins[label] = await stack.enter_async_context(with_logins(era, label))
        servers[label] = HttpServer(url=url, credentials="per-user", **pinned)
    return servers, logins


@asynccontextmanager
async def office(folder):
    """A gateway with servers of both eras on pipes and over HTTP, and three people with clients."""
    async with AsyncExitStack() as stack:
        servers, logins = await start_servers(stack)
        settings = Settings(servers=servers, state_dir=folder)
        gateway = await stack.enter_async_context(team(settings))
        gateway.gateway.task_calls.slow = 0.0  # each call of a client that takes tasks is one
        for name in NAMES:
            async with Browser(gateway, name) as browser:
                for label in WITH_KEYS:
                    await browser.give_key(label, f"key-of-{name}")
        async with anyio.create_task_group() as tasks:
            for name in NAMES:
                for label in WITH_LOGINS:
                    tasks.start_soon(log_in, gateway, name, label)
        with anyio.fail_after(PATIENCE):
            for name in NAMES:
                for label in SERVERS:
                    is_connected = gateway.gateway.connections.is_connected
                    await until(partial(is_connected, person(name), label))
        members = [Member(name, gateway) for name in NAMES]
        for member in members:
            for client in (member.old, member.new, member.tasks):
                await stack.enter_async_context(client)
        tasks = await stack.enter_async_context(anyio.create_task_group())
        for member in members:
            await member.old.ask("logging/setLevel", {"level": "debug"})
            for follow in (member.follow, member.follow_old):
                started = anyio.Event()
                tasks.start_soon(follow, started)
                with anyio.fail_after(PATIENCE):
                    await started.wait()
        yield gateway, members, logins
        tasks.cancel_scope.cancel()


def check_discretion(gateway, members, logins):
    """Nobody was told, logged or sent along anything of another's."""
    # what they were told without asking is their own as well: questions, logs, changes
    for member in members:
        heard = json.dumps([*member.told, *member.old.told])
        for other in members:
            assert (other.name in heard) is (other is member)
    for label in WITH_LOGINS:
        assert logins[label].foreign == []
        assert {*logins[label].issued.values()} == {member.key for member in members}
        assert logins[label].refreshes
    for label in PROGRAMS:
        for name in NAMES:
            path = next(gateway.hub.logs.glob(f"person-{person(name).mark}/{label}.log"))
            text = path.read_text()
            assert {other for other in NAMES if f"a call of {other}" in text} == {name}


async def interleave(folder, requests):
    chance, done, logged_in = random.Random(7), Counter(), Counter()
    async with office(folder) as (gateway, members, logins):
        for member in members:  # the log of each program has a line at least
            for label in PROGRAMS:
                await member.ask("tool", "old", label, "first", [])
        while done.total() < requests:
            # before the requests: a token that expires again within a request ends it
            for member in members:
                if chance.random() < EXPIRING:
                    logins[chance.choice(WITH_LOGINS)].expire(member.key)
            async with anyio.create_task_group() as tasks:
                for member in chance.sample(members, len(members)):
                    if chance.random() < LOGGING_IN:
                        label = chance.choice(WITH_LOGINS)
                        logged_in[label] += 1
                        tasks.start_soon(log_in, gateway, member.name, label)
                        continue
                    for era in ("old", "new"):
                        kind, server = chance.choice(KINDS), chance.choice(SERVERS)
                        others = [other for other in members if other is not member]
                        note = f"n{done.total()}"
                        done[kind, era, server] += 1
                        tasks.start_soon(member.ask, kind, era, server, note, others)
        assert {*logged_in} == {*WITH_LOGINS}
        check_discretion(gateway, members, logins)
    return done


async def test_interleaved_requests_of_three_people_never_mix(tmp_path):
    done = await interleave(tmp_path, REQUESTS)

    assert {cell[1:] for cell in done} == {(e, s) for e in ("old", "new") for s in SERVERS}
    assert {cell[0] for cell in done} == {*KINDS}
