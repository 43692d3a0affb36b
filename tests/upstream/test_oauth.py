from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
import pytest

from multitap import Handlers, HttpServer, Settings, open_hub
from multitap.config import OAuth
from multitap.events import FailureCode, LinkState
from multitap.faults import AuthRequired, RequestFailed
from multitap.upstream.oauth import Account
from multitap.wire.streamable.streamable_wire import open_streamable
from tests.wire import http_zoo as zoo
from tests.wire.asking import ask as ask_on


class Guarded:
    """A server that gives tokens to whoever logs in, and answers to nobody else."""

    def __init__(self, origin=None, **granted):
        self.origin = origin
        self.renews = True
        self.granted = {"token_type": "Bearer", "expires_in": 3600, **granted}
        self.valid = None
        self.forms = []
        self.step_up = None
        self.description = "/.well-known/oauth-authorization-server"

    async def __call__(self, request, caller):
        origin = f"http://{request.headers['host']}"
        match request.path:
            case "/mcp" if request.headers.get("authorization") != f"Bearer {self.valid}":
                await caller.respond(status=401, www_authenticate="Bearer")
            case "/mcp" if self.step_up:
                words = f'Bearer error="insufficient_scope", scope="{self.step_up}"'
                await caller.respond(status=403, www_authenticate=words)
            case "/mcp" if request.rpc == "server/discover":
                can = {"supportedVersions": ["2026-07-28"], "capabilities": {}}
                cached = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"}
                await caller.respond(zoo.result(request, **can, **cached))
            case "/mcp":
                await zoo.polite(request, caller)
            case "/.well-known/oauth-protected-resource/mcp":
                about = {
                    "resource": f"{origin}/mcp",
                    "authorization_servers": [self.origin or origin],
                }
                await caller.respond(about)
            case self.description:
                await caller.respond(
                    {
                        "issuer": origin,
                        "authorization_endpoint": f"{origin}/authorize",
                        "token_endpoint": f"{origin}/token",
                        "registration_endpoint": f"{origin}/register",
                        "response_types_supported": ["code"],
                    }
                )
            case "/register":
                await caller.respond({**request.message, "client_id": "us"}, status=201)
            case "/token":
                form = {key: value[0] for key, value in parse_qs(request.body.decode()).items()}
                if form["grant_type"] == "refresh_token" and not self.renews:
                    await caller.respond({"error": "invalid_grant"}, status=400)
                    return
                self.forms.append(form)
                self.valid, self.step_up = f"token-{len(self.forms)}", None
                await caller.respond({**self.granted, "access_token": self.valid})
            case _:
                await caller.respond(status=404)


class Person:
    """Agrees to everything, or does not."""

    def __init__(self, refusal=None):
        self.refusal = refusal
        self.pages = []

    async def login(self, asked, address):
        page = {key: value[0] for key, value in parse_qs(urlsplit(address).query).items()}
        self.pages.append((asked.server, page))
        answer = {"code": "c"} if self.refusal is None else {"error": self.refusal}
        return f"{page['redirect_uri']}?{urlencode({**answer, 'state': page['state']})}"


@asynccontextmanager
async def wired(guarded, person, **known):
    async with zoo.serve(guarded) as server:
        known = {key: value.format(server.url) for key, value in known.items()}
        config = HttpServer(url=server.url, oauth=OAuth(**known))
        account = Account("vault", config, person.login)
        async with open_streamable(config, authorize=account.authorize) as wire:
            yield wire


async def call(wire):
    await ask_on(wire, "tools/call", {"name": "t"}, timeout=5)


async def test_who_is_refused_logs_in_and_asks_again():
    person, guarded = Person(), Guarded()
    async with wired(guarded, person) as wire:
        await call(wire)
        await call(wire)

    ((server, page),) = person.pages
    assert (server, page["client_id"], page["code_challenge_method"]) == ("vault", "us", "S256")
    assert [form["grant_type"] for form in guarded.forms] == ["authorization_code"]


async def test_those_refused_together_log_in_once():
    person = Person()
    async with wired(Guarded(), person) as wire, anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(call, wire)

    assert len(person.pages) == 1


async def test_an_expired_token_is_renewed_without_asking_anybody():
    person, guarded = Person(), Guarded(expires_in=-1, refresh_token="again")
    async with wired(guarded, person) as wire:
        await call(wire)
        guarded.granted["expires_in"] = 3600
        await call(wire)

    assert len(person.pages) == 1
    assert [form["grant_type"] for form in guarded.forms] == ["authorization_code", "refresh_token"]


async def test_a_person_is_asked_again_where_a_token_cannot_be_renewed():
    person, guarded = Person(), Guarded(expires_in=-1, refresh_token="again")
    async with wired(guarded, person) as wire:
        await call(wire)
        guarded.renews, guarded.valid = False, None
        await call(wire)

    assert len(person.pages) == 2


async def test_an_authorization_server_that_is_away_is_asked_another_time():
    async with wired(Guarded(origin="http://127.0.0.1:1"), Person()) as wire:
        with pytest.raises(RequestFailed, match=r"cannot log in: .*127\.0\.0\.1:1"):
            await call(wire)


async def test_a_request_that_needs_more_than_was_granted_asks_for_that_as_well():
    person, guarded = Person(), Guarded(scope="read")
    async with wired(guarded, person, scope="read") as wire:
        await call(wire)
        guarded.step_up = "write"
        await call(wire)

    assert [page["scope"] for _, page in person.pages] == ["read", "read write"]


async def test_who_is_known_already_does_not_register():
    person, guarded = Person(), Guarded()
    async with wired(guarded, person, client_id="me", client_secret="s3cret") as wire:
        await call(wire)

    assert person.pages[0][1]["client_id"] == "me"


async def test_the_authorization_server_may_describe_itself_elsewhere():
    person, guarded = Person(), Guarded()
    guarded.description = "/mcp/about"
    async with wired(guarded, person, metadata_url="{}/about") as wire:
        await call(wire)

    assert len(person.pages) == 1


async def test_a_login_that_fails_says_why():
    async with wired(Guarded(), Person(refusal="access_denied")) as wire:
        with pytest.raises(AuthRequired, match="cannot log in: access_denied"):
            await call(wire)


async def test_tokens_that_cannot_be_read_are_not_shown():
    async with wired(Guarded(token_type=None), Person()) as wire:
        with pytest.raises(AuthRequired, match="cannot log in") as failure:
            await call(wire)

    assert "token-1" not in str(failure.value)


async def test_a_hub_stays_logged_in_when_the_server_comes_back(tmp_path):
    person = Person()
    async with zoo.serve(Guarded()) as server:
        servers = {"vault": HttpServer(url=server.url)}
        settings = Settings(servers=servers, state_dir=tmp_path)
        async with open_hub(settings, handlers=Handlers(login=person.login)) as hub:
            await hub.settled()
            hub.restart("vault")
            await hub.settled()

            assert hub.snapshot().server("vault").state is LinkState.CONNECTED

    assert len(person.pages) == 1


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"oauth": False}, id="never"),
        pytest.param({"headers": {"authorization": "Bearer mine"}}, id="own-token"),
    ],
)
async def test_nobody_is_asked_to_log_in_where_that_is_not_wanted(tmp_path, config):
    person = Person()
    async with zoo.serve(Guarded()) as server:
        servers = {"vault": HttpServer(url=server.url, **config)}
        settings = Settings(servers=servers, state_dir=tmp_path)
        async with open_hub(settings, handlers=Handlers(login=person.login)) as hub:
            await hub.settled()
            snapshot = hub.snapshot().server("vault")

    assert (snapshot.state, snapshot.failure.code) == (LinkState.NEEDS_AUTH, FailureCode.AUTH)
    assert person.pages == []
