"""What several replicas count, decide and write down together."""

import shutil
import sqlite3
from collections import Counter
from itertools import count

import anyio
import msgspec
import pytest

from multitap import Settings
from multitap.config.access import AccessRule, AccessSettings, OidcIssuer
from multitap.gateway.fronts.resource_server import ResourceServer
from multitap.gateway.fronts.tokens import TokenSources
from multitap.identity.people import People, PersonRecord
from multitap.identity.verifier import Verifier
from multitap.store.audit_log import FILE_NAME, AuditBatch, AuditFile
from multitap.trust.tokens import AccessTokens
from tests.cluster.redis_server import needs_redis, running_redis
from tests.cluster.staging import replicas
from tests.gateway.hostile.raw import dial, message, stateless
from tests.gateway.session_client import SessionClient
from tests.gateway.talking import zoo
from tests.identity.tiny_issuer import tiny_issuer
from tests.waiting import PATIENCE, until

pytestmark = needs_redis


def bearer(text):
    return {"authorization": f"Bearer {text}"}


@pytest.fixture
def several(tmp_path):
    def make(number):
        servers = {"zoo": zoo("good_legacy")}
        return [Settings(state_dir=tmp_path / f"s{n}", servers=servers) for n in range(number)]

    return make


async def test_a_rate_is_counted_over_all_replicas(redis_server, several, tmp_path):
    store = AccessTokens(tmp_path / "tokens")
    text, _ = store.create("ann", rate="100/min")
    sources = [TokenSources(store) for _ in range(3)]
    statuses = Counter()
    async with replicas(redis_server, *several(3), sources=sources) as opened:

        async def ask(number):
            async with dial(opened.port(number)) as line:
                for request_id in range(50):
                    asked = stateless(request_id, "tools/list", headers=bearer(text))
                    response = await line.asks(asked)
                    statuses[response.status] += 1
                    if response.status == 429:
                        assert int(response.headers["retry-after"]) > 0

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(ask, number)

    assert statuses[200] + statuses[429] == 150
    assert abs(statuses[200] - 100) <= 2


async def test_a_rate_that_cannot_be_counted_is_refused_and_sessions_count_too(several, tmp_path):
    store = AccessTokens(tmp_path / "tokens")
    text, _ = store.create("ann", rate="100/min")
    sources = [TokenSources(store) for _ in range(2)]
    with running_redis() as redis_server:
        async with replicas(redis_server, *several(2), sources=sources) as opened:
            client = await SessionClient(opened.port(0), bearer(text)).shake_hands()
            client.port = opened.port(1)
            arguments = {"text": "hi"}
            works = await client.post(
                message(1, "tools/call", name="zoo_echo", arguments=arguments)
            )
            redis_server.stop()
            refused = await client.post(message(2, "ping"))

    assert works.text == "hi"
    assert refused.status == 503
    assert b"cannot be counted" in refused.body


async def test_a_token_that_is_revoked_at_one_replica_holds_nowhere(
    redis_server, several, tmp_path
):
    one = AccessTokens(tmp_path / "one")
    text, token = one.create("ann")
    shutil.copytree(tmp_path / "one", tmp_path / "two")  # another machine
    sources = [TokenSources(one), TokenSources(AccessTokens(tmp_path / "two"))]
    async with replicas(redis_server, *several(2), sources=sources) as opened:
        client = await SessionClient(opened.port(1), bearer(text)).shake_hands()
        assert (await client.post(message(1, "ping"))).status == 200
        one.revoke(token.id)
        await until(lambda: token.id in sources[1].revoked_elsewhere)
        await until(lambda: not len(opened[1].front.sessions))
        refused = await client.post(message(1, "ping"))

    assert refused.status == 401


async def test_a_person_who_is_revoked_at_one_replica_comes_in_nowhere(
    redis_server, several, tmp_path
):
    machines = [People(tmp_path / name) for name in ("one", "two")]
    numbers = count()

    def resources(gateway):
        people = machines[next(numbers)]
        return ResourceServer(
            "https://tap.example.com",
            lambda: gateway.hub.settings.access,
            dict,
            make_verifier=lambda access: Verifier(access, people),
        )

    async with tiny_issuer() as issuer:
        access = AccessSettings(
            oidc={"corp": OidcIssuer(issuer=issuer.url)}, rules=(AccessRule(name="all"),)
        )
        settings = [one.replace(access=access) for one in several(2)]
        sources = [TokenSources(AccessTokens(people.folder)) for people in machines]
        async with replicas(
            redis_server, *settings, sources=sources, resources=resources
        ) as opened:
            ann, bob = issuer.token(sub="ann"), issuer.token(sub="bob")
            client = await SessionClient(opened.port(1), bearer(ann)).shake_hands()
            other = await SessionClient(opened.port(1), bearer(bob)).shake_hands()
            client.port = opened.port(0)  # a session is known at all of them
            assert (await client.post(message(1, "ping"))).status == 200
            machines[0].revoke(PersonRecord(provider="corp", issuer=issuer.url, subject="ann"))
            for number in range(2):
                await until(
                    lambda number=number: (
                        {one.client.principal.subject for one in opened[number].front.sessions}
                        <= {"bob"}
                    )
                )
                await until_answered(opened.port(number), bearer(ann), 401)
            assert (await other.post(message(1, "ping"))).status == 200
            machines[1].revoke(
                PersonRecord(provider="corp", issuer=issuer.url, subject="ann"), undo=True
            )
            for number in range(2):
                await until_answered(opened.port(number), bearer(ann), 200)


async def until_answered(port, headers, status):
    with anyio.fail_after(PATIENCE):
        while True:
            async with dial(port) as line:
                if (await line.asks(stateless(1, "tools/list", headers=headers))).status == status:
                    return
            await anyio.sleep(0.05)


def calls_in_log(folder):
    """How many calls an audit log has."""
    try:
        found = [msgspec.json.decode(one.body) for one in AuditFile(folder).entries()]
    except sqlite3.OperationalError:  # it is being made
        return 0
    return len([one for one in found if one["kind"] == "call"])


async def test_all_replicas_write_one_audit_log_and_nothing_is_lost_or_doubled(
    redis_server, several, tmp_path
):
    async with replicas(redis_server, *several(2)) as opened:

        async def call(number, times):
            async with dial(opened.port(number)) as line:
                for request_id in range(times):
                    arguments = {"text": "hi"}
                    asked = stateless(
                        request_id, "tools/call", name="zoo_echo", arguments=arguments
                    )
                    assert (await line.asks(asked)).status == 200

        def written(number):
            return calls_in_log(tmp_path / f"s{number}")

        await call(0, 3)
        await call(1, 4)
        await until(lambda: written(0) + written(1) == 7)
        writer = 0 if written(0) else 1
        other = 1 - writer
        await call(writer, 2)
        await opened.end(writer)  # which has yet to write, or to send, its last entries
        await call(other, 2)
        await until(lambda: written(0) + written(1) == 11)

    assert AuditFile(tmp_path / "s0").verify()[0] == []
    assert AuditFile(tmp_path / "s1").verify()[0] == []


async def test_calls_at_a_replica_whose_disk_is_full_are_written_by_another_one(
    redis_server, several, tmp_path
):
    (tmp_path / "s0" / FILE_NAME).mkdir(parents=True)
    required = [one.replace(audit={"required": True}) for one in several(2)]
    async with replicas(redis_server, *required) as opened, dial(opened.port(0)) as line:
        for request_id in range(3):
            asked = stateless(request_id, "tools/call", name="zoo_echo", arguments={"text": "hi"})
            answer = await line.asks(asked)
            assert answer.text == "hi"
        await until(lambda: calls_in_log(tmp_path / "s1") == 3)
        await until(lambda: not opened[0].gateway.hub.store.warnings)


def test_a_batch_of_audit_entries_is_written_once(tmp_path):
    file = AuditFile(tmp_path)
    batches = [AuditBatch("a", ['{"kind":"call","at":1}']), AuditBatch("b", ['{"kind":"x"}'])]

    file.append(keep=1000, batches=batches)
    file.append(keep=1000, batches=[batches[1], AuditBatch("c", ['{"kind":"y"}'])])

    assert [one.body for one in file.entries()] == [
        '{"kind":"y"}',
        '{"kind":"x"}',
        '{"kind":"call","at":1}',
    ]
    assert file.verify()[0] == []
    file.close()
