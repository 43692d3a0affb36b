"""A sign-in at replicas of a cluster: each request reaches another one, and Redis has the rest."""

import uuid
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from multitap.cluster.redis_coordinator import open_redis
from multitap.config.access import RegisteredClient
from multitap.identity.access_tokens import TokenRefused
from tests.authorization.organisation import Browser, answer_in, sign_ins
from tests.authorization.test_id_jag import KNOWN, SECRET, ask, assertion
from tests.cluster.redis_server import running_redis

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def redis_server():
    with running_redis() as server:
        yield server


@asynccontextmanager
async def replicas(folder, server):
    namespace = uuid.uuid4().hex
    async with AsyncExitStack() as opened:
        coordinators = [
            await opened.enter_async_context(open_redis(server.url, namespace=namespace))
            for _ in range(3)
        ]
        clients = {KNOWN: RegisteredClient(client_secret=SECRET)}
        shared = [coordinator.records for coordinator in coordinators]
        yield await opened.enter_async_context(sign_ins(folder, shared=shared, clients=clients))


@pytest.fixture
async def front(tmp_path, redis_server):
    async with replicas(tmp_path, redis_server) as opened:
        yield opened


async def at_once(count, work):
    """What comes of requests at the same time."""
    outcomes = []

    async def run():
        outcomes.append(await work())

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(run)
    return outcomes


async def test_every_step_of_a_sign_in_may_reach_another_replica(front):
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    for _ in range(4):
        verified = await front.server.verify(tokens["access_token"], [f"{front.url}/mcp"])
        status, tokens = await front.refresh(client_id, tokens["refresh_token"])

        assert (status, verified.subject) == (200, "alice")


async def test_a_code_counts_once_at_all_replicas_together(front):
    client_id = await front.register()
    form = front.code_form(client_id, await front.code(client_id))

    outcomes = await at_once(9, lambda: front.post("/token", form))

    given = [answer["access_token"] for status, answer in outcomes if status == 200]
    assert len(given) <= 1
    for token in given:  # somebody copied the code: nothing of it is worth anything
        with pytest.raises(TokenRefused):
            await front.server.verify(token, [f"{front.url}/mcp"])


async def test_a_refresh_token_counts_once_at_all_replicas_together(front):
    client_id = await front.register()
    tokens = await front.tokens(client_id)

    outcomes = await at_once(9, lambda: front.refresh(client_id, tokens["refresh_token"]))

    assert [status for status, _ in outcomes].count(200) <= 1
    assert len([form for form in front.organisation.forms if "refresh_token" in form]) == 1


async def test_a_stolen_refresh_token_ends_its_family_at_all_replicas(front):
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    _, renewed = await front.refresh(client_id, tokens["refresh_token"])
    stolen = await front.refresh(client_id, tokens["refresh_token"])

    assert (stolen[0], stolen[1]["error"]) == (400, "invalid_grant")
    for _ in range(3):
        assert (await front.refresh(client_id, renewed["refresh_token"]))[0] == 400


async def test_an_assertion_counts_once_at_all_replicas_together(front):
    token = assertion(front)

    outcomes = await at_once(9, lambda: ask(front, token))

    assert sorted(status for status, _ in outcomes) == [200, *[400] * 8]


async def test_an_answer_of_the_provider_counts_once_at_all_replicas_together(front):
    question = front.question(await front.register())
    async with Browser() as browser:
        page = await front.agree(browser, question)
        location = (await browser.open(page.onward)).headers["location"]
        backs = await at_once(9, lambda: browser.open(location))

    assert sorted(back.status for back in backs) == [302, *[403] * 8]


async def test_a_consent_of_one_browser_is_refused_in_another_at_every_replica(front):
    question = front.question(await front.register())
    async with Browser() as attacker, Browser() as victim:
        page = await front.agree(attacker, question)
        location = (await victim.open(page.onward)).headers["location"]
        for _ in range(3):
            assert (await victim.open(location)).status == 403
        back = await attacker.open(location)

    assert "code" in answer_in(back)


async def test_without_the_shared_records_nothing_is_accepted(tmp_path):
    """Nobody knows then whether an assertion or a code was used before."""
    with running_redis() as server:
        async with replicas(tmp_path, server) as front:
            client_id = await front.register()
            form = front.code_form(client_id, await front.code(client_id))
            server.stop()
            refused = [await ask(front, assertion(front)), await front.post("/token", form)]

    assert [(status, answer["error"]) for status, answer in refused] == [
        (503, "temporarily_unavailable")
    ] * 2


async def test_nothing_in_the_shared_records_can_be_read_without_the_key(front, redis_server):
    client_id = await front.register()
    tokens = await front.tokens(client_id)
    async with open_redis(redis_server.url, namespace="any") as other:
        keys = await other.records._line.client.keys("*")
        values = [await other.records._line.client.get(key) for key in keys]
    stored = b" ".join([*keys, *filter(None, values)])

    assert keys
    secret = (tokens["access_token"], tokens["refresh_token"], *front.organisation.issued)
    for text in ("alice", client_id, *secret):
        assert text.encode() not in stored
