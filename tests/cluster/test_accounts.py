"""Replicas share what people begin: a login at one of them is finished at any other."""

import re
from itertools import count
from pathlib import Path

import anyio
import httpx2
import pytest

from multitap import HttpServer, Settings
from multitap.cluster.local_coordinator import LocalCoordinator
from multitap.cluster.logins import SharedLogins
from multitap.config.access import AccessRule, AccessSettings, OidcIssuer
from multitap.gateway.fronts.accounts import open_accounts
from multitap.gateway.fronts.resource_server import ResourceServer
from multitap.gateway.fronts.tokens import TokenSources
from multitap.identity.people import People, PersonRecord
from multitap.identity.verifier import Verifier
from multitap.principal import Person
from multitap.trust.personal_vault import PersonalVault, key_account
from multitap.trust.tokens import AccessTokens
from tests.cluster.staging import replicas
from tests.gateway.fronts.test_resource_server import BOUND, PUBLIC, proof
from tests.gateway.people import Browser, person, program, tokens
from tests.gateway.task_clients import NewClient
from tests.identity.tiny_issuer import tiny_issuer
from tests.oauth.provider import provided
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("own_logins")


async def go_there(browser, link):
    """Open a link, agree, and log in; returns the address that leads back."""
    _, text = await browser.open(link)
    form = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', text))
    _, text = await browser.post("/accounts/connect", form)
    page = re.search(r'content="0;url=([^"]+)"', text)[1]
    async with browser.session.get(page, allow_redirects=False) as answer:
        return answer.headers["location"]


@pytest.mark.parametrize("name", ["alice", "bob"])
async def test_a_login_that_began_at_one_replica_is_finished_at_another(
    redis_server, tmp_path, name
):
    async with provided() as provider:
        server = HttpServer(url=provider.url, credentials="per-user")
        settings = [
            Settings(servers={"guarded": server}, state_dir=tmp_path / folder)
            for folder in ("one", "two")
        ]
        async with replicas(redis_server, *settings, tokens=tokens()) as opened:
            base = opened[0].url.removesuffix("/mcp")
            for replica in opened.gates:
                open_accounts(replica.front, base)
            # each replica knows the links of the others
            link = opened[1].gateway.connections.links.new(person("alice"), "guarded")
            async with Browser(opened[0], "alice") as alice:
                back = await go_there(alice, link)
                elsewhere = back.replace(base, opened[1].url.removesuffix("/mcp"))
                await alice.sign_in(name)  # the browser of bob has the cookie of alice's login
                status, text = await alice.open(elsewhere)

            stored = await opened[0].hub.people.of(person("alice")).account("guarded")
            if name == "alice":
                assert (status, "is connected" in text) == (200, True)
                assert stored is not None
            else:
                assert (status, "for somebody else" in text) == (403, True)
                assert stored is None


def resources_of(machines):
    """Makes the resource server of each replica, on a machine of its own."""
    numbers = count()

    def make(gateway):
        people = machines[next(numbers)]
        return ResourceServer(
            PUBLIC,
            lambda: gateway.hub.settings.access,
            dict,
            make_verifier=lambda access: Verifier(access, people),
        )

    return make


async def test_a_proof_is_used_once_at_all_replicas(redis_server, tmp_path):
    resources = resources_of([People(tmp_path / name) for name in ("one", "two")])
    async with tiny_issuer() as issuer:
        issuers = {"corp": OidcIssuer(issuer=issuer.url, audiences=(f"{PUBLIC}/mcp",))}
        access = AccessSettings(oidc=issuers, rules=(AccessRule(name="all"),))
        settings = [Settings(state_dir=tmp_path / name, access=access) for name in ("one", "two")]
        token = issuer.token(**BOUND)
        async with (
            replicas(redis_server, *settings, resources=resources) as opened,
            httpx2.AsyncClient() as client,
        ):

            async def status_at(number, **headers):
                headers = {"authorization": f"DPoP {token}", **headers}
                response = await client.post(opened[number].url, headers=headers, json={})
                return response.status_code, response.headers.get("www-authenticate", "")

            for _ in range(2):  # the provider is asked for the first, and not for the second
                used = proof(token)
                assert (await status_at(0, dpop=used))[0] == 400  # admitted, and nothing asked
                status, challenge = await status_at(1, dpop=used)
                assert (status, 'error="invalid_dpop_proof"' in challenge) == (401, True)
                assert (await status_at(1, dpop=proof(token)))[0] == 400


async def test_a_person_who_is_revoked_at_one_replica_loses_their_programs_at_all(
    redis_server, tmp_path
):
    machines = [People(tmp_path / name) for name in ("one", "two")]
    async with tiny_issuer() as issuer:
        rules = (AccessRule(name="all"),)
        access = AccessSettings(oidc={"corp": OidcIssuer(issuer=issuer.url)}, rules=rules)
        settings = [
            Settings(servers={"mine": program()}, state_dir=people.folder, access=access)
            for people in machines
        ]
        for name in ("alice", "bob"):
            owner = Person(issuer.url, name)
            PersonalVault().save(owner, key_account("mine", "", {"key": f"key-of-{name}"}))
        sources = [TokenSources(AccessTokens(people.folder)) for people in machines]
        async with replicas(
            redis_server, *settings, sources=sources, resources=resources_of(machines)
        ) as opened:
            pids = {}
            for replica in opened.gates:
                for name in ("alice", "bob"):
                    token = issuer.token(sub=name)
                    async with NewClient(replica.url, token=token, declares=False) as client:
                        result = await client.call("mine_whoami", {"note": "x"})
                    key, pid, _ = result["content"][0]["text"].split()
                    assert key == f"key-of-{name}"
                    pids.setdefault(name, []).append(Path(f"/proc/{pid}"))
            alice = PersonRecord(provider="corp", issuer=issuer.url, subject="alice")
            machines[0].revoke(alice)

            with anyio.fail_after(PATIENCE):
                for path in pids["alice"]:
                    await until(lambda path=path: not path.exists())
            assert len({*pids["alice"]}) == 2
            assert all(path.exists() for path in pids["bob"])


async def test_accounts_that_are_forgotten_on_one_machine_are_deleted_on_all(
    redis_server, tmp_path
):
    machines = [People(tmp_path / name) for name in ("one", "two")]
    async with tiny_issuer() as issuer:
        access = AccessSettings(
            oidc={"corp": OidcIssuer(issuer=issuer.url)}, rules=(AccessRule(name="all"),)
        )
        settings = [
            Settings(servers={"mine": program()}, state_dir=people.folder, access=access)
            for people in machines
        ]
        sources = [TokenSources(AccessTokens(people.folder)) for people in machines]
        alice, bob = (Person(issuer.url, name) for name in ("alice", "bob"))
        async with replicas(
            redis_server, *settings, sources=sources, resources=resources_of(machines)
        ) as opened:
            vaults, coordinator = [PersonalVault(m.folder) for m in machines], LocalCoordinator()
            for replica, vault in zip(opened.gates, vaults, strict=True):
                people = replica.hub.people
                people.common.vault = vault
                people._sharing = SharedLogins(coordinator, b"k" * 32, str(vault.folder))
            for owner in (alice, bob):
                # at the first, and at the second as soon as they come there
                vaults[0].save(owner, key_account("mine", "", {"key": "k"}))
                for replica in opened.gates:
                    assert await replica.hub.people.of(owner).account("mine") is not None
            record = PersonRecord(provider="corp", issuer=issuer.url, subject="alice")
            machines[0].revoke(record, forget=True)

            with anyio.fail_after(PATIENCE):
                for vault in vaults:
                    await until(lambda vault=vault: not vault.accounts(alice))
            machines[0].revoke(record, undo=True)
            for replica in opened.gates:
                assert await replica.hub.people.of(alice).account("mine") is None
                assert await replica.hub.people.of(bob).account("mine") is not None
