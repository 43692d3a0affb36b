"""Policies in a hub: what is not there, what is refused, and whom a call waits for."""

from itertools import product

import msgspec
import pytest
from mcp.server import MCPServer
from mcp_types import ToolAnnotations

from multitap import CallContext, LocalServer, Settings, open_hub
from multitap.config.policy_rules import PolicyRule
from multitap.errors import Denied, NotAllowed
from multitap.hub.routes import route_to
from multitap.principal import Principal, token_principal
from multitap.upstream.questions import Handlers


def files():
    server = MCPServer("files")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    def read(path: str) -> str:
        return f"read {path}"

    @server.tool()
    def write(path: str, password: str = "") -> str:
        return f"wrote {path}"

    return server


class Person:
    """Answers what they are asked, in turn."""

    def __init__(self, *answers):
        self.answers = [*answers]
        self.asked = []

    async def permit(self, request):
        self.asked.append(request)
        return self.answers.pop(0)

    @property
    def handlers(self):
        return Handlers(permit=self.permit)


def settings(tmp_path, *rules, shared=()):
    server = LocalServer(server=files(), policy=rules)
    return Settings(servers={"files": server}, policy=shared, state_dir=tmp_path)


def rule(decision, **fields):
    return PolicyRule(decision=decision, **fields)


async def test_a_tool_that_is_always_denied_is_neither_listed_nor_callable(tmp_path):
    async with open_hub(settings(tmp_path, rule("deny", tools=["write"]))) as hub:
        await hub.settled()

        assert [*hub.catalog.tools] == ["files_read"]
        for name in ("files_write", "write"):
            with pytest.raises(LookupError):
                await hub.call(name, {"path": "x"})


async def test_a_call_that_a_rule_denies_never_reaches_the_server(tmp_path):
    rules = [rule("deny", arguments={"path": {"matches": "secret"}}, reason="it is secret")]
    async with open_hub(settings(tmp_path, *rules)) as hub:
        await hub.settled()

        assert (await hub.call("files_read", {"path": "plain"})).text == "read plain"
        with pytest.raises(Denied, match="it is secret"):
            await hub.call("files_read", {"path": "my secret"})


async def test_a_call_that_nobody_can_be_asked_about_is_refused_with_the_rule(tmp_path):
    async with open_hub(settings(tmp_path, rule("ask"))) as hub:
        await hub.settled()

        with pytest.raises(Denied, match="needs a person's approval") as caught:
            await hub.call("files_read", {"path": "x"})
        assert caught.value.asks
        assert "policy explain" in caught.value.hint


async def test_a_person_is_asked_each_time_unless_they_say_always(tmp_path):
    person = Person("once", "no", "always")
    async with open_hub(settings(tmp_path, rule("ask")), handlers=person.handlers) as hub:
        await hub.settled()

        assert (await hub.call("files_read", {"path": "x"})).success
        with pytest.raises(Denied, match="refused"):
            await hub.call("files_read", {"path": "x"})
        assert (await hub.call("files_read", {"path": "x"})).success
        assert (await hub.call("files_read", {"path": "y"})).success
    assert len(person.asked) == 3


async def test_always_holds_for_one_tool_and_one_caller(tmp_path):
    person = Person("always", "no", "no")
    async with open_hub(settings(tmp_path, rule("ask")), handlers=person.handlers) as hub:
        await hub.settled()
        await hub.call("files_read", {"path": "x"})

        with pytest.raises(Denied):
            await hub.call("files_write", {"path": "x"})
        with pytest.raises(Denied):
            await hub.call("files_read", {"path": "x"}, context=CallContext(agent_id="other"))


async def test_the_person_sees_server_tool_and_arguments_without_secrets(tmp_path):
    person = Person("no")
    rules = [rule("ask", reason="writes")]
    async with open_hub(settings(tmp_path, *rules), handlers=person.handlers) as hub:
        await hub.settled()
        with pytest.raises(Denied):
            await hub.call("files_write", {"path": "a\x1b[2Jb", "password": "hunter2hunter2"})

    (asked,) = person.asked
    assert (asked.server, asked.tool, asked.reason) == ("files", "write", "writes")
    assert asked.arguments == {"path": "a�[2Jb", "password": "***"}


async def test_a_host_may_have_asked_before(tmp_path):
    async with open_hub(settings(tmp_path, rule("ask"))) as hub:
        await hub.settled()

        context = CallContext(approved=True)
        assert (await hub.call("files_read", {"path": "x"}, context=context)).success


async def test_a_changed_policy_holds_at_once_and_restarts_no_server(tmp_path):
    person = Person("always", "no")
    before = settings(tmp_path, shared=[rule("ask", tools=["read"])])
    async with open_hub(before, handlers=person.handlers) as hub:
        await hub.settled()
        await hub.call("files_read", {"path": "x"})
        link = hub.links["files"]

        hub.apply(before.replace(policy=(rule("deny", tools=["write"]),)))

        assert hub.links["files"] is link
        assert [*hub.catalog.tools] == ["files_read"]
        with pytest.raises(NotAllowed, match="denied by the policy"):
            await hub.call("files_write", {"path": "x"})
        hub.apply(before)
        with pytest.raises(Denied):
            await hub.call("files_read", {"path": "x"})


async def test_a_rule_of_a_server_holds_before_its_successor_is_up(tmp_path):
    before = settings(tmp_path)
    async with open_hub(before) as hub:
        await hub.settled()
        changed = before.servers["files"].replace(policy=(rule("deny"),))

        hub.apply(before.replace(servers={"files": changed}))

        assert not hub.catalog.tools


async def test_the_person_sees_what_the_rule_looked_at_and_how_much_is_left_out(tmp_path):
    person = Person("no")
    rules = [rule("ask", arguments={"path": {"matches": "etc"}})]
    filler = {f"name{number}": "x" * 500 for number in range(60)}
    async with open_hub(settings(tmp_path, *rules), handlers=person.handlers) as hub:
        await hub.settled()
        with pytest.raises(Denied):
            await hub.call("files_write", {**filler, "path": "/etc/passwd"})

    (asked,) = person.asked
    (first, *_, (left, words)) = asked.arguments.items()
    assert first == ("path", "/etc/passwd")
    assert left == f"… {61 - len(asked.arguments) + 1} more arguments"
    assert "characters): name" in words


async def test_rules_are_about_calls_and_not_about_resources_and_prompts(tmp_path):
    server = files()

    @server.resource("notes://today")
    def today() -> str:
        return "a note"

    @server.prompt()
    def greet() -> str:
        return "hello"

    local = LocalServer(server=server, policy=[rule("deny")])
    async with open_hub(Settings(servers={"files": local}, state_dir=tmp_path)) as hub:
        await hub.settled()

        assert not hub.catalog.tools
        assert (await hub.read("notes://today")).contents[0].text == "a note"
        assert (await hub.prompt("files_greet")).messages[0].content.text == "hello"


class Caller(msgspec.Struct, frozen=True):
    """A client of the stateless era, as far as permissions look at it."""

    principal: Principal = token_principal("ann")
    holder: str = "10.0.0.1"
    drives_rounds: bool = True

    @property
    def owner(self):
        return self

    slot_holder = caller = ""


def question(state):
    return msgspec.json.encode({"resultType": "input_required", "requestState": state})


ROUND = {
    "principal": token_principal("ann"),
    "holder": "10.0.0.1",
    "tool": "one_read",
    "arguments": b'{"path":"x"}',
    "state": "s",
}
OTHERS = {
    "principal": token_principal("bob"),
    "holder": "10.0.0.2",
    "tool": ["one_write", "two_read"],
    "arguments": [b'{"path":"y"}', b'{"path": "x"}', b"{}"],
    "state": ["t", "", None],
}


async def test_only_the_same_call_of_the_same_client_continues_with_the_same_state(tmp_path):
    person = Person(*["once"] * 1000)
    servers = {name: LocalServer(server=files()) for name in ("one", "two")}
    stage = Settings(servers=servers, policy=(rule("ask"),), state_dir=tmp_path)
    choices = [
        [value, *(other if isinstance(other, list) else [other])]
        for value, other in zip(ROUND.values(), OTHERS.values(), strict=True)
    ]
    async with open_hub(stage, handlers=person.handlers) as hub:
        await hub.settled()
        permissions = hub.calls.permissions

        def placed(principal, holder, tool, arguments, state):
            route = route_to(hub.catalog.tools[tool], hub.gateway_defaults)
            context = CallContext(client=Caller(principal, holder))
            extra = b"" if state is None else b',"requestState":%b' % msgspec.json.encode(state)
            return route, route.guard.decide(arguments), arguments, context, extra

        async def is_asked(*values):
            before = len(person.asked)
            await permissions.ask(*placed(*values))
            return len(person.asked) > before

        route, _, arguments, context, _ = placed(*ROUND.values())
        await permissions.expect_answer(route, arguments, context, question("s"))
        wrong = [values for values in product(*choices) if [*values] != [*ROUND.values()]]
        skipped = [values for values in wrong if not await is_asked(*values)]
        right = [await is_asked(*ROUND.values()) for _ in range(3)]

    assert skipped == []
    assert right == [False, True, True]
