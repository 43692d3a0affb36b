"""What a screen learns and decides about access: tokens, pins, open questions, the audit log."""

from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest
from msgspec import Raw

from multitap import Settings, open_hub
from multitap.config.access import AccessSettings, OidcIssuer
from multitap.config.policy_rules import PolicyRule
from multitap.config.sources import state_directory
from multitap.control.service import ControlService
from multitap.errors import BadArguments, Denied, MultitapError, UnknownName
from multitap.gateway.client import Client
from multitap.gateway.gateway import open_gateway
from multitap.http.server.request import EventWriter
from multitap.identity.people import People, PersonRecord
from multitap.principal import token_principal
from multitap.screens.view import RecentCalls, client_rows
from tests.gateway.talking import PATIENCE, zoo
from tests.waiting import until

ASK = PolicyRule(decision="ask", tools=["add"], reason="sums are serious")
YES = Raw(b'{"action":"accept","content":{"decision":"once"}}')


@pytest.fixture(autouse=True)
def own_place(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "log"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@asynccontextmanager
async def open_desk(**settings):
    wanted = Settings(state_dir=state_directory(), **settings)
    async with open_gateway(lambda host: open_hub(wanted, handlers=host)) as gateway:
        with anyio.fail_after(PATIENCE):
            await gateway.hub.settled()
        yield ControlService(gateway)


async def test_tokens_are_created_shown_without_their_secret_and_revoked():
    async with open_desk() as control:
        made = await control.create_token("ci", allow=("a_*",), rate="5/s")
        before = (await control.access()).tokens[-1]
        assert await control.revoke_token(made.id) == [made.id]
        after = (await control.access()).tokens[-1]
        seen = msgspec.json.encode((before, after))

        assert (before.name, before.state, after.state) == ("ci", "active", "revoked")
        assert (before.allow, before.rate) == (("a_*",), "5/s")
        assert made.token.rpartition("_")[2].encode() not in seen
        assert made.token not in repr(made)
        rows = (await control.audit("kind:token.*")).records
        assert [row.record.kind for row in rows] == ["token.revoked", "token.created"]
        assert made.id in rows[0].record.detail


async def test_people_are_shown_with_their_rules_and_clients_and_can_be_revoked():
    issuer = "https://login.example.com"
    People().note(
        [
            PersonRecord(
                provider="corp", issuer=issuer, subject="ann", clients={"c": 1.0}, rules=("d",)
            )
        ]
    )
    access = AccessSettings(oidc={"corp": OidcIssuer(issuer=issuer)})
    async with open_desk(access=access) as control:
        (before,) = (await control.access()).people
        await control.revoke_person("corp:ann")
        (after,) = (await control.access()).people
        await control.revoke_person("corp:ann", undo=True)
        (restored,) = (await control.access()).people

        assert (before.label, before.rules, before.clients) == ("corp:ann", ("d",), ("c",))
        assert [before.state, after.state, restored.state] == ["active", "revoked", "active"]
        with pytest.raises(UnknownName):
            await control.revoke_person("corp:nobody")
    async with open_desk() as control:
        assert (await control.access()).people == ()


async def test_a_client_is_shown_with_the_name_of_its_token():
    async with open_desk() as control:
        made = await control.create_token("laptop")
        client = Client(EventWriter(), principal=token_principal(made.id))
        client.introduce("2025-11-25", Raw(b"{}"), {"name": "editor", "version": "1"})
        control.gateway.subscriptions.on_joined(client)

        (row,) = client_rows(await control.figures(), RecentCalls())

        assert (row.name, row.principal) == ("editor", "laptop")
        assert row.caller == f"editor 1 ({made.id})"


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (lambda control: control.create_token("no spaces please"), MultitapError),
        (lambda control: control.create_token("ci", profile="missing"), UnknownName),
        (lambda control: control.create_token("ci", rate="fast"), BadArguments),
        (lambda control: control.create_token("ci", lasts=-1), BadArguments),
        (lambda control: control.revoke_token("nobody"), UnknownName),
        (lambda control: control.accept_pins("nobody", ""), UnknownName),
        (lambda control: control.switch("nobody", on=True), MultitapError),
        (lambda control: control.console(), MultitapError),
    ],
)
async def test_what_cannot_be_done_is_refused_with_a_reason(ask, error):
    async with open_desk() as control:
        with pytest.raises(error):
            await ask(control)


async def test_a_changed_tool_is_shown_and_accepted_as_it_was_shown(tmp_path):
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    server = zoo("rug_pull", env={"ZOO_DIR": str(ledger)}, provenance="registry")
    async with open_desk(servers={"zoo": server}) as control:
        hub = control.gateway.hub
        await hub.call("zoo_fault")
        await until(lambda: "zoo_echo" not in hub.catalog.tools)
        with anyio.fail_after(PATIENCE):
            while not (pins := (await control.access()).pins):
                await anyio.sleep(0)
        review = pins[0]
        with pytest.raises(MultitapError, match="changed again since you looked"):
            await control.accept_pins("zoo", "another")
        await control.accept_pins("zoo", review.digest)
        await until(lambda: "zoo_echo" in hub.catalog.tools)

        assert (review.server, review.tools[0].tool, review.tools[0].change) == (
            "zoo",
            "echo",
            "changed",
        )
        assert any(line.startswith("+") for line in review.tools[0].difference)
        assert (await control.access()).pins == ()
        kinds = (await control.audit("server:zoo kind:pins*")).records
        assert kinds[0].record.detail.startswith("echo ")


async def test_a_call_that_needs_a_word_waits_for_a_person_at_a_screen():
    async with open_desk(servers={"zoo": zoo()}, policy=(ASK,)) as control:
        hub = control.gateway.hub
        results = []

        async def call():
            results.append(await hub.call("zoo_add", {"a": 2, "b": 3}))

        with pytest.raises(Denied, match="nobody can be asked"):
            await call()
        assert await control.questions() == []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            question = await open_question(control)
            assert await control.answer_question(question.number, YES)
        assert not await control.answer_question(question.number, YES)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refuse_next, control)
            with pytest.raises(Denied, match="a person refused"):
                await call()

    assert (question.kind, question.server) == ("policy", "zoo")
    assert "sums are serious" in msgspec.json.decode(question.params)["message"]
    assert [result.text for result in results] == ["5"]


async def open_question(control):
    with anyio.fail_after(PATIENCE):
        while not (found := await control.questions()):
            await anyio.sleep(0)
    return found[0]


async def refuse_next(control):
    question = await open_question(control)
    await control.answer_question(question.number, error="no")


async def test_a_call_that_is_given_up_takes_its_question_along():
    async with open_desk(servers={"zoo": zoo()}, policy=(ASK,)) as control:
        await control.questions()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(control.gateway.hub.call, "zoo_add", {"a": 2, "b": 3})
            await open_question(control)
            tasks.cancel_scope.cancel()

        assert await control.questions() == []


async def test_the_pulse_has_no_long_contents_and_they_are_found_at_once():
    async with open_desk(servers={"zoo": zoo()}, record="all") as control:
        await control.gateway.hub.call("zoo_echo", {"text": "hello"})
        pulse = await control.pulse()
        kept = await control.exchange(pulse.records[0].exchange)
        page = await control.calls("tool:echo")

    assert '"hello"' in kept.arguments
    assert page.records[0].exchange == kept.id


async def test_a_server_is_switched_by_the_owner_of_its_file():
    switched = []

    class Editor:
        async def switch(self, server, *, on):
            switched.append((server, on))

    async with open_desk(servers={"zoo": zoo()}) as control:
        owned = ControlService(control.gateway, editor=Editor)
        with pytest.raises(MultitapError, match="the gateway has no files to reload"):
            await owned.switch("zoo", on=False)

    assert switched == [("zoo", False)]
