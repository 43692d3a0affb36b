import pytest

from tests.conformance.expected import CLIENT
from tests.conformance.suite import NEW, OLD, failed, run_client_suite

pytestmark = [
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("own_logins"),
]


@pytest.mark.parametrize(
    ("spec_version", "scenarios"),
    [
        pytest.param(OLD, 19, id=OLD),
        pytest.param(NEW, 33, id=NEW),
        pytest.param(None, 48, id="all"),
    ],
)
async def test_a_hub_is_a_conforming_client(kit, tmp_path, spec_version, scenarios):
    scores = await run_client_suite(kit, spec_version, tmp_path)

    assert failed(scores).keys() == scores.keys() & CLIENT.keys(), failed(scores)
    assert len(scores) == scenarios
