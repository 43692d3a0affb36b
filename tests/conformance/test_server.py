import pytest

from tests.conformance.expected import BARE_LIST, GATEWAY
from tests.conformance.running import (
    everything_server,
    gateway,
    over_stdio,
    skill_server,
    task_server,
)
from tests.conformance.suite import NEW, OLD, failed, run_server_suite

pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.timeout(300)]

STUB = "tasks-status-notifications"
versions = pytest.mark.parametrize(("spec_version", "scenarios"), [(OLD, 33), (NEW, 40)])


@pytest.fixture(scope="module")
async def alone(kit, tmp_path_factory):
    async with everything_server(kit, tmp_path_factory.mktemp("alone")) as url:
        yield url


@pytest.fixture(scope="module", params=["http", "stdio"])
async def behind_us(request, kit, alone, tmp_path_factory):
    server = f'url = "{alone}"' if request.param == "http" else over_stdio(kit)
    async with gateway(tmp_path_factory.mktemp(request.param), everything=server) as url:
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


@pytest.mark.wide
async def test_our_server_with_tasks_conforms_alone(kit, tmp_path):
    async with task_server("new", tmp_path) as url:
        scores = await run_server_suite(kit, url, None, tmp_path)
    tasks = {name: score for name, score in scores.items() if name.startswith("tasks-")}

    assert failed(tasks) == {}
    # the last one is a stub of the suite, which checks nothing yet
    assert [name for name, score in tasks.items() if not score.passed] == [STUB]
    assert len(tasks) == 10


@pytest.mark.parametrize("dialect", ["old", "new"])
async def test_servers_behind_us_conform_in_all_scenarios(kit, alone, tmp_path, dialect):
    async with task_server(dialect, tmp_path) as tasks:
        servers = {"everything": f'url = "{alone}"', "tasks": f'url = "{tasks}"'}
        async with gateway(tmp_path, **servers, skills=skill_server()) as url:
            scores = await run_server_suite(kit, url, None, tmp_path)

    assert failed(scores).keys() == BARE_LIST.keys(), failed(scores)
    assert [name for name, score in scores.items() if not score.passed] == [STUB]
    assert len(scores) == 65
