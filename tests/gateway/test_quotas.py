"""What a client may use in an hour and a day, over restarts and replicas."""

import pytest

from multitap import Settings
from multitap.cluster.local_coordinator import LocalCoordinator
from multitap.config.models import Quota, Serve
from multitap.gateway.fronts.tokens import Token
from multitap.gateway.quotas import Quotas
from multitap.wire.jsonrpc import RpcError
from tests.gateway.hostile.raw import dial, stateless
from tests.gateway.talking import gate, zoo

ANN, BOB = Token(b"a-secret-of-some-length", "ann"), Token(b"another-secret-of-bob", "bob")
NOON = 1_800_000_000 - 1_800_000_000 % 86_400 + 12 * 3600.0


def call(token, number=1):
    headers = {"authorization": f"Bearer {token.secret.decode()}"}
    arguments = {"text": "hi"}
    return stateless(number, "tools/call", name="z_echo", arguments=arguments, headers=headers)


async def test_a_client_that_used_its_quota_is_told_so_even_after_a_restart(
    tmp_path,
):
    settings = Settings(
        servers={"z": zoo()}, state_dir=tmp_path, serve=Serve(quota=Quota(calls_per_day=2))
    )
    for calls in (2, 0):
        async with (
            gate(settings, tokens=(ANN, BOB)) as opened,
            dial(int(opened.url.rpartition(":")[2].removesuffix("/mcp"))) as line,
        ):
            for number in range(calls):
                assert (await line.asks(call(ANN, number))).status == 200
            refused = await line.asks(call(ANN, 7))
            if calls:
                assert (await line.asks(call(BOB))).status == 200

        assert refused.status == 429
        error = refused.message["error"]
        assert error["message"].startswith("the quota of 2 calls per day is used up: wait ")
        assert error["data"]["reason"] == "quota"
        assert refused.headers["retry-after"] == str(error["data"]["retryAfter"])


class Clock:
    now = NOON

    def __call__(self):
        return self.now


async def use(quotas, principal="ann", size=0):
    await quotas.admit(principal)
    await quotas.on_result(principal, size)


async def test_the_next_hour_begins_with_a_full_quota(tmp_path):
    clock = Clock()
    quotas = Quotas(Quota(calls_per_hour=1, calls_per_day=2), tmp_path / "q", clock=clock)
    await use(quotas)
    with pytest.raises(RpcError, match="1 calls per hour is used up: wait 3600 s"):
        await use(quotas)
    clock.now += 3600
    await use(quotas)
    clock.now += 3600
    with pytest.raises(RpcError, match="2 calls per day"):
        await use(quotas)


async def test_results_count_by_their_size(tmp_path):
    quotas = Quotas(Quota(bytes_per_hour=100), tmp_path / "q", clock=Clock())
    await use(quotas, size=99)
    await use(quotas, size=500)
    await use(quotas, "bob", size=1)
    with pytest.raises(RpcError, match="100 bytes of results per hour"):
        await use(quotas)


async def test_replicas_count_together(tmp_path):
    shared = LocalCoordinator()
    one, two = (Quotas(Quota(calls_per_day=2), tmp_path / "q", shared) for _ in range(2))
    await use(one)
    await use(two)
    with pytest.raises(RpcError, match="used up"):
        await use(one)


def test_a_file_that_cannot_be_read_does_not_stop_a_gateway(tmp_path, caplog):
    (tmp_path / "q").write_text("{")

    assert Quotas(Quota(calls_per_day=2), tmp_path / "q").is_limited
    assert "cannot be read" in caplog.text
