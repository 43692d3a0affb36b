"""Clients of a gateway are asked to log in, or told how to."""

import anyio
import mcp_types as types
import msgspec
import pytest
from mcp import MCPError
from msgspec import Raw
from msgspec.structs import replace

from multitap import Handlers, HttpServer, Settings, open_hub
from multitap.config import OAuth
from multitap.control.actions import RemoteUser
from multitap.control.messages import PersonReply, ServerQuestion
from multitap.control.service import ControlService
from multitap.errors import MultitapError
from multitap.events import LinkState
from multitap.gateway.fronts.tokens import Token
from multitap.http.closed_ports import closed_ports
from multitap.trust.stored_logins import TokenStore
from tests.gateway.talking import Talker, gate
from tests.oauth.provider import Person, provided, visit
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.usefixtures("own_logins")


class Browsing(Talker):
    """A client whose person opens the pages that they are asked to open, or does not."""

    def __init__(self, tasks, *args, action="accept", **options):
        super().__init__(*args, **options)
        self._tasks = tasks
        self.action = action

    async def _elicit(self, _, params):
        self.asked.append(params)
        if self.action == "accept":
            self._tasks.start_soon(self._browse, params.url)
        return types.ElicitResult(action=self.action)

    async def _browse(self, page):
        await visit(page, follow=True)


def settings(provider, folder):
    return Settings(servers={"guarded": HttpServer(url=provider.url)}, state_dir=folder)


async def logged_out_after(provider, folder):
    """The provider's tools are known from a login that is no more."""
    async with open_hub(settings(provider, folder), handlers=Handlers(login=Person().login)) as hub:
        await until(lambda: hub.links["guarded"].state is LinkState.CONNECTED)
    provider.access.clear()
    provider.refresh.clear()


@pytest.mark.parametrize("era", ["old", "new"])
async def test_a_client_is_asked_to_log_in_and_its_call_succeeds(tmp_path, era):
    async with provided() as provider, anyio.create_task_group() as tasks:
        await logged_out_after(provider, tmp_path)
        async with (
            gate(settings(provider, tmp_path)) as gateway,
            Browsing(tasks, era, gateway.url) as talker,
        ):
            assert gateway.hub.links["guarded"].state is LinkState.NEEDS_AUTH
            with anyio.fail_after(PATIENCE):
                result = await talker.client.call_tool("guarded_whoami", {})

            assert result.content[0].text == "nobody"
            (asked,) = talker.asked
            assert "'guarded'" in asked.message
            assert asked.url.startswith(f"{provider.origin}/authorize")


@pytest.mark.parametrize(
    ("able", "token"),
    [pytest.param(False, False, id="cannot"), pytest.param(True, True, id="one-of-many")],
)
async def test_a_client_that_is_not_asked_learns_the_command(tmp_path, able, token):
    tokens = (Token(b"a-token-of-some-length", "ann"),) if token else ()
    async with provided() as provider, anyio.create_task_group() as tasks:
        await logged_out_after(provider, tmp_path)
        said = "a-token-of-some-length" if token else None
        async with (
            gate(settings(provider, tmp_path), tokens=tokens) as gateway,
            Browsing(tasks, "old", gateway.url, able=able, token=said) as talker,
        ):
            with pytest.raises(MCPError, match="run `multitap login guarded`"):
                await talker.client.call_tool("guarded_whoami", {})

            assert talker.asked == []


async def test_a_client_that_declines_learns_the_command_and_is_not_asked_again(tmp_path):
    async with provided() as provider, anyio.create_task_group() as tasks:
        await logged_out_after(provider, tmp_path)
        async with (
            gate(settings(provider, tmp_path)) as gateway,
            Browsing(tasks, "old", gateway.url, action="decline") as talker,
        ):
            for _ in range(2):
                with pytest.raises(MCPError, match="run `multitap login guarded`"):
                    await talker.client.call_tool("guarded_whoami", {})

            assert len(talker.asked) == 1


async def test_a_running_gateway_notices_logins_and_logouts_of_others(tmp_path):
    async with provided() as provider, gate(settings(provider, tmp_path)) as gateway:
        link = gateway.hub.links["guarded"]
        assert link.state is LinkState.NEEDS_AUTH
        elsewhere = tmp_path / "elsewhere"
        await logged_out_after(provider, elsewhere)
        store = TokenStore()
        kept = store.find("guarded", provider.url)
        provider.access[kept.secrets.access_token] = "read"
        store.save(kept)
        await until(lambda: link.state is LinkState.CONNECTED)

        store.remove("guarded", provider.url)
        await until(lambda: link.state is LinkState.NEEDS_AUTH)


async def test_nobody_is_asked_in_place_of_a_program_whose_issuer_changed(tmp_path):
    clients = {"ci": {"secret": "s3cret", "redirects": []}}
    alone = OAuth(grant="client_credentials", client_id="ci", client_secret="s3cret")
    async with (
        provided(clients=clients) as provider,
        provided(clients=clients) as other,
        anyio.create_task_group() as tasks,
    ):
        server = HttpServer(url=provider.url, oauth=alone)
        chosen = Settings(servers={"guarded": server}, state_dir=tmp_path)
        async with open_hub(chosen) as hub:
            await until(lambda: hub.links["guarded"].state is LinkState.CONNECTED)
        provider.access.clear()
        provider.resource = {"authorization_servers": [other.origin]}
        async with (
            gate(chosen) as gateway,
            Browsing(tasks, "old", gateway.url) as talker,
        ):
            link = gateway.hub.links["guarded"]
            assert link.state is LinkState.NEEDS_AUTH
            with pytest.raises(MCPError, match="run `multitap login guarded`"):
                await talker.client.call_tool("guarded_whoami", {})
            assert (talker.asked, other.forms) == ([], [])

            provider.resource = {}
            store = TokenStore()
            store.save(replace(store.find("guarded", provider.url), changed_at=1.0))
            await until(lambda: link.state is LinkState.CONNECTED)


@pytest.mark.parametrize("is_visited", [True, False], ids=["visited", "left"])
async def test_the_person_at_a_screen_logs_in_there(tmp_path, is_visited):
    async with provided() as provider, gate(settings(provider, tmp_path)) as gateway:
        assert gateway.hub.links["guarded"].state is LinkState.NEEDS_AUTH
        control = ControlService(gateway.gateway)
        ports = closed_ports()

        async def log_in(person):
            try:
                await control.login("guarded", person=person)
            finally:
                person.end()

        # a client that leaves before it answers does not block other logins
        for stays in (False, is_visited):
            await until(lambda: closed_ports() == ports)  # where the last one would come back to
            person = RemoteUser("console", can_answer=True)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(log_in, person)
                with anyio.fail_after(PATIENCE):
                    while not isinstance(question := await person.next(), ServerQuestion):
                        pass
                    if not stays:
                        tasks.cancel_scope.cancel()
                        continue
                    page = msgspec.json.decode(question.params)["url"]
                    person.on_reply(question.number, PersonReply(Raw(b'{"action":"accept"}')))
                    await visit(page, follow=True)
            await until(lambda: gateway.hub.links["guarded"].state is LinkState.CONNECTED)


async def test_an_answer_that_cannot_be_read_ends_only_the_login(tmp_path):
    failures = []
    async with provided() as provider, gate(settings(provider, tmp_path)) as gateway:
        person = RemoteUser("console", can_answer=True)

        async def log_in():
            try:
                await ControlService(gateway.gateway).login("guarded", person=person)
            except MultitapError as exc:
                failures.append(str(exc))
            finally:
                person.end()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log_in)
            with anyio.fail_after(PATIENCE):
                while not isinstance(question := await person.next(), ServerQuestion):
                    pass
                person.on_reply(question.number, PersonReply(Raw(b'{"action":1}')))

    assert "cannot log in" in failures[0]
