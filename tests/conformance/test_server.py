import pytest

from tests.conformance.expected import GATEWAY
from tests.conformance.running import everything_server, gateway, over_stdio
from tests.conformance.suite import NEW, OLD, failed, run_server_suite

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(300)]

versions = pytest.mark.parametrize(("spec_version", "scenarios"), [(OLD, 33), (NEW, 40)])


@pytest.fixture(scope="module")
async def alone(kit, tmp_path_factory):
    async with everything_server(kit, tmp_path_factory.mktemp("alone")) as url:
        yield url


@pytest.fixture(scope="module", params=["http", "stdio"])
async def behind_us(request, kit, alone, tmp_path_factory):
    server = f'url = "{alone}"' if request.param == "http" else over_stdio(kit)
    async with gateway(server, tmp_path_factory.mktemp(request.param)) as url:
        yield url


@pytest.mark.wide
@versions
async def test_the_server_alone_conforms(kit, alone, tmp_path, spec_version, scenarios):
    scores = await run_server_suite(kit, alone, spec_version, tmp_path)

    assert failed(scores) == {}
    assert len(scores) == scenarios


@versions
async def test_the_server_behind_us_conforms(kit, behind_us, tmp_path, spec_version, scenarios):
    scores = await run_server_suite(kit, behind_us, spec_version, tmp_path)

    assert failed(scores).keys() == scores.keys() & GATEWAY.keys(), failed(scores)
    assert len(scores) == scenarios
