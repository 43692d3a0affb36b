"""Sessions, answers and lists of one client in the hands of another."""

import json
from itertools import count

import anyio

from multitap.config import Profile
from multitap.gateway.fronts.tokens import Token
from tests.gateway.hostile.raw import call, hello, http, in_session, message, stateless
from tests.gateway.hostile.stage import BEARER, OTHER_BEARER, TOKENS, open_stage

ANN, BOB = {"authorization": BEARER}, {"authorization": OTHER_BEARER}


async def opened(line, headers):
    return (await line.asks(http(body=hello(), **headers))).headers["mcp-session-id"]


async def test_cve_2026_52869_a_session_is_of_no_use_to_another_principal(tmp_path):
    async with open_stage(tmp_path, tokens=TOKENS) as stage, stage.dial() as line:
        session = await opened(line, ANN)
        for attempt in (
            in_session(session, message(1, "tools/list"), **BOB),
            in_session(session, call(2, "echo", said=1), **BOB),
            http("GET", mcp_session_id=session, **BOB),
            http("DELETE", mcp_session_id=session, **BOB),
            http("POST", f"/messages?session_id={session}", body=hello(), **BOB),
        ):
            assert (await line.asks(attempt)).status == 404
        without = await stage.turns_away(in_session(session, message(3, "ping")))

        assert without == 401
        assert (await line.asks(in_session(session, message(4, "ping"), **ANN))).status == 200


async def test_cve_2026_25536_answers_with_the_same_ids_reach_their_own_clients(tmp_path):
    async with open_stage(tmp_path, tokens=TOKENS) as stage:

        async def talk(headers, name):
            async with stage.dial() as line:
                session = await opened(line, headers)
                for number in range(1, 40):  # the same ids for everybody
                    said = f"{name} {number}"
                    asked = in_session(session, call(number, "echo", said=said), **headers)
                    assert json.loads((await line.asks(asked)).text) == said
                    modern = stateless(
                        number, "tools/call", name="counts_echo", arguments={"said": said},
                        headers=headers,
                    )  # fmt: skip
                    assert json.loads((await line.asks(modern)).text) == said

        async with anyio.create_task_group() as tasks:
            for headers, name in ((ANN, "a"), (BOB, "b"), (ANN, "c"), (BOB, "d")):
                tasks.start_soon(talk, headers, name)


async def test_lists_are_kept_apart_by_what_each_principal_may_see(tmp_path):
    tokens = (TOKENS[0], Token(TOKENS[1].secret, "bob", "little"))
    profiles = {"little": Profile(servers=("asks",))}
    async with (
        open_stage(tmp_path, tokens=tokens, profiles=profiles) as stage,
        stage.dial() as line,
    ):
        for _ in range(3):  # one connection, as through a proxy
            seen = [
                (await line.asks(stateless(1, "tools/list", headers=headers))).message["result"]
                for headers in (ANN, BOB)
            ]
            assert [len(one["tools"]) for one in seen] == [14, 7]
            assert {one["cacheScope"] for one in seen} == {"private"}


async def test_cve_2026_19516_an_invented_session_is_not_accepted(tmp_path):
    async with open_stage(tmp_path) as stage, stage.dial() as line:
        for invented in ("1", "default", "00000000-0000-0000-0000-000000000000", "x" * 32, ""):
            asked = in_session(invented, message(1, "tools/list"))
            assert (await line.asks(asked)).status == 404
            answer = await line.asks(in_session(invented, hello()))
            assert answer.headers["mcp-session-id"] != invented


ROUTING = (
    *("router-key", "mcp-router-key", "x-mcp-router-key", "x-internal-key", "x-multitap-internal"),
    *("x-forwarded-user", "x-forwarded-host", "x-original-authority", "x-mcp-session-id"),
    *("x-mcp-servername", "x-user-id", "x-remote-user", "proxy-authorization", "x-principal"),
)
"""By which other gateways talk to themselves, or believe what a proxy says."""


async def test_ghsa_g53w_w6mj_hrpp_no_header_takes_the_place_of_a_token(tmp_path):
    async with open_stage(tmp_path, tokens=TOKENS) as stage, stage.dial() as line:
        session = await opened(line, ANN)
        for value in (BEARER.removeprefix("Bearer "), "secret", "internal", session):
            claims = {name.replace("-", "_"): value for name in ROUTING}
            asked = in_session(session, message(1, "tools/list"), **claims)
            assert await stage.turns_away(asked) == 401
            other = in_session(session, message(2, "tools/list"), **BOB, **claims)
            assert (await line.asks(other)).status == 404


async def test_cve_2026_59951_sessions_are_bounded(tmp_path):
    async with open_stage(tmp_path) as stage, stage.dial() as line:
        for _ in range(3 * stage.front.sessions.limits.most):
            answer = await line.asks(http(body=hello()))
            assert answer.status in {200, 503}

        assert len(stage.front.sessions) <= stage.front.sessions.limits.most


async def test_cve_2026_27896_fields_are_known_by_their_exact_names(tmp_path):
    numbers = count(1)
    async with open_stage(tmp_path) as stage, stage.dial() as line:
        session = await opened(line, {})
        for wrong in ("Method", "METHOD", "mEthod"):
            said = call(next(numbers), "echo", said=1)
            said[wrong] = said.pop("method")
            answer = await line.asks(in_session(session, said))
            assert b'"result"' not in answer.body
        both = {**call(next(numbers), "echo", said=1), "Method": "tools/list", "Params": {}}
        assert (await line.asks(in_session(session, both))).text == "1"


async def test_a_ticket_of_another_gateway_is_none(tmp_path):
    able = {"elicitation": {}}

    def ask(**more):
        return stateless(1, "tools/call", name="asks_ask", arguments={}, able=able, **more)

    async with open_stage(tmp_path / "a") as one, open_stage(tmp_path / "b") as other:
        async with one.dial() as line:
            ticket = (await line.asks(ask())).message["result"]["requestState"]
        async with other.dial() as line:
            told = (await line.asks(ask(requestState=ticket, inputResponses={}))).message

    assert told["error"]["data"]["reason"] == "invalid_request_state"
