"""Logins at servers: granted, renewed, refused."""

import json
import time
from contextlib import asynccontextmanager

import anyio
import pytest

from multitap import HttpServer
from multitap.config import OAuth
from multitap.errors import AuthRequired, RequestFailed
from multitap.oauth.account import Account
from multitap.oauth.storage import LoginStorage
from multitap.tasks import Tasks
from multitap.trust.stored_logins import TokenStore
from multitap.wire.streamable import open_streamable
from tests.oauth.provider import Person, provided
from tests.wire.asking import ask


@asynccontextmanager
async def wired(url, person=None, **known):
    """A wire that is past its handshake, so that requests wait for who logs in."""
    config = HttpServer(url=url, oauth=OAuth(**known))
    async with Tasks() as tasks:
        login = person.login if person else None
        account = Account(
            "guarded", config, storage=LoginStorage(TokenStore()), tasks=tasks, login=login
        )
        async with open_streamable(config, authorizer=account) as wire:
            wire.establish("2026-07-28", stateless=True)
            wire.account = account
            yield wire


async def call(wire):
    return json.loads(bytes(await ask(wire, "tools/call", {"name": "whoami"}, timeout=30)))


def grants(provider):
    return [form["grant_type"] for form in provider.forms]


async def test_who_is_refused_logs_in_and_asks_again():
    person = Person()
    async with provided() as provider, wired(provider.url, person) as wire:
        await call(wire)
        await call(wire)

    assert [server for server, _ in person.asked] == ["guarded"]
    assert grants(provider) == ["authorization_code"]


async def test_a_login_outlives_the_process():
    async with provided() as provider:
        async with wired(provider.url, Person()) as wire:
            await call(wire)
        async with wired(provider.url) as wire:
            await call(wire)

    assert grants(provider) == ["authorization_code"]


async def test_a_login_is_good_for_one_server_at_one_url():
    async with provided() as provider:
        async with wired(provider.url, Person()) as wire:
            await call(wire)

        store = TokenStore()
        assert store.find("guarded", provider.url) is not None
        assert store.find("other", provider.url) is None
        assert store.find("guarded", f"{provider.url}/x") is None


async def test_those_refused_together_log_in_once():
    person = Person()
    async with (
        provided() as provider,
        wired(provider.url, person) as wire,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(5):
            tasks.start_soon(call, wire)

    assert len(person.asked) == 1


async def test_fifty_calls_at_expiry_renew_the_token_once():
    async with provided(expires_in=0) as provider, wired(provider.url, Person()) as wire:
        await call(wire)
        provider.expires_in = 3600
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(call, wire)

    assert grants(provider).count("refresh_token") == 1


async def test_fifty_calls_that_are_refused_renew_the_token_once():
    async with provided() as provider, wired(provider.url, Person()) as wire:
        await call(wire)
        provider.access.clear()
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(call, wire)

    assert grants(provider).count("refresh_token") == 1


async def test_the_successor_of_a_refresh_token_is_kept_before_it_is_used():
    async with provided() as provider, wired(provider.url, Person()) as wire:
        await call(wire)
        for _ in range(3):
            provider.access.clear()
            await call(wire)
            kept = TokenStore().find("guarded", provider.url)
            assert kept.secrets.refresh_token in provider.refresh

    assert grants(provider) == ["authorization_code", *["refresh_token"] * 3]


async def test_a_renewal_outlives_the_call_that_needed_it():
    answered = anyio.Event()

    async def slowly(_form):
        await answered.wait()

    async with provided() as provider, wired(provider.url, Person()) as wire:
        await call(wire)
        provider.access.clear()
        provider.on_token = slowly
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, wire)
            await provider.server.until(lambda: len(provider.forms) == 2)
            tasks.cancel_scope.cancel()
        answered.set()
        provider.on_token = None
        await call(wire)

    assert grants(provider) == ["authorization_code", "refresh_token"]


async def test_a_login_that_cannot_be_renewed_says_what_to_run():
    async with provided() as provider:
        async with wired(provider.url, Person()) as wire:
            await call(wire)
        provider.access.clear()
        provider.refresh.clear()
        async with wired(provider.url) as wire:
            with pytest.raises(AuthRequired, match="invalid_grant") as caught:
                await call(wire)
            with pytest.raises(AuthRequired):
                await call(wire)

    assert caught.value.hint == "run `multitap login guarded`"
    assert grants(provider).count("refresh_token") == 1, "a refused token is not tried again"
    assert TokenStore().find("guarded", provider.url) is not None


async def test_without_a_person_a_server_that_wants_a_login_says_what_to_run():
    async with provided() as provider, wired(provider.url) as wire:
        with pytest.raises(AuthRequired, match="it wants a login") as caught:
            await call(wire)

    assert caught.value.hint == "run `multitap login guarded`"
    assert [one.path for one in provider.server.requests] == ["/mcp"], "nobody else is asked"


async def test_who_refused_is_not_asked_again():
    person = Person()
    async with provided(refusal="access_denied") as provider, wired(provider.url, person) as wire:
        for _ in range(3):
            with pytest.raises(AuthRequired, match="cannot log in: access_denied"):
                await call(wire)

    assert len(person.asked) == 1


async def test_a_failed_login_keeps_the_tokens_that_there_were():
    async with provided() as provider:
        async with wired(provider.url, Person()) as wire:
            await call(wire)
        before = TokenStore().find("guarded", provider.url)
        provider.needs_scope, provider.refusal = "write", "access_denied"
        async with wired(provider.url, Person()) as wire:
            with pytest.raises(AuthRequired, match="access_denied"):
                await call(wire)

        assert TokenStore().find("guarded", provider.url) == before


async def test_a_request_that_needs_more_than_was_granted_asks_for_that_as_well():
    async with provided() as provider, wired(provider.url, Person(), scope="read") as wire:
        await call(wire)
        provider.needs_scope = "write"
        await call(wire)

    assert [page["scope"] for page in provider.pages] == ["read", "read write"]


async def test_rights_that_a_login_does_not_give_are_asked_for_once():
    person = Person()
    async with provided() as provider, wired(provider.url, person, scope="read") as wire:
        await call(wire)
        provider.needs_scope = "more than anybody gets"
        for _ in range(3):
            with pytest.raises(AuthRequired):
                await call(wire)

    assert len(person.asked) == 2


async def test_without_a_person_missing_rights_are_in_the_command_to_run():
    async with provided() as provider:
        async with wired(provider.url, Person(), scope="read") as wire:
            await call(wire)
        provider.needs_scope = "write"
        async with wired(provider.url, scope="read") as wire:
            with pytest.raises(AuthRequired) as caught:
                await call(wire)

    assert caught.value.hint.startswith('run `multitap login guarded --scope "read write"`')


async def test_an_authorization_server_that_forgot_us_registers_us_again():
    async with provided() as provider:
        async with wired(provider.url, Person()) as wire:
            await call(wire)
        provider.access.clear()
        provider.clients.clear()
        async with wired(provider.url, Person()) as wire:
            with pytest.raises(AuthRequired, match="invalid_client"):
                await call(wire)
            await call(wire)

    assert len(provider.registrations) == 2


async def test_a_registration_is_used_again():
    async with provided() as provider:
        async with wired(provider.url, Person()) as wire:
            await call(wire)
        provider.access.clear()
        provider.refresh.clear()
        async with wired(provider.url, Person()) as wire:
            with pytest.raises(AuthRequired):
                await call(wire)
            await call(wire)

    assert (len(provider.registrations), len(provider.pages)) == (1, 2)


@pytest.mark.parametrize("method", ["client_secret_basic", "client_secret_post"])
async def test_a_client_that_is_known_already_shows_its_secret_as_is_wanted(method):
    redirect = "http://127.0.0.1:8414/callback"
    known = {"me": {"secret": "s3cret/+ :", "redirects": [redirect]}}
    async with (
        provided(clients=known, auth_methods=(method,)) as provider,
        wired(provider.url, Person(), client_id="me", client_secret="s3cret/+ :") as wire,
    ):
        await call(wire)
        provider.access.clear()
        await call(wire)

    assert grants(provider) == ["authorization_code", "refresh_token"]
    assert ("client_secret" in provider.forms[0]) is (method == "client_secret_post")


async def test_a_client_logs_in_by_itself_and_leaves_no_token_behind():
    known = {"ci": {"secret": "s3cret", "redirects": []}}
    async with (
        provided(clients=known) as provider,
        wired(
            provider.url,
            grant="client_credentials",
            client_id="ci",
            client_secret="s3cret",
            scope="read",
        ) as wire,
    ):
        await call(wire)
        provider.access.clear()
        answer = await call(wire)

    assert answer["content"][0]["text"] == "read"
    assert grants(provider) == ["client_credentials"] * 2
    assert TokenStore().find("guarded", provider.url).secrets is None
    stored = TokenStore().file.read_text()
    assert not [secret for secret in (*provider.access, "s3cret") if secret in stored]


async def test_a_statement_of_the_platform_is_read_again_for_each_login(tmp_path):
    path = tmp_path / "token"
    path.write_text("first.of.all\n")
    asked = []

    async def exchange(form):
        asked.append((form["grant_type"].rpartition(":")[2], form["assertion"]))
        return {"error": "invalid_grant"}

    async with (
        provided(on_token=exchange) as provider,
        wired(provider.url, grant="jwt_bearer", client_id="job", assertion_file=path) as wire,
    ):
        with pytest.raises(AuthRequired, match="invalid_grant"):
            await call(wire)
        path.write_text("second.of.all")
        with pytest.raises(AuthRequired, match="invalid_grant"):
            await call(wire)

    assert asked == [("jwt-bearer", "first.of.all"), ("jwt-bearer", "second.of.all")]


async def test_tokens_are_bound_to_a_key_where_both_servers_take_proofs():
    offered = {"dpop_signing_alg_values_supported": ["ES256"]}
    async with provided(resource=offered, issuer=offered, nonce="n-1") as provider:
        async with wired(provider.url, Person()) as wire:
            await call(wire)
            provider.nonce = "n-2"
            await call(wire)
        provider.access.clear()
        async with wired(provider.url) as wire:  # another process has the same key
            await call(wire)

    assert len({one["key"] for one in provider.proofs}) == 1
    assert grants(provider)[-1] == "refresh_token"


async def test_a_server_that_takes_no_proofs_gets_none():
    offered = {"dpop_signing_alg_values_supported": ["ES256"]}
    async with provided(issuer=offered) as provider, wired(provider.url, Person()) as wire:
        await call(wire)

    assert provider.proofs == []


async def test_the_authorization_server_may_describe_itself_elsewhere():
    async with provided() as provider:
        where = f"{provider.origin}/.well-known/oauth-authorization-server"
        provider.issuer["registration_endpoint"] = "{origin}/register"
        async with wired(provider.url, Person(), metadata_url=where) as wire:
            await call(wire)

    assert len(provider.pages) == 1


async def test_an_authorization_server_that_is_away_is_asked_another_time():
    async with provided() as provider:
        async with wired(provider.url, Person()) as wire:
            await call(wire)
        kept = TokenStore().find("guarded", provider.url)
    async with provided() as other:
        moved = json.loads(TokenStore().file.read_text().replace(provider.url, other.url))
        TokenStore().file.write_text(json.dumps(moved))
        async with wired(other.url) as wire:
            with pytest.raises(RequestFailed, match="cannot connect"):
                await call(wire)

    assert kept.token_endpoint.startswith(provider.origin)


async def test_a_token_that_lasts_a_moment_longer_is_used_while_nobody_renews_it():
    async with provided(expires_in=20) as provider, wired(provider.url, Person()) as wire:
        await call(wire)
        wire.account._now.renew_at = time.time() - 1

        async def broken(_form):
            raise ConnectionError

        provider.on_token = broken
        await call(wire)

    assert grants(provider)[-1] == "refresh_token"
