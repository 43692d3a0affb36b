"""Changes of logins by other processes."""

import anyio
import pytest

from multitap import Handlers, HttpServer, Settings, open_hub
from multitap.events import FailureCode, LinkState
from multitap.oauth.storage import Logins
from tests.oauth.provider import Person, provided
from tests.waiting import PATIENCE, until


def settings(provider, folder, **config):
    servers = {"guarded": HttpServer(url=provider.url, **config)}
    return Settings(servers=servers, state_dir=folder)


def state(hub):
    return hub.links["guarded"].state


async def test_a_server_that_waits_for_a_login_delays_nobody(tmp_path):
    asked = anyio.Event()

    async def never(_origin, _address):
        asked.set()
        await anyio.sleep_forever()

    async with (
        provided() as provider,
        open_hub(settings(provider, tmp_path), handlers=Handlers(login=never)) as hub,
    ):
        with anyio.fail_after(PATIENCE):
            await hub.settled()
            await asked.wait()

        failure = hub.snapshot().server("guarded").failure
        assert (state(hub), failure.message) == (LinkState.NEEDS_AUTH, "waiting for a login")


async def test_a_server_connects_when_its_person_has_logged_in_and_stays_so(tmp_path):
    person = Person()
    async with (
        provided() as provider,
        open_hub(settings(provider, tmp_path), handlers=Handlers(login=person.login)) as hub,
    ):
        await until(lambda: state(hub) is LinkState.CONNECTED)
        hub.restart("guarded")
        await hub.settled()
        assert (await hub.call("guarded_whoami")).success

    assert len(person.asked) == 1


async def test_who_refused_is_asked_again_when_somebody_restarts_the_server(tmp_path):
    person = Person()
    async with (
        provided(refusal="access_denied") as provider,
        open_hub(settings(provider, tmp_path), handlers=Handlers(login=person.login)) as hub,
    ):

        def refused():
            failure = hub.snapshot().server("guarded").failure
            return failure is not None and "access_denied" in failure.message

        await until(refused)
        await hub.settled()
        assert (state(hub), len(person.asked)) == (LinkState.NEEDS_AUTH, 1)

        provider.refusal = None
        hub.restart("guarded")
        await until(lambda: state(hub) is LinkState.CONNECTED)

    assert len(person.asked) == 2


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"oauth": False}, id="never"),
        pytest.param({"headers": {"authorization": "Bearer mine"}}, id="own-token"),
    ],
)
async def test_nobody_is_asked_to_log_in_where_that_is_not_wanted(tmp_path, config):
    person = Person()
    async with (
        provided() as provider,
        open_hub(
            settings(provider, tmp_path, **config), handlers=Handlers(login=person.login)
        ) as hub,
    ):
        await hub.settled()
        failure = hub.snapshot().server("guarded").failure

    assert failure.code is FailureCode.AUTH
    assert person.asked == []


async def test_a_login_of_another_process_is_found_although_memory_was_short(tmp_path, monkeypatch):
    failed = anyio.Event()

    async def fail(_logins):
        failed.set()
        raise MemoryError

    async with provided() as provider, open_hub(settings(provider, tmp_path / "one")) as hub:
        await until(lambda: state(hub) is LinkState.NEEDS_AUTH)
        other = open_hub(
            settings(provider, tmp_path / "other"), handlers=Handlers(login=Person().login)
        )
        with monkeypatch.context() as short:
            short.setattr(Logins, "reload", fail)
            async with other as logged_in:
                await until(lambda: state(logged_in) is LinkState.CONNECTED)
                with anyio.fail_after(PATIENCE):
                    await failed.wait()

        await until(lambda: state(hub) is LinkState.CONNECTED)
