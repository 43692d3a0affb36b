import pytest

from tests.conformance.expected import CLIENT
from tests.conformance.suite import NEW, OLD, failed, run_client_suite

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("spec_version", "scenarios"), [(OLD, 19), (NEW, 33)])
async def test_a_hub_is_a_conforming_client(kit, tmp_path, spec_version, scenarios):
    scores = await run_client_suite(kit, spec_version, tmp_path)

    assert failed(scores).keys() == scores.keys() & CLIENT.keys(), failed(scores)
    assert len(scores) == scenarios
