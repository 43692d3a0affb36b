"""Replicas on machines of their own share logins, and renew each once."""

import json
from contextlib import asynccontextmanager

import anyio
import pytest

from multitap import HttpServer
from multitap.cluster.local_coordinator import LocalCoordinator
from multitap.cluster.logins import SharedLogins
from multitap.config import OAuth
from multitap.errors import AuthRequired, CoordinatorDown, RequestFailed
from multitap.hub.people import PersonalSharing
from multitap.oauth.account import Account
from multitap.oauth.storage import LoginStorage, SharedLogin
from multitap.principal import Person as Owner
from multitap.tasks import Tasks
from multitap.trust.personal_vault import PersonalTokenStore, PersonalVault
from multitap.trust.stored_logins import TokenStore
from multitap.wire.streamable import open_streamable
from tests.oauth.provider import Person, provided
from tests.trust.keyrings import no_keyring
from tests.wire.asking import ask

KEY = b"k" * 32
ALICE, BOB = Owner("https://login.example", "alice"), Owner("https://login.example", "bob")


@pytest.fixture(autouse=True)
def keyring():
    with no_keyring():
        yield


@asynccontextmanager
async def replica(name, provider, coordinator, folder, person=None, *, owner=None):
    """A connection to the provider's server, of a replica with a disk of its own."""
    (folder / name).mkdir(mode=0o700, exist_ok=True)
    config = HttpServer(url=provider.url, oauth=OAuth())
    sharing = SharedLogins(coordinator, KEY, name)
    if owner is None:
        book = LoginStorage(TokenStore(folder / name), sharing)
    else:
        vault = PersonalVault(folder / name)
        book = LoginStorage(PersonalTokenStore(vault, owner), PersonalSharing(sharing, owner))
    async with Tasks() as tasks:
        login = person.login if person else None
        account = Account("guarded", config, storage=book, tasks=tasks, login=login)
        async with open_streamable(config, authorizer=account) as wire:
            wire.establish("2026-07-28", stateless=True)
            wire.account = account
            yield wire


@asynccontextmanager
async def three(provider, coordinator, folder, owner=None):
    """Three replicas; somebody logged in at the first."""
    async with (
        replica("one", provider, coordinator, folder, Person(), owner=owner) as one,
        replica("two", provider, coordinator, folder, owner=owner) as two,
        replica("three", provider, coordinator, folder, owner=owner) as other,
    ):
        await call(one)
        yield one, two, other


async def call(wire):
    return json.loads(bytes(await ask(wire, "tools/call", {"name": "whoami"}, timeout=30)))


def grants(provider):
    return [form["grant_type"] for form in provider.forms]


async def test_a_login_at_one_replica_is_good_for_all(tmp_path):
    async with (
        provided() as provider,
        three(provider, LocalCoordinator(), tmp_path) as replicas,
    ):
        for one in replicas:
            await call(one)

    assert grants(provider) == ["authorization_code"]


@pytest.mark.parametrize("owner", [None, ALICE], ids=["the gateway's", "a person's"])
@pytest.mark.parametrize("how", ["due", "refused"])
async def test_fifty_calls_at_expiry_renew_the_token_once_over_all_replicas(tmp_path, how, owner):
    expires_in = 0 if how == "due" else 3600
    async with (
        provided(expires_in=expires_in) as provider,
        three(provider, LocalCoordinator(), tmp_path, owner) as replicas,
    ):
        provider.expires_in = 3600
        if how == "refused":
            for one in replicas:
                await call(one)
            provider.access.clear()
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(call, replicas[number % 3])

    assert grants(provider).count("refresh_token") == 1
    assert len(provider.refresh) == 1  # its family was not revoked


async def test_an_account_of_one_person_is_found_by_no_other_at_any_replica(tmp_path):
    coordinator = LocalCoordinator()
    async with (
        provided() as provider,
        three(provider, coordinator, tmp_path, ALICE),
        replica("two", provider, coordinator, tmp_path, owner=BOB) as bob,
    ):
        with pytest.raises(AuthRequired):
            await call(bob)

    assert grants(provider) == ["authorization_code"]


async def test_each_replica_has_the_newest_token_on_its_own_disk(tmp_path):
    async with (
        provided() as provider,
        three(provider, LocalCoordinator(), tmp_path) as replicas,
    ):
        for turn in range(4):
            provider.access.clear()
            await call(replicas[turn % 3])
            for one in replicas:  # as they do when they hear of it
                await one.account.reload()
        kept = [TokenStore(tmp_path / one).find("guarded", provider.url) for one in ("one", "two")]

    assert grants(provider).count("refresh_token") == 4
    assert {one.secrets.refresh_token for one in kept} == set(provider.refresh)


async def test_who_logs_out_on_one_machine_is_logged_out_everywhere(tmp_path):
    async with (
        provided() as provider,
        three(provider, LocalCoordinator(), tmp_path) as (one, two, _),
    ):
        await call(two)
        TokenStore(tmp_path / "one").remove("guarded", provider.url)
        await one.account.reload()
        await two.account.reload()
        found = TokenStore(tmp_path / "two").find("guarded", provider.url)

    assert not one.account.is_logged_in
    assert not two.account.is_logged_in
    assert found is None


async def test_a_replica_that_dies_while_it_renews_holds_nobody_up_for_good(tmp_path):
    now = 1000.0
    coordinator = LocalCoordinator(lambda: now)
    async with provided() as provider, three(provider, coordinator, tmp_path) as (_, two, _):
        await call(two)
        provider.access.clear()
        name = (await coordinator.records.scan("login/")).keys()
        await coordinator.leases.acquire(*name, "dead", ttl=6.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, two)
            await anyio.wait_all_tasks_blocked()
            assert grants(provider).count("refresh_token") == 0
            now += 7.0

    assert grants(provider).count("refresh_token") == 1


async def test_nobody_renews_a_login_while_the_other_replicas_cannot_be_asked(tmp_path):
    coordinator = LocalCoordinator()

    async def gone(*_, **__):
        raise CoordinatorDown("Redis does not answer")

    async with provided() as provider, three(provider, coordinator, tmp_path) as (_, two, _):
        await call(two)
        provider.access.clear()
        coordinator.leases.acquire = gone
        with pytest.raises(RequestFailed, match="coordinator is down"):
            await call(two)

    assert grants(provider).count("refresh_token") == 0


async def test_a_login_of_another_cluster_key_is_not_used(tmp_path):
    coordinator = LocalCoordinator()
    async with provided() as provider, three(provider, coordinator, tmp_path):
        sharing = SharedLogins(coordinator, b"o" * 32, "stranger")

        assert await sharing.find("guarded", provider.url) is None


async def test_an_old_copy_of_a_login_that_is_put_back_is_not_used(tmp_path):
    coordinator = LocalCoordinator()
    sharing = SharedLogins(coordinator, KEY, "one")
    await sharing.tell("guarded", "https://a.test", SharedLogin(None, 1.0))
    ((name, old),) = (await coordinator.records.scan("login/")).items()
    await sharing.tell("guarded", "https://a.test", SharedLogin(None, 2.0))
    await coordinator.records.write(name, old)

    assert await sharing.find("guarded", "https://a.test") is None
    await sharing.tell("guarded", "https://a.test", SharedLogin(None, 2.0))
    assert await sharing.find("guarded", "https://a.test") == SharedLogin(None, 2.0)
